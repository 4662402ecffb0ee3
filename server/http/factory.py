"""What all connections of a server share: bounds, counts, the date, and the once-a-second sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from wsgiref.handlers import format_date_time

from twisted.internet import address, interfaces
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater

from protocol.errors import ProtocolError
from server.http.accesslog import AccessLog
from server.http.connection import HttpConnection
from server.http.limits import HttpLimits
from server.http.proxies import TrustedProxies, block_of
from server.http.request import Request

_SWEEP_S = 1.0
_PART_LOOK_S = 0.02


class HttpFactory(Factory):
    """Builds connections and keeps the books on them.

    `handler` gets each request. The reactor's clock gives the Date field. `charge`, when set, hears
    of every byte that leaves outside body senders. One factory may serve several listeners: the
    bounds count over all of them.
    """

    noisy = False

    def __init__(
        self,
        handler: Callable[[Request], None],
        reactor: interfaces.IReactorTime,
        *,
        limits: HttpLimits | None = None,
        proxies: TrustedProxies | None = None,
        access_log: AccessLog | None = None,
        charge: Callable[[int], None] | None = None,
        server_name: str = "Tidegate",
    ) -> None:
        self.handler = handler
        self.reactor: Any = reactor
        self.limits = limits if limits is not None else HttpLimits()
        self.proxies = proxies if proxies is not None else TrustedProxies()
        self.access_log = access_log
        self.charge = charge
        self.server_line = b"Server: %b\r\n" % server_name.encode("ascii")
        self.connections: set[HttpConnection] = set()
        self.per_address: dict[str, int] = {}
        self.refusing = 0
        self.refused_total = 0
        self.accepted_total = 0
        self.draining = False
        self.now = 0.0
        self.date_line = b""
        self._sweeper: Any = None
        self._tell_time()

    def buildProtocol(self, addr: interfaces.IAddress | None) -> Any:
        """A connection for a peer that was just accepted."""
        host = ""
        if isinstance(addr, address.IPv4Address | address.IPv6Address):
            host = addr.host
            if host.startswith("::ffff:") and "." in host:
                host = host[7:]
        if self._sweeper is None:
            self._tell_time()
            self._sweeper = self.reactor.callLater(_SWEEP_S, self._sweep)
        return HttpConnection(self, host)

    def entered(self, connection: HttpConnection) -> ProtocolError | None:
        """Count a new connection; an error means that it must be refused."""
        limits = self.limits
        self.accepted_total += 1
        peer = block_of(connection.peer_address)
        here = self.per_address.get(peer, 0) + 1
        reason = None
        if 0 < limits.max_connections <= len(self.connections):
            reason = "This server has as many connections as it takes; please come back soon."
        elif (
            connection.peer_address
            and 0 < limits.max_connections_per_address < here
            and not self.proxies.trusts(connection.peer_address)
        ):
            # A proxy brings everybody's connections from one address.
            reason = "Your address has as many connections as one may have here; close some."
        if reason is not None:
            self.refused_total += 1
            if self.refusing >= limits.max_refusals:
                connection.alive = False
                connection.transport.abortConnection()
                return None
        self.connections.add(connection)
        self.per_address[peer] = here
        if reason is None:
            return None
        self.refusing += 1
        connection.refused = True
        return ProtocolError(reason, status=503, code="too-many-connections")

    def left(self, connection: HttpConnection) -> None:
        """A counted connection is over."""
        self.connections.discard(connection)
        peer = block_of(connection.peer_address)
        here = self.per_address.get(peer, 0) - 1
        if here > 0:
            self.per_address[peer] = here
        else:
            self.per_address.pop(peer, None)
        if connection.refused:
            self.refusing -= 1

    def write_deadline(self, buffered_bytes: int) -> float:
        """By when a peer at the lowest permitted rate has taken this many bytes."""
        limits = self.limits
        return self.now + limits.min_rate_window_s + buffered_bytes / limits.min_rate_bytes_s

    def log(self, request: Request, *, complete: bool) -> None:
        """Note an answered (or abandoned) request, where somebody asked for a log."""
        if self.access_log is not None:
            self.access_log.note(request, complete, self.reactor.seconds())

    def drain(self) -> None:
        """Close idle connections now, and every other one after the answer it is giving."""
        self.draining = True
        for connection in tuple(self.connections):
            connection.close_if_idle()

    async def parted(self, most_s: float) -> None:
        """Wait until those that are closing are closed, for `most_s` seconds at most.

        A reset in the same breath would take back what their peers have not read yet.
        """
        until = self.reactor.seconds() + most_s
        while any(one.parting for one in self.connections) and self.reactor.seconds() < until:
            await deferLater(self.reactor, _PART_LOOK_S, lambda: None)

    def abort_all(self) -> None:
        """Cut every connection that is left in the middle of an answer."""
        for connection in tuple(self.connections):
            if not (connection.parting and connection.written_out):
                connection.abort()

    def stopFactory(self) -> None:
        """The last listener is gone; the sweep goes on while connections live."""

    def _tell_time(self) -> None:
        self.now = self.reactor.seconds()
        self.date_line = b"Date: %b\r\n" % format_date_time(self.now).encode("ascii")

    def _sweep(self) -> None:
        self._tell_time()
        now = self.now
        for connection in tuple(self.connections):
            if connection.deadline <= now or connection.monitor is not None:
                connection.sweep(now)
        if self.access_log is not None:
            self.access_log.flush()
        self._sweeper = self.reactor.callLater(_SWEEP_S, self._sweep) if self.connections else None
