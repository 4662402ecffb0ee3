"""The seam of the laws: what the kernel asks each of them, and the events that it reports.

Order, places, calls, starts and forecasts follow the answers. A law overrides what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from ..leases import Lease

#: The methods that only report what has happened.
EVENTS = (
    "ticket_waits",
    "ticket_restored",
    "ticket_stands_alone",
    "ticket_over",
    "lease_begins",
    "lease_measured",
    "lease_idled",
    "lease_ends",
    "time_passes",
    "order_changes",
)


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

    def least_wait_s(self, row: int, service_s: float) -> float:
        """How long this ticket waits at least, where a slot is held for `service_s`."""
        return 0.0

    def wake_s(self, now: float) -> float | None:
        """When time is to pass here at the latest."""
        return None

    def faults(self) -> Iterator[str]:
        """What its books have wrong: nothing, unless the law is broken. For tests."""
        yield from ()

    # -- events ------------------------------------------------------------------------------------

    def ticket_waits(self, row: int, now: float) -> None:
        """A ticket came, or came back."""

    def ticket_restored(self, row: int) -> None:
        """A ticket of an earlier run is here."""

    def ticket_stands_alone(self, row: int) -> None:
        """A ticket does not count with its network any more."""

    def ticket_over(self, row: int) -> None:
        """A ticket has started, or is over."""

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


class AllLaws(Law):
    """All laws of one kernel as one: a question or an event goes to those that override it."""

    def __init__(self, *laws: Law) -> None:
        self.all = laws
        self._of: dict[str, tuple[Callable[..., Any], ...]] = {
            name: tuple(getattr(law, name) for law in laws if getattr(type(law), name) is not usual)
            for name, usual in vars(Law).items()
            if callable(usual)
        }
        for event in EVENTS:
            setattr(self, event, _telling(self._of[event]))

    @property
    def holds_any(self) -> bool:
        """Whether any ticket may stand aside now: else not each of a line need be asked about."""
        return any(law.holds_any for law in self.all)

    def holds_newcomer(self, network: str, now: float) -> bool:
        """Whether any law says so."""
        return any(ask(network, now) for ask in self._of["holds_newcomer"])

    def stands_aside(self, row: int, now: float) -> bool:
        """Whether any law says so."""
        return any(ask(row, now) for ask in self._of["stands_aside"])

    def makes_way(self, row: int) -> bool:
        """Whether any law says so."""
        return any(ask(row) for ask in self._of["makes_way"])

    def weighs(self, row: int, now: float) -> float:
        """The least of what the laws say."""
        return min([ask(row, now) for ask in self._of["weighs"]], default=1.0)

    def turn(self, row: int, place: int, now: float) -> int:
        """As the laws change it, one after another."""
        for ask in self._of["turn"]:
            place = ask(row, place, now)
        return place

    def least_wait_s(self, row: int, service_s: float) -> float:
        """The longest that a law says."""
        return max([ask(row, service_s) for ask in self._of["least_wait_s"]], default=0.0)

    def wake_s(self, now: float) -> float | None:
        """The soonest that a law says."""
        wakes = [ask(now) for ask in self._of["wake_s"]]
        return min([wake for wake in wakes if wake is not None], default=None)


def _telling(told: tuple[Callable[..., None], ...]) -> Callable[..., None]:
    """What tells an event to all of these."""
    if len(told) == 1:
        return told[0]

    def tell(*given: Any, **named: Any) -> None:
        for one in told:
            one(*given, **named)

    return tell
