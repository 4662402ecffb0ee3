"""What a gate is made of, and what it asks of the rooms around it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ...policies.contract import Job, TicketRow
from ...protocol.ticket import KeyRing
from ..files.transfer import BodyPlan, Representation, StartBody
from ..http.clock import Clock
from ..http.request import Request
from ..store.records import ArrivalRecord
from .client_keys import Clients
from .client_programs import ToolRule, ToolTable
from .credentials import Proof
from .draw import Prequeue
from .evidence import Evidence
from .line import Line
from .number_allocator import Numbers
from .passes import PassBook
from .popularity import Popularity
from .responses import RetryResponder
from .rules import RuleBook


class TicketJournal(Protocol):
    """Where tickets go that must survive (`store.Store`)."""

    def keep_tickets(self, rows: Iterable[TicketRow]) -> None:
        """Write these rows soon."""

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call back when what was given so far is safe, or cannot be made safe now."""


@dataclass(slots=True)
class AdmissionRequest:
    """One request with all that is known of it when it is offered to the policy.

    `rule` says how its tool is kept waiting, `may_hold` whether it may be kept inside its request
    at all; `job.present` that it is, until its turn comes. `browser` says that it shows pages and
    keeps cookies; `cookie` is the visitor token that it is given with the answer.
    """

    request: Request
    rep: Representation
    plan: BodyPlan
    start: StartBody
    job: Job
    rule: ToolRule
    proof: Proof
    may_hold: bool
    browser: bool = False
    cookie: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """A page that waits for `job` asks how its ticket stands, and hears it once that changes.

    `tell` answers the request as things are then.
    """

    request: Request
    job: Job
    tell: Callable[[], None]


@dataclass(frozen=True, slots=True)
class GateTerms:
    """What the configuration says about waiting clients; a reload may bring other terms."""

    tools: ToolTable = field(default_factory=ToolTable)
    holds_most: int = 5000
    clients_per_address: int = 1000
    ticket_max_age_s: float = 7 * 86_400.0


@dataclass(slots=True)
class GateParts:
    """What a gate is made of.

    `now` is the process clock, on which all durations are counted, the policy's too; `wall` is
    Unix time, for what a person, a token or the journal reads.
    """

    reactor: Clock
    now: Callable[[], float]
    wall: Callable[[], float]
    rng: random.Random
    keys: KeyRing
    journal: TicketJournal
    numbers: Numbers
    passes: PassBook
    waiting: RetryResponder
    line: Line
    clients: Clients
    rules: RuleBook
    arrived: Callable[[ArrivalRecord], None]
    popularity: Popularity = field(default_factory=Popularity)
    evidence: Evidence = field(default_factory=Evidence)
    prequeue: Prequeue = field(default_factory=lambda: Prequeue(lambda name, body: None))
    terms: GateTerms = field(default_factory=GateTerms)
    #: How many machines send, each with the configured slots and a line of its own.
    machines: int = 1
    #: Whether a body on its way can be paused: another program that sends it cannot do that.
    can_pause: bool = True

    def wall_ahead_s(self) -> float:
        """How far the wall clock is ahead of the process clock: what was stepped or slept through.

        Less than a second is drift, and counts for nothing.
        """
        ahead_s = self.wall() - self.now()
        return ahead_s if abs(ahead_s) >= 1.0 else 0.0
