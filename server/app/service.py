"""One server, composed from its rooms: from a configuration to its end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from ..admission.draw import ROUTE as PREQUEUE_ROUTE
from ..admission.responses import STATUS_PREFIX
from ..admission.wait_status import CalledTickets, WaitStatus
from ..control.report import counted
from ..control.server import Rooms
from ..control.vitals import Totals
from ..files.pages import Pages
from ..files.transfer import no_torrents
from ..gate.settings import AUTHORIZE_ROUTE
from ..gate.settings import ROUTE as GATE_ROUTE
from ..http.clock import Reactor
from ..store.cluster import add_node, remove_node
from ..store.journal import reserve_numbers, write_tickets
from ..store.queries import count_pass_use, keep_revision
from ..store.store import Work
from . import health
from .admin_service import AdminService
from .config import LoadedConfig
from .connections import Connections
from .files_room import FilesRoom, open_tree
from .line_room import LineRoom
from .listeners import OpenListener, tls_server
from .parts import InOrder, Part, ServerRoom
from .queue_room import QueueRoom, build_waiting
from .settings import ServerConfig
from .sources import followers_of, gate_room, multicast_sender, torrent_room
from .state_room import StateRoom
from .stored_digests import StoredDigests

# What a server has only where it is configured is loaded only then.
if TYPE_CHECKING:
    from ..cluster.leader import Leader, Nodes
    from ..files.transfer import Admission
    from ..gate.room import GateRoom
    from ..mirror.registry import Registry
    from ..mirror.routes import MirrorOrigin
    from ..multicast.service import MulticastRoom
    from .fleet import FleetPlan


class Service:
    """One running server. Where `fleet` is given, other processes serve and this one leads them."""

    log = Logger()

    def __init__(
        self,
        loaded: LoadedConfig,
        reactor: Reactor,
        fleet: FleetPlan | None = None,
        opened: Sequence[OpenListener] = (),
        admin: OpenListener | None = None,
    ) -> None:
        self.config: ServerConfig = loaded.config
        self.reactor = reactor
        self.draining = False
        config, rng, now = self.config, random.Random(), time.time
        cluster = fleet.cluster if fleet is not None else None
        pages = Pages()

        self.tree = tree = open_tree(loaded)
        self._state = state = StateRoom(
            config,
            reactor,
            now,
            cluster,
            use_keys=lambda keys: self.gate.use_keys(keys),
            # The state folder lost the mark as well.
            keys_lost=lambda: queue.promise_numbers(self.gate.parts.numbers.promised),
            known=self._all_that_must_last,
        )
        self.store = state.store
        tls = tls_server(config)
        self._line = line = LineRoom(
            config, reactor, fleet.common_line() if fleet is not None else None
        )
        self.nodes: Nodes | None = line.nodes

        registry: Registry | None = None
        if config.mirror_publish is not None:
            from ..mirror.registry import Registry

            registry = Registry()
        followers = followers_of(config, registry, now)
        sender = multicast_sender(config, reactor, rng, line.pacer)
        has_torrent = self._has_torrent if config.torrent.enabled else no_torrents

        self.waiting = build_waiting(
            config,
            pages,
            lambda: self.site,
            elsewhere=lambda path: followers.urls_for(path, only_free=True) if followers else (),
            hurry=sender.hurry if sender is not None else lambda request: None,
            has_torrent=has_torrent,
        )
        self._queue = queue = QueueRoom(
            config,
            reactor,
            now,
            state,
            line=line.line,
            rng=rng,
            waiting=self.waiting,
            real_url=tree.real_url,
            machines=fleet.machines if fleet is not None else 1,
        )
        self.gate = gate = queue.gate

        self.multicast: MulticastRoom | None = None
        if sender is not None:
            from ..multicast.service import MulticastRoom

            self.multicast = MulticastRoom(
                reactor, sender, tree, gate, config.state, state.read_pool
            )
        admission: Admission = self.multicast.switch if self.multicast is not None else gate
        self.movers: GateRoom | None = None
        if config.gate.enabled:
            self.movers = gate_room(
                config, reactor, now, line.pacer, lambda: gate.policy.line_shares()
            )
            admission = self.movers.admission(
                admission, lambda rep: tree.has(rep.path, rep.key), lambda one: self.site(one)
            )
        self._files = files = FilesRoom(
            config,
            reactor,
            now,
            tree=tree,
            kept=StoredDigests(state.store, now),
            admission=admission,
            visibility=gate.reception,
            pacer=line.pacer,
            pages=pages,
            elsewhere=followers.urls_for if followers else lambda path: (),
            greet=lambda request: gate.parts.clients.greet(request, gate.parts.keys),
            has_torrent=has_torrent,
        )
        self.site = site = files.site
        site.add_route(PREQUEUE_ROUTE, lambda request: queue.prequeue.answer(request, now()))
        if self.movers is not None:
            site.add_route(GATE_ROUTE, self.movers.answer, ("GET", "HEAD", "POST"))
            site.add_route(AUTHORIZE_ROUTE, self.movers.authorize)
            if self.movers.log is not None:
                site.add_route(f"{GATE_ROUTE}/log", self.movers.log.answer, ("POST",))
            self.movers.serve_origin(site, gate, gate.reception.follows)
        called = CalledTickets(reactor.seconds)
        tell_called = called.add if line.nodes is None else line.nodes.call
        status = WaitStatus(gate, lambda: gate.parts.keys, now, site.digest_of, tell_called)
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

        self.connections = Connections(
            config,
            reactor,
            site,
            pacer=line.pacer,
            blocked=gate.reception.blocked,
            answers=line.answers,
            goes_first=called.take,
            tls=tls,
            opened=opened,
        )
        self.leader: Leader | None = None
        self._totals: Callable[[], Totals] = self._own_totals
        if fleet is not None:
            from .fleet import build_leader, fleet_totals

            self._totals = partial(fleet_totals, line, fleet, reactor.seconds)
            self.leader = build_leader(
                reactor,
                site,
                gate,
                line,
                fleet,
                self.connections.factory.proxies,
                administer=lambda request: self.admin.answer(request),
                proofs=lambda: self.admin.proofs(),
            )
        self.admin = AdminService(
            config,
            reactor,
            now,
            Rooms(
                gate,
                site,
                state.store,
                state.documents,
                queue.arrivals,
                self._totals,
                self.multicast,
                self.torrents,
                self.movers,
                registry,
                config.alerts,
                bool(config.trusted_proxies),
            ),
            state.tables,
            state.memory.revision,
            tls=tls,
            key=cluster.shared.admin_key if cluster is not None else None,
            opened=admin,
        )
        if cluster is not None and line.nodes is not None:
            self._remember_nodes(line.nodes)
        health.add_routes(site, self.admin.server.vitals)
        self._ready: Callable[[list[str]], None] = lambda urls: None
        #: In the order in which a reload reaches them.
        self._rooms: tuple[ServerRoom, ...] = (
            queue,
            files,
            self.connections,
            state,
            line,
            self.admin,
        )
        self._parts = InOrder(self._all_parts(fleet))

    def _has_torrent(self, url_path: str, size_bytes: int) -> bool:
        # Peers would hand on a file that needs a pass.
        large = size_bytes >= self.config.torrent.least
        return large and not self.gate.reception.secret(url_path)

    def _all_parts(self, fleet: FleetPlan | None) -> Iterator[Part]:
        """What starts and stops, each on top of those before it."""
        yield self.connections.log_part()
        yield from self._state.parts()
        yield from self._files.parts()
        yield from self._queue.parts()
        leader = self.leader
        if leader is not None and fleet is not None:
            from .fleet import node_port

            yield node_port(self.reactor, leader, fleet.socket)
            yield Part("leader", lambda: leader.start(self._tell_ready), leader.leave)
        yield from self.connections.parts()
        yield Part("waiting clients", end=self.gate.drain)
        movers = self.movers
        if movers is not None:
            factory = self.connections.factory
            yield Part("movers", lambda: movers.start(self.site, factory), movers.stop)
        if leader is None:
            yield from self.connections.listening()
        yield self._files.warmup()
        if self._mirror_origin is not None:
            yield Part("mirrors", self._mirror_origin.start, self._mirror_origin.stop)
        if self.multicast is not None:
            yield Part("multicast", self.multicast.start, self.multicast.close)
        if self.torrents is not None:
            yield Part("torrents", self.torrents.start, self.torrents.stop)
        yield from self.admin.parts()

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

    def reload(self, new: ServerConfig) -> list[str]:
        """Follow a new configuration; the names of changed settings that need a restart."""
        old, self.config = self.config, new
        for room in self._rooms:
            room.reconfigure(new)
        return new.needing_restart(old)

    def note_event(self, kind: str, text: str, level: str = "info", **data: Any) -> None:
        self.admin.server.events.add(kind, text, level, **data)

    # -- the end -----------------------------------------------------------------------------

    def drain(self, finished: Callable[[], None]) -> None:
        """Admit no more clients; call back when all downloads are over or the deadline is."""
        if self.draining:
            return
        self.draining = True
        deadline_s = self.reactor.seconds() + self.config.drain_s
        if self.multicast is not None:
            self.multicast.close()
        self.gate.drain()
        self.connections.factory.drain()

        def left() -> int:
            return sum(bool(one.deliveries) for one in self.gate.downloads.values())

        def look() -> None:
            over, count = self.reactor.seconds() >= deadline_s, left()
            if over and count:
                self.log.warn("drain_s is over: {cut} cut off.", cut=counted(count, "download"))
            if over or not count:
                finished()
            else:
                self.reactor.callLater(0.1, look)

        most = f"at most {self.config.drain_s:g} s (drain_s)"
        text = f"The server waits for {counted(left(), 'download')}, {most}."
        self.note_event("server", text)
        if left():
            self.log.info("{text} A second SIGTERM ends it at once.", text=text)
        self.reactor.callLater(0.1, look)

    async def stop(self) -> None:
        """Close everything; tickets are safe in the store when this returns.

        Unless `hung` is set then: a thread waits for a database that does not answer.
        """
        await self._parts.stopService()

    @property
    def hung(self) -> bool:
        """After `stop`: whether the process must be ended, because a thread of it cannot be."""
        return self._state.hung

    # -- small duties ------------------------------------------------------------------------

    def _own_totals(self) -> Totals:
        """One process serves."""
        factory, pacer = self.connections.factory, self._line.pacer
        return Totals(
            listeners=tuple(url for url, _ in self.connections.ports),
            connections=len(factory.connections),
            connections_total=factory.accepted_total,
            sent_bytes_total=pacer.sent_bytes_total,
            goodput_bytes_s=pacer.goodput_bytes_s(),
            capacity_bytes_s=pacer.bandwidth_bytes_s,
            transfers_misplaced=pacer.misplaced(),
            transfers_starved_total=pacer.starved_total,
        )

    def _remember_nodes(self, nodes: Nodes) -> None:
        """Store which nodes are here: a later leader must know for whom to wait."""
        nodes.watch(
            lambda node: self.store.must(
                lambda connection: add_node(connection, node.name, node.machine, time.time())
            ),
            lambda name: self.store.must(lambda connection: remove_node(connection, name)),
        )

    def _all_that_must_last(self) -> list[Work[None]]:
        """What a database that was lost must be told again; accounts are not known here."""
        revision = self.admin.server.revisions.current
        rows = self.gate.leases.live_tickets()
        passes = self._queue.passes.records()
        below = self.gate.parts.numbers.promised
        return [
            lambda connection: write_tickets(connection, rows),
            lambda connection: reserve_numbers(connection, below),
            lambda connection: keep_revision(connection, revision),
            *((lambda connection, one=one: count_pass_use(connection, one)) for one in passes),
        ]
