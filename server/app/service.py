"""The only place that builds objects: from a configuration to a running server, and to its end."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from ...policies.contract import TicketRow
from ...policies.settings import PolicySettings
from ...protocol.errors import ProtocolError
from ...protocol.ticket import KeyRing
from ..admission.client_keys import Clients
from ..admission.client_programs import ToolTable
from ..admission.draw import ROUTE as PREQUEUE_ROUTE
from ..admission.draw import Prequeue
from ..admission.gate import Gate
from ..admission.gateparts import GateParts
from ..admission.line import Line, LineKeeper
from ..admission.number_allocator import Numbers
from ..admission.passes import PassBook
from ..admission.responses import STATUS_PREFIX, RetryResponder
from ..admission.rules import RuleBook
from ..admission.wait_status import WaitStatus
from ..control.history import Arrivals
from ..control.key_values import KeyValues
from ..control.vitals import Totals
from ..files.contact import security_txt
from ..files.digest_warmup import DigestWarmup
from ..files.digests import DigestService
from ..files.disk import DISK_THREADS, Disk
from ..files.pacer import Pacer
from ..files.pages import Pages
from ..files.site import Site
from ..files.stored_digests import StoredDigests
from ..files.transfer import no_torrents
from ..http.clock import Reactor
from ..http.factory import HttpFactory
from ..http.front import Front
from ..http.tls import CertificateWatch, TlsServer
from ..http.unarrived import UnarrivedAnswers
from ..store.accounts import OperatorTables
from ..store.cluster import drop_node, keep_node
from ..store.journal import reserve_numbers, write_tickets
from ..store.queries import count_pass_use, keep_revision
from ..store.records import PassRecord
from ..store.store import CLUSTER_LATE_S, LATE_S, Work
from . import health
from .admin_service import AdminService
from .bootstrap import (
    CONFIGURATION,
    configured_policy,
    keep_mark,
    open_access_log,
    open_memory,
    open_tree,
    open_waiting_pages,
    private_paths,
    read_mark,
    torrent_room,
)
from .config import CannotStart, LoadedConfig
from .descriptors import affordable, raise_limit
from .keys import KeyKeeper, load_keys
from .listeners import (
    Listener,
    OpenListener,
    adopt_port,
    open_port,
    places,
    tls_server,
    trusted_proxies,
)
from .memory import small_files_bytes
from .mirrors import configured_mirrors, followers_of
from .parts import InOrder, Part
from .settings import FIXED, ServerConfig
from .state_lock import LockKeeper, lock_state
from .store_service import StoreService

# What a server has only where it is configured is loaded only then.
if TYPE_CHECKING:
    from ..cluster.leader import Leader, Nodes
    from ..mirror.registry import Registry
    from ..mirror.routes import MirrorOrigin
    from ..multicast.service import MulticastRoom, MulticastSender
    from .fleet import FleetPlan

#: A server that stops lets whole answers get out for so long.
_PARTING_S = 1.0


class Service:
    """One running server: everything is built complete, in the order in which it stands."""

    log = Logger()

    def __init__(
        self,
        loaded: LoadedConfig,
        reactor: Reactor,
        fleet: FleetPlan | None = None,
        opened: Sequence[OpenListener] = (),
        admin: OpenListener | None = None,
    ) -> None:
        self.loaded = loaded
        #: Where sockets are open already, these are all.
        self._opened = opened
        self.config: ServerConfig = loaded.config
        self.reactor = reactor
        #: Unix time, for people, tokens and the database; durations are the reactor's.
        self.now = now = time.time
        self.draining = False
        config, rng = self.config, random.Random()

        # What an earlier run left, and what is served.
        self.tree = open_tree(config)
        self._open_files = raise_limit()
        #: What a cluster has done already: its machine holds the state folder.
        self._cluster = cluster = fleet.cluster if fleet is not None else None
        self._lock = (
            LockKeeper(reactor, config.state, lock_state(config.state), self._give_way)
            if cluster is None
            else None
        )
        self.tree.keep_private(private_paths(loaded))
        key_file = config.state / "keys.json"
        if cluster is not None:
            keys = cluster.shared.keys
        else:
            keys = load_keys(key_file, now(), config.keys_rotate_s)
        memory = open_memory(config, now(), cluster.database if cluster is not None else None)
        late_s = LATE_S if cluster is None else CLUSTER_LATE_S
        self._database = StoreService(reactor, memory.database, now, self._fenced, late_s)
        self.store = self._database.store
        tables = OperatorTables(memory.database, self.store)
        papers = KeyValues(tables)
        tls = tls_server(config)

        # The line, and who sends over it.
        line = fleet.common_line() if fleet is not None else None
        self.pacer = Pacer(reactor, config.bandwidth, line)
        #: The processes that serve, where there are several; this one then has the queue.
        self.nodes: Nodes | None = None
        answers = UnarrivedAnswers()
        self.line: Line
        if fleet is None:
            self.line = LineKeeper(self.pacer, config.bandwidth, answers)
        else:
            from ..cluster.leader import Nodes
            from ..cluster.line import FleetLine

            self.nodes = Nodes(self.pacer.goodput_bytes_s)
            self.line = lines = FleetLine(self.nodes, config.bandwidth)
        registry: Registry | None = None
        if config.mirror_publish is not None:
            from ..mirror.registry import Registry

            registry = Registry()
        followers = followers_of(config, registry, now)
        sender = self._multicast_sender(rng)

        # The queue.
        pages = Pages()
        has_torrent = self._has_torrent if config.torrent.enabled else no_torrents
        self.waiting = RetryResponder(
            pages,
            lambda path: followers.urls_for(path, only_free=True) if followers else (),
            sender.hurry if sender is not None else lambda request: None,
            open_waiting_pages(config),
            has_torrent,
            lambda path: bool(self.site.said.sources_of(path)),
            lambda path: self.site.signatures_of(path),
        )
        self._passes = PassBook(keys, self._keep_pass)
        self._passes.load(memory.passes)
        self._prequeue = Prequeue(papers.write, papers.drop)
        drawn = (body for name, body in papers.all() if name.startswith("draw "))
        self._prequeue.load(drawn, now())
        arrivals = Arrivals()
        first = max(memory.journal.next_number, read_mark(config.state))
        parts = GateParts(
            reactor=reactor,
            now=reactor.seconds,
            wall=now,
            rng=rng,
            keys=keys,
            journal=self.store,
            numbers=Numbers(first, memory.journal.over, self._promise_numbers),
            passes=self._passes,
            waiting=self.waiting,
            line=self.line,
            clients=Clients(config.clients_per_address, now),
            rules=RuleBook(config.rules, self.tree.real_url),
            prequeue=self._prequeue,
            tools=ToolTable(config.holding.tools, config.holding.unknown),
            arrived=arrivals.note,
            holds_most=config.holding.most,
            holds_per_client=config.holding.most_per_client,
            ticket_max_age_s=config.ticket_max_age_s,
            machines=fleet.machines if fleet is not None else 1,
        )
        policy = memory.revision
        self.gate = gate = Gate(
            parts, policy.policy, PolicySettings.model_validate(policy.settings)
        )
        self.keys = KeyKeeper(
            reactor,
            now,
            key_file,
            config.keys_rotate_s,
            self.use_keys,
            lambda: self._promise_numbers(parts.numbers.promised),
        )

        # What answers.
        self.multicast: MulticastRoom | None = None
        if sender is not None:
            from ..multicast.service import MulticastRoom

            self.multicast = MulticastRoom(
                reactor, sender, self.tree, gate, config.state, self._database.read_pool
            )
        self.catalog = DigestService(reactor, StoredDigests(self.store, now))
        self.survey = DigestWarmup(reactor, self.tree, self.catalog)
        self.site = site = Site(
            self.tree,
            self.catalog,
            self.multicast.switch if self.multicast is not None else gate,
            gate.reception,
            self.pacer,
            pages,
            reactor,
            mirrors=configured_mirrors(config),
            elsewhere=followers.urls_for if followers else lambda path: (),
            greet=lambda request: parts.clients.greet(request, parts.keys),
            disk=Disk(reactor, DISK_THREADS),
            small_files_bytes=small_files_bytes(config.small_files_bytes, config.worker_count()),
            has_torrent=has_torrent,
            wall=now,
        )
        site.add_maker(security_txt(config.security_contact, now))
        site.add_route(PREQUEUE_ROUTE, lambda request: self._prequeue.answer(request, now()))
        status = WaitStatus(gate, lambda: parts.keys, now, site.digest_of)
        site.add_route(STATUS_PREFIX, status.answer)
        if self.multicast is not None:
            self.multicast.add_routes(site)
        self._mirror_origin: MirrorOrigin | None = None
        if registry is not None and config.mirror_publish is not None:
            from ..mirror.routes import PREFIX, MirrorOrigin

            self._mirror_origin = MirrorOrigin(
                registry, config.mirror_publish, reactor, now, site.forget_all
            )
            site.add_route(PREFIX, self._mirror_origin.handle, ("GET", "HEAD", "POST"))
        self.torrents = torrent_room(config, reactor, site, has_torrent, rng)
        self.factory = HttpFactory(
            site,
            reactor,
            limits=affordable(config.limits.http_limits(), self._open_files),
            proxies=trusted_proxies(config),
            hsts_s=config.tls_hsts_s,
            access_log=open_access_log(config),
            charge=self.pacer.charge_answers,
            requests=self.pacer.requests,
            denylist=self.gate.reception.blocked,
            answers=answers,
        )
        self._front = Front(reactor, self.factory)
        self.listeners: list[Listener] = []
        self.certificate = CertificateWatch(reactor, tls) if tls is not None else None
        self._totals: Callable[[], Totals] = self._own_totals
        self.leader: Leader | None = None
        if fleet is not None and self.nodes is not None:
            from ..cluster.leader import Leader
            from .fleet import LeaderHome, fleet_totals

            self._totals = partial(
                fleet_totals, self.nodes, lines, self.pacer, fleet, reactor.seconds
            )
            self.leader = Leader(
                reactor,
                LeaderHome(
                    site,
                    gate,
                    lambda request: self.admin.answer(request),
                    lambda: self.admin.proofs(),
                ),
                self.nodes,
                self.factory.proxies,
                epoch=fleet.epoch,
                awaited=fleet.awaited,
                cap_of=lines.cap_of,
                lost=fleet.lost,
            )
        self.admin = AdminService(
            config,
            reactor,
            now,
            gate=gate,
            site=site,
            store=self.store,
            tables=tables,
            papers=papers,
            revision=policy,
            arrivals=arrivals,
            totals=self._totals,
            multicast=self.multicast,
            torrents=self.torrents,
            mirrors=registry,
            tls=tls,
            key=cluster.shared.admin_key if cluster is not None else None,
            opened=admin,
        )
        if cluster is not None and self.nodes is not None:
            self._remember_nodes(self.nodes)
        health.add_routes(site, self.admin.server.vitals)
        self._ready: Callable[[list[str]], None] = lambda urls: None
        self._parts = InOrder(self._all_parts(memory.journal.live, tls, fleet))

    def _has_torrent(self, url_path: str, size_bytes: int) -> bool:
        # What needs a pass has none: its peers would hand it on.
        large = size_bytes >= self.config.torrent.least
        return large and not self.gate.reception.secret(url_path)

    def _multicast_sender(self, rng: random.Random) -> MulticastSender | None:
        settings = self.config.multicast
        if not settings.enabled:
            return None
        from ..multicast.service import MulticastSender

        try:
            return MulticastSender(self.reactor, settings, rng, self.pacer.charge)
        except ProtocolError as fault:
            raise CannotStart(str(fault)) from fault

    def _all_parts(
        self, restored: Sequence[TicketRow], tls: TlsServer | None, fleet: FleetPlan | None
    ) -> Iterator[Part]:
        """What starts and stops, each on top of those before it."""
        if self._lock is not None:
            yield Part("lock", self._lock.start, self._lock.close)
        yield Part("files", end=self._close_files)
        yield self._database.part(self._all_that_must_last)
        yield Part("digests", end=self.catalog.stop)
        yield Part("draw", end=self._prequeue.save)
        if self._cluster is None:
            yield Part("keys", self.keys.start, self.keys.stop)
        if self.certificate is not None:
            yield Part("certificate", self.certificate.start, self.certificate.stop)
        yield Part("queue", lambda: self.gate.open(restored), self.gate.close)
        leader = self.leader
        if leader is not None and fleet is not None:
            from .fleet import NodePort

            port = NodePort(self.reactor, leader, fleet.socket)
            yield Part("node port", port.open, port.close)
            yield Part("leader", lambda: leader.start(self._tell_ready), self._leave)
        yield Part("connections", end=self._part_with_clients)
        if leader is None:
            yield from self._listening(tls)
        yield Part("survey", self.survey.start, self.survey.stop)
        if self._mirror_origin is not None:
            yield Part("mirrors", self._mirror_origin.start, self._mirror_origin.stop)
        if self.multicast is not None:
            yield Part("multicast", self.multicast.start, self.multicast.close)
        if self.torrents is not None:
            yield Part("torrents", self.torrents.start, self.torrents.stop)
        yield from self.admin.parts()

    def _listening(self, tls: TlsServer | None) -> Iterator[Part]:
        front = self._front
        if self._opened:
            for one in self._opened:
                yield self._listener(
                    one.url, partial(adopt_port, front, one.sockets[0], one.url, tls)
                )
            return
        for place in places(self.config):
            secure = None if place.startswith("unix:") else tls
            yield self._listener(place, partial(open_port, front, place, secure))

    def _listener(self, place: str, open_it: Callable[[], Listener]) -> Part:
        opened: list[Listener] = []

        def begin() -> None:
            opened.append(open_it())
            self.listeners.extend(opened)

        return Part(f"listener {place}", begin, lambda: opened[0].port.stopListening())

    # -- start -------------------------------------------------------------------------------

    def start(self, ready: Callable[[list[str]], None]) -> None:
        """Open everything; `ready` is told the URLs as soon as files are served under them.

        Raises `CannotStart`; call `stop` then, too.
        """
        self._ready = ready
        self._parts.startService()
        self.note_event("server", "The server has started.")
        if self.leader is None:
            self._tell_ready()

    def _tell_ready(self) -> None:
        self._ready(list(self._totals().listeners))

    # -- while running -----------------------------------------------------------------------

    def reload(self, loaded: LoadedConfig) -> list[str]:
        """Take over a new configuration; the names of settings that need a restart."""
        old, new = self.config, loaded.config
        self.loaded, self.config = loaded, new
        self.reopen_logs()
        try:
            self.waiting.own = open_waiting_pages(new)
        except CannotStart as fault:
            self.log.error("The waiting pages stay as they were: {fault}", fault=fault)
        parts, operated = self.gate.parts, self.admin.server
        operated.rules.configure(new.rules)
        operated.scrapers = new.metrics_from
        parts.tools = ToolTable(new.holding.tools, new.holding.unknown)
        parts.clients.per_address = new.clients_per_address
        parts.ticket_max_age_s = new.ticket_max_age_s
        self.gate.parked.limit(new.holding.most, new.holding.most_per_client)
        self.factory.limits = affordable(new.limits.http_limits(), self._open_files)
        self.site.use_mirrors(configured_mirrors(new))
        if self.certificate is not None:
            self.certificate.read_now()
        self.keys.rotate_after_s = new.keys_rotate_s
        if self._cluster is None:
            self.keys.read()
        if new.bandwidth != old.bandwidth:
            self.line.set_ceiling(new.bandwidth)
            if self.nodes is not None:
                # What this process sends itself, by multicast, is under the cap of its machine.
                self.pacer.set_bandwidth(new.bandwidth)
        if configured_policy(old) != configured_policy(new):
            operated.revisions.configured = configured_policy(new)
            operated.revisions.apply(
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
        self.admin.server.events.add(kind, text, level, **data)

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
        await self._parts.stopService()

    @property
    def hung(self) -> bool:
        """After `stop`: whether the process must be ended, because a thread of it cannot be."""
        return self._database.hung

    async def _part_with_clients(self) -> None:
        """Whole answers get out; those who are parked are sent away with their places."""
        self.gate.drain()
        self.factory.drain()
        await self.factory.parted(_PARTING_S)
        self.factory.abort_all()

    async def _leave(self) -> None:
        assert self.leader is not None
        await self.leader.leave(_PARTING_S)
        self.leader.stop()

    def _close_files(self) -> None:
        if self.factory.access_log is not None:
            self.factory.access_log.close()
        self.tree.close()

    # -- small duties ------------------------------------------------------------------------

    def _own_totals(self) -> Totals:
        """One process serves."""
        return Totals(
            listeners=tuple(listener.url for listener in self.listeners),
            connections=len(self.factory.connections),
            connections_total=self.factory.accepted_total,
            sent_bytes_total=self.pacer.sent_bytes_total,
            goodput_bytes_s=self.pacer.goodput_bytes_s(),
            capacity_bytes_s=self.pacer.bandwidth_bytes_s,
            transfers_misplaced=self.pacer.misplaced(),
            transfers_starved_total=self.pacer.starved_total,
        )

    def use_keys(self, keys: KeyRing) -> None:
        """Sign and read tickets and passes with these."""
        self.gate.parts.keys = self._passes.keys = keys

    def _give_way(self) -> None:
        """Stop at once: another server has the state folder."""
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)

    def _fenced(self) -> None:
        if self._cluster is not None:
            self._cluster.retire("the database says so")

    def _remember_nodes(self, nodes: Nodes) -> None:
        """A later leader must know for whom to wait."""
        nodes.came = lambda node: self.store.must(
            lambda connection: keep_node(connection, node.name, node.machine, self.now())
        )
        nodes.left = lambda name: self.store.must(lambda connection: drop_node(connection, name))

    def _keep_pass(self, record: PassRecord) -> None:
        self.store.must(lambda connection: count_pass_use(connection, record))

    def _promise_numbers(self, below: int) -> None:
        # The first promise is made while the objects are built, before the store's threads run.
        try:
            keep_mark(self.config.state, below)
        except OSError as fault:
            self.log.error("The ticket numbers' mark cannot be kept: {fault}", fault=fault)
        self.store.must(lambda connection: reserve_numbers(connection, below))

    def _all_that_must_last(self) -> list[Work[None]]:
        """What a database that was lost must be told again; accounts are not known here."""
        gate, revision = self.gate, self.admin.server.revisions.current
        rows = gate.leases.live_tickets()
        passes = self._passes.records()
        below = gate.parts.numbers.promised
        return [
            lambda connection: write_tickets(connection, rows),
            lambda connection: reserve_numbers(connection, below),
            lambda connection: keep_revision(connection, revision),
            *((lambda connection, one=one: count_pass_use(connection, one)) for one in passes),
        ]
