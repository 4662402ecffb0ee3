"""The law of crowds: when tickets of one network's new clients let others go first.

What each crowd has is counted in `policies.laws.crowds`. A ticket beyond its crowd's part stands
back: it makes way for the tickets of others, and starts only in a slot that stood idle. One whose
crowd holds slots that it does not use stands aside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..hooks import Policy
from ..room import Room
from ..state import AdmissionState
from .law import Law


class CrowdLaw(Law):
    """Lets the tickets of crowds stand back, and come forward."""

    keeps = "crowds are counted"

    def __init__(self, state: AdmissionState, policy: Policy, room: Room) -> None:
        self._state = state
        self._crowds = state.crowds
        self._queue = state.queue
        self._pool = state.pool
        self._policy = policy
        self._shares = room.network_shares

    # -- questions ---------------------------------------------------------------------------------

    @property
    def holds_any(self) -> bool:
        """Whether any crowd has, or lately had, slots that it does not use."""
        return self._crowds.any_unused

    def holds_newcomer(self, network: str, now: float) -> bool:
        """Whether its crowd has as much in front as it may have."""
        return bool(network) and self._is_behind(self._queue.next_number, network, now)

    def stands_aside(self, row: int, now: float) -> bool:
        """Whether slots are better kept from this ticket's crowd, as it does not use those it has.

        Also while no other client waits: the next to come would find all slots in such hands. But
        where it makes way, never while nothing runs.
        """
        if not self.holds_any:
            return False
        number = self._queue.table.number[row]
        if self._crowds.holds_too_many(number, self._policy.large_slots(), self._shares, now):
            return True
        wastes = self._pool.large_active > 0 and self._crowds.wastes(number, now)
        return wastes and self.makes_way(row)

    def makes_way(self, row: int) -> bool:
        """Whether it stands back, and a ticket of another network is there to go first."""
        queue, number = self._queue, self._queue.table.number[row]
        if not (queue.stands_back(row) and self._crowds.stands_back(number)):
            return False
        return queue.forward() > self._crowds.tickets_of(queue.table.network[row])

    def weighs(self, row: int, now: float) -> float:
        """Nothing where its crowd has slots that it does not use."""
        return 0.0 if self._crowds.wastes(self._queue.table.number[row], now) else 1.0

    def turn(self, row: int, place: int, now: float) -> int:
        """A crowd that has all its part starts in that many slots.

        Those of it that stand back come between the others, and the others, later ones too,
        between them.
        """
        queue, crowds, state = self._queue, self._crowds, self._state
        if not crowds.backed or (queue.stands_back(row) and not self.makes_way(row)):
            return place
        slots = self._policy.large_slots()
        part = crowds.most_in_front(slots, self._shares)
        if not queue.stands_back(row):
            rest = max(1, slots - part * crowds.backed)
            return place + min(queue.back_before(row), place * (slots - rest) // rest)
        in_front, before = crowds.before(queue.table.number[row])
        behind = math.ceil(max(1, in_front + before + 1 - part) * slots / part)
        to_come = state.newcomers.rate(now) * state.estimator.raw_s(behind, now)
        return max(queue.place_forward(row) + before, min(place + int(to_come), behind))

    def faults(self) -> Iterator[str]:
        """In front of each crowd are its tickets that do not stand back, and its slots."""
        crowds, table = self._crowds, self._queue.table
        counted: dict[str, int] = {}
        for number in self._queue.in_order():
            network = crowds.of(number)
            if network is not None and not crowds.stands_back(number):
                counted[network] = counted.get(network, 0) + 1
            elif crowds.stands_back(number) and not self._queue.stands_back(table.rows[number]):
                yield f"ticket {number} stands back for its crowd, but not in the queue"
        for lease in self._pool.leases.values():
            if lease.large and lease.network and not lease.slotless:
                counted[lease.network] = counted.get(lease.network, 0) + 1
        for network in counted.keys() | crowds.networks():
            if crowds.in_front(network) != counted.get(network, 0):
                yield f"{network}: {crowds.in_front(network)} for {counted.get(network, 0)}"

    # -- events ------------------------------------------------------------------------------------

    def ticket_waits(self, row: int, now: float) -> None:
        """A stranger's ticket joins its crowd, in front or not."""
        queue, network = self._queue, self._queue.table.network[row]
        if network:
            turn = queue.turn(row)
            back = self._is_behind(turn, network, now)
            self._crowds.add(queue.table.number[row], turn, network, back=back)
            if back:
                queue.stand_back(row)

    def ticket_restored(self, row: int) -> None:
        """It stands as it stood."""
        queue, table = self._queue, self._queue.table
        back = queue.stands_back(row)
        self._crowds.restore(table.number[row], queue.turn(row), table.network[row], back=back)

    def ticket_stands_alone(self, row: int) -> None:
        """It leaves its crowd, and comes forward."""
        number = self._queue.table.number[row]
        back = self._crowds.stands_back(number)
        self._crowds.remove(number)
        self._queue.table.network[row] = ""
        if back:
            self._queue.come_forward(row)

    def ticket_over(self, row: int) -> None:
        """It leaves its crowd."""
        self._crowds.remove(self._queue.table.number[row])

    def time_passes(self, now: float) -> None:
        """Tickets come forward that need not stand back any more."""
        slots = self._policy.large_slots()
        for number in self._crowds.to_come_forward(slots, self._shares, now):
            self._queue.come_forward(self._queue.table.rows[number])

    def order_changes(self) -> None:
        """All are in front."""
        self._crowds.all_forward()

    def _is_behind(self, turn: float, network: str, now: float) -> bool:
        slots = self._policy.large_slots()
        return self._crowds.is_behind(turn, network, slots, self._shares, now)
