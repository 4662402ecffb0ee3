"""Opens the admin listener of a running service, and closes it again."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server.admin.live import LiveServer
from server.admin.live_release import LiveRelease
from server.admin.papers import Papers, StoredAccounts
from server.admin.site import AdminSite, make_admin_site
from server.listeners import Listener, open_listener
from server.metrics import Metrics
from server.store.accounts import OperatorTables

if TYPE_CHECKING:
    from server.service import Service

_KEY_BYTES = 32


class LiveContext(LiveServer, LiveRelease):
    """All of `AdminContext` on a running service."""

    def __init__(self, service: Service, papers: Papers) -> None:
        LiveServer.__init__(self, service, papers)
        LiveRelease.__init__(self, service, papers)
        self._metrics = Metrics(self)

    def open(self) -> None:
        """Put everything that operators have set up in force."""
        LiveServer.open(self)
        LiveRelease.open(self)

    def metrics(self) -> bytes:
        """The Prometheus exposition."""
        return self._metrics.text()


class AdminRoom:
    """The operator's side of a service. Its papers count even where nobody listens."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.tables = OperatorTables(service.database, service.store)
        self.papers = Papers(self.tables)
        self.context = LiveContext(service, self.papers)
        self.listener: Listener | None = None
        self.site: AdminSite | None = None
        drawn = [body for name, body in self.papers.all() if name.startswith("draw ")]
        service.prequeue.load(drawn, service.now())

    def start(self, place: str, tls: Any = None) -> None:
        """Put papers in force and listen at `place`, or `off`. Raises `CannotListen`."""
        self.context.open()
        if place == "off":
            return
        key = session_key(self._service.config.state / "admin.key")
        reactor = self._service.reactor
        self.site = make_admin_site(self.context, StoredAccounts(self.tables), key, reactor)
        self.listener = open_listener(reactor, place, self.site.site, tls, "--admin")

    def introduction(self) -> list[str]:
        """What the operator reads at the start; a first password only this once."""
        if self.listener is None or self.site is None:
            return []
        lines = [f"Admin     {self.listener.url}/"]
        if self.site.first_password is not None:
            lines.append(f"          log in as admin with {self.site.first_password}")
            lines.append("          (shown only now; you will be asked for one of your own)")
        return lines

    def stop(self) -> Any:
        """Stop listening; a Deferred."""
        if self.site is not None:
            self.site.simulator.close()
        self.context.close()
        if self.listener is None:
            return None
        return self.listener.port.stopListening()


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
