"""One node: a process with connections, files and bodies; its leader has the queue."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from typing import Any

from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.logger import Logger

from ...policies.settings import PolicySettings
from ...protocol.ticket import KeyRing
from ..admission.gate import Gate
from ..admission.gateparts import GateParts
from ..admission.number_allocator import Numbers
from ..admission.passes import PassBook
from ..admission.rules import RuleBook
from ..cluster.common_memory import CommonCounts
from ..cluster.degraded import NoJournal
from ..cluster.leader import Nodes
from ..cluster.line import FleetLine
from ..cluster.link import LinkFactory, keep_connected
from ..cluster.messages import Hello, Terms, decode_from_leader
from ..cluster.node import NodeHome, RemoteAdmission
from ..files.pacer import Pacer
from ..files.pages import Pages
from ..http.clock import Reactor
from ..http.unarrived import UnarrivedAnswers
from .config import LoadedConfig
from .connections import Connections
from .files_room import FilesRoom, open_tree
from .fleet import FleetPlan
from .health import add_node_routes
from .listeners import OpenListener, tls_server, url_of
from .meeting import MeetingEndpoint
from .parts import InOrder, Part
from .queue_room import build_waiting, common_parts, reload_waiting_pages
from .settings import ServerConfig
from .shared import machine_name


class NodeService:
    """A node with `sockets` that listen already. Raises `CannotStart`."""

    log = Logger()

    def __init__(
        self,
        loaded: LoadedConfig,
        reactor: Reactor,
        fleet: FleetPlan,
        name: str,
        sockets: list[socket.socket],
    ) -> None:
        config = loaded.config
        self.config: ServerConfig = config
        self._reactor = reactor
        self.draining = False
        tree = open_tree(loaded)
        self.pacer = Pacer(reactor, config.bandwidth, fleet.common_line())
        near: Any = UNIXClientEndpoint
        place: Any = near(reactor, str(fleet.socket))
        machine, epoch, unread = "", lambda: 0, lambda: None
        if config.cluster is not None:
            machine = machine_name(config.state)
            place = MeetingEndpoint(reactor, config.state, fleet.socket, time.time)
            name, epoch, unread = f"{machine}/{name}", lambda: place.epoch, place.leave_leader
        answers = UnarrivedAnswers()
        self.admission = RemoteAdmission(
            reactor,
            Hello(name, pid=os.getpid(), machine=machine),
            NodeHome(
                self.pacer,
                config.policy_settings().small_below_bytes,
                RuleBook(config.rules, tree.real_url),
                answers,
                self._count_connections,
                rules_changed=lambda: self.site.forget_all(),
                again=lambda request: request.answer_by(self.site),
                epoch=epoch,
                make_gate=self._make_gate,
            ),
        )
        pages = Pages()
        self._files = FilesRoom(
            config,
            reactor,
            time.time,
            tree=tree,
            kept=self.admission,
            admission=self.admission,
            visibility=self.admission,
            pacer=self.pacer,
            pages=pages,
            unrouted=self.admission.ask,
        )
        self.site = self._files.site
        self._waiting = build_waiting(config, pages, lambda: self.site, tells_places=False)
        add_node_routes(self.site, self.admission, lambda: self.draining)
        tls = tls_server(config)
        self.connections = Connections(
            config,
            reactor,
            self.site,
            pacer=self.pacer,
            blocked=self.admission.blocked,
            answers=answers,
            goes_first=self.admission.called.take,
            tls=tls,
            opened=[OpenListener(url_of(one, tls is not None), [one]) for one in sockets],
            processes=len(fleet.names),
            per_address=CommonCounts(fleet.memory, fleet.row),
        )
        links = LinkFactory(reactor, decode_from_leader, self.admission.peer, unread=unread)
        link = keep_connected(reactor, place, links)
        self._parts = InOrder(
            [
                self.connections.log_part(),
                *self._files.parts(),
                Part("link", link.startService, link.stopService),
                Part("admission", self.admission.begin, self.admission.stop),
                *self.connections.parts(),
                *(self.connections.listening() if sockets else ()),
            ]
        )

    def _count_connections(self) -> tuple[int, int]:
        """How many are open, and how many were accepted."""
        factory = self.connections.factory
        return len(factory.connections), factory.accepted_total

    def start(self) -> None:
        """Serve, and connect to the leader."""
        self._parts.startService()

    def reload(self, new: ServerConfig) -> list[str]:
        """Follow a new configuration; the names of changed settings that need a restart.

        Rules and policy come from the leader.
        """
        old, self.config = self.config, new
        self._files.reconfigure(new)
        self.connections.reconfigure(new)
        reload_waiting_pages(self._waiting, new)
        return new.needing_restart(old)

    def drain(self, finished: Callable[[], None]) -> None:
        """Accept no client, and answer those that wait; call back when all bodies are sent."""
        if self.draining:
            return
        self.draining = True
        deadline_s = self._reactor.seconds() + self.config.drain_s
        self.connections.stop_listening()
        self.connections.factory.drain()
        self.admission.part()

        def look() -> None:
            if self._reactor.seconds() >= deadline_s or not self.admission.sending:
                finished()
            else:
                self._reactor.callLater(0.1, look)

        self._reactor.callLater(0.1, look)

    async def stop(self) -> None:
        """Close everything after complete answers have left."""
        await self._parts.stopService()

    def _make_gate(self, terms: Terms, settings: PolicySettings, first: int) -> Gate:
        """The gate that issues tickets here without a leader (`cluster.degraded`)."""
        keys = KeyRing.from_derived(terms.keys)
        parts = GateParts(
            **common_parts(self.config, self._reactor, time.time, random.Random()),
            keys=keys,
            journal=NoJournal(),
            numbers=Numbers(first, (), lambda below: None),
            passes=PassBook(keys, lambda record: None, judges=False),
            waiting=self._waiting,
            line=FleetLine(Nodes(), settings.bandwidth_bytes_s),
            rules=self.admission.rules,
            arrived=lambda record: None,
        )
        return Gate(parts, terms.policy, settings)
