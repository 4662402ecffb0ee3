"""The downloads and tickets of a queue by file and program: a crowd in a few lines."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ...policies.contract import TicketState
from ..admission.gate import Gate

#: Tickets that are counted, from the head of the queue: a look takes some milliseconds.
COUNTED_MOST = 5_000


@dataclass(slots=True)
class QueueGroup:
    """What clients of one program do with one file; `left_bytes` is what all of them still want."""

    file: str
    program: str
    running: int = 0
    paused: int = 0
    ready: int = 0
    waiting: int = 0
    left_bytes: int = 0

    @property
    def clients(self) -> int:
        """Downloads and tickets."""
        return self.running + self.paused + self.ready + self.waiting


def count_groups(gate: Gate, program_of: Callable[[str, str], str]) -> Iterator[QueueGroup]:
    """Counts all running downloads and the first `COUNTED_MOST` tickets; gives the group of each.

    The queue may move between two of them. `program_of` names the program of a client and a file;
    empty where it is unknown.
    """
    found: dict[tuple[str, str], QueueGroup] = {}

    def group(client: str, file: str) -> QueueGroup:
        key = file, program_of(client, file)
        one = found.get(key)
        if one is None:
            one = found[key] = QueueGroup(*key)
        return one

    for lease in filter(None, map(gate.policy.lease, tuple(gate.downloads))):
        one = group(lease.client, lease.file)
        one.paused += lease.paused
        one.running += not lease.paused
        one.left_bytes += lease.remaining_bytes
        yield one
    at_once = 100  # Tickets are read in a quarter of a millisecond.
    for start in range(0, COUNTED_MOST, at_once):
        rows = list(itertools.islice(gate.policy.tickets(start), at_once))
        for row in rows:
            one = group(row.client, row.file)
            one.ready += row.state is TicketState.READY
            one.waiting += row.state is TicketState.WAITING
            one.left_bytes += row.remaining_bytes
            yield one
        if not rows:
            return


def largest_first(groups: Iterable[QueueGroup]) -> list[QueueGroup]:
    """Each of them once, the one with most clients first."""
    once = {id(one): one for one in groups}.values()
    return sorted(once, key=lambda one: (-one.clients, one.file, one.program))
