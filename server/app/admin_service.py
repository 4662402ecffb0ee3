"""The administration of a server: the objects of its pages, and their listener."""

from __future__ import annotations

import functools
import importlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import maybeDeferred
from twisted.logger import Logger, globalLogPublisher
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from ...protocol.version import __version__
from ..accounts.proofs import shows_one_of
from ..accounts.stored import OpenedAccounts, StoredAccounts, open_accounts
from ..admin.adapter import LARGE_BODIES, LIMITS, SMALL_BODY_BYTES, AdminHandler
from ..admission.actions import QueueActions
from ..admission.gate import Gate
from ..control.alerting import Alerting, descriptors_part
from ..control.blocks import BlockedNetworks
from ..control.branding import LOGO_ROUTE, Branding
from ..control.doors import Doors
from ..control.events import EventLog, FaultCount
from ..control.file_index import FileIndex
from ..control.history import Arrivals, History
from ..control.key_values import KeyValues
from ..control.revisions import Revisions
from ..control.rule_keeper import RuleKeeper
from ..control.server import Server
from ..control.vitals import Totals, Vitals
from ..files.site import Site
from ..http.clock import Reactor, in_pool
from ..http.factory import HttpFactory
from ..http.front import Front
from ..http.large_bodies import LargeBodies
from ..http.proxies import TrustedProxies
from ..http.request import Request
from ..http.tls import TlsServer
from ..store.accounts import OperatorTables
from ..store.records import RevisionRecord
from ..store.store import Store
from .bootstrap import CONFIGURATION, configured_policy
from .listeners import Listener, OpenListener, open_admin
from .parts import Part
from .settings import ServerConfig

if TYPE_CHECKING:
    from ..admin.app import Admin
    from ..gate.room import GateRoom
    from ..mirror.registry import Registry
    from ..multicast.service import MulticastRoom
    from ..torrent.room import TorrentRoom

_KEY_BYTES = 32


class AdminConnections:
    """The listener of the admin page; `opened` if its socket was opened early."""

    def __init__(
        self,
        config: ServerConfig,
        reactor: Reactor,
        handler: Callable[[Request], None],
        proofs: Callable[[], frozenset[str] | None],
        tls: TlsServer | None,
        opened: OpenListener | None,
    ) -> None:
        bodies = LargeBodies(
            SMALL_BODY_BYTES, LARGE_BODIES, lambda fields: shows_one_of(fields, proofs())
        )
        proxies = TrustedProxies(config.trusted_proxies, config.proxy_header)
        self._factory = HttpFactory(
            handler, reactor, limits=LIMITS, proxies=proxies, large_bodies=bodies
        )
        front = Front(reactor, self._factory, shortcuts=False)
        self.listener: Listener = open_admin(front, config.admin, tls, opened)

    async def close(self) -> None:
        """Close the listener and its connections."""
        await maybeDeferred(self.listener.port.stopListening)
        self._factory.drain()
        self._factory.abort_all()


