"""The loop of all connections: an epoll of its own that the reactor watches as one descriptor.

So Twisted is entered once for a batch of events and not once for each. A request of a known shape
is answered here (`ready` says when that may be); all others go to their connection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import socket
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from twisted.internet import interfaces
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from .accesslog import LONGEST_FIELD, LONGEST_TARGET
from .clock import Reactor
from .connection import HttpConnection
from .factory import REQUEST_BYTES, HttpFactory
from .outbox import BLOCKED, PIECE_BYTES
from .parsing import valid_host
from .ready import AT_ONCE, CLOSES, JOINED_BYTES, STAYS, ending_of
from .request import AccessEntry
from .request_shape import CONDITIONS, FORWARDING, fields_of, recognise

if TYPE_CHECKING:
    from .tls import TlsServer

_log = Logger()
#: A trip through the reactor costs as much as several small answers: stay while there is work, but
#: no longer than timers can wait.
_STAY_S = 0.002
_READ_BYTES = 8192
_IN = select.EPOLLIN
_OUT = select.EPOLLOUT
_BROKEN = select.EPOLLERR | select.EPOLLHUP
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
BACKLOG = 4096
_END = b"\r\n\r\n"
#: Tickets, passes and visitor cookies are named so: a request with one is judged by the admission.
_OWN = b"tidegate-"
#: An answer in two parts, of which the second may be empty, and whether it is the last.
_Answer = tuple[bytes, bytes, bool]


class Port:
    """A listening socket on the loop."""

    def __init__(
        self, front: Front, sock: socket.socket, tls: TlsServer | None, path: str | None
    ) -> None:
        self.socket = sock
        self.family = sock.family
        self.tls = tls
        self._front = front
        self._path = path

    @property
    def number(self) -> int:
        """The TCP port; 0 for a unix socket."""
        name = self.socket.getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    def stopListening(self) -> None:
        if self.socket.fileno() >= 0:
            self._front.close_port(self)
            self.socket.close()
            if self._path is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path)


def tcp_socket(host: str) -> socket.socket:
    """An unbound socket for an address of IPv4, or of IPv6 alone.

    With `[::]` for both families, as the kernel has it, `0.0.0.0` could not be named beside it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return sock


def _accept(port: Port) -> tuple[socket.socket, Any]:
    """As `accept`, which makes enums of the family and type of each connection."""
    fd, address = port.socket._accept()  # type: ignore[attr-defined]
    return socket.socket(port.family, socket.SOCK_STREAM, 0, fileno=fd), address


