"""One HTTP/1.1 connection: what arrives is answered in order, and every wait has an end.

`outlet` sends, `reader` makes requests of bytes, `writer` writes answers; this dispatches the
requests, one at a time, and ends the connection as it should be ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet import interfaces
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from protocol.errors import ProtocolError
from server.http.answers import Header
from server.http.request import Request
from server.http.writer import Writer

if TYPE_CHECKING:
    from server.http.factory import HttpFactory

_log = Logger()
_NEVER = float("inf")


@implementer(interfaces.IHalfCloseableProtocol)
class HttpConnection(Writer):
    """A server connection. Built by `HttpFactory`."""

    __slots__ = (
        "_closing",
        "_discard",
        "_feeding",
        "_lingered",
        "_paused",
        "_peer_closed",
        "alive",
        "connected",
        "is_tls",
        "monitor",
        "peer_address",
        "refused",
    )

    def __init__(self, factory: HttpFactory, peer_address: str) -> None:
        super().__init__(factory)
        self.peer_address = peer_address
        self.is_tls = False
        self.refused = False
        self.alive = True
        self.connected = 0
        #: What the factory's sweep asks about the pace of a running body; None while there is none.
        self.monitor: Callable[[float], None] | None = None
        self._feeding = False
        self._paused = False
        self._closing = False
        self._discard = False
        self._lingered = 0
        self._peer_closed = False

    # -- the transport's side ---------------------------------------------------------------

    def connectionMade(self) -> None:
        """Prepare, or refuse when the server or this address has too many connections."""
        factory = self.factory
        transport = self.transport
        self.is_tls = interfaces.ISSLTransport.providedBy(transport)
        if not self.is_tls and interfaces.ISystemHandle.providedBy(transport):
            self._socket = transport.getHandle()
            if interfaces.ITCPTransport.providedBy(transport) and self.peer_address:
                transport.setTcpNoDelay(True)
        refusal = factory.entered(self)
        if not self.alive:
            return
        self.deadline = factory.now + factory.limits.header_timeout_s
        if refusal is not None:
            self._fail(refusal)

    def dataReceived(self, data: bytes) -> None:
        """Bytes from the peer."""
        if self._discard:
            self._lingered += len(data)
            if self._lingered > self.factory.limits.max_linger_bytes:
                self.transport.abortConnection()
        elif self._closing:
            return
        elif self._current is not None:
            self._pending += data
            if len(self._pending) > self.factory.limits.max_pipelined_bytes and not self._paused:
                self._paused = True
                self.transport.pauseProducing()
        else:
            self._pending = self._pending + data if self._pending else data
            self._feed()

    def readConnectionLost(self) -> None:
        """The peer will send nothing more, but may still read an answer that is on its way."""
        self._peer_closed = True
        current = self._current
        if self._discard or self._closing:
            self.transport.loseConnection()
        elif current is None or not (current.status or self._buffered):
            self._abandon()
            self.transport.loseConnection()

    def writeConnectionLost(self) -> None:
        """Our half is closed: what a lingering close wants."""

    def connectionLost(self, reason: Failure | None = None) -> None:
        """The connection is over; tell whoever waits on it."""
        if not self.alive:
            return
        self.alive = False
        self.factory.left(self)
        self._abandon()
        self.parser = None
        self.monitor = None
        self._socket = None
        self._pending = b""

    def _abandon(self) -> None:
        """Nobody is there to be answered any more."""
        self._borrower = self._waiting = None
        current, self._current = self._current, None
        if current is not None and not current.finished:
            self._closing = True
            current.ended(gone=True)
            self.factory.log(current, complete=False)

    @property
    def parting(self) -> bool:
        """Whether the last answer was given and the connection is being closed."""
        return self._closing and self._current is None

    @property
    def written_out(self) -> bool:
        """Whether everything written is in the system's hands."""
        return not self._buffered

    def close_if_idle(self) -> None:
        """The server is stopping: a connection between two requests has nothing to lose."""
        if self._current is None and not self._mid_message:
            self._close()

    def sweep(self, now: float) -> None:
        """Called about once a second by the factory: enforce deadlines and pace."""
        if self.monitor is not None:
            self.monitor(now)
        if now < self.deadline:
            return
        self.deadline = _NEVER
        if self._discard or self._closing or self._buffered:
            self.transport.abortConnection()
        elif self._mid_message:
            what = "body" if self._head_done else "header"
            self._fail(
                ProtocolError(
                    f"The request's {what} did not arrive in time; send it without long pauses.",
                    status=408,
                    code="request-timeout",
                )
            )
        elif self._current is None:
            self._close()

    # -- feeding ----------------------------------------------------------------------------

    def _feed(self) -> None:
        """Parse and dispatch until a request is being answered or the bytes run out."""
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._current is None and not self._closing:
                if self._ready:
                    self._dispatch(self._ready.pop(0))
                elif self._broken is not None:
                    self._fail(self._broken)
                elif self._pending:
                    self._parse_one()
                else:
                    break
        finally:
            self._feeding = False
        if self._current is None and not self._closing:
            if self._paused:
                self._paused = False
                self.transport.resumeProducing()
            if self._peer_closed:
                self.transport.loseConnection()

    def _dispatch(self, request: Request) -> None:
        self._current = request
        self.deadline = _NEVER
        try:
            self.factory.handler(request)
        except ProtocolError as error:
            again = [(b"Retry-After", b"5")] if error.status == 503 else []
            request.refuse(error.status, error.code, str(error), again)
        except Exception:  # noqa: BLE001 - the last resort: log it, tell the client
            _log.failure("a request handler failed")
            if request.status:
                self.abort()
            else:
                request.refuse(500, "internal-error", "The server failed; this was logged.")

    # -- answering --------------------------------------------------------------------------

    def finish(self, request: Request) -> None:
        """The request is answered: the next one, or the end."""
        if self._chunked:
            if not self._omit_body:
                self.send(b"0\r\n\r\n")
            self._chunked = False
        self._omit_body = False
        request.ended(gone=False)
        self.monitor = None
        factory = self.factory
        if factory.access_log is not None:
            factory.log(request, complete=True)
        self._current = None
        if not request.keep_alive or factory.draining:
            self._close()
            return
        if self._mid_message:
            self.deadline = factory.now + factory.limits.header_timeout_s
        elif not self._buffered:
            self.deadline = factory.now + factory.limits.idle_timeout_s
        if not self._feeding and (self._pending or self._ready or self._broken or self._paused):
            self._feed()
        elif self._peer_closed:
            self.transport.loseConnection()

    def abort(self) -> None:
        """Cut the connection with a reset, so that nobody takes a part for the whole."""
        self._closing = True
        self.transport.abortConnection()

    def _deadline_when_flushed(self) -> float:
        limits = self.factory.limits
        if self._current is None and not self._closing and not self._mid_message:
            return self.factory.now + limits.idle_timeout_s
        return self.factory.now + limits.linger_timeout_s if self._closing else _NEVER

    # -- endings ----------------------------------------------------------------------------

    def _close(self) -> None:
        """Close once everything is out; linger when the peer may still be sending."""
        if self._closing:
            return
        self._closing = True
        if not self._buffered:
            self.deadline = self.factory.now + self.factory.limits.linger_timeout_s
        if (self._pending or self._mid_message or self._broken) and not self._peer_closed:
            self._linger()
        else:
            self.transport.loseConnection()

    def _linger(self) -> None:
        """Half-close, then read on for a while, so that a reset cannot overtake the answer."""
        self._closing = True
        self._discard = True
        self._pending = b""
        if not self._buffered:
            self.deadline = self.factory.now + self.factory.limits.linger_timeout_s
        if self._paused:
            self._paused = False
            self.transport.resumeProducing()
        if self.is_tls or self._socket is None:
            self.transport.loseConnection()
        else:
            self.transport.loseWriteConnection()

    def _fail(self, error: ProtocolError) -> None:
        """Answer a request that cannot be read, and end the connection."""
        self._ready.clear()
        self._broken = error
        headers = self._headers if self._head_done else {}
        request = Request(self, b"GET", b"*", headers, keep_alive=False)
        self._current = request
        retry: list[Header] = []
        if error.status == 503:
            retry.append((b"Retry-After", b"%d" % self.factory.limits.refusal_retry_after_s))
        request.refuse(error.status, error.code, str(error), retry)
