"""The administration of a server: the objects of its pages, and their listener."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.defer import maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from ..accounts.sessions import shows_one_of
from ..accounts.stored import OpenedAccounts, StoredAccounts, open_accounts
from ..admin.adapter import BODIES, LIMITS, AdminHandler
from ..admin.large_bodies import LargeBodies
from ..control.server import ControlTerms, Rooms, Server
from ..files.disk import disk_pool, let_go
from ..http.clock import Reactor, in_pool
from ..http.factory import HttpFactory
from ..http.front import Front
from ..http.proxies import TrustedProxies
from ..http.request import Request
from ..http.tls import TlsServer
from ..store.accounts import OperatorTables
from ..store.records import RevisionRecord
from .bootstrap import configured_revision
from .keys import session_key
from .listeners import OpenListener, adopt_port
from .parts import Part
from .settings import ServerConfig

if TYPE_CHECKING:
    from ..admin.app import Admin


class AdminConnections:
    """The listener of the admin page at the place that is `opened`."""

    def __init__(
        self,
        config: ServerConfig,
        reactor: Reactor,
        handler: Callable[[Request], None],
        proofs: Callable[[], frozenset[str] | None],
        tls: TlsServer | None,
        opened: OpenListener,
    ) -> None:
        bodies = LargeBodies(
            BODIES.small_bytes, BODIES.large_bodies, lambda fields: shows_one_of(fields, proofs())
        )
        proxies = TrustedProxies(config.trusted_proxies, config.proxy_header)
        self._factory = HttpFactory(
            handler, reactor, limits=LIMITS, proxies=proxies, large_bodies=bodies
        )
        front = Front(reactor, self._factory, shortcuts=False)
        self.url = opened.url
        self._port = adopt_port(front, opened, tls)

    async def close(self) -> None:
        await maybeDeferred(self._port.stopListening)
        await self._factory.close(0.0)


class AdminService:
    """What operators have set up, which is in force even without a listener.

    `revision` is the policy in force. The pages are served where it is `opened`, if anywhere.
    `key` signs sessions where several machines share accounts.
    """

    log = Logger()

    def __init__(
        self,
        config: ServerConfig,
        reactor: Reactor,
        now: Callable[[], float],
        rooms: Rooms,
        tables: OperatorTables,
        revision: RevisionRecord,
        *,
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
        off = functools.partial(in_pool, reactor, self._pool)
        # A place of alerts that hangs holds up neither a login nor the end of the server.
        self._alert_pool = disk_pool(2 * len(config.alerts.to), "alerts")
        send = functools.partial(in_pool, reactor, self._alert_pool)
        self.server = Server(rooms, reactor, now, off, send, control_terms(config), revision)
        if tls is not None:
            self.server.vitals.certificate_left_s = lambda: tls.left_s(now())
        self._connections: AdminConnections | None = None
        self._accounts: OpenedAccounts | None = None
        self._admin: Admin | None = None
        #: Requests that arrived before the pages were loaded.
        self._early: list[Request] = []

    def parts(self) -> tuple[Part, Part]:
        """See `ServerRoom`. Starting raises `CannotStart`."""
        return Part("operators", self._begin, self._end), Part("admin", self._listen, self._close)

    def _begin(self) -> None:
        self._pool.start()
        self.server.start()

    def _listen(self) -> None:
        if self._opened is not None:
            self.open_accounts()
            self._connections = AdminConnections(
                self._config, self._reactor, self.answer, self.proofs, self._tls, self._opened
            )

    def reconfigure(self, config: ServerConfig) -> None:
        self.server.reconfigure(control_terms(config))

    def proofs(self) -> frozenset[str] | None:
        """The proofs that a request comes from an operator, see `server.accounts.sessions`.

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
        self._handler = handler = AdminHandler(self.open_pages())
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
            self._admin = make_admin(self.server, accounts, state, self._reactor, self._config.oidc)
        return self._admin

    @functools.cached_property
    def _session_key(self) -> bytes:
        return self._key or session_key(self._config.state / "admin.key")

    def introduction(self) -> list[str]:
        """Lines for the operator at the start; the first password is shown only once."""
        lines = []
        if overrides := self.server.revisions.overrides():
            names = ", ".join(f"{one.name} {one.after} (file: {one.before})" for one in overrides)
            lines.append(
                f"Settings  revision {self.server.revisions.current.number} of the admin "
                f"page is in force, not the configuration's: {names}"
            )
        if self._connections is None:
            return lines
        lines.append(f"Admin     {self._connections.url}/")
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
        self.server.stop()
        let_go(self._alert_pool)
        self._pool.stop()


def control_terms(config: ServerConfig) -> ControlTerms:
    policy, age_s = configured_revision(config, 0.0), config.ticket_max_age_s
    return ControlTerms(policy, config.rules, age_s, config.metrics_from)


def _load_pages() -> None:
    importlib.import_module("tidegate.server.admin.site").make_pages()
