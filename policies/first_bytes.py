"""First bytes: waiting downloads that start early because their programs count bytes of the body.

A program that waits inside its request lives on header lines, unless it enforces a minimum rate of
the body (curl --speed-limit, dnf, librepo). After a while such a download starts although its turn
has not come. It is paused at once, and kept alive like any paused one (`policies.keep_alive`). It
keeps its place among those that wait. Its turn is its first run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass
from itertools import accumulate, islice

from .hooks import AdmissionView
from .keep_alive import most_with_first_bytes
from .leases import Lease


@dataclass(frozen=True, slots=True)
class FirstBytesTuning:
    """Times are seconds."""

    #: Many start in their turn sooner than this. Speed limits give 15 s and more.
    after_s: float = 8.0
    #: A client that has waited for this much longer does not count bytes.
    bears_s: float = 30.0
    #: They take no more than this part of the slots, as those in turn need some on a fast line.
    slots_part: float = 0.25
    #: And one network of strangers no more than this part of that.
    network_part: float = 0.5


FIRST_BYTES = FirstBytesTuning()


class FirstBytes:
    """Tickets whose clients need first bytes, and leases that have only those (`Lease.opened`)."""

    def __init__(self, admission: AdmissionView) -> None:
        self._admission = admission
        #: Tickets in the order in which they are due, each with the latest time for it.
        self._due: deque[tuple[float, int, float]] = deque()
        self._known: set[int] = set()
        #: The network of each lease.
        self._leases: dict[Lease, str] = {}
        #: They by their turns, and what all before each want; None after a change.
        self._order: list[Lease] | None = None
        self._left: list[int] = []
        #: Which one `some` begins with.
        self._next = 0
        self._by_network: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._leases)

    def leases(self) -> list[Lease]:
        """Those that have only their first bytes, in the order of their turns."""
        if self._order is None:
            self._order = sorted(self._leases, key=place_of)
            self._left = [*accumulate((one.remaining_bytes for one in self._order), initial=0)]
        return self._order

    def some(self, most: int) -> list[Lease]:
        """The next ones whose keys are to be set anew, in turn."""
        self._order = None
        start = self._next if self._next < len(self) else 0
        self._next = start + most
        return list(islice(self._leases, start, start + most))

    def before(self, entry: tuple[float, int], line: str) -> int:
        """How many of this line have their turn before such a ticket."""
        order = self.leases()
        return sum(one.line == line for one in order[: bisect_left(order, entry, key=place_of)])

    def bytes_before(self, entry: tuple[float, int]) -> int:
        """What those want that have their turn before such a ticket."""
        order = self.leases()
        return self._left[bisect_left(order, entry, key=place_of)]

    def wants(self, ticket: int, now: float) -> None:
        """The client of this ticket waits here, and counts bytes of the body."""
        # It could not be paused after them.
        if self._admission.pool.can_pause and ticket not in self._known:
            self._known.add(ticket)
            due_s = now + FIRST_BYTES.after_s
            self._due.append((due_s, ticket, due_s + FIRST_BYTES.bears_s))

    def next_s(self, now: float) -> float | None:
        """When the first is due that is not yet."""
        return self._due[0][0] if self._due and self._due[0][0] > now else None

    def next(self, now: float) -> tuple[int, ...]:
        """The ticket that is due first, if it may start now."""
        while self._due and self._due[0][0] <= now:
            _, ticket, latest_s = self._due[0]
            row = self._admission.row(ticket)
            if row is not None and self._admission.queue.table.present[row] and now < latest_s:
                if self._has_room(row):
                    return (ticket,)
                if len(self) >= self._most():
                    return ()
                # Its network has its part, and keeps no other client waiting.
                self._due.append((now + FIRST_BYTES.after_s, ticket, latest_s))
            else:
                self._known.discard(ticket)
            self._due.popleft()
        return ()

    def may_start(self, row: int, now: float) -> bool:
        """Whether this ticket asks because it was called for its first bytes."""
        table = self._admission.queue.table
        if not self._due or self._due[0][1] != table.number[row] or now < self._due[0][0]:
            return False
        return bool(table.present[row]) and self._has_room(row)

    def _most(self) -> float:
        settings = self._admission.settings
        slots = FIRST_BYTES.slots_part * max(settings.slots, settings.slots_max)
        return min(slots, most_with_first_bytes(self._admission.capacity.rate_bytes_s))

    def _has_room(self, row: int) -> bool:
        most = self._most()
        network = self._admission.queue.table.network[row]
        part = FIRST_BYTES.network_part * most
        return len(self) < most and not (network and self._by_network[network] >= part)

    def started(self, lease: Lease) -> None:
        """A lease has begun with its first bytes only."""
        lease.opened = True
        lease.stood_back_bytes = lease.rank_bytes
        self._order = None
        self._leases[lease] = lease.network
        self._by_network[lease.network] += 1

    def over(self, lease: Lease) -> None:
        """The turn of a lease has come, or it has ended."""
        lease.opened = False
        self._order = None
        network = self._leases.pop(lease, None)
        if network is not None:
            self._by_network[network] -= 1
            self._by_network += Counter()


def place_of(lease: Lease) -> tuple[float, int]:
    """Where its ticket stands still."""
    return lease.key, lease.ticket or 0
