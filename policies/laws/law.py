"""The seam of the laws: what the kernel asks each of them, and the events that it reports.

Order, places, calls, starts and forecasts follow the answers. A law overrides what it needs, and
`AdmissionPolicy` lists it in `laws`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

from ..leases import Lease


class Law:
    """One rule about which clients let others go first. Rows are tickets of large jobs."""

    #: What it keeps, as a sentence for the report of a broken law.
    keeps: ClassVar[str] = ""

    # -- questions ---------------------------------------------------------------------------------

    @property
    def holds_any(self) -> bool:
        """Whether `stands_aside` may be true of any ticket now."""
        return False

    def holds_newcomer(self, network: str, now: float) -> bool:
        """Whether a stranger of this network that asks now would let others go first."""
        return False

    def stands_aside(self, row: int, now: float) -> bool:
        """Whether this ticket does not start, although a slot is free."""
        return False

    def makes_way(self, row: int) -> bool:
        """Whether this ticket starts only in a slot that stood idle: others go first."""
        return False

    def weighs(self, row: int, now: float) -> float:
        """The part of a slot that this ticket is likely to use, from 0 to 1."""
        return 1.0

    def turn(self, row: int, place: int, now: float) -> int:
        """How many start before this ticket, plus one; `place` without this law."""
        return place

    def wake_s(self, now: float) -> float | None:
        """When time is to pass here at the latest."""
        return None

    def faults(self) -> Iterator[str]:
        """What its books have wrong: nothing, unless the law is broken. For tests."""
        yield from ()

    # -- events ------------------------------------------------------------------------------------

    def ticket_waits(self, row: int, now: float) -> None:
        """A ticket came, or came back."""

    def lease_begins(self, lease: Lease, now: float) -> None:
        """A large download has begun."""

    def lease_measured(self, lease: Lease, now: float) -> None:
        """A large download has made progress."""

    def lease_idled(self, lease: Lease, now: float) -> None:
        """A large download ran out without a connection, before its slot was used."""

    def lease_ends(self, lease: Lease, now: float, *, used: bool) -> None:
        """A download is over; before the pool forgets it. Small ones are reported, too."""

    def time_passes(self, now: float) -> None:
        """The kernel looks at all that time changes."""

    def order_changes(self) -> None:
        """Another policy has ordered the queue anew; no ticket stands back in it."""


#: What several laws answer together; of the other questions: whether any law says so.
_TOGETHER: Mapping[str, Callable[[Iterable[Any]], Any]] = {
    "weighs": min,
    "turn": max,
    "wake_s": lambda wakes: min((wake for wake in wakes if wake is not None), default=None),
    "faults": chain.from_iterable,
}


class AllLaws(Law):
    """All laws of one kernel as one: a question or an event goes to those that override it."""

    def __init__(self, *laws: Law) -> None:
        self.all = laws
        for name, usual in vars(Law).items():
            if not callable(usual):
                continue
            told = [getattr(law, name) for law in laws if getattr(type(law), name) is not usual]
            if len(told) == 1:
                setattr(self, name, told[0])
            elif told:
                setattr(self, name, _asking(told, _TOGETHER.get(name, any)))

    @property
    def holds_any(self) -> bool:
        """Whether any ticket may stand aside now: else not each of a line need be asked about."""
        return any(law.holds_any for law in self.all)


def _asking(
    told: Sequence[Callable[..., Any]], together: Callable[[Iterable[Any]], Any]
) -> Callable[..., Any]:
    """Tells all of these, which answer nothing to an event."""
    return lambda *given, **named: together(one(*given, **named) for one in told)
