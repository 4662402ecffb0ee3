"""One HTTP/1.1 connection: what arrives is answered in order, and every wait has an end.

It has a socket, a parser (bytes in, requests out) and, when the socket takes no more, an outbox. It
dispatches requests one at a time, writes their answers and ends as a connection should be ended.
The loop that watches its socket (`front.Front`) tells it what happens there.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
import struct
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

from ...protocol.errors import ProtocolError
from .answers import SERVER_LINE, Header, header_block, status_line
from .factory import REQUEST_BYTES, HttpFactory
from .outbox import BLOCKED, PIECE_BYTES, Outbox, queued_bytes
from .parser import RequestParser
from .proxies import Preface, read_preface
from .ready import JOINED_BYTES
from .request import Request
from .tls import AwaitedHello, TlsServer

_NEVER = float("inf")
_BODILESS = frozenset({204, 304})
_IN = select.EPOLLIN
_OUT = select.EPOLLOUT
_RESET = struct.pack("ii", 1, 0)
_ORDERLY = struct.pack("ii", 0, 0)
_NOT_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: 60\r\n\r\nThis port speaks TLS, but a plain request arrived; use https"
)


class Loop(Protocol):
    """Watches sockets for connections."""

    def watch(self, connection: HttpConnection, events: int) -> None:
        """Tell the connection of these events (EPOLLIN, EPOLLOUT) from now on, and no others."""

    def drop(self, connection: HttpConnection, *, closes: bool) -> None:
        """Watch it no more; `closes`: its socket is about to be closed."""


@dataclass(slots=True, eq=False, repr=False)
class HttpConnection:
    """A server connection; `shortcut` says whether its loop may answer on it without the parser.

    The loop calls `received`, `peer_closed`, `writable` and `lost`, and `shake_hands` while
    `shaking_hands`. `idle` says that it waits for the first byte of a request with nothing left
    to do. Its `socket` does not block; None once it is closed.
    """

    line: ClassVar[str] = ""
    elsewhere: ClassVar[bool] = False
    running: ClassVar[bool] = False

    factory: HttpFactory
    loop: Loop
    socket: Any
    peer_address: str
    shortcut: bool = False
    tls: InitVar[TlsServer | None] = None
    is_tls: bool = field(init=False)
    shaking_hands: bool = field(init=False)
    #: What counts as one address; the factory's.
    block: str = field(init=False, default="")
    #: Why this connection is one too many; None where it is not.
    refusal: ProtocolError | None = field(init=False, default=None)
    alive: bool = field(init=False, default=True)
    #: What the loop watches for; -1 before it has heard of this connection.
    events: int = field(init=False, default=-1)
    idle: bool = field(init=False, default=True)
    deadline: float = field(init=False, default=_NEVER)
    #: What the factory's sweep asks about the pace of a running body; None while there is none.
    #: It says when it wants to be asked again.
    monitor: Callable[[float], float] | None = field(init=False, default=None)
    _monitor_due_s: float = field(init=False, default=0.0)
    #: How much of bodies that had the socket to themselves was handed to it.
    bodies_bytes: int = field(init=False, default=0)
    #: What its peer had not acknowledged of all that was sent, once it is over.
    lost_bytes: int = field(init=False, default=0)
    #: Who the client is, where a proxy says it before the first byte; `_preface` gathers that.
    forwarded: Preface | None = field(init=False, default=None)
    _preface: bytes | None = field(init=False, default=None)
    #: Whether its request waits in `factory.requests`.
    waits_for_share: bool = field(init=False, default=False)
    #: What is awaited before TLS begins; None once it has.
    _tls: tuple[TlsServer, AwaitedHello] | None = field(init=False, default=None)
    _parser: RequestParser | None = field(init=False, default=None)
    _outbox: Outbox | None = field(init=False, default=None)
    #: The request that is being answered.
    _current: Request | None = field(init=False, default=None)
    _stage: int = field(init=False, default=0)
    _flushed_call: Callable[[], None] | None = field(init=False, default=None)
    _room_call: Callable[[], None] | None = field(init=False, default=None)
    _chunked: bool = field(init=False, default=False)
    #: A HEAD request's answer has the same header and no body.
    _omit_body: bool = field(init=False, default=False)
    _feeding: bool = field(init=False, default=False)
    _paused: bool = field(init=False, default=False)
    _closing: bool = field(init=False, default=False)
    _ending_tls: bool = field(init=False, default=False)
    _discard: bool = field(init=False, default=False)
    _lingered: int = field(init=False, default=0)
    _peer_closed: bool = field(init=False, default=False)

    def __post_init__(self, tls: TlsServer | None) -> None:
        self.is_tls = self.shaking_hands = tls is not None
        if tls is not None:
            self._tls = tls, AwaitedHello(self.socket)
        if self.factory.proxies.begins_with_preface(self.peer_address):
            self._preface = b""

    # -- the loop's side --------------------------------------------------------------------

    def begin_life(self) -> None:
        """Be counted, or refused when the server or this address has too many connections."""
        factory = self.factory
        self.refusal = factory.entered(self)
        self.deadline = factory.now + self._first_wait_s
        if self.refusal is not None and not self.shaking_hands:
            self._fail(self.refusal)

    @property
    def _first_wait_s(self) -> float:
        """What a newcomer has for its handshake, or for its first header."""
        limits = self.factory.limits
        if self.shaking_hands:
            return min(limits.handshake_timeout_s, limits.header_timeout_s)
        return limits.header_timeout_s

    def _begin_tls(self) -> bool:
        """Whether TLS has begun; it does once the client's hello is here."""
        if self._tls is None:
            return True
        tls, hello = self._tls
        try:
            if not hello.has_come():
                self.loop.watch(self, _IN)
                return False
            if self.factory.begins_handshake(self):
                self.socket = tls.wrap(self.socket)
                self._tls = None
                return True
        except (OSError, ValueError):
            # The peer has left.
            pass
        self.lost()
        return False

    def shake_hands(self) -> None:
        if not self._begin_tls():
            return
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            self.loop.watch(self, _IN)
        except ssl.SSLWantWriteError:
            self.loop.watch(self, _OUT)
        except OSError as error:
            if isinstance(error, ssl.SSLError) and error.reason == "HTTP_REQUEST":
                self._say_that_this_is_tls()
            self.lost()
        else:
            self.shaking_hands = False
            self.factory.ended_handshake(self)
            self.deadline = self.factory.now + self._first_wait_s
            self._watch()
            if self.refusal is not None:
                self._fail(self.refusal)

    def _say_that_this_is_tls(self) -> None:
        with contextlib.suppress(OSError):
            # Unread bytes would make a reset of the close, which may overtake the answer.
            socket.socket.recv(self.socket, self.factory.limits.max_header_bytes)
            socket.socket.send(self.socket, _NOT_TLS)
            self.socket.shutdown(socket.SHUT_WR)

    def received(self, data: bytes) -> None:
        if self._discard:
            self._lingered += len(data)
            if self._lingered > self.factory.limits.max_linger_bytes:
                self.abort()
            return
        if self._closing:
            return
        if self._preface is not None:
            data = self._read_preface(self._preface + data)
            if not data:
                return
        parser = self._parser
        if parser is None:
            parser = self._parser = RequestParser(self.factory.limits, self.factory.large_bodies)
            self._stage = 0
        parser.receive(data)
        if self._current is not None or self._outbox is not None:
            if len(parser.pending) > self.factory.limits.max_pipelined_bytes and not self._paused:
                self._paused = True
                self._watch()
            return
        self.idle = False
        self._feed()

    def _read_preface(self, data: bytes) -> bytes:
        """Take a proxy's word for who the client is; what follows it, if it is there yet."""
        try:
            found = read_preface(data)
        except ProtocolError as error:
            self._preface = None
            self._fail(error)
            return b""
        if found is None:
            self._preface = data
            return b""
        self._preface, self.forwarded = None, found
        return data[found.size_bytes :]

    @property
    def client_address(self) -> str:
        """The address of the peer, or of the client for whom a trusted proxy opened this."""
        forwarded = self.forwarded
        if forwarded is None or forwarded.address is None:
            return self.peer_address
        return forwarded.address

    @property
    def date_line(self) -> bytes:
        """The Date field of answers here, with what else belongs to answers by TLS."""
        return self.factory.tls_date_line if self.is_tls else self.factory.date_line

    @property
    def resting(self) -> bool:
        """Whether nothing is being answered here, so that it may be given up."""
        return self._current is None and self._outbox is None and not self._closing

    @property
    def just_came(self) -> bool:
        """Whether nothing was read yet and its first request may still be on its way."""
        latest = self.factory.now + self._first_wait_s
        # A request follows its connection within this time, unless its client is silent.
        return self._parser is None and self.deadline > latest - 1.0

    def peer_closed(self) -> None:
        """The peer will send nothing more, but may still read an answer that is on its way."""
        self._peer_closed = True
        self.idle = False
        current = self._current
        if current is None and self._holds_back:
            self._watch()
            return
        if current is None or not (current.status or self._outbox is not None):
            self._abandon()
            self._closing = True
        if self._closing and self._outbox is None:
            self._part()
        else:
            self._watch()

    def writable(self) -> None:
        """The socket takes bytes again."""
        outbox = self._outbox
        if outbox is not None:
            try:
                finished = outbox.flush(self.socket.send)
            except OSError:
                self.lost()
                return
            if not outbox.piece_bytes:
                self._outbox = None
                self._flushed()
            elif finished:
                self.deadline = self.factory.write_deadline(outbox.piece_bytes)
        elif self._room_call is not None:
            self._room_call()
        elif self._ending_tls:
            self._part()

    def lost(self, *, orderly: bool = False) -> None:
        """The connection is over; tell those that wait for it.

        `orderly`: its peer has been sent all, though it may not have arrived.
        """
        if not self.alive:
            return
        if self.bodies_bytes:
            self.lost_bytes = queued_bytes(self.socket)
        self.alive = False
        self.idle = False
        parts = orderly and self.factory.answers.take_over(self.socket)
        self.loop.drop(self, closes=not parts)
        self.factory.left(self)
        if self.waits_for_share:
            self.factory.requests.forget(self)
        self._abandon()
        self._drop_parser()
        self._outbox = None
        self.monitor = None
        self._room_call = None
        sock, self.socket = self.socket, None
        if not parts:
            sock.close()

    def _drop_parser(self) -> None:
        parser, self._parser = self._parser, None
        if parser is not None:
            parser.end()

    def _abandon(self) -> None:
        """The client is gone: end the request that was being answered."""
        self._flushed_call = None
        current, self._current = self._current, None
        if current is not None and not current.finished:
            self._closing = True
            current.ended(gone=True)
            self.factory.log(current, complete=False)

    def _watch(self) -> None:
        """Have the loop watch for what is of interest now."""
        if not self.alive:
            return
        events = 0 if self._paused or self._peer_closed else _IN
        if self._outbox is not None or self._room_call is not None or self._ending_tls:
            events |= _OUT
        self.loop.watch(self, events)

    def needs_sweep(self, now: float) -> bool:
        """Whether `sweep` has something to do."""
        if self.monitor is not None and self._monitor_due_s <= now:
            return True
        return self.deadline <= now or (self._parser is not None and self._parser.quiet)

    @property
    def _holds_back(self) -> bool:
        """Whether requests wait here until the socket has taken the answers before them."""
        return self._outbox is not None and self._parser is not None and not self._parser.quiet

    @property
    def parting(self) -> bool:
        """Whether the last answer was given and the connection is being closed."""
        return self._closing and self._current is None

    @property
    def written_out(self) -> bool:
        """Whether everything written is in the system's hands."""
        return self._outbox is None

    def close_if_idle(self) -> None:
        """The server is stopping: a connection between two requests has nothing to lose."""
        if self._current is None and not (self._parser is not None and self._parser.mid_message):
            self.close()

    def sweep(self, now: float) -> None:
        """Called about once a second by the factory: enforce deadlines and pace."""
        if self.monitor is not None:
            self._monitor_due_s = self.monitor(now)
        if self._parser is not None and self._parser.quiet:
            # One that waits is cheap to keep: its parser is made again when it is needed.
            self._drop_parser()
        if now < self.deadline:
            return
        self.deadline = _NEVER
        if self._ending_tls:
            self._leave()
        elif self._discard or self._closing or self._outbox is not None or self.shaking_hands:
            self.abort()
        elif self._parser is not None and self._parser.mid_message:
            what = "body" if self._parser.head_done else "header"
            self._fail(
                ProtocolError(
                    f"The request's {what} did not arrive in time; send it without long pauses.",
                    status=408,
                    code="request-timeout",
                )
            )
        elif self._current is None:
            self.close()

    # -- feeding ----------------------------------------------------------------------------

    def _feed(self) -> None:
        """Parse and dispatch until a request is being answered or the bytes run out.

        Nothing is answered before the socket has taken the last answer: who asks on and on and
        reads nothing would have all of them kept here.
        """
        parser = self._parser
        if self._feeding or parser is None:
            return
        self._feeding = True
        try:
            while self._current is None and self._outbox is None and not self._closing:
                try:
                    message = parser.next()
                except ProtocolError as error:
                    self._fail(error)
                    break
                if message is None:
                    break
                self._dispatch(Request(self, *message))
        finally:
            self._feeding = False
        if self._current is None and self._outbox is None and not self._closing:
            if parser.stage != self._stage:
                self._stage = parser.stage
                if parser.mid_message:
                    limits = self.factory.limits
                    self.deadline = self.factory.now + (
                        limits.body_timeout_s if parser.head_done else limits.header_timeout_s
                    )
            if parser.wants_continue:
                parser.wants_continue = False
                self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._rest()

    def _go_on(self) -> None:
        """A request was answered: the next one, if it is here."""
        if self._outbox is not None:
            return
        if self._parser is not None and not self._parser.quiet:
            self._feed()
        else:
            self._rest()

    def _rest(self) -> None:
        """No request is being answered: wait for the next, or close after a peer that has."""
        if self._paused:
            self._paused = False
            self._watch()
        if self._peer_closed:
            self.close()
        else:
            self.idle = self._outbox is None and (self._parser is None or self._parser.quiet)

    def _dispatch(self, request: Request) -> None:
        self._current = request
        self.deadline = _NEVER
        access_log = self.factory.access_log
        if access_log is not None:
            access_log.begin(request, self.factory.reactor.seconds())
        requests = self.factory.requests
        if requests.busy:
            address = request.client_address
            if not requests.passes(address) and not self.factory.goes_first(request):
                self.waits_for_share = True
                requests.wait(
                    self,
                    address,
                    self.factory.reactor.seconds(),
                    partial(self._handle, request),
                    partial(self._send_away, request),
                )
                return
            requests.charge(address, REQUEST_BYTES)
        self._handle(request)

    def _send_away(self, request: Request, until_s: float) -> None:
        """It waited for its network's share for too long."""
        self.waits_for_share = False
        if self._current is not request:
            return
        request.refuse(
            503,
            "network-busy",
            "Your network has had more than its share, and others wait. Please come back later.",
            [(b"Retry-After", b"%d" % math.ceil(until_s))],
        )

    def _handle(self, request: Request) -> None:
        self.waits_for_share = False
        if self._current is not request:
            # Its client has left meanwhile.
            return
        request.answer_by(self.factory.handler)

    # -- sending ----------------------------------------------------------------------------

    def send(self, data: bytes, more: bool = False) -> None:
        """Send bytes now or soon, in order. `more`: the packet may wait for what follows."""
        if self.socket is None or not data:
            return
        self._charge(len(data))
        if self._outbox is not None:
            self._outbox.add(data)
            return
        self.offer(data, b"", socket.MSG_MORE if more else 0)

    def offer(self, head: bytes, body: bytes, flags: int = 0) -> bool:
        """Send what the socket takes now and keep the rest; whether it took all."""
        try:
            if self.is_tls:
                # TLS must be offered the same bytes again; `keep` offers pieces of this size.
                head, body = head + body, b""
                sent = self.socket.send(head if len(head) <= PIECE_BYTES else head[:PIECE_BYTES])
            else:
                sent = self.socket.sendmsg((head, body)) if body else self.socket.send(head, flags)
        except BLOCKED:
            sent = 0
        except OSError:
            self.abort()
            return False
        if sent < len(head) + len(body):
            self.keep(head, body, sent)
            return False
        return True

    def _charge(self, count: int) -> None:
        factory = self.factory
        if factory.charge is not None:
            factory.charge(count)
            if factory.requests.busy:
                current = self._current
                client = self.client_address if current is None else current.client_address
                factory.requests.charge(client, count)

    def send_both(self, head: bytes, body: bytes) -> None:
        """Send a header and its body, in one call where they need not be joined for it."""
        joined = self.is_tls or len(body) <= JOINED_BYTES or self._outbox is not None
        if joined or self.socket is None:
            self.send(head + body)
            return
        self._charge(len(head) + len(body))
        if self.factory.answers.wanted:
            self.factory.answers.add(self)
        self.offer(head, body)

    def queued_bytes(self) -> int:
        """What has not arrived of all that was sent here; 0 once it is closed."""
        outbox = self._outbox
        return queued_bytes(self.socket) + (0 if outbox is None else outbox.waiting_bytes)

    def keep(self, head: bytes, body: bytes, sent: int) -> None:
        """The socket took `sent` of these bytes: send the others when it can.

        The body is not copied: many may be sent the same one.
        """
        self.idle = False
        outbox = self._outbox = Outbox()
        outbox.add(memoryview(head)[sent:])
        outbox.add(memoryview(body)[max(0, sent - len(head)) :])
        self.deadline = self.factory.write_deadline(outbox.piece_bytes)
        self._watch()

    def _flushed(self) -> None:
        """Everything sent so far is in the system's hands."""
        self.deadline = self._deadline_when_flushed()
        self._watch()
        call, self._flushed_call = self._flushed_call, None
        if call is not None:
            call()
        elif self._closing:
            self._part()
        elif self._current is None:
            self._go_on()

    def _deadline_when_flushed(self) -> float:
        factory = self.factory
        if self._closing:
            return factory.now + factory.limits.linger_timeout_s
        if self._current is not None:
            return _NEVER
        if self._parser is not None and self._parser.mid_message:
            return factory.now + factory.limits.header_timeout_s
        return factory.now + factory.limits.idle_timeout_s

    def when_flushed(self, callback: Callable[[], None]) -> None:
        """Call back once, when everything sent so far has left this process (or now)."""
        if self._outbox is not None:
            self._flushed_call = callback
        else:
            callback()

    def await_room(self, callback: Callable[[], None] | None) -> None:
        """Call back each time the socket takes bytes, until told None.

        For senders that have the socket to themselves, from `when_flushed` to `finish`.
        """
        self._room_call = callback
        self._watch()

    def release_buffers(self) -> None:
        """A long body begins: let go of what only the next request needs (about 2 KiB)."""
        if self._parser is not None and self._parser.quiet:
            self._drop_parser()
        if self._current is not None:
            self._current.headers = {}

    # -- answering --------------------------------------------------------------------------

    def answer(
        self, request: Request, status: int, headers: Iterable[Header], body: bytes, *, close: bool
    ) -> None:
        """Send a whole answer and finish the request."""
        if close:
            request.keep_alive = False
        length = None if status in _BODILESS else len(body)
        head = self._head(request, status, headers, length)
        if head is None:
            return
        if request.method == b"HEAD" or length is None:
            body = b""
        request.bytes_out = len(body)
        self.send_both(head, body)
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
        self, request: Request, status: int, headers: Iterable[Header], length: int | None
    ) -> bytes | None:
        """The header of an answer; None when an earlier drip makes this answer impossible."""
        if request.dripped:
            if request.dripped != status:
                self.abort()
                return None
            self._break_by(_ORDERLY)
            start = b""
        else:
            start = self._start(status)
        request.status = status
        if self.factory.draining:
            # A client that was not told would meet the end with its next request.
            request.keep_alive = False
        framing = b"Transfer-Encoding: chunked\r\n" if self._chunked else b""
        if length is not None:
            framing = b"Content-Length: %d\r\n" % length
        if not request.keep_alive:
            framing += b"Connection: close\r\n"
        elif request.http10:
            framing += b"Connection: keep-alive\r\n"
        return b"%b%b%b\r\n" % (start, header_block(headers), framing)

    def drip(self, request: Request, status: int, name: bytes, value: bytes) -> None:
        """Send a part of the header early."""
        line = header_block([(name, value)])
        if not request.dripped:
            # curl and wget take a header that just ends for an answer without content, and say
            # that all went well: should this process die now, they must see a reset.
            self._break_by(_RESET)
            request.dripped = status
            line = self._start(status) + line
        self.send(line)

    def _start(self, status: int) -> bytes:
        return b"%b\r\n%b%b" % (status_line(status), self.date_line, SERVER_LINE)

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
        self._monitor_due_s = 0.0
        if not self.alive:
            return
        if self._room_call is not None:
            self.await_room(None)
        factory = self.factory
        if factory.access_log is not None:
            factory.log(request, complete=True)
        self._current = None
        if self._closing:
            return
        if not request.keep_alive or factory.draining:
            self.close()
            return
        if self._outbox is None:
            self.deadline = self._deadline_when_flushed()
        if not self._feeding:
            self._go_on()

    def abort(self) -> None:
        """Cut the connection with a reset, so that no client takes a part for the whole."""
        if not self.alive:
            return
        self._closing = True
        self.idle = False
        self.loop.watch(self, 0)
        self._break_by(_RESET)
        # Later, so that no callback runs in the midst of what led here.
        self.factory.reactor.callLater(0, self.lost)

    def _break_by(self, linger: bytes) -> None:
        """How the peer sees the end of the socket, also when the process dies."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    # -- endings ----------------------------------------------------------------------------

    def close(self) -> None:
        """Close once everything is out; linger when the peer may still be sending."""
        if self._closing:
            return
        self._closing = True
        self.idle = False
        if self._outbox is None:
            self._part()

    def _part(self) -> None:
        """Everything is out: say so by TLS, and leave. A full socket is waited for."""
        self._ending_tls = not self._end_tls()
        if self._ending_tls:
            self.deadline = self.factory.now + self.factory.limits.linger_timeout_s
            self._watch()
        else:
            self._leave()

    def _leave(self) -> None:
        """Close, or half-close and read on for a while.

        Bytes that were not read make the system send a reset, which may overtake the answer.
        """
        self._ending_tls = False
        unread = self._discard or (self._parser is not None and not self._parser.quiet)
        if unread and not self._peer_closed:
            self._linger()
        else:
            self.lost(orderly=True)

    def _linger(self) -> None:
        self._discard = True
        self._drop_parser()
        self.deadline = self.factory.now + self.factory.limits.linger_timeout_s
        self._paused = False
        self._watch()
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.lost()

    def _end_tls(self) -> bool:
        """Send close_notify, so that a cut cannot pass for the end (RFC 8446, 6.1).

        False: the socket is full, so it was not sent.
        """
        if self.is_tls and not self.shaking_hands:
            try:
                self.socket.unwrap()
            except ssl.SSLWantWriteError:
                return False
            except (OSError, ValueError):
                # It was sent, and the peer's own is not awaited; or the connection is lost.
                return True
        return True

    def _fail(self, error: ProtocolError) -> None:
        """Answer a request that cannot be read, and end the connection."""
        parser = self._parser
        headers = parser.head if parser is not None else {}
        request = Request(self, b"GET", b"*", headers, keep_alive=False)
        self._current = request
        self._discard = True
        self.idle = False
        retry: list[Header] = []
        if error.status == 503:
            retry.append((b"Retry-After", b"%d" % self.factory.limits.refusal_retry_after_s))
        request.refuse(error.status, error.code, str(error), retry)
