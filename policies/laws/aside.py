"""Tickets that a policy's `stands_aside` holds back: behind all others, until it lets them go on.

The kernel neither starts nor calls such a ticket. It stands behind all others, so the places, the
ready list and the told times of the others do not count it. As time passes, the policy is asked
again about the first ready tickets and about the first of each subnet that stand aside.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice

from ..hooks import Policy
from ..queue.tickets import TicketQueue
from ..state import AdmissionState

#: Ready tickets and subnets that are asked about at once: about 0.1 ms.
LOOKS = 64
#: Tickets of one subnet that are asked about at once. A policy that holds back more than these
#: for reasons of their own, not for their subnet, keeps the next ones waiting.
LOOKS_PER_SUBNET = 8


class AsideTickets:
    """The tickets that stand aside for one policy, by subnet and in the order of their numbers."""

    __slots__ = ("_by_subnet", "_policy", "_state", "_subnet_of", "asks")

    def __init__(self, state: AdmissionState, policy: Policy) -> None:
        self._state = state
        self._policy = policy
        #: Whether the policy has such a rule. Without one nothing here costs anything.
        self.asks = type(policy).stands_aside is not Policy.stands_aside
        self._by_subnet: dict[str, list[tuple[float, int]]] = {}
        self._subnet_of: dict[int, str] = {}
        queue = state.queue
        if queue.forward() < len(queue):
            # The policy before this one may have left tickets behind.
            for number in list(queue.in_order()):
                if not state.crowds.stands_back(number):
                    self._come_forward(queue, number)

    def holds(self, row: int, now: float) -> bool:
        """Whether this ticket of a large job may not start now, although a slot is free."""
        return self.asks and self._policy.stands_aside(row, now)

    def put_back(self, row: int, now: float) -> None:
        """Move a waiting ticket behind all others if it stands aside."""
        queue = self._state.queue
        if queue.stands_back(row) or queue.goes_first(row) or not self.holds(row, now):
            return
        queue.stand_back(row)
        number, subnet = queue.table.number[row], queue.table.subnet[row]
        self._subnet_of[number] = subnet
        insort(self._by_subnet.setdefault(subnet, []), (queue.turn(row), number))

    def remove(self, row: int) -> None:
        """The ticket has started, is over, or stands aside no longer."""
        queue = self._state.queue
        number = queue.table.number[row]
        subnet = self._subnet_of.pop(number, None)
        if subnet is not None:
            entries = self._by_subnet[subnet]
            del entries[bisect_left(entries, (queue.turn(row), number))]
            if not entries:
                del self._by_subnet[subnet]

    def advance(self, now: float) -> None:
        """Ask about the tickets that may start soon, and about the first that stand aside."""
        if not self.asks:
            return
        queue = self._state.queue
        rows = queue.table.rows
        for _, number in queue.ready[: min(queue.forward_ready(), LOOKS)]:
            self.put_back(rows[number], now)
        for subnet in list(islice(self._by_subnet, LOOKS)):
            for _, number in self._by_subnet[subnet][:LOOKS_PER_SUBNET]:
                if not self._policy.stands_aside(rows[number], now):
                    self.remove(rows[number])
                    if not self._state.crowds.stands_back(number):
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

    @staticmethod
    def _come_forward(queue: TicketQueue, number: int) -> None:
        row = queue.table.rows[number]
        if queue.stands_back(row):
            queue.come_forward(row)
