"""The crowd as a source: those who take part give each other what the server gave any of them.

A fluid model, moved on once a tick: what all of a file's crowd can give is shared out equally among
those who lack something of what the crowd has. No client gives after its own end, and the server's
pieces are the rarest first, so that no two of them are the same until each was sent once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from .outcome import SimClient


@dataclass(slots=True)
class PeerCrowd:
    """Who wants one file now, and how many of its bytes they have among them."""

    size_bytes: int
    members: dict[int, SimClient] = field(default_factory=dict)
    origin_bytes: float = 0.0

    @property
    def union_bytes(self) -> float:
        """What at least one of them has."""
        return min(float(self.size_bytes), self.origin_bytes)


class PeerCrowds:
    """All crowds of a run. `share`: of the clients that take part, drawn by their numbers.

    `left_bytes(client)` is what it still lacks, `took(client, bytes)` hears of each gain.
    """

    def __init__(
        self,
        share: float,
        seed: str,
        left_bytes: Callable[[SimClient], float],
        took: Callable[[SimClient, float], None],
    ) -> None:
        self._share = share
        self._seed = seed
        self._left_bytes = left_bytes
        self._took = took
        self._crowds: dict[str, PeerCrowd] = {}
        self._at = self._every_s = 0.0

    def takes_part(self, client: SimClient) -> bool:
        """Whether this client does; the same in each run of a population."""
        return Random(f"{self._seed}/{client.number}").random() < self._share

    def join(self, client: SimClient, file: str, size_bytes: int) -> None:
        """It wants a file from now on; nothing if it takes no part."""
        if self.takes_part(client):
            crowd = self._crowds.setdefault(file, PeerCrowd(size_bytes))
            crowd.members[client.number] = client

    def leave(self, client: SimClient, file: str) -> None:
        """It has the file, or wants it no more."""
        crowd = self._crowds.get(file)
        if crowd is not None:
            crowd.members.pop(client.number, None)
            if not crowd.members:
                del self._crowds[file]

    def move(self, now: float, origin_bytes: Callable[[SimClient], float]) -> None:
        """What was given since the last time; `origin_bytes`: what a client has from the server."""
        passed_s = now - self._at
        if passed_s < self._every_s:
            return
        self._at = now
        # Large crowds change slowly.
        count = sum(len(crowd.members) for crowd in self._crowds.values())
        # How rarely it is reckoned anew, in seconds for each of the crowd.
        self._every_s = count * 0.001
        for crowd in list(self._crowds.values()):
            members = list(crowd.members.values())
            here = sum(map(origin_bytes, members))
            crowd.origin_bytes = max(crowd.origin_bytes, min(here, float(crowd.size_bytes)))
            had = {one.number: crowd.size_bytes - self._left_bytes(one) for one in members}
            lacking = [one for one in members if had[one.number] < crowd.union_bytes - 1]
            if not lacking or len(members) < 2:
                continue
            given_s = sum(one.visitor.rate_bytes_s for one in members if had[one.number] > 0)
            # What one gives, of the line that it has downwards (a line of 100/10 Mbit/s).
            each = 0.1 * given_s * passed_s / len(lacking)
            for one in lacking:
                most = min(each, one.visitor.rate_bytes_s * passed_s)
                gain = min(most, crowd.union_bytes - had[one.number])
                self._took(one, gain)
