"""The queue: the gate with what it asks, and the pages of clients that wait."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from twisted.logger import Logger

from ...policies.settings import PolicySettings
from ..admission.client_keys import Clients
from ..admission.client_programs import ToolTable
from ..admission.draw import Prequeue
from ..admission.gate import Gate
from ..admission.gateparts import GateParts, GateTerms
from ..admission.line import Line
from ..admission.number_allocator import Numbers
from ..admission.own_pages import BadTemplate, OwnPages
from ..admission.passes import PassBook
from ..admission.responses import RetryResponder
from ..admission.rules import RuleBook
from ..control.history import Arrivals
from ..files.pages import Pages
from ..files.site import Site
from ..http.clock import Reactor
from ..store.journal import reserve_numbers
from ..store.queries import count_pass_use
from .bootstrap import keep_mark, read_mark
from .config import CannotStart
from .parts import Part
from .settings import ServerConfig
from .state_room import StateRoom

_log = Logger()


class QueueRoom:
    """The `ServerRoom` of the gate and what it remembers."""

    def __init__(
        self,
        config: ServerConfig,
        reactor: Reactor,
        now: Callable[[], float],
        state: StateRoom,
        *,
        line: Line,
        rng: random.Random,
        waiting: RetryResponder,
        real_url: Callable[[str], str],
        machines: int,
    ) -> None:
        self._state = state
        memory, documents = state.memory, state.documents
        self.waiting = waiting
        self.passes = PassBook(
            state.keys, lambda one: state.store.must(lambda c: count_pass_use(c, one))
        )
        self.passes.load(memory.passes)
        self.prequeue = Prequeue(documents.write, documents.drop)
        drawn = (body for name, body in documents.all() if name.startswith("draw "))
        self.prequeue.load(drawn, now())
        self.arrivals = Arrivals()
        first = max(memory.journal.next_number, read_mark(config.state))
        self._mark_folder = config.state
        parts = GateParts(
            **common_parts(config, reactor, now, rng),
            keys=state.keys,
            journal=state.store,
            numbers=Numbers(first, memory.journal.over, self.promise_numbers),
            passes=self.passes,
            waiting=waiting,
            line=line,
            rules=RuleBook(config.rules, real_url),
            prequeue=self.prequeue,
            arrived=self.arrivals.note,
            machines=machines,
            can_pause=not config.gate.enabled,
        )
        settings = PolicySettings.model_validate(memory.revision.settings)
        self.gate = Gate(parts, memory.revision.policy, settings)

    def parts(self) -> Iterator[Part]:
        yield Part("draw", end=self.prequeue.save)
        restored = self._state.memory.journal.live
        yield Part("queue", lambda: self.gate.open(restored), self.gate.close)

    def reconfigure(self, config: ServerConfig) -> None:
        """See `ServerRoom`; rules and policy follow with the operator's own (`AdminService`)."""
        self.gate.reconfigure(gate_terms(config))
        reload_waiting_pages(self.waiting, config)

    def promise_numbers(self, below: int) -> None:
        """Give no ticket number from `below` on, whatever happens to the database."""
        # The first promise is made while the objects are built, before the store's threads run.
        try:
            keep_mark(self._mark_folder, below)
        except OSError as fault:
            _log.error("The ticket numbers' mark cannot be kept: {fault}", fault=fault)
        self._state.store.must(lambda connection: reserve_numbers(connection, below))


def gate_terms(config: ServerConfig) -> GateTerms:
    holding = config.holding
    return GateTerms(
        tools=ToolTable(holding.tools, holding.unknown),
        holds_most=holding.most,
        clients_per_address=config.clients_per_address,
        ticket_max_age_s=config.ticket_max_age_s,
    )


def common_parts(
    config: ServerConfig, reactor: Reactor, now: Callable[[], float], rng: random.Random
) -> dict[str, Any]:
    """The parts that are the same for a gate with the queue and for one that decides alone."""
    terms = gate_terms(config)
    return {
        "reactor": reactor,
        "now": reactor.seconds,
        "wall": now,
        "rng": rng,
        "clients": Clients(terms.clients_per_address, now),
        "terms": terms,
    }


def build_waiting(
    config: ServerConfig, pages: Pages, site: Callable[[], Site], **more: Any
) -> RetryResponder:
    """The pages of clients that wait; `more` is passed on as it is. Raises CannotStart."""
    return RetryResponder(
        pages,
        own=open_waiting_pages(config),
        has_mirrors=lambda path: bool(site().fields.sources_of(path)),
        signatures=lambda path: site().signatures_of(path),
        **more,
    )


def reload_waiting_pages(waiting: RetryResponder, config: ServerConfig) -> None:
    """Use the operator's templates as they are now; faulty ones change nothing."""
    try:
        waiting.own = open_waiting_pages(config)
    except CannotStart as fault:
        _log.error("The waiting pages stay as they were: {fault}", fault=fault)


def open_waiting_pages(config: ServerConfig) -> OwnPages:
    """The operator's own waiting pages, if there are any. Raises CannotStart."""
    try:
        return OwnPages(config.waiting_pages)
    except BadTemplate as fault:
        raise CannotStart(f"The waiting page cannot be used: {fault}.") from fault
