"""The parts of a gate, and what it asks of the rooms around it."""

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
    """Stores tickets that must survive a crash (`store.Store`)."""

    def keep_tickets(self, rows: Iterable[TicketRow]) -> None:
        """Write these rows soon."""

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call back when all rows so far are stored, or cannot be stored now."""


@dataclass(slots=True)
class AdmissionRequest:
    """One request with all that is known of it when it is offered to the policy.

    `rule` says how its tool is kept waiting. `may_hold`: it may be kept inside its request;
    `job.present`: it is, until its turn comes. A `browser` shows pages and keeps cookies. Its
    answer has the visitor token `cookie`.
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
    """A waiting page asks about the ticket of `job`, and is answered when that changes.

    `tell` answers with the state at that moment.
    """

    request: Request
    job: Job
    tell: Callable[[], None]


@dataclass(frozen=True, slots=True)
class GateTerms:
    """What the configuration says about waiting clients. A reload may change it."""

    tools: ToolTable = field(default_factory=ToolTable)
    holds_most: int = 5000
    clients_per_address: int = 1000
    ticket_max_age_s: float = 7 * 86_400.0


@dataclass(slots=True)
class GateParts:
    """The parts of a gate.

    `now` is the process clock, on which all durations are counted, those of the policy too. `wall`
    is Unix time, for people, tokens and the journal.
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
    #: The number of machines that send, each with the configured slots and a line of its own.
    machines: int = 1
    #: Whether running bodies can be paused. Bodies that another program sends cannot.
    can_pause: bool = True

    def wall_ahead_s(self) -> float:
        """How far the wall clock is ahead of the process clock: by steps and suspensions.

        Less than a second is drift, and does not count.
        """
        ahead_s = self.wall() - self.now()
        return ahead_s if abs(ahead_s) >= 1.0 else 0.0
