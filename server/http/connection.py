"""One HTTP/1.1 connection: llhttp parses strictly, this answers in order and holds the bounds.

How bytes leave: while nothing is buffered, straight through the socket (one system call, no trip
through epoll); what the socket does not take goes to the transport, and `when_flushed` tells when
the transport has passed it on. `borrow` hands the socket to a body sender between those points.

How requests arrive: the parser is fed one header at a time and not at all while a request is being
answered, so a peer that pipelines costs us raw bytes (bounded), never parsed requests.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import httptools
from twisted.internet import interfaces
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from protocol.errors import ProtocolError
from server.http.answers import Header, header_block, status_line
from server.http.parsing import fault_of, origin_form, valid_host, with_escaped_target
from server.http.request import Request

if TYPE_CHECKING:
    from server.http.factory import HttpFactory

_log = Logger()
_END = b"\r\n\r\n"
_NEVER = float("inf")
_BODILESS = frozenset({204, 304})


@implementer(interfaces.IPullProducer)
class _FlushBarrier:
    """Hears once when the transport's buffer is empty.

    A pull producer is asked for data when it is registered and again each time the buffer has
    been written out; the second question is the news.
    """

    __slots__ = ("_connection", "_registered")

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self._registered = False

    def resumeProducing(self) -> None:
        """The transport asks for data."""
        if self._registered:
            self._connection.flushed()
        self._registered = True

    def stopProducing(self) -> None:
        """The transport is gone; `connectionLost` says so too."""


@implementer(interfaces.IHalfCloseableProtocol)
class HttpConnection(Protocol):
    """A server connection. Built by `HttpFactory`."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_borrower",
        "_broken",
        "_buffered",
        "_chunked",
        "_closing",
        "_complete",
        "_current",
        "_discard",
        "_feeding",
        "_head_bytes",
        "_head_done",
        "_headers",
        "_lingered",
        "_mid_message",
        "_omit_body",
        "_paused",
        "_peer_closed",
        "_pending",
        "_ready",
        "_socket",
        "_url",
        "_version10",
        "alive",
        "connected",
        "deadline",
        "factory",
        "is_tls",
        "monitor",
        "parser",
        "peer_address",
        "refused",
        "transport",
    )

    transport: Any
    factory: HttpFactory

    def __init__(self, factory: HttpFactory, peer_address: str) -> None:
        self.factory = factory
        self.peer_address = peer_address
        self.is_tls = False
        self.refused = False
        self.alive = True
        self.connected = 0
        self.transport = None
        #: What the factory's sweep asks about the pace of a running body; None while there is none.
        self.monitor: Callable[[float], None] | None = None
        self.deadline = _NEVER
        self.parser: Any = None
        self._socket: Any = None
        self._current: Request | None = None
        self._ready: list[Request] = []
        self._pending = b""
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] | None = None
        self._body_bytes = 0
        self._head_bytes = 0
        self._head_done = False
        self._mid_message = False
        self._version10 = False
        self._feeding = False
        self._paused = False
        self._broken: ProtocolError | None = None
        self._closing = False
        self._discard = False
        self._lingered = 0
        self._buffered = False
        self._borrower: Callable[[], None] | None = None
        self._chunked = False
        self._complete = False
        self._omit_body = False
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
        self._borrower = None
        current, self._current = self._current, None
        if current is not None and not current.finished:
            self._closing = True
            current.ended(gone=True)
            self.factory.log(current, complete=False)

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

    # -- the parser's callbacks -------------------------------------------------------------

    def on_message_begin(self) -> None:
        """First byte of a request."""
        self._mid_message = True
        self._head_done = False
        self._head_bytes = 0
        self.deadline = self.factory.now + self.factory.limits.header_timeout_s
        self._url = b""
        self._headers = {}
        self._body = None
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        self._url = self._url + url if self._url else url
        if len(self._url) > self.factory.limits.max_target_bytes:
            raise ProtocolError(
                "The request target is too long.", status=414, code="target-too-long"
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole header field (or trailer field, which is ignored)."""
        if self._head_done:
            return
        headers = self._headers
        name = name.lower()
        value = value.rstrip()
        if name in headers:
            if name == b"host":
                raise ProtocolError("The request has more than one Host.", code="bad-host")
            value = headers[name] + b", " + value
        headers[name] = value
        if len(headers) > self.factory.limits.max_headers:
            raise ProtocolError(
                "The request has too many header fields.", status=431, code="header-too-large"
            )

    def on_headers_complete(self) -> None:
        """The header is whole: judge what the parser leaves open, before any body byte."""
        self._head_done = True
        self.deadline = self.factory.now + self.factory.limits.body_timeout_s
        headers = self._headers
        version = self.parser.get_http_version()
        self._version10 = version == "1.0"
        if version != "1.1" and not self._version10:
            raise ProtocolError(
                "This server speaks HTTP/1.1 and HTTP/1.0.", status=505, code="http-version"
            )
        host = headers.get(b"host")
        if (host is None and not self._version10) or (host is not None and not valid_host(host)):
            raise ProtocolError("The request needs exactly one valid Host.", code="bad-host")
        if b"transfer-encoding" in headers:
            if self._version10:
                raise ProtocolError(
                    "HTTP/1.0 has no Transfer-Encoding.", code="bad-transfer-encoding"
                )
            if headers[b"transfer-encoding"].lower() != b"chunked":
                raise ProtocolError(
                    "The only transfer coding understood here is chunked.",
                    status=501,
                    code="bad-transfer-encoding",
                )
        length = headers.get(b"content-length")
        if length is not None and int(length) > self.factory.limits.max_body_bytes:
            raise self._too_large()
        if b"expect" in headers:
            self._expect(headers[b"expect"])

    def on_body(self, data: bytes) -> None:
        """A piece of the request's body."""
        self._body_bytes += len(data)
        if self._body_bytes > self.factory.limits.max_body_bytes:
            raise self._too_large()
        if self._body is None:
            self._body = [data]
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._mid_message = False
        parser = self.parser
        method = parser.get_method()
        self._ready.append(
            Request(
                self,
                method,
                origin_form(method, self._url),
                self._headers,
                body=b"".join(self._body) if self._body is not None else b"",
                keep_alive=parser.should_keep_alive() and method != b"CONNECT",
                http10=self._version10,
            )
        )

    def _too_large(self) -> ProtocolError:
        most = self.factory.limits.max_body_bytes
        return ProtocolError(
            f"The request's body is larger than the {most} bytes accepted here.",
            status=413,
            code="body-too-large",
        )

    def _expect(self, expectation: bytes) -> None:
        if expectation.lower() != b"100-continue":
            raise ProtocolError(
                "The only expectation understood here is 100-continue.",
                status=417,
                code="expectation-failed",
            )
        waits = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if waits and not self._version10 and self._current is None and not self._ready:
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

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

    def _parse_one(self) -> None:
        """Feed the parser at most up to the end of the next header."""
        data = self._pending
        end = data.find(_END) + 4
        if end < 4 or end == len(data):
            self._pending = b""
        else:
            self._pending = data[end:]
            data = data[:end]
        fresh = not self._mid_message
        if self.parser is None:
            self.parser = httptools.HttpRequestParser(self)
        if fresh or not self._head_done:
            before = 0 if fresh else self._head_bytes
            if before + len(data) > self.factory.limits.max_header_bytes:
                self._broken = self._header_too_large(data if fresh else self._url)
                return
            if fresh and not data.isascii():
                data = with_escaped_target(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            # An upgrade that nobody here offers: the request counts, its protocol change does not.
            self._pending = data[error.args[0] :] + self._pending
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, ProtocolError):
                self._broken = cause
            elif isinstance(error, httptools.HttpParserCallbackError):
                raise
            else:
                self._broken = fault_of(error, data if fresh else b"")
        if self._mid_message and not self._head_done:
            self._head_bytes += len(data)

    def _header_too_large(self, data: bytes) -> ProtocolError:
        most_target = self.factory.limits.max_target_bytes
        if len(data.partition(b"\r\n")[0]) > most_target + 64:
            return ProtocolError(
                "The request target is too long.", status=414, code="target-too-long"
            )
        return ProtocolError(
            "The request's header is too large.", status=431, code="header-too-large"
        )

    def _dispatch(self, request: Request) -> None:
        self._current = request
        self.deadline = _NEVER
        try:
            self.factory.handler(request)
        except ProtocolError as error:
            request.refuse(error.status, error.code, str(error))
        except Exception:  # noqa: BLE001 - the last resort: log it, tell the client
            _log.failure("a request handler failed")
            if request.status:
                self.abort()
            else:
                request.refuse(500, "internal-error", "The server failed; this was logged.")

    # -- answering --------------------------------------------------------------------------

    def answer(
        self, request: Request, status: int, headers: Iterable[Header], body: bytes, close: bool
    ) -> None:
        """Send a whole answer and finish the request."""
        if close:
            request.keep_alive = False
        if status in _BODILESS:
            head = self._head(request, status, headers, None, bodiless=True)
        else:
            head = self._head(request, status, headers, len(body))
        if head is None:
            return
        if request.method == b"HEAD" or status in _BODILESS:
            body = b""
        request.bytes_out = len(body)
        self.send(head + body)
        self.finish(request)

    def answer_ready(self, request: Request, head: bytes, body: bytes) -> None:
        """The shortest way to a 200: `head` holds all fields but Date and Connection."""
        if request.keep_alive and not request.http10:
            data = b"HTTP/1.1 200 OK\r\n%b%b\r\n%b" % (self.factory.date_line, head, body)
        else:
            data = b"HTTP/1.1 200 OK\r\n%b%b%b\r\n%b" % (
                self.factory.date_line,
                head,
                b"Connection: keep-alive\r\n" if request.keep_alive else b"Connection: close\r\n",
                body,
            )
        request.status = 200
        request.bytes_out = len(body)
        self.send(data)
        self.finish(request)

    def begin(
        self,
        request: Request,
        status: int,
        headers: Iterable[Header],
        length: int | None,
        more: bool,
    ) -> None:
        """Send the header of a streamed answer."""
        self._chunked = length is None and not request.http10
        if length is None and request.http10:
            request.keep_alive = False
        head = self._head(request, status, headers, length)
        if head is None:
            return
        self._omit_body = request.method == b"HEAD"
        self.send(head, more and not self._omit_body)

    def _head(
        self,
        request: Request,
        status: int,
        headers: Iterable[Header],
        length: int | None,
        *,
        bodiless: bool = False,
    ) -> bytes | None:
        """The header of an answer; None when an earlier drip makes this answer impossible."""
        if request.dripped:
            if request.dripped != status:
                self.abort()
                return None
            start = b""
        else:
            start = b"%b\r\n%b%b" % (
                status_line(status),
                self.factory.date_line,
                self.factory.server_line,
            )
        request.status = status
        if length is not None:
            framing = b"Content-Length: %d\r\n" % length
        elif self._chunked and not bodiless:
            framing = b"Transfer-Encoding: chunked\r\n"
        else:
            framing = b""
        if not request.keep_alive:
            framing += b"Connection: close\r\n"
        elif request.http10:
            framing += b"Connection: keep-alive\r\n"
        return b"%b%b%b\r\n" % (start, header_block(headers), framing)

    def drip(self, request: Request, status: int, name: bytes, value: bytes) -> None:
        """Send a part of the header early."""
        line = header_block([(name, value)])
        if not request.dripped:
            request.dripped = status
            line = b"%b\r\n%b%b%b" % (
                status_line(status),
                self.factory.date_line,
                self.factory.server_line,
                line,
            )
        self.send(line)

    def write_body(self, request: Request, data: bytes) -> None:
        """Send a part of the body of a streamed answer."""
        if self._omit_body or not data:
            return
        request.bytes_out += len(data)
        self.send(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

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

    # -- bytes out --------------------------------------------------------------------------

    def send(self, data: bytes, more: bool = False) -> None:
        """Send bytes now or soon, in order. `more`: the packet may wait for what follows."""
        sock = self._socket
        charge = self.factory.charge
        if charge is not None:
            charge(len(data))
        if sock is None:
            if self.transport is not None:
                self.transport.write(data)
            return
        if self._buffered:
            self.transport.write(data)
            return
        try:
            sent = sock.send(data, socket.MSG_MORE if more else 0)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The transport hears of it too, and ends everything in its own time.
            self.transport.abortConnection()
            return
        if sent < len(data):
            self.transport.write(data[sent:])
            self._buffered = True
            self.deadline = self.factory.write_deadline(len(data) - sent)
            self.transport.registerProducer(_FlushBarrier(self), False)

    def flushed(self) -> None:
        """From the barrier: the transport's buffer is empty."""
        self._buffered = False
        self.transport.unregisterProducer()
        if self._current is None and not self._closing and not self._mid_message:
            self.deadline = self.factory.now + self.factory.limits.idle_timeout_s
        elif self._closing:
            self.deadline = self.factory.now + self.factory.limits.linger_timeout_s
        else:
            self.deadline = _NEVER
        borrower, self._borrower = self._borrower, None
        if borrower is not None:
            borrower()

    def slim(self) -> None:
        """A long body begins: let go of what only the next request needs (about 2 KiB)."""
        if not self._mid_message and not self._ready and self._broken is None:
            self.parser = None
        self._headers = {}
        if self._current is not None:
            self._current.headers = {}

    def when_flushed(self, callback: Callable[[], None]) -> None:
        """Call back once, when everything sent so far has left this process (or now)."""
        if self._buffered:
            self._borrower = callback
        else:
            callback()

    @property
    def socket(self) -> Any:
        """The plain socket, for senders that push bytes past the transport; None under TLS."""
        return self._socket

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
