"""Waiting downloads that are opened with their first bytes, as their programs count nothing else.

A program that waits inside its request lives on header lines, unless it counts bytes of the body
(curl's speed limit, dnf, librepo). Such a download starts after a while although its turn has not
come, is paused at once, and gets what keeps a paused one alive (`policies.keep_alive`). It is not
measured and takes nobody's place out of turn; how many there are is bounded by their own part of
the line and of the slots, and half of them may be of one network of strangers. Its turn is its
first run.
"""

from __future__ import annotations

from collections import Counter, deque

from .hooks import AdmissionView
from .keep_alive import most_with_first_bytes
from .leases import Lease

#: So long they wait first: many start sooner in their turn. Speed limits give 15 s and more.
_OPEN_S = 8.0
#: Who has waited for so much longer bears it.
_BEARS_S = 30.0
#: They take no more than this part of the slots: those in turn need some on a fast line, too.
_SLOTS_PART = 0.25


class Openings:
    """Who waits for an opening, and who has one."""

    __slots__ = ("_admission", "_by_network", "_due", "_known", "_leases")

    def __init__(self, admission: AdmissionView) -> None:
        self._admission = admission
        #: Tickets in the order in which they are due, with the latest time for it, and the same as
        #: a set.
        self._due: deque[tuple[float, int, float]] = deque()
        self._known: set[int] = set()
        self._leases: dict[int, str] = {}
        self._by_network: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._leases)

    def leases(self) -> tuple[int, ...]:
        """The numbers of those that have one."""
        return tuple(self._leases)

    def wants(self, ticket: int, now: float) -> None:
        """The client of this ticket waits here, and counts bytes of the body."""
        if ticket not in self._known:
            self._known.add(ticket)
            self._due.append((now + _OPEN_S, ticket, now + _OPEN_S + _BEARS_S))

    def next_s(self, now: float) -> float | None:
        """When the first is due that is not yet."""
        return self._due[0][0] if self._due and self._due[0][0] > now else None

    def next(self, now: float) -> tuple[int, ...]:
        """Who is due first, if it may be opened."""
        while self._due and self._due[0][0] <= now:
            _, ticket, latest_s = self._due[0]
            row = self._admission.row(ticket)
            present = row is not None and self._admission.queue.table.present[row]
            if present and now < latest_s:
                assert row is not None
                if self._has_room(row):
                    return (ticket,)
                if len(self) >= self._most():
                    return ()
                # Its network has its part, and keeps nobody else waiting.
                self._due.append((now + _OPEN_S, ticket, latest_s))
            else:
                self._known.discard(ticket)
            self._due.popleft()
        return ()

    def may_open(self, row: int, now: float) -> bool:
        """Whether this one asks because it was called for that."""
        ticket = self._admission.queue.table.number[row]
        if not self._due or self._due[0][1] != ticket or now < self._due[0][0]:
            return False
        return bool(self._admission.queue.table.present[row]) and self._has_room(row)

    def _most(self) -> float:
        settings = self._admission.settings
        slots = _SLOTS_PART * max(settings.slots, settings.slots_max)
        return min(slots, most_with_first_bytes(self._admission.capacity.rate_bytes_s))

    def _has_room(self, row: int) -> bool:
        most = self._most()
        network = self._network(self._admission.queue.table.client[row])
        return len(self) < most and not (network and self._by_network[network] >= 0.5 * most)

    def _network(self, client: str) -> str:
        return self._admission.strangers.network_of(client)

    def opened(self, lease: Lease) -> None:
        """A lease has begun that way."""
        lease.opened = True
        network = self._leases[lease.id] = self._network(lease.client)
        self._by_network[network] += 1

    def over(self, lease: Lease) -> None:
        """Its turn has come, or it has ended."""
        lease.opened = False
        network = self._leases.pop(lease.id, None)
        if network is not None:
            self._by_network[network] -= 1
            if not self._by_network[network]:
                del self._by_network[network]
