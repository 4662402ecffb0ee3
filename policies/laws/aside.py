"""Tickets that a policy's `stands_aside` holds back: behind all others, until it lets them go on.

The kernel does not start or call such a ticket. It stands behind all others, so the places, the
ready list and the told times of the others do not count it. As time passes, the policy is asked
again about the first ready tickets and about the first of each subnet that stand aside.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice

from ..hooks import Policy
from ..queue.tickets import TicketQueue
from ..state import AdmissionState
from .law import Law

#: Ready tickets and subnets that are asked about at once: about 0.1 ms.
LOOKS = 64
#: Tickets of one subnet that are asked about at once. A policy that holds back more than these
#: for reasons of their own, not for their subnet, keeps the next ones waiting.
LOOKS_PER_SUBNET = 8


class AsideTickets(Law):
    """The tickets that stand aside for one policy, by subnet and in the order of their numbers."""

    keeps = "tickets that stand aside are behind"

    def __init__(self, state: AdmissionState, policy: Policy) -> None:
        self._state = state
        self._policy = policy
        self._by_subnet: dict[str, list[tuple[float, int]]] = {}
        self._subnet_of: dict[int, str] = {}
        queue = state.queue
        if queue.forward() < len(queue):
            # The policy before this one may have left tickets behind.
            for number in list(queue.in_order()):
                if not state.crowds.stands_back(queue.table.rows[number]):
                    self._come_forward(queue, number)

    @property
    def holds_any(self) -> bool:
        """Whether the policy has such a rule. Without one this law is not asked."""
        return type(self._policy).stands_aside is not Policy.stands_aside

    def stands_aside(self, row: int, now: float) -> bool:
        """As the policy says."""
        return self._policy.stands_aside(row, now)

    def ticket_waits(self, row: int, now: float) -> None:
        """Move a waiting ticket behind all others if it stands aside."""
        queue = self._state.queue
        if queue.stands_back(row) or queue.goes_first(row):
            return
        if not self._policy.stands_aside(row, now):
            return
        queue.stand_back(row)
        number, subnet = queue.table.number[row], queue.table.subnet[row]
        if number not in self._subnet_of:
            # Else its crowd has let it come forward meanwhile.
            self._subnet_of[number] = subnet
            insort(self._by_subnet.setdefault(subnet, []), (queue.turn(row), number))

    def ticket_over(self, row: int) -> None:
        """The ticket has started, is over, or stands aside no longer."""
        queue = self._state.queue
        number = queue.table.number[row]
        subnet = self._subnet_of.pop(number, None)
        if subnet is not None:
            entries = self._by_subnet[subnet]
            del entries[bisect_left(entries, (queue.turn(row), number))]
            if not entries:
                del self._by_subnet[subnet]

    def time_passes(self, now: float) -> None:
        """Ask about the tickets that may start soon, and about the first that stand aside."""
        queue = self._state.queue
        rows = queue.table.rows
        for number in list(islice(queue.ready, min(queue.forward_ready(), LOOKS))):
            self.ticket_waits(rows[number], now)
        for subnet in list(islice(self._by_subnet, LOOKS)):
            for _, number in self._by_subnet[subnet][:LOOKS_PER_SUBNET]:
                if not self._policy.stands_aside(rows[number], now):
                    self.ticket_over(rows[number])
                    if not self._state.crowds.stands_back(rows[number]):
                        self._come_forward(queue, number)
                    break
            if subnet in self._by_subnet:
                # The next ones are asked about at the next time.
                self._by_subnet[subnet] = self._by_subnet.pop(subnet)

    def least_wait_s(self, row: int, service_s: float) -> float:
        """How long the tickets of its subnet before this one take on the slots that it has."""
        table = self._state.queue.table
        subnet = self._subnet_of.get(table.number[row])
        if subnet is None:
            return 0.0
        before = bisect_left(self._by_subnet[subnet], (self._state.queue.turn(row), 0))
        leases = self._state.pool.leases.values()
        running = sum(lease.large and lease.subnet == subnet for lease in leases)
        return (before + 0.5) * service_s / max(1, running)

    def faults(self) -> Iterator[str]:
        """Each of these waits, behind those that do not stand back, unless it was promoted."""
        queue = self._state.queue
        for subnet, entries in self._by_subnet.items():
            for turn, number in entries:
                row = queue.table.rows.get(number)
                if row is None or queue.turn(row) != turn or self._subnet_of[number] != subnet:
                    yield f"ticket {number} of {subnet} is over"
                elif not (queue.stands_back(row) or queue.goes_first(row)):
                    yield f"ticket {number} of {subnet}"
        if len(self._subnet_of) != sum(map(len, self._by_subnet.values())):
            yield "the count"

    @staticmethod
    def _come_forward(queue: TicketQueue, number: int) -> None:
        row = queue.table.rows[number]
        if queue.stands_back(row):
            queue.come_forward(row)
