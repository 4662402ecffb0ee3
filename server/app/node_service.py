"""One node of a machine's workers: connections, files and bodies; the leader has the queue."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.logger import Logger

from ...policies.settings import PolicySettings
from ...protocol.cluster import Terms, decode_from_leader
from ...protocol.errors import ProtocolError
from ...protocol.ticket import KeyRing
from ..admission.client_keys import Clients
from ..admission.client_programs import ToolTable
from ..admission.gate import Gate
from ..admission.gateparts import GateParts
from ..admission.line import Line
from ..admission.number_allocator import Numbers
from ..admission.passes import PassBook
from ..admission.responses import RetryResponder
from ..cluster.alone import NoJournal
from ..cluster.link import LinkFactory, Redial
from ..cluster.node import RemoteAdmission, RemoteDigests
from ..files.contact import security_txt
from ..files.digests import DigestService
from ..files.disk import DISK_THREADS, Disk
from ..files.pacer import Pacer
from ..files.pages import Pages
from ..files.site import Site
from ..http.clock import Reactor
from ..http.factory import HttpFactory
from ..http.front import Front, Port
from ..http.limits import HttpLimits
from ..http.request import Request
from ..http.tls import CertificateWatch, TlsServer
from ..http.unarrived import UnarrivedAnswers
from .bootstrap import open_access_log, open_tree, open_waiting_pages, private_paths
from .config import LoadedConfig
from .descriptors import affordable, raise_limit
from .fleet import FleetPlan
from .health import add_node_routes
from .listeners import tls_server, trusted_proxies
from .meeting import MeetingEndpoint
from .memory import small_files_bytes
from .mirrors import configured_mirrors
from .parts import InOrder, Part
from .settings import FIXED, ServerConfig
from .shared import machine_name

#: A leader that is gone is looked for this often: it is back within a second or two.
_RETRY_S = 0.1
_PARTING_S = 1.0


class NodeService:
    """A node. `sockets` listen already; their places stand in the configuration's order.

    Raises `CannotStart`.
    """

    log = Logger()

    def __init__(
        self,
        loaded: LoadedConfig,
        reactor: Reactor,
        fleet: FleetPlan,
        name: str,
        sockets: list[socket.socket],
        left: Callable[[], None],
    ) -> None:
        config = loaded.config
        self.loaded = loaded
        self.config: ServerConfig = config
        self._reactor = reactor
        self._fleet = fleet
        self.tree = open_tree(config)
        self.tree.keep_private(private_paths(loaded))
        self._open_files = raise_limit()
        cap = config.bandwidth
        self.pacer = Pacer(reactor, cap, fleet.common_line())
        near: Any = UNIXClientEndpoint
        place: Any = near(reactor, str(fleet.socket))
        machine, epoch = "", lambda: 0
        if config.cluster is not None:
            machine = machine_name(config.state)
            place = MeetingEndpoint(reactor, config.state, fleet.socket, time.time)
            name, epoch = f"{machine}/{name}", lambda: place.epoch
        answers = UnarrivedAnswers()
        self.admission = RemoteAdmission(
            reactor,
            name,
            os.getpid(),
            self.pacer,
            small_below_bytes=config.policy_settings().small_below_bytes,
            rules=config.rules,
            real_url=self.tree.real_url,
            connections=lambda: (len(self.factory.connections), self.factory.accepted_total),
            leave=left,
            rules_changed=lambda: self.site.forget_all(),
            again=self._answer,
            machine=machine,
            epoch=epoch,
            sharing=len(fleet.names),
            make_gate=self._make_gate,
            proxies=trusted_proxies(config),
            answers=answers,
        )
        self.pages = Pages()
        self.catalog = DigestService(reactor, RemoteDigests(self.admission))
        self.site = Site(
            self.tree,
            self.catalog,
            self.admission,
            self.admission,
            self.pacer,
            self.pages,
            reactor,
            mirrors=configured_mirrors(config),
            unrouted=self.admission.ask,
            disk=Disk(reactor, DISK_THREADS),
            small_files_bytes=small_files_bytes(config.small_files_bytes, config.worker_count()),
        )
        self.site.add_maker(security_txt(config.security_contact, time.time))
        self._waiting = RetryResponder(
            self.pages,
            own=open_waiting_pages(config),
            has_mirrors=lambda path: bool(self.site.said.sources_of(path)),
            signatures=lambda path: self.site.signatures_of(path),
            tells_places=False,
        )
        self.draining = False
        add_node_routes(self.site, self.admission, lambda: self.draining)
        self.factory = HttpFactory(
            self.site,
            reactor,
            limits=self._limits(config),
            proxies=trusted_proxies(config),
            access_log=open_access_log(config),
            charge=self.pacer.charge_answers,
            requests=self.pacer.requests,
            denylist=self.admission.blocked,
            per_address=fleet.common_counts(),
            answers=answers,
        )
        self._front = Front(reactor, self.factory)
        links = LinkFactory(reactor, decode_from_leader, self.admission.peer)
        link = Redial(reactor, place, links, _RETRY_S)
        tls = tls_server(config)
        self.certificate = CertificateWatch(reactor, tls) if tls is not None else None
        watch = self.certificate
        self._ports: list[Port] = []
        self._parts = InOrder(
            [
                Part("files", end=self._close_files),
                Part("digests", end=self.catalog.stop),
                Part("link", link.start, link.stop),
                *([Part("certificate", watch.start, watch.stop)] if watch is not None else []),
                Part("admission", self.admission.begin, self.admission.stop),
                Part("connections", end=self._part_with_clients),
                *(self._listener(one, tls) for one in sockets),
            ]
        )

    def _listener(self, bound: socket.socket, tls: TlsServer | None) -> Part:
        secure = tls if bound.family != socket.AF_UNIX else None
        return Part(
            "listener",
            lambda: self._ports.append(self._front.listen_on(bound, secure)),
            self._stop_listening,
        )

    def _stop_listening(self) -> None:
        ports, self._ports = self._ports, []
        for port in ports:
            port.stopListening()

    def start(self) -> None:
        """Serve, and look for the leader."""
        self._parts.startService()

    def reload(self, loaded: LoadedConfig) -> list[str]:
        """Take over a new configuration; the names of settings that need a restart.

        Rules and policy come from the leader.
        """
        old, new = self.config, loaded.config
        self.loaded, self.config = loaded, new
        self.reopen_logs()
        if self.certificate is not None:
            self.certificate.read_now()
        self.factory.limits = self._limits(new)
        self.site.use_mirrors(configured_mirrors(new))
        return [name for name in FIXED if getattr(old, name) != getattr(new, name)]

    def reopen_logs(self) -> None:
        """The access log was renamed: begin a new one."""
        if self.factory.access_log is not None:
            self.factory.access_log.reopen()

    def drain(self, finished: Callable[[], None]) -> None:
        """Take nobody new, and send away who waits; call back when all bodies are over."""
        if self.draining:
            return
        self.draining = True
        deadline_s = self._reactor.seconds() + self.config.drain_s
        self._stop_listening()
        self.factory.drain()
        self.admission.part()

        def look() -> None:
            if self._reactor.seconds() >= deadline_s or not self.admission.sending:
                finished()
            else:
                self._reactor.callLater(0.1, look)

        look()

    async def stop(self) -> None:
        """Close everything; answers that were given get out."""
        await self._parts.stopService()

    async def _part_with_clients(self) -> None:
        self.factory.drain()
        await self.factory.parted(_PARTING_S)
        self.factory.abort_all()

    def _close_files(self) -> None:
        if self.factory.access_log is not None:
            self.factory.access_log.close()
        self.tree.close()

    def _answer(self, request: Request) -> None:
        """Answer a request that had to be judged first."""
        try:
            self.site(request)
        except ProtocolError as error:
            again = [(b"Retry-After", b"5")] if error.status == 503 else []
            request.refuse(error.status, error.code, str(error), again)
        except Exception:  # noqa: BLE001 - as for any connection: log it, tell the client
            self.log.failure("a request handler failed", client=request.client_address)
            request.refuse(500, "internal-error", "The server failed; this was logged.")

    def _make_gate(
        self, terms: Terms, line: Line, policy: str, settings: PolicySettings, first: int
    ) -> Gate:
        """What decides here while nobody leads (`cluster.alone`)."""
        config, keys = self.config, KeyRing.from_derived(terms.keys)
        parts = GateParts(
            reactor=self._reactor,
            now=self._reactor.seconds,
            wall=time.time,
            rng=random.Random(),
            keys=keys,
            journal=NoJournal(),
            numbers=Numbers(first, (), lambda below: None),
            passes=PassBook(keys, lambda record: None, judges=False),
            waiting=self._waiting,
            line=line,
            clients=Clients(config.clients_per_address, time.time),
            rules=self.admission.rules,
            tools=ToolTable(config.holding.tools, config.holding.unknown),
            arrived=lambda record: None,
            holds_most=config.holding.most,
            holds_per_client=config.holding.most_per_client,
            ticket_max_age_s=config.ticket_max_age_s,
        )
        return Gate(parts, policy, settings)

    def _limits(self, config: ServerConfig) -> HttpLimits:
        """Connections in all are divided among the workers, as the kernel divides them."""
        limits = config.limits.http_limits()
        most = limits.max_connections
        if most:
            limits = replace(limits, max_connections=-(-most // len(self._fleet.names)))
        return affordable(limits, self._open_files)