class AdminService:
    """What operators have set up, which is in force even without a listener.

    `revision` is the policy in force. The listener is at `config.admin`, or was `opened` early.
    `key` signs sessions where several machines share accounts.
    """

    log = Logger()

    def __init__(
        self,
        config: ServerConfig,
        reactor: Reactor,
        now: Callable[[], float],
        *,
        gate: Gate,
        site: Site,
        store: Store,
        tables: OperatorTables,
        documents: KeyValues,
        revision: RevisionRecord,
        arrivals: Arrivals,
        totals: Callable[[], Totals],
        multicast: MulticastRoom | None,
        torrents: TorrentRoom | None,
        movers: GateRoom | None,
        mirrors: Registry | None,
        tls: TlsServer | None,
        key: bytes | None,
        opened: OpenListener | None = None,
    ) -> None:
        self._config = config
        self._tables = tables
        self._key = key
        self._opened = opened
        self._handler: AdminHandler | None = None
        self._reactor = reactor
        self._tls = tls
        # For the work of pages, apart from the threads of the store.
        self._pool = ThreadPool(0, 3, "admin")
        self.faults = FaultCount()
        desk, events = QueueActions(gate), EventLog(store, now)
        vitals = Vitals(
            version=__version__,
            started_s=now(),
            gate=gate,
            totals=totals,
            store=store,
            multicast=multicast,
            torrents=torrents,
            movers=movers,
            faults=self.faults,
            loop_lag_s=getattr(reactor, "loop_lag_s", lambda: 0.0),
        )
        popularity, kept_s = gate.parts.popularity, config.ticket_max_age_s
        branding = Branding(gate.parts.waiting, documents)
        prequeue, real_url = gate.parts.prequeue, site.tree.real_url
        self.server = Server(
            now=now,
            off=lambda work: in_pool(reactor, self._pool, work),
            gate=gate,
            desk=desk,
            store=store,
            site=site,
            passes=gate.parts.passes,
            prequeue=prequeue,
            mirrors=mirrors,
            multicast=multicast,
            vitals=vitals,
            history=History(reactor, now, store, vitals, popularity, arrivals, kept_s),
            events=events,
            alerting=Alerting(
                config.alerts,
                reactor,
                now,
                self._alert_figures,
                lambda work: in_pool(reactor, self._pool, work),
                events,
            ),
            revisions=Revisions(
                gate,
                store,
                events,
                now,
                revision,
                configured_policy(config),
                may_pause=movers is None,
            ),
            rules=RuleKeeper(gate, prequeue, documents, now, config.rules, real_url),
            blocks=BlockedNetworks(desk, documents, now),
            branding=branding,
            doors=Doors(gate, branding, documents),
            files=FileIndex(reactor, site, gate, store, now),
            scrapers=config.metrics_from,
            behind_proxy=bool(config.trusted_proxies),
        )
        site.add_route(LOGO_ROUTE, branding.answer_logo)
        self._connections: AdminConnections | None = None
        self._accounts: OpenedAccounts | None = None
        self._admin: Admin | None = None
        #: Requests that arrived before the pages were loaded.
        self._early: list[Request] = []

    def parts(self) -> tuple[Part, Part]:
        """See `ServerRoom`. Starting raises `CannotStart`."""
        operators = Part("operators", self._put_in_force, self._end)
        return operators, Part("admin", self._listen, self._close)

    def _put_in_force(self) -> None:
        observer: Any = self.faults
        globalLogPublisher.addObserver(observer)
        self._pool.start()
        self.server.rules.put_in_force()
        self.server.blocks.open()
        self.server.doors.put_in_force()
        self.server.history.start()
        self.server.alerting.timer.start()

    def _listen(self) -> None:
        if self._config.admin != "off":
            self.open_accounts()
            self._connections = AdminConnections(
                self._config, self._reactor, self.answer, self.proofs, self._tls, self._opened
            )

    def reconfigure(self, config: ServerConfig) -> None:
        """See `ServerRoom`: rules and policy, which operators change as well."""
        server = self.server
        server.rules.configure(config.rules)
        server.reconfigure(config.metrics_from)
        server.revisions.reconfigure(
            configured_policy(config),
            config.policy_settings(),
            CONFIGURATION,
            "The configuration was read again.",
        )

    def _alert_figures(self) -> dict[str, Any]:
        return {
            **self.server.vitals.figures(),
            "mirror_states": self.server.mirror_states(),
            "descriptors_part": descriptors_part(),
        }

    def proofs(self) -> frozenset[str] | None:
        """The proofs that a request comes from an operator, see `server.accounts.proofs`.

        None where no accounts are open.
        """
        return self._accounts.proofs(self.server.now()) if self._accounts is not None else None

    def answer(self, request: Request) -> None:
        """Answer a request to the admin page that arrived here or at another machine."""
        if self._handler is not None:
            self._handler(request)
            return
        self._early.append(request)
        if len(self._early) == 1:
            # 10 MB of modules that most servers never need, loaded on a thread.
            loading = in_pool(self._reactor, self._pool, _load_pages)
            loading.addCallbacks(lambda _: self._answer_early(), self._cannot_load)
            loading.addErrback(self._cannot_load)

    def _answer_early(self) -> None:
        self._handler = handler = AdminHandler(self.open_pages(), self._reactor)
        early, self._early = self._early, []
        for request in early:
            handler(request)

    def _cannot_load(self, failure: Failure) -> None:
        self.log.failure("The admin page cannot be loaded", failure)
        early, self._early = self._early, []
        for request in early:
            request.refuse(
                500, "server-fault", "The admin page cannot be loaded; see the server's log."
            )

    def open_accounts(self) -> OpenedAccounts:
        """The accounts, read once; the first user is created if there is none."""
        if self._accounts is None:
            stored = StoredAccounts(self._tables, self._session_key)
            self._accounts = open_accounts(
                stored, self.server.off, self.server.now(), self._session_key
            )
        return self._accounts

    def open_pages(self) -> Admin:
        """The pages, built for their first request."""
        if self._admin is None:
            from ..admin.site import make_admin

            state, accounts = self._config.state, self.open_accounts()
            self._admin = make_admin(self.server, accounts, state, self._reactor)
        return self._admin

    @functools.cached_property
    def _session_key(self) -> bytes:
        return self._key or session_key(self._config.state / "admin.key")

    def introduction(self) -> list[str]:
        """Lines for the operator at the start; the first password is shown only once."""
        lines = []
        overrides = self.server.revisions.overrides()
        if overrides:
            names = ", ".join(f"{one.name} {one.after} (file: {one.before})" for one in overrides)
            lines.append(
                f"Settings  revision {self.server.revisions.current.number} of the admin "
                f"page is in force, not the configuration's: {names}"
            )
        if self._connections is None:
            return lines
        lines.append(f"Admin     {self._connections.listener.url}/")
        password = self.open_accounts().first_password
        if password is not None:
            lines.append(f"          log in as admin with {password}")
            lines.append("          (shown only now; you will be asked for one of your own)")
        return lines

    async def _close(self) -> None:
        if self._connections is not None:
            await self._connections.close()

    def _end(self) -> None:
        if self._admin is not None:
            self._admin.close()
        self.server.alerting.timer.stop()
        self.server.history.stop()
        observer: Any = self.faults
        globalLogPublisher.removeObserver(observer)
        self._pool.stop()


def _load_pages() -> None:
    site = importlib.import_module("tidegate.server.admin.site")
    site.make_pages()


def session_key(path: Path) -> bytes:
    """The secret that signs sessions; created if it is missing, readable only by its owner."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) >= _KEY_BYTES:
            return key
        path.unlink()
        return session_key(path)
    key = secrets.token_bytes(_KEY_BYTES)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(key)
    return key
