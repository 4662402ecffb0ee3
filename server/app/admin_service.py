"""The operator's side of a service: what the pages work on, and the listener they are behind."""

from __future__ import annotations

import os
import secrets
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted.internet.threads import deferToThreadPool
from twisted.logger import globalLogPublisher
from twisted.python.threadpool import ThreadPool

from server.admin.adapter import LIMITS, AdminHandler
from server.admin.blocks import Blocks
from server.admin.branding import LOGO_ROUTE, Branding
from server.admin.doors import Doors
from server.admin.events import FaultCount
from server.admin.file_index import FileIndex
from server.admin.history import History
from server.admin.key_values import Papers, StoredAccounts, Tables
from server.admin.rule_keeper import RuleKeeper
from server.admin.server import Server
from server.admin.site import AdminSite, make_admin
from server.admin.vitals import Vitals
from server.app.listeners import Listener, open_port
from server.http.factory import HttpFactory
from server.http.front import Front
from server.http.proxies import TrustedProxies
from server.http.tls import TlsServer

if TYPE_CHECKING:
    from server.app.service import Service

_KEY_BYTES = 32
#: Work of the pages (passwords above all) runs here, so that it cannot crowd out the store.
_THREADS = 3


class AdminService:
    """What operators have set up counts even where nobody listens."""

    def __init__(self, service: Service, tables: Tables, papers: Papers) -> None:
        self._tables = tables
        self._state = service.config.state
        self._reactor = service.reactor
        self._pool = ThreadPool(0, _THREADS, "admin")
        self.faults = FaultCount()
        self.vitals = Vitals(
            version=_version(),
            started_s=service.started_s,
            gate=service.gate,
            totals=service.totals,
            capacity_bytes_s=lambda: service.pacer.bandwidth_bytes_s,
            store=service.store,
            multicast=service.multicast,
            faults=self.faults,
        )
        self.history = History(
            service.reactor,
            service.now,
            service.store,
            self.vitals,
            service.gate.parts.popularity,
            service.config.ticket_max_age_s,
        )
        branding = Branding(service.waiting, papers)
        self.server = Server(
            reactor=service.reactor,
            now=service.now,
            off=lambda work: deferToThreadPool(service.reactor, self._pool, work),
            gate=service.gate,
            desk=service.desk,
            store=service.store,
            site=service.site,
            passes=service.passes,
            prequeue=service.prequeue,
            mirrors=service.mirror_origin.registry if service.mirror_origin else None,
            multicast=service.multicast,
            vitals=self.vitals,
            history=self.history,
            events=service.events,
            revisions=service.revisions,
            rules=RuleKeeper(
                service.gate,
                service.prequeue,
                papers,
                service.now,
                service.config.rules,
                service.tree.real_url,
            ),
            blocks=Blocks(service.desk, papers, service.now),
            branding=branding,
            doors=Doors(service.gate, branding, papers),
            files=FileIndex(
                service.reactor, service.site, service.gate, service.store, service.now
            ),
            scrapers=lambda: service.config.metrics_from,
            behind_proxy=bool(service.config.trusted_proxies),
        )
        service.site.add_route(LOGO_ROUTE, self.server.branding.answer_logo)
        self.proxies = TrustedProxies(service.config.trusted_proxies, service.config.proxy_header)
        self.factory: HttpFactory | None = None
        self.listener: Listener | None = None
        self.site: AdminSite | None = None

    def start(self, place: str, tls: TlsServer | None = None) -> None:
        """Put what was set up in force and listen at `place`, or `off`. Raises `CannotListen`."""
        observer: Any = self.faults
        globalLogPublisher.addObserver(observer)
        self._pool.start()
        self.server.rules.put_in_force()
        self.server.blocks.open()
        self.server.doors.put_in_force()
        self.history.start()
        if place == "off":
            return
        self.open_site()
        assert self.site is not None
        handler = AdminHandler(self.site.admin, self._reactor)
        self.factory = HttpFactory(handler, self._reactor, limits=LIMITS, proxies=self.proxies)
        front = Front(self._reactor, self.factory, known=False)
        secure = None if place.startswith("unix:") else tls
        self.listener = open_port(front, place, secure, "--admin")

    def open_site(self) -> AdminSite:
        """The application, built when it is first needed: it loads accounts and templates."""
        if self.site is None:
            key = session_key(self._state / "admin.key")
            store = StoredAccounts(self._tables, key)
            self.site = make_admin(self.server, store, key, self._state)
        return self.site

    def introduction(self) -> list[str]:
        """What the operator reads at the start; a first password only this once."""
        lines = []
        overrides = self.server.revisions.overrides()
        if overrides:
            names = ", ".join(one.name for one in overrides)
            lines.append(
                f"Settings  revision {self.server.revisions.current.number} of the admin "
                f"page is in force, not the configuration's: {names}"
            )
        if self.listener is None or self.site is None:
            return lines
        lines.append(f"Admin     {self.listener.url}/")
        if self.site.first_password is not None:
            lines.append(f"          log in as admin with {self.site.first_password}")
            lines.append("          (shown only now; you will be asked for one of your own)")
        return lines

    def stop(self) -> Any:
        """Stop listening; a Deferred."""
        if self.site is not None:
            self.site.admin.close()
        self.history.stop()
        if self.faults in globalLogPublisher._observers:
            globalLogPublisher.removeObserver(self.faults)
        self._pool.stop()
        if self.factory is not None:
            self.factory.drain()
            self.factory.abort_all()
        return self.listener.port.stopListening() if self.listener is not None else None


def session_key(path: Path) -> bytes:
    """The secret that signs sessions, made when it is not there; only the owner may read it."""
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


def _version() -> str:
    try:
        return version("tidegate")
    except PackageNotFoundError:
        return "0"
