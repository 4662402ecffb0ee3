"""The only place that builds objects: from a configuration to a running server, and to its end."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

from twisted.internet import defer, threads
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool

from policies.settings import PolicySettings
from protocol import problems
from protocol.errors import ProtocolError
from protocol.ticket import KeyRing
from server.admin.events import EventLog
from server.admin.key_values import Papers
from server.admin.revisions import Configured, Revisions
from server.admin.vitals import Totals
from server.admission.actions import QueueActions
from server.admission.client_keys import Clients
from server.admission.client_programs import ToolTable
from server.admission.draw import ROUTE as PREQUEUE_ROUTE
from server.admission.draw import Prequeue
from server.admission.gate import Gate
from server.admission.gateparts import GateParts
from server.admission.line import Line, LineKeeper, ToldLine
from server.admission.number_allocator import Numbers
from server.admission.passes import PassBook
from server.admission.responses import STATUS_PREFIX, WaitingRoom
from server.admission.rules import RuleBook
from server.admission.wait_status import WaitStatus
from server.app import health
from server.app.admin_service import AdminService
from server.app.bootstrap import (
    CONFIGURATION,
    CannotServe,
    configured_revision,
    keep_mark,
    open_access_log,
    open_memory,
    open_tree,
    private_paths,
    read_mark,
    same_policy,
)
from server.app.config import LoadedConfig
from server.app.descriptors import affordable, raise_limit
from server.app.fleet import FleetPlan, FleetTotals, LeaderHome, NodePort, OwnTotals
from server.app.keys import KeyKeeper, load_keys
from server.app.listeners import Listener, open_port, tls_server
from server.app.mirrors import configured_mirrors, offer_followers
from server.app.settings import FIXED, ServerConfig
from server.app.state_lock import lock_state
from server.cluster.leader import Leader, Nodes
from server.files.digest_warmup import Survey
from server.files.digests import Catalog
from server.files.listing import Listings
from server.files.manifests import Generated
from server.files.pacer import Pacer
from server.files.pages import STATIC_ROUTE, Pages
from server.files.site import Site
from server.files.stored_digests import StoredDigests
from server.http.factory import HttpFactory
from server.http.front import Front
from server.http.proxies import TrustedProxies
from server.http.tls import CertificateWatch
from server.multicast.service import MulticastRoom
from server.store.accounts import OperatorTables
from server.store.journal import reserve_numbers, write_tickets
from server.store.queries import (
    count_pass_use,
    keep_revision,
)
from server.store.records import PassRecord
from server.store.store import Store, Work

_READ_THREADS = 3
#: A server that stops lets whole answers get out for so long.
_PARTING_S = 1.0


class Service:
    """One running server. Its attributes are what the admin page and the multicast room bind to."""

    log = Logger()

    def __init__(self, loaded: LoadedConfig, reactor: Any, fleet: FleetPlan | None = None) -> None:
        self.loaded = loaded
        self.config: ServerConfig = loaded.config
        self.reactor = reactor
        #: Unix time, for people, tokens and the database; durations are the reactor's.
        self.now = time.time
        self.started_s = self.now()
        self.listeners: list[Listener] = []
        self._fleet = fleet
        self.draining = False
        #: After `stop`: a thread cannot be ended, so the process must be.
        self.hung = False
        self.rng = random.Random()
        config = self.config
        self.tree = open_tree(config)
        self._open_files = raise_limit()
        self._lock = lock_state(config.state)
        self.tree.keep_private(private_paths(loaded))
        self._key_file = config.state / "keys.json"
        keys = load_keys(self._key_file, self.now(), config.keys_rotate_s)
        self.keys = KeyKeeper(reactor, self.now, self._use_keys)
        memory = open_memory(config, self.now())
        self.database, journal, revision = memory.database, memory.journal, memory.revision
        self._write_pool = ThreadPool(1, 1, "store-write")
        self._read_pool = ThreadPool(0, _READ_THREADS, "store-read")
        self.store = Store(
            self.database,
            reactor,
            lambda work: threads.deferToThreadPool(reactor, self._write_pool, work),
            lambda work: threads.deferToThreadPool(reactor, self._read_pool, work),
            self.now,
            self._all_that_must_last,
        )
        self.pacer = Pacer(reactor, config.bandwidth)
        #: The processes that serve, where there are several; this one then has the queue.
        self.nodes = Nodes(self.pacer.goodput_bytes_s)
        self.line: Line = (
            LineKeeper(self.pacer, config.bandwidth)
            if fleet is None
            else ToldLine(self.nodes, config.bandwidth)
        )
        self.catalog = Catalog(reactor, StoredDigests(self.store, self.now))
        self.survey = Survey(reactor, self.tree, self.catalog)
        self.pages = Pages()
        self.waiting = WaitingRoom(self.pages)
        self.passes = PassBook(keys, self._keep_pass)
        self.passes.load(memory.passes)
        tables = OperatorTables(self.database, self.store)
        papers = Papers(tables)
        self.prequeue = Prequeue(papers.write, papers.drop)
        self.prequeue.load(
            (body for name, body in papers.all() if name.startswith("draw ")), self.now()
        )
        settings = PolicySettings.model_validate(revision.settings)
        parts = GateParts(
            reactor=reactor,
            now=reactor.seconds,
            wall=self.now,
            rng=self.rng,
            keys=keys,
            journal=self.store,
            numbers=Numbers(
                max(journal.next_number, read_mark(config.state)),
                journal.over,
                self._promise_numbers,
            ),
            passes=self.passes,
            waiting=self.waiting,
            line=self.line,
            clients=Clients(config.clients_per_address, self.now),
            rules=RuleBook(config.rules, self.tree.real_url),
            prequeue=self.prequeue,
            tools=ToolTable(config.holding.tools, config.holding.unknown),
            arrived=lambda record: self.admin.history.arrived(record),
            not_found=lambda request: self.site.not_found(request),
            holds_most=config.holding.most,
            holds_per_client=config.holding.most_per_client,
            ticket_max_age_s=config.ticket_max_age_s,
        )
        self.gate = Gate(parts, revision.policy, settings)
        self.desk = QueueActions(self.gate)
        self.events = EventLog(self.store, self.now)
        self.revisions = Revisions(
            self.gate, self.store, self.events, self.now, revision, _configured(config)
        )
        self._restored = journal.live
        self.site = Site(
            self.tree,
            self.catalog,
            self.gate,
            self.pacer,
            mirrors=configured_mirrors(config),
            wall=self.now,
        )
        self.site.hidden = lambda path: self.gate.parts.rules.verdict(path).hidden(self.now())
        self.site.secret = lambda path: (
            self.gate.parts.rules.verdict(path).require_class is not None
        )
        self.site.turned_away = lambda request, path: self.gate.reception.turns_away(
            request, path, self.now()
        )
        self.site.register = lambda request, rep: self.gate.reception.register(
            request, rep, self.now()
        )
        self.site.listing = Listings(
            self.site,
            self.pages,
            reactor,
            greet=lambda request: self.gate.parts.clients.greet(request, self.gate.parts.keys),
        ).answer
        self.site.generated = Generated(self.site, reactor).answer
        self.site.add_route(STATIC_ROUTE, self.pages.answer_static)
        self.site.add_route(problems.BASE.rstrip("/"), self.pages.answer_problem)
        self.site.add_route(
            PREQUEUE_ROUTE, lambda request: self.prequeue.answer(request, self.now())
        )
        status = WaitStatus(self.gate, lambda: self.gate.parts.keys, self.now)
        self.site.add_route(STATUS_PREFIX, status.answer)
        health.add_routes(self.site, self.gate, self.store, lambda: self.draining)
        self.multicast: MulticastRoom | None = None
        if config.multicast.enabled:
            try:
                self.multicast = MulticastRoom(
                    reactor,
                    config.multicast,
                    self.site,
                    self.gate,
                    config.state,
                    self.rng,
                    self._read_pool,
                )
            except ProtocolError as fault:
                raise CannotServe(str(fault)) from fault
        self.mirror_origin = offer_followers(config, reactor, self.now, self.site, self.waiting)
        self.factory = HttpFactory(
            self.site,
            reactor,
            limits=affordable(config.limits.http_limits(), self._open_files),
            proxies=TrustedProxies(
                config.trusted_proxies, config.proxy_header, preface=config.proxy_protocol
            ),
            hsts_s=config.tls_hsts_s,
            access_log=open_access_log(config),
            charge=self.pacer.charge,
            denylist=self.gate.reception.blocked,
        )
        self.front = Front(reactor, self.factory)
        self.certificate: CertificateWatch | None = None
        self.totals: Totals = (
            OwnTotals(self.pacer, self.factory, self.listeners)
            if fleet is None
            else FleetTotals(self.nodes, self.pacer, fleet)
        )
        self.leader = None
        if fleet is not None:
            self.leader = Leader(
                reactor,
                LeaderHome(self.site, self.gate),
                self.nodes,
                self.factory.proxies,
                epoch=fleet.epoch,
                awaited=fleet.workers,
                bandwidth_bytes_s=config.bandwidth,
            )
            self._node_port = NodePort(reactor, self.leader, fleet.socket)
        self.admin = AdminService(self, tables, papers)

    # -- start -------------------------------------------------------------------------------

    def start(self, ready: Callable[[list[str]], None]) -> None:
        """Open everything; `ready` is told the URLs as soon as files are served under them.

        Raises `CannotListen`.
        """
        self._write_pool.start()
        self._read_pool.start()
        self.store.open()
        self.gate.open(self._restored)
        self._restored = ()
        tls = tls_server(self.config)
        if tls is not None:
            self.certificate = CertificateWatch(self.reactor, tls)
            self.certificate.start()
        if self.leader is None:
            for place in self.config.listen:
                secure = None if place.startswith("unix:") else tls
                self.listeners.append(open_port(self.front, place, secure))
        else:
            self._node_port.open()
            self.leader.start(lambda: ready(list(self.totals.urls)))
        self.admin.start(self.config.admin, tls)
        self.survey.start()
        if self.multicast is not None:
            self.multicast.start()
        if self.mirror_origin is not None:
            self.mirror_origin.start()
        self.keys.start(self._key_file, self.config.keys_rotate_s)
        self.note_event("server", "The server has started.")
        if self.leader is None:
            ready(list(self.totals.urls))

    # -- while running -----------------------------------------------------------------------

    def reload(self, loaded: LoadedConfig) -> list[str]:
        """Take over a new configuration; the names of settings that need a restart."""
        old, new = self.config, loaded.config
        self.loaded, self.config = loaded, new
        self.reopen_logs()
        parts = self.gate.parts
        self.admin.server.rules.configure(new.rules)
        parts.tools = ToolTable(new.holding.tools, new.holding.unknown)
        parts.clients.per_address = new.clients_per_address
        parts.ticket_max_age_s = new.ticket_max_age_s
        self.gate.parked.most = new.holding.most
        self.gate.parked.most_per_client = new.holding.most_per_client
        self.factory.limits = affordable(new.limits.http_limits(), self._open_files)
        self.site.said.mirrors = configured_mirrors(new)
        self.site.forget_all()
        if self.certificate is not None:
            self.certificate.read_now()
        self.keys.read(self._key_file, new.keys_rotate_s)
        self.keys.start(self._key_file, new.keys_rotate_s)
        if new.bandwidth != old.bandwidth:
            self.line.set_ceiling(new.bandwidth)
            if self.leader is not None:
                self.leader.bandwidth_bytes_s = new.bandwidth
        if not same_policy(configured_revision(old, 0), configured_revision(new, 0)):
            self.revisions.configured = _configured(new)
            self.revisions.apply(
                new.policy,
                new.policy_settings(),
                CONFIGURATION,
                "The configuration was read again.",
            )
        self.survey.start()
        return [name for name in FIXED if getattr(old, name) != getattr(new, name)]

    def reopen_logs(self) -> None:
        """The access log was renamed: begin a new one."""
        if self.factory.access_log is not None:
            self.factory.access_log.reopen()

    def note_event(self, kind: str, text: str, level: str = "info", **data: Any) -> None:
        """Add a line to the operator's log."""
        self.events.add(kind, text, level, **data)

    # -- the end -----------------------------------------------------------------------------

    def drain(self, finished: Callable[[], None]) -> None:
        """Admit nobody any more; call back when all downloads are over or the deadline is."""
        if self.draining:
            return
        self.draining = True
        deadline_s = self.reactor.seconds() + self.config.drain_s
        if self.multicast is not None:
            self.multicast.close()
        self.gate.drain()
        self.note_event("server", "The server is draining.")

        def look() -> None:
            active = any(download.deliveries for download in self.gate.downloads.values())
            if self.reactor.seconds() >= deadline_s or not active:
                finished()
            else:
                self.reactor.callLater(0.1, look)

        self.reactor.callLater(0.1, look)

    async def stop(self) -> None:
        """Close everything; tickets are safe in the store when this returns.

        Unless `hung` is set then: a thread waits for a database that does not answer.
        """
        for listener in self.listeners:
            await defer.maybeDeferred(listener.port.stopListening)
        await defer.maybeDeferred(self.admin.stop)
        self.factory.drain()
        await self.factory.parted(_PARTING_S)
        if self.mirror_origin is not None:
            self.mirror_origin.stop()
        self.keys.stop()
        if self.certificate is not None:
            self.certificate.stop()
        self.survey.stop()
        if self.multicast is not None:
            self.multicast.close()
        self.gate.close()
        if self.leader is not None:
            await self.leader.leave(_PARTING_S)
            self.leader.stop()
            await defer.maybeDeferred(self._node_port.close)
        self.prequeue.save()
        self.factory.abort_all()
        if self.factory.access_log is not None:
            self.factory.access_log.close()
        self.hung = not await self.store.close()
        self.catalog.stop()
        self.database.interrupt()
        if not self.hung:
            self._read_pool.stop()
            self._write_pool.stop()
            self.database.close()
        self.tree.close()
        os.close(self._lock)

    # -- small duties ------------------------------------------------------------------------

    def _use_keys(self, keys: KeyRing) -> None:
        self.gate.parts.keys = self.passes.keys = keys

    def _keep_pass(self, record: PassRecord) -> None:
        self.store.must(lambda session: count_pass_use(session, record))

    def _promise_numbers(self, below: int) -> None:
        # The first promise is made while the objects are built, before the store's threads run.
        try:
            keep_mark(self.config.state, below)
        except OSError as fault:
            self.log.error("The ticket numbers' mark cannot be kept: {fault}", fault=fault)
        self.store.must(lambda session: reserve_numbers(session, below))

    def _all_that_must_last(self) -> list[Work[None]]:
        """What a database that was lost must be told again; accounts are not known here."""
        gate, revision = self.gate, self.revisions.current
        rows = gate.leases.live_tickets()
        passes = self.passes.records()
        below = gate.parts.numbers.promised
        return [
            lambda session: write_tickets(session, rows),
            lambda session: reserve_numbers(session, below),
            lambda session: keep_revision(session, revision),
            *((lambda session, one=one: count_pass_use(session, one)) for one in passes),
        ]


def _configured(config: ServerConfig) -> Configured:
    """The policy as the file has it."""
    wanted = configured_revision(config, 0.0)
    return Configured(wanted.policy, wanted.settings)
