"""Evidence that gives a client a share of its own. A new name is free, so it is no evidence.

A crowd behind one address and an attacker with many names look alike at first. They differ in what
they did before the rush began. Evidence is a proof that was signed then, or a download that took
its bytes then. Downloads made during the rush do not count. Otherwise an attacker could download
1 MB under each of 1 000 names and own 1 000 shares. A name that lets a slot or a place pass unused
loses its evidence until it downloads again.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.bounded_table import BoundedTable
from .client_keys import Client


@dataclass(frozen=True, slots=True)
class EvidenceTuning:
    """What counts as evidence, and how much of it is remembered."""

    #: A rush is over when no client had to wait for this time, seconds: the longest told return.
    rush_gap_s: float = 300.0
    #: A download that took this much, or a tenth of what it wanted, establishes its client.
    taken_bytes: int = 1 << 20
    #: A name that wasted a place has no evidence for this time, seconds.
    wasted_s: float = 3600.0
    #: Names that are remembered in all, by their hashes: 120 bytes each.
    most: int = 16_384
    #: Names of one prefix that may count by the age of their proof alone: proofs can be collected.
    most_by_age: int = 1024


EVIDENCE = EvidenceTuning()


class Evidence:
    """Evidence by name, in bounded tables. Times are Unix seconds."""

    def __init__(self) -> None:
        #: By client key: since when it is established, or (negative) until when a wasted place
        #: counts against it.
        self._names: BoundedTable[int, float] = BoundedTable(EVIDENCE.most)
        #: By widest prefix: the names that counted by age in this rush.
        self._by_age: dict[str, set[int]] = {}
        self._aged = 0
        self._rush_s: float | None = None
        self._waited_s = 0.0

    def waits(self, now: float) -> None:
        """A client has to wait."""
        if self._rush_s is None or now - self._waited_s > EVIDENCE.rush_gap_s:
            self._rush_s = now
            self._by_age.clear()
            self._aged = 0
        self._waited_s = now

    def resume(self, began_s: float, now: float) -> None:
        """The clients that wait now began to wait at a server before this one."""
        self._rush_s, self._waited_s = began_s, now

    def took(self, key: str, taken_bytes: int, wanted_bytes: int, now: float) -> None:
        """A download has received this much of what it wanted."""
        if _establishes(taken_bytes, wanted_bytes):
            since_s = self._names.get(hash(key), now)
            self._names[hash(key)] = since_s if since_s >= 0.0 else now

    def left(self, key: str, taken_bytes: int, wanted_bytes: int, now: float) -> None:
        """A slot ended unused, after this many bytes."""
        if not _establishes(taken_bytes, wanted_bytes):
            self.wasted(key, now)

    def wasted(self, key: str, now: float) -> None:
        """A place or a slot of this name passed unused."""
        self._names[hash(key)] = -(now + EVIDENCE.wasted_s)

    def knows(self, client: Client, now: float) -> bool:
        """Whether this name has earned a share of its own."""
        noted_s = self._names.get(hash(client.key))
        if noted_s is not None and now < -noted_s:
            return False
        since_s = client.since_s
        if noted_s is not None and noted_s >= 0.0 and (since_s is None or noted_s < since_s):
            since_s = noted_s
        if since_s is None:
            return False
        if self._rush_s is None or now - self._waited_s > EVIDENCE.rush_gap_s:
            return since_s < now
        return since_s < self._rush_s and self._counts_by_age(client)

    def _counts_by_age(self, client: Client) -> bool:
        names = self._by_age.get(client.network[-1])
        if names is not None and hash(client.key) in names:
            return True
        if self._aged >= EVIDENCE.most or (
            names is not None and len(names) >= EVIDENCE.most_by_age
        ):
            return False
        self._by_age.setdefault(client.network[-1], set()).add(hash(client.key))
        self._aged += 1
        return True


def _establishes(taken_bytes: int, wanted_bytes: int) -> bool:
    return taken_bytes >= min(EVIDENCE.taken_bytes, max(1, wanted_bytes // 10))