@implementer(interfaces.IReadDescriptor)
class Front:
    """Watches listening sockets and connections for a factory; starts with its first port.

    `shortcuts` False has every request parsed, and the reactor looks at all else between two of
    them. A page takes a hundred times as long as a small file.
    """

    #: What fails is logged where it fails; see `app.clock.ProcessClockReactor`.
    logs_its_faults = True

    def __init__(self, reactor: Reactor, factory: HttpFactory, *, shortcuts: bool = True) -> None:
        self._reactor = reactor
        self._tell_from_s = 0.0
        self._factory = factory
        self._shortcuts = shortcuts
        self._events = 8 if shortcuts else 1
        self._accepts = 64 if shortcuts else 1
        self._stay_s = _STAY_S if shortcuts else 0.0
        self._epoll = select.epoll()
        self._connections: dict[int, HttpConnection] = {}
        self._ports: dict[int, Port] = {}
        self._reading = False
        #: How the epoll says that known files may have changed, and since which turn they are all
        #: compared because of that. It is told once a turn: a folder may change all the time.
        self._change = (-1, _IN)
        self._changed: int | None = None
        if shortcuts and factory.shortcut is not None and factory.shortcut.changes.fd >= 0:
            self._change = factory.shortcut.changes.fd, _IN
            self._epoll.register(self._change[0], _IN | select.EPOLLONESHOT)

    # -- ports ------------------------------------------------------------------------------

    def listen_on(
        self, sock: socket.socket, tls: TlsServer | None = None, path: str | None = None
    ) -> Port:
        """Listen on a socket that is bound; `path` is a unix socket's, removed at the end.

        Raises OSError.
        """
        if sock.family != socket.AF_UNIX:
            # Connections inherit it.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # The kernel asks a peer whether it is there when it was silent for this time,
            # seconds. A client that waits for its turn may be silent for hours.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
            # It asks again after this time, until the connection ends (`_bound_silence`).
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
            with contextlib.suppress(OSError):  # an older kernel has no such option
                # `TCP_RTO_MAX_MS` of Linux 6.15; `socket` has no name for it.
                # The kernel sends lost bytes again after this time at the latest, milliseconds.
                # Otherwise the time doubles with each loss, and a client before a full router is
                # silent for 9 s, and then for 18 s.
                sock.setsockopt(socket.IPPROTO_TCP, 44, 4_000)
            self._bound_silence(sock)
        sock.setblocking(False)
        sock.listen(BACKLOG)
        port = self._ports[sock.fileno()] = Port(self, sock, tls, path)
        self._epoll.register(sock.fileno(), _IN)
        if not self._reading:
            self._reading = True
            self._reactor.addReader(self)
        return port

    def bound_silence(self) -> None:
        """Follow the limits: connections that come from now on end by them when a peer is gone."""
        for port in self._ports.values():
            if port.family != socket.AF_UNIX:
                self._bound_silence(port.socket)

    def _bound_silence(self, sock: socket.socket) -> None:
        # Not sooner: this also ends the connection of a peer that is there and reads nothing.
        silent_ms = int(1000 * self._factory.limits.min_rate_window_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, silent_ms))

    def close_port(self, port: Port) -> None:
        if self._ports.pop(port.socket.fileno(), None) is not None:
            self._epoll.unregister(port.socket.fileno())

    # -- the reactor's side -----------------------------------------------------------------

    def fileno(self) -> int:
        """The epoll, which can be read when something happens on one of its sockets."""
        return self._epoll.fileno()

    def logPrefix(self) -> str:
        return "Front"

    def connectionLost(self, reason: Failure) -> None:
        """The reactor ends."""

    def doRead(self) -> None:
        """Deal with what has happened, and with what happens meanwhile, for a little while."""
        until_s = time.monotonic() + self._stay_s
        while batch := self._epoll.poll(0, self._events):
            self._deal_with(batch)
            if time.monotonic() >= until_s:
                break

    def _compare_anew(self) -> None:
        """Files have changed that are known, or so it may be."""
        self._factory.turns.version += 1
        number = self._factory.turns.number
        if self._changed is None:
            self._changed = number
        elif self._changed != number:
            self._changed = None
            assert self._factory.shortcut is not None
            self._factory.shortcut.changes.read()
            self._epoll.modify(self._change[0], _IN | select.EPOLLONESHOT)

    def _deal_with(self, batch: list[tuple[int, int]]) -> None:
        if self._changed is not None or self._change in batch:
            self._compare_anew()
        connections = self._connections
        for fd, events in batch:
            connection = connections.get(fd)
            try:
                if connection is None:
                    port = self._ports.get(fd)
                    if port is not None:
                        self._accept(port)
                elif connection.shaking_hands:
                    connection.shake_hands()
                elif events & _IN:
                    self._read(connection)
                    if events & _OUT and connection.alive:
                        connection.writable()
                elif events & _OUT and not events & _BROKEN:
                    connection.writable()
                elif _is_broken(fd):
                    connection.lost()
            except Exception:  # noqa: BLE001 - one connection's fault is not the others'
                _log.failure("a connection failed")
                if connection is not None:
                    connection.abort()

    def _accept(self, port: Port) -> None:
        # Beyond the first ones, and after 5 ms, requests wait here: the queue of a port may be full
        # in 0.1 s, and a proxy takes a server for absent whose unix socket takes no more. A large
        # download that begins takes 0.3 ms.
        until_s = time.monotonic() + 0.005
        for number in range(max(16, 4 * self._accepts)):
            try:
                sock, address = _accept(port)
            except BLOCKED:
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._breathe(port, error)
                    return
                continue  # That one has left already.
            at_once = number < self._accepts and time.monotonic() < until_s
            self.adopt(sock, _host(address), port.tls, at_once=at_once)

    def _breathe(self, port: Port, error: OSError) -> None:
        """No descriptor is left: who waits in the backlog waits on, instead of our spinning."""
        now_s = self._reactor.seconds()
        if now_s >= self._tell_from_s:
            # It may go on for hours, four times a second, and is said once a minute.
            self._tell_from_s = now_s + 60.0
            _log.warn("cannot accept connections for a moment: {error}", error=error.strerror)
        fd = port.socket.fileno()
        self._epoll.modify(fd, 0)

        def again() -> None:
            if self._ports.get(fd) is port:
                self._epoll.modify(fd, _IN)

        self._reactor.callLater(0.25, again)

    def adopt(
        self,
        sock: socket.socket,
        peer_address: str,
        tls: TlsServer | None = None,
        *,
        at_once: bool = True,
    ) -> None:
        """What was accepted, here or elsewhere, is ours; it is read `at_once` or in its turn."""
        factory = self._factory
        if not factory.takes(peer_address):
            sock.close()
            return
        shortcut = self._shortcuts and factory.may_shortcut(peer_address)
        data: bytes | None = None
        answer: _Answer | None = None
        sent = 0
        if at_once and shortcut and tls is None and factory.has_room(peer_address):
            try:
                data = sock.recv(_READ_BYTES, socket.MSG_DONTWAIT)
                found = recognise(data)
                if found is not None:
                    answer = self._answer(peer_address, factory.date_line, False, found)
                # What a socket still holds is not to be known once it is closed.
                if answer is not None and answer[2] and not (answer[1] and factory.answers.wanted):
                    head, body, _ = answer
                    sent = _send_now(sock, head, body)
                    if sent == len(head) + len(body):
                        # It is none of those that are watched and swept.
                        factory.accepted_total += 1
                        sock.close()
                        return
            except OSError:
                # What it is, the connection finds out when it reads.
                pass
            except Exception:  # noqa: BLE001 - one connection's fault is not the others'
                _log.failure("a connection failed")
                sock.close()
                return
        sock.setblocking(False)
        connection = HttpConnection(factory, self, sock, peer_address, shortcut=shortcut, tls=tls)
        connection.begin_life()
        try:
            if answer is not None and sent:
                connection.keep(answer[0], answer[1], sent)
                connection.close()
            elif at_once:
                self._first_look(connection, data, answer)
            elif connection.alive:
                self.watch(connection, _IN)
        except Exception:  # noqa: BLE001 - one connection's fault is not the others'
            _log.failure("a connection failed")
            connection.abort()

    def _first_look(
        self, connection: HttpConnection, data: bytes | None, answer: _Answer | None
    ) -> None:
        """Often the request is there already: `data`, or still to be read where that is None."""
        if connection.alive:
            if connection.shaking_hands:
                connection.shake_hands()
            elif answer is not None:
                self._send(connection, *answer)
            elif data is None:
                self._read(connection)
            else:
                self._take(connection, data)
            if connection.alive and connection.events < 0:
                self.watch(connection, _IN)

    def _read(self, connection: HttpConnection) -> None:
        """Bytes have arrived, or so says epoll."""
        try:
            # A TLS record whole, so that none of it stays in the TLS layer unseen by epoll.
            data = connection.socket.recv(16384 if connection.is_tls else _READ_BYTES)
        except BLOCKED:
            return
        except OSError:
            connection.lost()
            return
        self._take(connection, data)

    def _take(self, connection: HttpConnection, data: bytes) -> None:
        if not data:
            connection.peer_closed()
            return
        if connection.shortcut and connection.idle:
            found = recognise(data)
            if found is None:
                data = self._pipelined(connection, data)
                if not data:
                    return
            else:
                is_tls, factory = connection.is_tls, self._factory
                date_line = factory.tls_date_line if is_tls else factory.date_line
                answer = self._answer(connection.peer_address, date_line, is_tls, found)
                if answer is not None:
                    self._send(connection, *answer)
                    return
        connection.received(data)

    def _pipelined(self, connection: HttpConnection, data: bytes) -> bytes:
        """Answer requests that came in one piece, as far as that can be done; what is left."""
        done, end, closes, size = 0, data.find(_END) + 4, False, 0
        if end == 3 or end == len(data):
            return data
        answers: list[bytes] = []
        while end > 3 and not closes and size < PIECE_BYTES:
            found = recognise(data, done, end)
            if found is None or (end < len(data) and ending_of(found[5], found[11]) is CLOSES):
                break
            answer = self._answer(
                connection.peer_address, connection.date_line, connection.is_tls, found
            )
            if answer is None:
                break
            head, body, closes = answer
            answers += (head, body)
            size += len(head) + len(body)
            done, end = end, data.find(_END, end) + 4
        if answers:
            self._send(connection, b"".join(answers), b"", closes)
        return data[done:] if connection.alive else b""

    def _send(self, connection: HttpConnection, head: bytes, body: bytes, closes: bool) -> None:
        """Send what answers all requests that have come on a connection."""
        factory = self._factory
        if factory.answers.wanted and len(head) + len(body) > JOINED_BYTES:
            factory.answers.add(connection)
        if connection.offer(head, body):
            connection.deadline = factory.now + factory.limits.idle_timeout_s
        if closes:
            connection.close()

    def _answer(
        self, peer_address: str, date_line: bytes, is_tls: bool, found: re.Match[bytes]
    ) -> _Answer | None:
        """The answer to a request of a known shape, charged and logged; None: parse it."""
        groups = found.groups()
        head, named, path, query, old, host, agent, accept, language, referer = groups[:10]
        kept, cookie, codings, part = groups[10:14]
        if (
            host is None
            or not (valid_host(host) and valid_host(named or host))
            # What a folder shows depends on its query; a file does not.
            or (query is not None and (_OWN in unquote_to_bytes(query) or path.endswith(b"/")))
            or (cookie is not None and _OWN in cookie)
        ):
            return None
        factory = self._factory
        client = peer_address
        if factory.proxies.trusts(peer_address):
            fields = fields_of(groups, FORWARDING)
            client = factory.proxies.client_address(peer_address, fields)
            is_tls = is_tls or factory.proxies.is_tls(peer_address, fields)
            if factory.blocks(client):
                return None
        requests, shortcut = factory.requests, factory.shortcut
        assert shortcut is not None
        is_plain = head is None and not any(groups[CONDITIONS])
        file = shortcut.known(path)
        if file is not None:
            ready = (
                file.whole
                if is_plain
                else file.answer_to(head, fields_of(groups, CONDITIONS), client, agent)
            )
        elif head is None and not requests.busy:
            ready = shortcut.first(path, accept, language, codings, query, is_plain)
        else:
            return None
        if ready is None or (requests.busy and not requests.passes(client)):
            return None
        ending = STAYS if kept is None and old is None else ending_of(old, kept)
        if ready.subject is AT_ONCE:
            parts = ready.parts(ready.body or b"", date_line, ending)
        else:
            again = ready.again(factory.turns, date_line, ending)
            if again is None:
                return None
            parts = again
        count = len(parts[0]) + len(parts[1])
        factory.turns.count(count)
        if requests.busy:
            requests.charge(client, REQUEST_BYTES + count)
        if factory.access_log is not None:
            target = path if query is None else b"%b?%b" % (path, query)
            factory.access_log.add(
                AccessEntry(
                    client,
                    head or b"GET",
                    target[:LONGEST_TARGET],
                    "HTTP/1.1" if old is None else "HTTP/1.0",
                    (agent or b"").rstrip()[:LONGEST_FIELD],
                    (referer or b"")[:LONGEST_TARGET],
                    (part or b"")[:LONGEST_FIELD],
                    is_tls,
                    0.0,
                    factory.wall(),
                    0.0,
                    ready.status,
                    ready.body_bytes,
                )
            )
        return *parts, ending is CLOSES

    # -- for connections ------------------------------------------------------------------

    def watch(self, connection: HttpConnection, events: int) -> None:
        """See `connection.Loop`."""
        if events == connection.events:
            return
        fd = connection.socket.fileno()
        if connection.events >= 0:
            self._epoll.modify(fd, events)
        else:
            self._connections[fd] = connection
            self._epoll.register(fd, events)
        connection.events = events

    def drop(self, connection: HttpConnection, *, closes: bool) -> None:
        """See `connection.Loop`; closing a socket takes it out of the epoll."""
        fd = connection.socket.fileno()
        self._connections.pop(fd, None)
        if not closes and connection.events >= 0:
            # The end of its peer would be told again and again.
            self._epoll.unregister(fd)


def _send_now(sock: socket.socket, head: bytes, body: bytes) -> int:
    """Send what a socket takes now; all that is sent to a peer that has left counts."""
    try:
        if body:
            return sock.sendmsg((head, body), (), socket.MSG_DONTWAIT)
        return sock.send(head, socket.MSG_DONTWAIT)
    except BLOCKED:
        return 0
    except OSError:
        return len(head) + len(body)


def _is_broken(fd: int) -> bool:
    """Whether a socket is broken now: its number may have passed on within a batch of events."""
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))


def _host(address: Any) -> str:
    """The host of a peer; empty for a unix socket."""
    if not isinstance(address, tuple):
        return ""
    host = str(address[0])
    return host[7:] if host.startswith("::ffff:") and "." in host else host
