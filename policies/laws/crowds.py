"""Who stands back: new clients of one network beyond its part, and what a policy's rule names.

Invented names cost nothing, and under a policy of slots they would get all slots. So clients
without evidence count as a *crowd* with their whole network (`Job.network`, `Job.known`). While
others wait, a crowd has a stated part of the slots for large jobs: half, as honest people behind
one address are half of all clients at times.

A crowd's tickets in the order of turn count, and its slots. A ticket beyond its part *stands back*:
all others that wait go first, and it starts only in a slot that stood idle. It comes forward, to
the place of its number, once one in front is done. So the order within a network stays strict, and
so does the order of all others. A network that would not hold more than its part in strict order is
done no later by this. Several crowds with tickets that stand back share that part. Slots that a
crowd lost as it did not use them (`policies.laws.slot_use`) and slots that ran out unused a moment
ago count too. So a network that uses nothing holds one slot at last.

A crowd that had a slot for nothing *owes*: all of it stands back until a client that owes nothing
has used a slot, or no other waits. So its early tickets do not waste slot after slot before any
other client starts. One that holds slots which it does not use stands aside.

While no other client waits, a crowd may have all slots. Those beyond its part are only *lent*: once
another client waits, the downloads that started last go on without a slot.

A policy may have a rule of its own (`Policy.stands_aside`), also for known clients: such a ticket
stands back, and does not start at all, until the rule lets it go.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from ...protocol.bounded_table import BoundedTable
from ..crowd_debt import Owners
from ..estimate.estimator import Estimator
from ..estimate.newcomers import Newcomers
from ..leases import Lease, LeasePool
from ..network_shares import enclosing
from ..queue.tickets import TicketQueue


@dataclass(frozen=True, slots=True)
class CrowdTuning:
    """Parts, and bounds of memory and of one step."""

    #: A crowd has `network_shares` parts of the slots, and all other clients as many as this: half
    #: by default, as honest people behind one address are half of all clients at times.
    beside: int = 16
    #: Crowds that are counted by owner at a look: about 0.3 ms.
    counted: int = 1_000
    #: Crowds that are looked at in one go for tickets that may come forward: about 0.1 ms.
    most_at_once: int = 64
    #: Of a subnet, the tickets about which a policy's rule is asked at once. A rule that holds back
    #: more than these for reasons of their own, not for their subnet, keeps the next ones waiting.
    looks: int = 8
    #: A slot that ran out unused counts against its network for about this long, seconds.
    memory_s: float = 60.0
    #: Networks with unused slots that are remembered: about 1 MB.
    remembered: int = 10_000


CROWDS = CrowdTuning()
Rule = Callable[[int, float], bool]


class Crowds:
    """Lets the tickets of crowds stand back, and come forward; it outlives the policy.

    The crowd of a ticket is in the table of tickets, that of a lease in the lease.
    """

    def __init__(
        self, queue: TicketQueue, pool: LeasePool, newcomers: Newcomers, estimator: Estimator
    ) -> None:
        self._queue = queue
        self._table = queue.table
        self._pool = pool
        self._newcomers = newcomers
        self._estimator = estimator
        #: The slots for large jobs; a crowd's parts of them, and 0 where it may have all.
        self._slots: Callable[[], int] = lambda: 0
        self._shares = 0
        #: The policy's own rule, if it has one: see `Policy.stands_aside`.
        self.rule: Rule | None = None
        #: Slots of each crowd, and its downloads that lost theirs, which they did not use.
        self._held: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        #: Crowds that had a slot for nothing since another client used one.
        self._owing: set[str] = set()
        #: Slots that ran out unused, decaying, and when that was counted.
        self._wasted: BoundedTable[str, tuple[float, float]] = BoundedTable(CROWDS.remembered)

    def configure(self, slots: Callable[[], int], shares: int, rule: Rule | None = None) -> None:
        """Another policy: it says how many slots there are for large jobs, and has its rule."""
        self._slots, self._shares, self.rule = slots, shares, rule

    # -- what a crowd has --------------------------------------------------------------------------

    def of_owners(self) -> Owners:
        """What the crowds of each /16 or /32 have in front; of the first `counted` crowds."""
        owners: dict[str, tuple[int, int]] = {}
        front = self._queue.front
        others = (network for network in self._held if network not in front)
        for network in islice(chain(front, others), CROWDS.counted):
            downloads, networks = owners.get(name := enclosing(network)[-1], (0, 0))
            owners[name] = downloads + self.in_front(network), networks + 1
        return list(owners.values())

    def in_front(self, network: str) -> int:
        """Tickets in front and slots of one crowd."""
        return self._waiting(network) + self._held[network]

    def _waiting(self, network: str) -> int:
        return len(self._queue.front.get(network, ()))

    def part(self) -> int:
        """What one crowd may have in front of the slots; all of them without shares."""
        slots = self._slots()
        if not self._shares:
            return slots
        part = slots * self._shares / (self._shares + CROWDS.beside)
        return max(1, int(part / max(1, len(self._queue.back))))

    def is_full(self, network: str, now: float, besides: int = 0) -> bool:
        """Whether a crowd has as much in front as it may have, less `besides` tickets.

        At least one is never taken away for slots that it does not use.
        """
        if not self._shares:
            return False
        if network in self._owing:
            return True
        most = max(1, self.part() - self._unused(network, now))
        return self.in_front(network) - besides >= most

    def beyond(self) -> dict[str, int]:
        """How many slots beyond its part each crowd has."""
        if not self._shares:
            return {}
        most = self.part()
        return {network: held - most for network, held in self._held.items() if held > most}

    def others_wait(self, network: str) -> bool:
        """Whether a client that is not of this crowd waits in its turn."""
        return self._queue.forward() > self._waiting(network)

    def _unused(self, network: str, now: float) -> int:
        """Slots that a crowd has, or lately had, and does not use."""
        return self._lost[network] + int(self._wasted_lately(network, now))

    def _is_behind(self, turn: float, network: str, now: float, besides: int = 0) -> bool:
        """Whether a ticket that joins a crowd stands back, so that its order stays strict.

        A place in front that has just become free belongs to the first of those that stand back,
        not to a newcomer that asks before it is given away.
        """
        if network in self._queue.back:
            return self.stand_back_before(turn, network)
        return self.is_full(network, now, besides)

    def stand_back_before(self, turn: float, network: str) -> bool:
        """Whether any of this network that come before this turn stand back."""
        back = self._queue.back
        return network in back and back[network][0][0] < turn

    # -- questions ---------------------------------------------------------------------------------

    @property
    def holds_any(self) -> bool:
        """Whether `stands_aside` may be true of any ticket now."""
        return bool(self.rule or self._wasted or self._lost)

    def holds_newcomer(self, network: str, now: float) -> bool:
        """Whether its crowd has as much in front as it may have."""
        return bool(network) and self._is_behind(self._queue.next_number, network, now)

    def stands_aside(self, row: int, now: float) -> bool:
        """Whether the policy says so, or slots are better kept from a crowd that uses none it has.

        Also while no other client waits: the next to come would find all slots in such hands. But
        where it makes way, never while nothing runs.
        """
        if self.rule is not None and self.rule(row, now):
            return True
        network = self._table.network[row]
        unused = self._unused(network, now) if network and (self._wasted or self._lost) else 0
        if not unused:
            return False
        if self._shares and self._held[network] >= max(1, self.part() - unused):
            return True
        return self._pool.large_active > 0 and self.makes_way(row)

    def makes_way(self, row: int) -> bool:
        """Whether it stands back, and a ticket of another network is there to go first."""
        network = self._table.network[row]
        return bool(network) and self._queue.stands_back(row) and self.others_wait(network)

    def weighs(self, row: int, now: float) -> float:
        """Nothing where its crowd has slots that it does not use."""
        network = self._table.network[row]
        return 0.0 if network and self._unused(network, now) else 1.0

    def turn(self, row: int, place: int, now: float) -> int:
        """A crowd that has all its part starts in that many slots.

        Those of it that stand back come between the others, and the others, later ones too,
        between them.
        """
        queue, back = self._queue, self._queue.back
        stands_back = queue.stands_back(row)
        if not back or (stands_back and not self.makes_way(row)):
            return place
        slots, part = self._slots(), self.part()
        if not stands_back:
            rest = max(1, slots - part * len(back))
            return place + min(queue.back_before(row), place * (slots - rest) // rest)
        network = self._table.network[row]
        before = self._back_before(row)
        behind = math.ceil(max(1, self.in_front(network) + before + 1 - part) * slots / part)
        to_come = self._newcomers.rate(now) * self._estimator.raw_s(behind, now)
        return max(queue.place_forward(row) + before, min(place + int(to_come), behind))

    def _back_before(self, row: int) -> int:
        """How many of its subnet stand back before this ticket, which does, too."""
        return bisect_left(self._queue.back[self._table.subnet[row]], self._back_entry(row))

    def _back_entry(self, row: int) -> tuple[float, int]:
        return self._queue.turn(row), self._table.number[row]

    def least_wait_s(self, row: int, service_s: float) -> float:
        """How long those that stand back before this ticket take on the slots of its subnet."""
        if not self._queue.stands_back(row):
            return 0.0
        subnet, leases = self._table.subnet[row], self._pool.leases.values()
        running = sum(lease.large and lease.subnet == subnet for lease in leases)
        return (self._back_before(row) + 0.5) * service_s / max(1, running)

    def faults(self) -> Iterator[str]:
        """The books are what the queue and the pool hold."""
        queue, table = self._queue, self._table
        front, back = Counter[str](), Counter[str]()
        for number in queue.in_order():
            row = table.rows[number]
            if queue.stands_back(row):
                back[table.subnet[row]] += 1
                if self._back_entry(row) not in queue.back[table.subnet[row]]:
                    yield f"ticket {number} is not among those that stand back"
            elif table.network[row]:
                front[table.network[row]] += 1
        for counted, book in ((front, queue.front), (back, queue.back)):
            if counted != {subnet: len(numbers) for subnet, numbers in book.items()}:
                yield f"{counted} for {book}"
        large = [one for one in self._pool.leases.values() if one.large and one.network]
        held = Counter(lease.network for lease in large if not lease.slotless)
        lost = Counter(lease.network for lease in large if lease.slotless and not lease.lent)
        if (held, lost) != (self._held, self._lost):
            yield f"slots {self._held} for {held}, lost {self._lost} for {lost}"

    # -- events ------------------------------------------------------------------------------------

    def ticket_waits(self, row: int, now: float) -> None:
        """It joins its crowd, in front or not."""
        network = self._table.network[row]
        is_behind = network and self._is_behind(self._queue.turn(row), network, now, 1)
        if is_behind or (self.rule is not None and self.rule(row, now)):
            self._queue.stand_back(row)

    def time_passes(self, now: float) -> None:
        """Tickets come forward that need not stand back any more, the first of each subnet first.

        A policy's rule is asked about the ready ones, too, and lets one of a subnet go at once.
        """
        queue, most = self._queue, CROWDS.most_at_once
        rows = self._table.rows
        if self.rule is not None:
            for number in list(islice(queue.ready, min(queue.forward_ready(), most))):
                if self.rule(rows[number], now):
                    queue.stand_back(rows[number])
        for subnet in list(islice(queue.back, most)):
            while (row := self._first_forward(subnet, now)) is not None:
                queue.come_forward(row)
                if self.rule is not None:
                    break
            if subnet in queue.back and len(queue.back) > most:
                # The next ones have their turn to be looked at.
                queue.back[subnet] = queue.back.pop(subnet)

    def _first_forward(self, subnet: str, now: float) -> int | None:
        """The first of this subnet that stands back and need not any more."""
        looks = 1 if self.rule is None else CROWDS.looks
        for _, number in self._queue.back.get(subnet, ())[:looks]:
            row = self._table.rows[number]
            network = self._table.network[row]
            if self.rule is not None and self.rule(row, now):
                continue
            return None if network and self.is_full(network, now) else row
        return None

    def order_changes(self) -> None:
        """Another order was made, in which no ticket stands back."""
        self._owing.clear()

    # -- slots -------------------------------------------------------------------------------------

    def count(self, lease: Lease, change: int) -> None:
        """Count this download, or no more (-1), by whether it has, or has lost, a slot now."""
        if not (lease.network and lease.large) or lease.lent:
            return
        counts = self._lost if lease.slotless else self._held
        counts[lease.network] += change
        if not counts[lease.network]:
            del counts[lease.network]

    def lease_idled(self, lease: Lease, now: float) -> None:
        """It ran out without a connection before it was used."""
        if lease.network:
            self.wastes_slot(lease.network, now)
            self.owe(lease.network)

    def wastes_slot(self, network: str, now: float) -> None:
        """A slot of this crowd has run out unused."""
        self._wasted[network] = self._wasted_lately(network, now) + 1.0, now

    def _wasted_lately(self, network: str, now: float) -> float:
        times, noted_s = self._wasted.get(network, (0.0, now))
        return times * math.exp((noted_s - now) / CROWDS.memory_s)

    def owe(self, network: str) -> None:
        """This crowd had a slot for nothing: its tickets stand back from now on."""
        if network and self._shares:
            self._owing.add(network)
            for number in sorted(self._queue.front.get(network, ())):
                self._queue.stand_back(self._table.rows[number])

    def repay(self, network: str) -> None:
        """A slot of this crowd, or of a client with a share of its own, is used."""
        if network in self._owing:
            self._owing.discard(network)
        else:
            self._owing.clear()
