"""The hooks of a policy, and what a policy sees of the state machine that calls them.

Authors of a policy read this module: `Policy` has defaults that make a ticket queue with reserved
slots; `docs/policies.md` has a whole example. The state machine is `policies.admission`.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from .capacity import Capacity
from .contract import Estimate, Forecast, Ranked
from .estimate.ends import EndForecast
from .estimate.estimator import Estimator
from .leases import Lease, LeasePool
from .network_order import Handicap
from .queue.tickets import TicketQueue
from .settings import PolicySettings


class AdmissionView(Protocol):
    """The state machine of admission as its policy sees it: to be read and asked, never changed."""

    settings: PolicySettings
    queue: TicketQueue
    pool: LeasePool
    capacity: Capacity
    estimator: Estimator

    def is_large(self, size_bytes: int) -> bool:
        """Whether a job of that size may have to wait for small ones."""

    def handicap(self, network: str) -> Handicap:
        """What the order counts of the downloads of this network's strangers."""

    def row(self, ticket: int) -> int | None:
        """The row of a waiting or ready ticket."""

    def large_room(self, now: float) -> int:
        """Slots that a large job could take without keeping a small one waiting."""

    def turn_has_come(self, row: int, now: float) -> bool:
        """Whether a slot is free for this ticket of a large job beside those before it."""

    def others_are_due(
        self, entry: tuple[float, int], now: float, count: int, takes_s: float
    ) -> bool:
        """Whether `count` absent tickets before this one are due within a part of its download."""

    def call_in_turn(self, now: float) -> tuple[tuple[int, ...], bool]:
        """What `Policy.call` answers by default: those whose turn has come."""

    def pause_slotless(self, now: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What `Policy.preempt` answers by default: leases without a slot pause and go on."""


class Policy:
    """The hooks of a policy: who is next, and how much room there is.

    Subclass it once, name it in an entry point of the group `tidegate.policies`, and override what
    differs. `admission` is the state machine that calls the hooks. Rows are of
    `admission.queue.table`.
    """

    #: Its name in settings, and what it does in one line for forms and help.
    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    #: The settings that it reads besides `settings.COMMON`.
    reads: ClassVar[tuple[str, ...]] = ()
    #: Whether a large job that must wait gets a ticket.
    gives_tickets: ClassVar[bool] = True
    #: Whether the link, not `slots`, decides how many run; see `Snapshot`.
    link_bound: ClassVar[bool] = False
    #: Whether it serves clients best that wait inside their request: ranks change until the end.
    prefers_present: ClassVar[bool] = False

    def __init__(self, admission: AdmissionView) -> None:
        self.admission = admission
        self.settings: PolicySettings = admission.settings

    @classmethod
    def build(cls, admission: AdmissionView) -> Policy:
        """The object that decides; a policy that chooses among others returns one of those."""
        return cls(admission)

    # -- order and room ----------------------------------------------------------------------

    def rank(self, ticket: Ranked) -> float:
        """Lower goes first; asked when a ticket is issued and when its wish changes.

        Told times hold for any order: the estimator asks it where newcomers would stand.
        """
        return self.admission.queue.by_number(ticket)

    def slots(self) -> int:
        """Downloads that may hold a slot at once."""
        return self.settings.slots

    def large_slots(self) -> int:
        """How many of them large jobs may hold."""
        return self.settings.slots - self.settings.reserve_small

    def ready_slots(self) -> int:
        """How many tickets at least may start as soon as a slot is free."""
        return max(1, self.large_slots())

    def line_shares(self) -> int:
        """Into how many rates the line is divided where a sender is told one once, at the start."""
        return self.settings.slots

    def retry_s(self) -> float:
        """When to ask again, for a large job that gets no ticket."""
        return self.settings.busy_retry_s

    # -- who starts, who runs ------------------------------------------------------------------

    def may_start(self, row: int, now: float) -> bool:
        """Whether the owner of this ticket, who asks now, may start: its turn and a slot."""
        return self.admission.turn_has_come(row, now)

    def stands_aside(self, row: int, now: float) -> bool:
        """Whether this ticket of a large job lets all others go first, and does not start.

        The kernel puts such a ticket behind all others, so order, places, calls and told times
        follow, and asks again as time passes. See docs/writing-a-policy.md.
        """
        return False

    def spare(self, now: float) -> tuple[int, float]:
        """How many more large jobs of whatever size would start now, and keep no client waiting.

        And how many bytes per second of the line these may take together. They start without a
        ticket while no client waits, and the policy hears of them as time passes (`starts`), unless
        they are over by then. (0, 0.0): each is to be asked for.
        """
        return 0, 0.0

    def opens(self, row: int) -> bool:
        """Whether the start of this ticket, just allowed, is no turn: it is paused at once."""
        return False

    def has_place(self, now: float) -> bool:
        """Whether a large job that asked now would start, as a slot is free."""
        return True

    def call(self, now: float) -> tuple[tuple[int, ...], bool]:
        """Large jobs of clients that wait here and may start; whether a slot waits for one."""
        return self.admission.call_in_turn(now)

    def preempt(self, now: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Leases that pause and leases that go on; by default only leases without a slot pause."""
        return self.admission.pause_slotless(now)

    def forecast(self, row: int, now: float) -> Forecast | None:
        """When this ticket starts, where the policy knows better than the slots' schedule."""
        return None

    def place(self, row: int) -> int | None:
        """The place that the client of a large job is shown; by default the order of turn."""
        return self.admission.queue.shown_place(row)

    def next_forecast(self, now: float) -> Forecast | None:
        """The same for a ticket that would be issued now."""
        return None

    def ticket_end(self, row: int, start: Estimate, now: float) -> EndForecast:
        """When the last byte of this ticket's download arrives, whose start is told so."""
        remaining = self.admission.queue.table.remaining[row]
        return self.admission.estimator.service(remaining).after(start)

    def lease_end(self, lease: Lease, now: float) -> EndForecast:
        """When the last byte of this running or paused download arrives."""
        own = self.admission.estimator.service(lease.remaining_bytes)
        if lease.rate_bytes_s > 0.0:
            return own._replace(end_s=lease.remaining_bytes / lease.rate_bytes_s)
        return own

    def wake_s(self, now: float) -> float | None:
        """When the policy wants to be asked again at the latest."""
        return None

    # -- what has happened ---------------------------------------------------------------------

    def waits(self, row: int, now: float) -> None:
        """A large job's ticket waits and has been told a time."""

    def wants_body(self, row: int, now: float) -> None:
        """A large job's client waits here, and only bytes of the body keep it from giving up."""

    def leaves(self, row: int, now: float) -> None:
        """A waiting or ready ticket left without a start; the row is still valid."""

    def comes_back(self, row: int, now: float) -> None:
        """A large job's ticket waits again: its lease, which is over, came to nothing."""

    def starts(self, lease: Lease, row: int | None, now: float) -> None:
        """A lease has begun, by the ticket of that row if there is one."""

    def changes(self, lease: Lease) -> None:
        """A lease got or lost a connection, or has another line."""

    def ends(self, lease: Lease, now: float, done: bool) -> None:
        """A lease is over."""

    def observes(self, now: float) -> None:
        """`admission.capacity` knows anew what the link carries and what clients take."""
