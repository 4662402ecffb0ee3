"""The law of crowds: what the new clients of one network may have while other clients wait.

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
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
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
from .law import Law


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
    #: A slot that ran out unused counts against its network for about this long, seconds.
    memory_s: float = 60.0
    #: Networks with unused slots that are remembered: about 1 MB.
    remembered: int = 10_000


CROWDS = CrowdTuning()


class Crowds(Law):
    """Lets the tickets of crowds stand back, and come forward; it outlives the policy.

    The crowd of a ticket is in the table of tickets, that of a lease in the lease.
    """

    keeps = "crowds are counted"

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
        #: Tickets of an earlier run whose network is unknown: they may be of any crowd.
        self._unknown: set[int] = set()
        #: Numbers of tickets in front, by network.
        self._front: dict[str, set[int]] = {}
        #: Tickets that stand back, in order, by network: turn and number.
        self._back: dict[str, list[tuple[float, int]]] = {}
        #: Slots of each crowd, and its downloads that lost theirs, which they did not use.
        self._held: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        #: Crowds that had a slot for nothing since another client used one.
        self._owing: set[str] = set()
        #: Slots that ran out unused, decaying, and when that was counted.
        self._wasted: BoundedTable[str, tuple[float, float]] = BoundedTable(CROWDS.remembered)

    def configure(self, slots: Callable[[], int], shares: int) -> None:
        """Another policy: it says how many slots there are for large jobs."""
        self._slots, self._shares = slots, shares

    # -- what a crowd has --------------------------------------------------------------------------

    def of_owners(self) -> Owners:
        """What the crowds of each /16 or /32 have in front; of the first `counted` crowds."""
        owners: dict[str, tuple[int, int]] = {}
        others = (network for network in self._held if network not in self._front)
        for network in islice(chain(self._front, others), CROWDS.counted):
            downloads, networks = owners.get(name := enclosing(network)[-1], (0, 0))
            owners[name] = downloads + self.in_front(network), networks + 1
        return list(owners.values())

    def in_front(self, network: str) -> int:
        """Tickets in front and slots of one crowd."""
        return self._waiting(network) + self._held[network]

    def _waiting(self, network: str) -> int:
        return len(self._front.get(network, ()))

    def part(self) -> int:
        """What one crowd may have in front of the slots; all of them without shares."""
        slots = self._slots()
        if not self._shares:
            return slots
        part = slots * self._shares / (self._shares + CROWDS.beside)
        return max(1, int(part / max(1, len(self._back))))

    def is_full(self, network: str, now: float) -> bool:
        """Whether a crowd has as much in front as it may have.

        At least one is never taken away for slots that it does not use.
        """
        if not self._shares:
            return False
        if network in self._owing:
            return True
        return self.in_front(network) >= max(1, self.part() - self._unused(network, now))

    def beyond(self) -> dict[str, int]:
        """How many slots beyond its part each crowd has."""
        if not self._shares:
            return {}
        most = self.part()
        return {network: held - most for network, held in self._held.items() if held > most}

    def others_wait(self, network: str) -> bool:
        """Whether a client that is surely not of this crowd waits in its turn."""
        return self._queue.forward() - len(self._unknown) > self._waiting(network)

    def _unused(self, network: str, now: float) -> int:
        """Slots that a crowd has, or lately had, and does not use."""
        return self._lost[network] + int(self._wasted_lately(network, now))

    def _is_behind(self, turn: float, network: str, now: float) -> bool:
        """Whether a ticket that joins a crowd stands back, so that its order stays strict.

        A place in front that has just become free belongs to the first of those that stand back,
        not to a newcomer that asks before it is given away.
        """
        if network in self._back:
            return self.stand_back_before(turn, network)
        return self.is_full(network, now)

    def stand_back_before(self, turn: float, network: str) -> bool:
        """Whether any of this network that come before this turn stand back."""
        return network in self._back and self._back[network][0][0] < turn

    def stands_back(self, row: int) -> bool:
        """Whether this ticket stands back for its crowd."""
        back = self._back.get(self._table.network[row])
        return back is not None and self._back_at(back, row) < len(back)

    def is_counted(self, row: int) -> bool:
        """Whether this ticket counts with a crowd."""
        in_front = self._table.number[row] in self._front.get(self._table.network[row], ())
        return in_front or self.stands_back(row)

    def _entry(self, row: int) -> tuple[float, int]:
        return self._queue.turn(row), self._table.number[row]

    def _back_at(self, back: list[tuple[float, int]], row: int) -> int:
        """Where this ticket is among those that stand back; behind all where it is not."""
        at = bisect_left(back, entry := self._entry(row))
        return at if at < len(back) and back[at] == entry else len(back)

    # -- questions ---------------------------------------------------------------------------------

    @property
    def holds_any(self) -> bool:
        """Whether any crowd has, or lately had, slots that it does not use."""
        return bool(self._wasted or self._lost)

    def holds_newcomer(self, network: str, now: float) -> bool:
        """Whether its crowd has as much in front as it may have."""
        return bool(network) and self._is_behind(self._queue.next_number, network, now)

    def stands_aside(self, row: int, now: float) -> bool:
        """Whether slots are better kept from this ticket's crowd, as it does not use those it has.

        Also while no other client waits: the next to come would find all slots in such hands. But
        where it makes way, never while nothing runs.
        """
        network = self._table.network[row]
        unused = self._unused(network, now) if network and self.holds_any else 0
        if not unused:
            return False
        if self._shares and self._held[network] >= max(1, self.part() - unused):
            return True
        return self._pool.large_active > 0 and self.makes_way(row)

    def makes_way(self, row: int) -> bool:
        """Whether it stands back, and a ticket of another network is there to go first."""
        if not (self._queue.stands_back(row) and self.stands_back(row)):
            return False
        return self._queue.forward() > self._waiting(self._table.network[row])

    def weighs(self, row: int, now: float) -> float:
        """Nothing where its crowd has slots that it does not use."""
        network = self._table.network[row]
        unused = network and self._unused(network, now) and self.is_counted(row)
        return 0.0 if unused else 1.0

    def turn(self, row: int, place: int, now: float) -> int:
        """A crowd that has all its part starts in that many slots.

        Those of it that stand back come between the others, and the others, later ones too,
        between them.
        """
        queue, back = self._queue, self._back
        if not back or (queue.stands_back(row) and not self.makes_way(row)):
            return place
        slots, part = self._slots(), self.part()
        if not queue.stands_back(row):
            rest = max(1, slots - part * len(back))
            return place + min(queue.back_before(row), place * (slots - rest) // rest)
        network = self._table.network[row]
        before = bisect_left(back[network], self._entry(row))
        behind = math.ceil(max(1, self.in_front(network) + before + 1 - part) * slots / part)
        to_come = self._newcomers.rate(now) * self._estimator.raw_s(behind, now)
        return max(queue.place_forward(row) + before, min(place + int(to_come), behind))

    def faults(self) -> Iterator[str]:
        """Each of these tickets waits, and stands back in the queue where it does here."""
        rows = self._table.rows
        queued = set(self._queue.in_order())
        for network, numbers in self._front.items():
            for number in numbers:
                if number not in queued or self._table.network[rows[number]] != network:
                    yield f"ticket {number} of {network} does not wait in front"
        for network, back in self._back.items():
            for _, number in back:
                if number not in queued or self._table.network[rows[number]] != network:
                    yield f"ticket {number} of {network} does not wait behind"
                elif not self._queue.stands_back(rows[number]):
                    yield f"ticket {number} stands back for its crowd, but not in the queue"
        large = [one for one in self._pool.leases.values() if one.large and one.network]
        held = Counter(lease.network for lease in large if not lease.slotless)
        lost = Counter(lease.network for lease in large if lease.slotless and not lease.lent)
        if (held, lost) != (self._held, self._lost):
            yield f"slots {self._held} for {held}, lost {self._lost} for {lost}"

    # -- events ------------------------------------------------------------------------------------

    def ticket_waits(self, row: int, now: float) -> None:
        """A stranger's ticket joins its crowd, in front or not."""
        network = self._table.network[row]
        if network:
            back = self._is_behind(self._queue.turn(row), network, now)
            self.join(row, back=back)
            if back:
                self._queue.stand_back(row)

    def join(self, row: int, *, back: bool) -> None:
        """Count a stranger's ticket with its crowd, in front or not."""
        number, network = self._table.number[row], self._table.network[row]
        if back:
            insort(self._back.setdefault(network, []), self._entry(row))
        else:
            self._front.setdefault(network, set()).add(number)

    def ticket_restored(self, row: int) -> None:
        """A ticket of an earlier run stands as it stood, so that no place grows by it.

        One without a network may be of any crowd.
        """
        if not self._table.network[row]:
            self._unknown.add(self._table.number[row])
        elif not self.is_counted(row):
            self.join(row, back=self._queue.stands_back(row))

    def ticket_stands_alone(self, row: int) -> None:
        """It leaves its crowd, and comes forward."""
        back = self.stands_back(row)
        self.ticket_over(row)
        self._table.network[row] = ""
        if back:
            self._queue.come_forward(row)

    def ticket_over(self, row: int) -> None:
        """It leaves its crowd."""
        number, network = self._table.number[row], self._table.network[row]
        self._unknown.discard(number)
        front, back = self._front.get(network), self._back.get(network)
        if front is not None and number in front:
            front.remove(number)
            if not front:
                del self._front[network]
        elif back is not None and (at := self._back_at(back, row)) < len(back):
            del back[at]
            if not back:
                del self._back[network]

    def time_passes(self, now: float) -> None:
        """Tickets come forward that need not stand back any more, the first of each crowd first."""
        for network in list(islice(self._back, CROWDS.most_at_once)):
            while network in self._back and not self.is_full(network, now):
                row = self._table.rows[self._back[network][0][1]]
                self.ticket_over(row)
                self.join(row, back=False)
                self._queue.come_forward(row)
            if network in self._back and len(self._back) > CROWDS.most_at_once:
                # The next ones have their turn to be looked at.
                self._back[network] = self._back.pop(network)

    def order_changes(self) -> None:
        """Another order was made, in which no ticket stands back: all are in front."""
        for network, back in self._back.items():
            self._front.setdefault(network, set()).update(number for _, number in back)
        self._back.clear()
        self._owing.clear()

    # -- slots -------------------------------------------------------------------------------------

    def lease_begins(self, lease: Lease, now: float) -> None:
        """A download of a crowd has a slot."""
        self.count(lease, 1)

    def lease_ends(self, lease: Lease, now: float, *, used: bool) -> None:
        """It is over."""
        self.count(lease, -1)

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
        if not (network and self._shares):
            return
        self._owing.add(network)
        rows = [self._table.rows[number] for number in sorted(self._front.get(network, ()))]
        for row in rows:
            if not self._queue.goes_first(row):
                self.ticket_over(row)
                self.join(row, back=True)
                self._queue.stand_back(row)

    def repay(self, network: str) -> None:
        """A slot of this crowd, or of a client with a share of its own, is used."""
        if network in self._owing:
            self._owing.discard(network)
        else:
            self._owing.clear()
