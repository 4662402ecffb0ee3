"""Whose share of the line a client's downloads count as.

Names cost whoever invents them nothing, nor do the addresses of one's own network. So clients that
nothing is known of share a few shares with their whole network, and everybody of whom there is
evidence (an old cookie, places claimed in time, finished downloads) has a share of its own. It is
the share that the guard of Fair counts by, not the place in the queue: a network of strangers may
be late by what it asks, but makes nobody else late.
"""

from __future__ import annotations

from collections import OrderedDict
from zlib import crc32

from policies.contract import Job

#: Clients that are remembered; who asked longest ago is forgotten first.
_REMEMBERED = 100_000


def stranger_network(job: Job) -> str:
    """The network that this client counts with while nothing is known of it; empty: with none."""
    return "" if job.known or not job.network else job.network[-1]


class Shares:
    """Remembers the share of each client that has asked."""

    __slots__ = ("_shares",)

    def __init__(self) -> None:
        self._shares: OrderedDict[str, str] = OrderedDict()

    def note(self, job: Job, per_network: int) -> None:
        """This client asks; strangers of its network have so many shares in all."""
        network = stranger_network(job)
        if not network or not per_network:
            self._shares.pop(job.client, None)
            return
        number = crc32(job.client.encode("utf-8", "surrogateescape")) % per_network
        self._shares[job.client] = f"{network}~{number}"
        self._shares.move_to_end(job.client)
        if len(self._shares) > _REMEMBERED:
            self._shares.popitem(last=False)

    def of(self, client: str) -> str:
        """The share it counts as; its own unless it is a stranger."""
        return self._shares.get(client, client)
