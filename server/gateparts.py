"""What a gate is made of, and what it asks of the rooms around it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from policies.job import Job, TicketRow
from protocol.ticket import KeyRing
from server.callers import Callers
from server.http.request import Request
from server.numbers import Numbers
from server.passes import PassBook
from server.popularity import Popularity
from server.prequeue import Prequeue
from server.proofs import Proof
from server.rules import RuleBook
from server.store.records import ArrivalRecord
from server.tools import ToolRule, ToolTable
from server.transfer import BodyPlan, Representation, Start
from server.waiting import WaitingRoom


class Journal(Protocol):
    """Where tickets go that must survive (`store.Store`)."""

    def keep_tickets(self, rows: Iterable[TicketRow]) -> None:
        """Write these rows soon."""
        ...

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call back when what was given so far is safe, or cannot be made safe now."""
        ...


class Link(Protocol):
    """What the gate asks of the pacer."""

    @property
    def link_busy(self) -> bool:
        """Whether the cap holds somebody back."""
        ...

    def goodput_bytes_s(self) -> float:
        """What left lately."""
        ...


@dataclass(frozen=True, slots=True)
class Visit:
    """One request with all that is known of it when it is offered to the policy.

    `rule` says how its tool is kept waiting, `may_hold` whether it may be kept inside its request
    at all; `job.present` that it is, until its turn comes.
    """

    request: Request
    rep: Representation
    plan: BodyPlan
    start: Start
    job: Job
    rule: ToolRule
    proof: Proof
    may_hold: bool


@dataclass(slots=True)
class GateParts:
    """What a gate is made of; `service` fills it."""

    reactor: Any
    now: Callable[[], float]
    rng: random.Random
    keys: KeyRing
    journal: Journal
    numbers: Numbers
    passes: PassBook
    waiting: WaitingRoom
    link: Link
    callers: Callers
    rules: RuleBook
    tools: ToolTable
    arrived: Callable[[ArrivalRecord], None]
    not_found: Callable[[Request], None]
    popularity: Popularity = field(default_factory=Popularity)
    prequeue: Prequeue = field(default_factory=lambda: Prequeue(lambda name, body: None))
    holds_most: int = 5000
    holds_per_client: int = 64
    ticket_max_age_s: float = 7 * 86_400.0
