"""The loop of all connections: an epoll of its own that the reactor watches as one descriptor.

So Twisted is entered once for a batch of events and not once for each. A request that is known by
its bytes is answered here (`ready` says when that may be); all others go to their connection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any

from twisted.internet import interfaces
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from .clock import Reactor
from .connection import BLOCKED, HttpConnection
from .outbox import PIECE_BYTES
from .ready import Known, ReadyTable

if TYPE_CHECKING:
    from .factory import HttpFactory
    from .tls import TlsServer

_log = Logger()
_EVENTS = 256
_ACCEPTS = 64
#: A trip through the reactor costs as much as several small answers: stay while there is work, but
#: no longer than timers can wait.
_STAY_S = 0.002
_READ_BYTES = 8192
#: A TLS record whole, so that none of it stays in the TLS layer unseen by epoll.
_TLS_READ_BYTES = 16384
_IN, _OUT, _BROKEN = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR | select.EPOLLHUP
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_BREATH_S = 0.25
#: How often that is said.
_TELL_AGAIN_S = 60.0
_BACKLOG = 4096


class Port:
    """A listening socket on the loop."""

    def __init__(
        self, front: Front, sock: socket.socket, tls: TlsServer | None, path: str | None
    ) -> None:
        self.socket = sock
        self.tls = tls
        self._front = front
        self._path = path

    @property
    def number(self) -> int:
        """The TCP port; 0 for a unix socket."""
        name = self.socket.getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    def stopListening(self) -> None:
        """Accept nobody any more."""
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


@implementer(interfaces.IReadDescriptor)
class Front:
    """Watches listening sockets and connections for a factory; starts with its first port.

    `known` False leaves the fast path out: every request goes the strict way, and the reactor looks
    at all else between two of them. A page takes a hundred times as long as a small file.
    """

    #: What fails is logged where it fails; see `app.clock.ProcessClockReactor`.
    logs_its_faults = True

    def __init__(self, reactor: Reactor, factory: HttpFactory, *, known: bool = True) -> None:
        self._reactor = reactor
        self._tell_from_s = 0.0
        self._factory = factory
        self._known = known
        self._events = _EVENTS if known else 1
        self._accepts = _ACCEPTS if known else 1
        self._stay_s = _STAY_S if known else 0.0
        self._epoll = select.epoll()
        self._connections: dict[int, HttpConnection] = {}
        self._ports: dict[int, Port] = {}
        self._reading = False

    # -- ports ------------------------------------------------------------------------------

    def listen_tcp(self, host: str, number: int, tls: TlsServer | None = None) -> Port:
        """Listen on an address of IPv4 or IPv6; raises OSError."""
        sock = tcp_socket(host)
        try:
            sock.bind((host, number))
            return self.listen_on(sock, tls)
        except OSError:
            sock.close()
            raise

    def listen_unix(self, path: str) -> Port:
        """Listen on a unix socket that everybody may use; raises OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(path)
            os.chmod(path, 0o666)
            return self.listen_on(sock, None, path)
        except OSError:
            sock.close()
            raise

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
        sock.setblocking(False)
        sock.listen(_BACKLOG)
        port = self._ports[sock.fileno()] = Port(self, sock, tls, path)
        self._epoll.register(sock.fileno(), _IN)
        if not self._reading:
            self._reading = True
            self._reactor.addReader(self)
        return port

    def close_port(self, port: Port) -> None:
        """Accept nobody on this port any more."""
        if self._ports.pop(port.socket.fileno(), None) is not None:
            self._epoll.unregister(port.socket.fileno())

    # -- the reactor's side -----------------------------------------------------------------

    def fileno(self) -> int:
        """The epoll, which can be read when something happens on one of its sockets."""
        return self._epoll.fileno()

    def logPrefix(self) -> str:
        """For Twisted's log."""
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

    def _deal_with(self, batch: list[tuple[int, int]]) -> None:
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
        for _ in range(self._accepts):
            try:
                sock, address = port.socket.accept()
            except BLOCKED:
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._breathe(port, error)
                    return
                continue  # That one has left already.
            self.adopt(sock, _host(address), port.tls)

    def _breathe(self, port: Port, error: OSError) -> None:
        """No descriptor is left: who waits in the backlog waits on, instead of our spinning."""
        now_s = self._reactor.seconds()
        if now_s >= self._tell_from_s:
            # It may go on for hours, four times a second.
            self._tell_from_s = now_s + _TELL_AGAIN_S
            _log.warn("cannot accept connections for a moment: {error}", error=error.strerror)
        fd = port.socket.fileno()
        self._epoll.modify(fd, 0)

        def again() -> None:
            if self._ports.get(fd) is port:
                self._epoll.modify(fd, _IN)

        self._reactor.callLater(_BREATH_S, again)

    def adopt(self, sock: socket.socket, peer_address: str, tls: TlsServer | None = None) -> None:
        """A connection that was just accepted (here or by another process) is ours from now on."""
        factory = self._factory
        if not factory.takes(peer_address):
            sock.close()
            return
        table = None
        if self._known and not factory.proxies.begins_with_preface(peer_address):
            table = factory.ready_table(peer_address, is_tls=tls is not None)
        data = None
        if table is not None and tls is None and factory.has_room(peer_address):
            try:
                data = sock.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            except OSError:
                # What it is, the connection finds out when it reads.
                data = None
            found = table.get(data) if data else None
            if found is not None and not self._may_repeat(peer_address):
                found = None
            # What a socket still holds is not to be known once it is closed.
            alone = not factory.answers.wanted or found is None or found[0].is_short
            if data and found is not None and found[1] and alone:
                try:
                    if self._whole_life(sock, peer_address, table, data, found):
                        return
                except Exception:  # noqa: BLE001 - one connection's fault is not the others'
                    _log.failure("a connection failed")
                    sock.close()
                    return
        sock.setblocking(False)
        connection = HttpConnection(factory, self, sock, peer_address, table, tls=tls)
        connection.begin_life()
        try:
            self._first_look(connection, data)
        except Exception:  # noqa: BLE001 - one connection's fault is not the others'
            _log.failure("a connection failed")
            connection.abort()

    def _whole_life(
        self,
        sock: socket.socket,
        peer_address: str,
        table: ReadyTable,
        raw: bytes,
        found: Known,
    ) -> bool:
        """Answer a connection that came with one known request and wants no other: it is over.

        It never was one of those that are watched and swept. False: it has a life before it.
        """
        factory = self._factory
        parts = self._known_again(peer_address, factory.date_line, table, raw, found)
        if parts is None:
            return False
        data, body = parts
        try:
            if body:
                sent = sock.sendmsg(parts, (), socket.MSG_DONTWAIT)
            else:
                sent = sock.send(data, socket.MSG_DONTWAIT)
        except BLOCKED:
            sent = 0
        except OSError:
            sent = len(data) + len(body)
        if sent == len(data) + len(body):
            factory.accepted_total += 1
            sock.close()
            return True
        sock.setblocking(False)
        connection = HttpConnection(factory, self, sock, peer_address, table)
        connection.begin_life()
        connection.keep(data, body, sent)
        connection.close()
        return True

    def _first_look(self, connection: HttpConnection, data: bytes | None) -> None:
        """Often the request is there already: `data`, or still to be read where that is None."""
        if connection.alive:
            if connection.shaking_hands:
                connection.shake_hands()
            elif data is None:
                self._read(connection)
            else:
                self._take(connection, data)
            if connection.alive and connection.events < 0:
                self.watch(connection, _IN)

    def _read(self, connection: HttpConnection) -> None:
        """Bytes have arrived, or so says epoll."""
        try:
            data = connection.socket.recv(_TLS_READ_BYTES if connection.is_tls else _READ_BYTES)
        except BLOCKED:
            return
        except OSError:
            connection.lost()
            return
        self._take(connection, data)

    def _take(self, connection: HttpConnection, data: bytes) -> None:
        """What was read."""
        if not data:
            connection.peer_closed()
            return
        table = connection.ready
        if table is not None and connection.idle:
            found = table.get(data)
            if (
                found is not None
                and (not self._factory.requests.busy or self._may_repeat(connection.peer_address))
                and self._repeat(connection, table, data, found)
            ):
                return
        connection.received(data)

    def _may_repeat(self, peer_address: str) -> bool:
        """Whether a request from here need not wait, as far as the peer's address tells.

        Those that a proxy brings are told apart by their fields, which the strict path reads.
        """
        factory = self._factory
        if not factory.requests.busy:
            return True
        return not factory.proxies.trusts(peer_address) and factory.requests.passes(peer_address)

    def _repeat(
        self,
        connection: HttpConnection,
        table: ReadyTable,
        raw: bytes,
        found: Known,
    ) -> bool:
        """Give the answer that these bytes were given before; False: go the strict way."""
        close, factory = found[1], self._factory
        peer_address = connection.peer_address
        parts = self._known_again(peer_address, connection.date_line, table, raw, found)
        if parts is None:
            return False
        data, body = parts
        try:
            if not body:
                sent = connection.socket.send(data)
            elif connection.is_tls:
                data += body
                body = b""
                sent = connection.socket.send(data[:PIECE_BYTES])
            else:
                sent = connection.socket.sendmsg(parts)
        except BLOCKED:
            sent = 0
        except OSError:
            connection.lost()
            return True
        if factory.answers.wanted and not found[0].is_short:
            factory.answers.add(connection)
        if sent == len(data) + len(body):
            connection.deadline = factory.now + factory.limits.idle_timeout_s
        else:
            connection.keep(data, body, sent)
        if close:
            connection.close()
        return True

    def _known_again(
        self, peer_address: str, date_line: bytes, table: ReadyTable, raw: bytes, found: Known
    ) -> tuple[bytes, bytes] | None:
        """Header and body of the answer to known bytes, put on record; None: it is not true now."""
        ready, close, record = found
        factory = self._factory
        parts = ready.again(factory.turns, date_line, close)
        if parts is None:
            table.forget(raw)
            return None
        if factory.requests.busy:
            factory.requests.charge(peer_address, len(parts[0]) + len(parts[1]))
        if record is not None and factory.access_log is not None:
            factory.access_log.again(
                record, peer_address, factory.wall(), ready.status, ready.body_bytes
            )
        return parts

    # -- for connections (`connection.Loop`) ------------------------------------------------

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

    def drop(self, connection: HttpConnection) -> None:
        """See `connection.Loop`; closing a socket takes it out of the epoll."""
        self._connections.pop(connection.socket.fileno(), None)


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
