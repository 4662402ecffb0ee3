"""What the new clients of one network may have of slots and turns while other clients wait.

Invented names cost nothing, and under a policy of slots they would get all slots. So clients
without evidence count as a *crowd* with their whole network (`Job.network`, `Job.known`). While
others wait, a crowd has a stated part of the slots for large jobs: half, as honest people behind
one address are half of all clients at times.

A crowd's tickets in the order of turn count, and its slots. A ticket beyond its part *stands back*:
all others that wait go first. It comes forward, to the place of its number, once one in front is
done. So the order within a network stays strict, and so does the order of all others. A network
that would not hold more than its part in strict order is done no later by this. Several crowds with
tickets that stand back share that part. Slots that a crowd lost as it did not use them
(`policies.laws.slot_use`) and slots that ran out unused a moment ago count too. So a network that
uses nothing holds one slot at last.

A crowd that had a slot for nothing *owes*: all of it stands back until a client that owes nothing
has used a slot, or no other waits. So its early tickets do not waste slot after slot before any
other client starts.

While no other client waits, a crowd may have all slots. Those beyond its part are only *lent*: once
another client waits, the downloads that started last go on without a slot.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from ..crowd_debt import Owners
from ..network_shares import enclosing


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


class Crowds:
    """Counts what each crowd has in front, and which of its tickets stand back."""

    def __init__(self) -> None:
        #: Tickets of an earlier run whose network is unknown: they may be of any crowd.
        self.unknown: set[int] = set()
        #: Tickets in front and leases with a slot, and leases that lost theirs, by network.
        self._in_front: Counter[str] = Counter()
        self._without_slot: Counter[str] = Counter()
        #: Numbers of tickets in front, by network.
        self._tickets: dict[str, set[int]] = {}
        #: Crowds that had a slot for nothing since another client used one.
        self._owing: set[str] = set()
        #: Slots that ran out unused, decaying, and when that was counted.
        self._wasted: OrderedDict[str, tuple[float, float]] = OrderedDict()
        #: Tickets that stand back, in order, by network: turn and number.
        self._back: dict[str, list[tuple[float, int]]] = {}
        #: The turns of those whose number is none, as it was given elsewhere (`queue.turns`).
        self._turns: dict[int, float] = {}
        #: The network of each stranger's ticket.
        self._of: dict[int, str] = {}

    @property
    def backed(self) -> int:
        """How many crowds have tickets that stand back."""
        return len(self._back)

    def most_in_front(self, slots: int, shares: int) -> int:
        """What one crowd may have in front of the slots; all of them if `shares` is 0."""
        if not shares:
            return slots
        part = slots * shares / (shares + CROWDS.beside)
        return max(1, int(part / max(1, len(self._back))))

    def is_full(self, network: str, slots: int, shares: int, now: float) -> bool:
        """Whether a crowd has as much in front as it may have.

        At least one is never taken away for slots that it does not use.
        """
        if not shares:
            return False
        if network in self._owing:
            return True
        most = self.most_in_front(slots, shares) - self._unused(network, now)
        return self._in_front[network] >= max(1, most)

    def is_behind(self, turn: float, network: str, slots: int, shares: int, now: float) -> bool:
        """Whether a ticket that joins a crowd stands back, so that its order stays strict.

        A place in front that has just become free belongs to the first of those that stand back,
        not to a newcomer that asks before it is given away.
        """
        if network in self._back:
            return self.stand_back_before(turn, network)
        return self.is_full(network, slots, shares, now)

    def stand_back_before(self, turn: float, network: str) -> bool:
        """Whether any of this network that come before this turn stand back."""
        return network in self._back and self._back[network][0][0] < turn

    # -- tickets ---------------------------------------------------------------------------------

    def add(self, number: int, turn: float, network: str, *, back: bool) -> None:
        """A stranger of this network has a new ticket, in front or not."""
        self._of[number] = network
        if turn != number:
            self._turns[number] = turn
        if back:
            insort(self._back.setdefault(network, []), (turn, number))
        else:
            self._front(number, network)

    def restore(self, number: int, turn: float, network: str, *, back: bool) -> None:
        """A ticket of an earlier run stands as it stood, so that no place grows by it.

        One without a network may be of any crowd.
        """
        if number in self._of:
            return
        if network:
            self.add(number, turn, network, back=back)
        else:
            self.unknown.add(number)

    def remove(self, number: int) -> None:
        """A ticket is over, or has become a lease; others than strangers' are ignored."""
        self.unknown.discard(number)
        network = self._of.pop(number, None)
        if network is not None:
            stood_back = network in self._back and self._drop_back(number, network)
            if not stood_back:
                self._leave_front(number, network)
        self._turns.pop(number, None)

    def _turn_of(self, number: int) -> tuple[float, int]:
        return self._turns.get(number, number), number

    def networks(self) -> Iterable[str]:
        """Those that have anything in front."""
        return self._in_front.keys()

    def of_owners(self) -> Owners:
        """What the crowds of each /16 or /32 have in front; of the first `counted` crowds."""
        owners: dict[str, tuple[int, int]] = {}
        for network, count in islice(self._in_front.items(), CROWDS.counted):
            downloads, networks = owners.get(name := enclosing(network)[-1], (0, 0))
            owners[name] = downloads + count, networks + 1
        return list(owners.values())

    def in_front(self, network: str) -> int:
        """Tickets in front and slots of one crowd."""
        return self._in_front[network]

    def tickets_of(self, network: str) -> int:
        """Its tickets in front."""
        return len(self._tickets.get(network, ()))

    def stands_back(self, number: int) -> bool:
        """Whether this ticket stands back for its crowd."""
        back, turn = self._back.get(self._of.get(number, ""), ()), self._turn_of(number)
        at = bisect_left(back, turn)
        return at < len(back) and back[at] == turn

    def of(self, number: int) -> str | None:
        """The crowd that a ticket counts with."""
        return self._of.get(number)

    def before(self, number: int) -> tuple[int, int]:
        """Of the crowd of a ticket that stands back: what is in front, and what is before it."""
        network = self._of[number]
        back = self._back.get(network, ())
        return self._in_front[network], bisect_left(back, self._turn_of(number))

    def to_come_forward(self, slots: int, shares: int, now: float) -> list[int]:
        """Tickets that need not stand back any more, each crowd's lowest numbers first."""
        out: list[int] = []
        if not self._back:
            return out
        for network in list(islice(self._back, CROWDS.most_at_once)):
            while network in self._back and not self.is_full(network, slots, shares, now):
                number = self._back[network][0][1]
                self._drop_back(number, network)
                self._front(number, network)
                out.append(number)
            if network in self._back and len(self._back) > CROWDS.most_at_once:
                # The next ones have their turn to be looked at.
                self._back[network] = self._back.pop(network)
        return out

    def all_forward(self) -> None:
        """Another order was made, in which no ticket stands back."""
        for network, back in self._back.items():
            for _, number in back:
                self._front(number, network)
        self._back.clear()
        self._owing.clear()

    def _drop_back(self, number: int, network: str) -> bool:
        back, turn = self._back.get(network, []), self._turn_of(number)
        at = bisect_left(back, turn)
        if at == len(back) or back[at] != turn:
            return False
        del back[at]
        if not back:
            del self._back[network]
        return True

    def _front(self, number: int, network: str) -> None:
        self._in_front[network] += 1
        self._tickets.setdefault(network, set()).add(number)

    def _leave_front(self, number: int, network: str) -> None:
        self._less(self._in_front, network)
        self._tickets[network].discard(number)
        if not self._tickets[network]:
            del self._tickets[network]

    # -- slots -----------------------------------------------------------------------------------

    def beyond(self, slots: int, shares: int) -> dict[str, int]:
        """How many slots beyond its part each crowd has; empty if `shares` is 0."""
        if not shares:
            return {}
        most = self.most_in_front(slots, shares)
        held = (
            (network, count - len(self._tickets.get(network, ())))
            for network, count in self._in_front.items()
            if count > most
        )
        return {network: count - most for network, count in held if count > most}

    def takes_slot(self, network: str) -> None:
        """A lease of this crowd holds a slot from now on."""
        if network:
            self._in_front[network] += 1

    def leaves_slot(self, network: str) -> None:
        """It does no longer."""
        if network:
            self._less(self._in_front, network)

    def loses_slot(self, network: str) -> None:
        """A lease of this crowd goes on without its slot, which it did not use."""
        if network:
            self._less(self._in_front, network)
            self._without_slot[network] += 1

    def regains_slot(self, network: str, *, holds: bool) -> None:
        """It goes on without no longer, but holds a slot again or is over."""
        if network:
            self._less(self._without_slot, network)
            if holds:
                self._in_front[network] += 1

    def wastes_slot(self, network: str, now: float) -> None:
        """A slot of this crowd has run out unused."""
        if network:
            self._wasted[network] = self._wasted_lately(network, now) + 1.0, now
            self._wasted.move_to_end(network)
            if len(self._wasted) > CROWDS.remembered:
                self._wasted.popitem(last=False)

    def owe(self, network: str, may_stand_back: Callable[[int], bool]) -> list[int]:
        """This crowd had a slot for nothing: its tickets that stand back from now on."""
        if not network:
            return []
        self._owing.add(network)
        numbers = sorted(filter(may_stand_back, self._tickets.get(network, ())))
        for number in numbers:
            self._leave_front(number, network)
        if numbers:
            turns = map(self._turn_of, numbers)
            self._back[network] = sorted([*self._back.get(network, ()), *turns])
        return numbers

    def repay(self, network: str) -> None:
        """A slot of this crowd, or of a client with a share of its own, is used."""
        if network in self._owing:
            self._owing.discard(network)
        else:
            self._owing.clear()

    @property
    def any_unused(self) -> bool:
        """Whether any crowd has, or lately had, slots that it does not use."""
        return bool(self._wasted or self._without_slot)

    def wastes(self, number: int, now: float) -> bool:
        """Whether a ticket is of a crowd that has slots which it does not use."""
        network = self._of.get(number)
        return network is not None and self._unused(network, now) > 0

    def holds_too_many(self, number: int, slots: int, shares: int, now: float) -> bool:
        """Whether the crowd of a ticket has slots that it does not use, and all others it may."""
        network = self._of.get(number)
        if network is None or not shares:
            return False
        unused = self._unused(network, now)
        held = self._in_front[network] - len(self._tickets.get(network, ()))
        return unused > 0 and held >= max(1, self.most_in_front(slots, shares) - unused)

    def _unused(self, network: str, now: float) -> int:
        return self._without_slot[network] + int(self._wasted_lately(network, now))

    def _wasted_lately(self, network: str, now: float) -> float:
        times, noted_s = self._wasted.get(network, (0.0, now))
        return times * math.exp((noted_s - now) / CROWDS.memory_s)

    @staticmethod
    def _less(counts: Counter[str], network: str) -> None:
        counts[network] -= 1
        if counts[network] <= 0:
            del counts[network]
