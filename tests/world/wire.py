"""TCP in memory: connections with buffers and windows, over one line that all share.

A server's end has the methods of a non-blocking socket. The line sends for one connection after the
other; each has a congestion window that grows by what arrives, and a client's own line below it.
"""

from __future__ import annotations

import errno
import math
import random
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from .groups import MemoryGroups
from .schedule import Schedule, VirtualReactor
from .secure import ClientTls

if TYPE_CHECKING:
    from .mover import Kernel

_FIRST_WINDOW_BYTES = 14_600
_MOST_WINDOW_BYTES = 512 * 1024
#: The line sends no more for one connection at a time than in this time.
_QUANTUM_S = 0.02
_SEGMENT_BYTES = 1460
#: Descriptors of memory sockets begin here: no real one comes near.
_FIRST_FD = 10_000_000
#: Where files are served, and where the operator asks.
FILES_PORT, ADMIN_PORT = 8080, 9000
#: Where a gate answers its mover, which has clients at `FILES_PORT`, and hears of ends by datagram.
GATE_PORT, REPORT_PORT = 8081, 8125
#: How long bytes take between two programs of one machine, and what they carry.
_LOCAL_S, _LOCAL_BYTES_S = 0.0001, 1e9
#: The address of the proxy, in worlds that have one, and what it adds to a request.
PROXY, _FORWARDED = "203.0.113.9", b"\r\nX-Forwarded-For: "
_TCP_INFO_SHUT_AT, _TCP_INFO_BYTES = 176, 184


class Peer(Protocol):
    """The client's side of a connection."""

    def arrived(self, data: bytes) -> None:
        """Bytes from the server."""

    def ended(self) -> None:
        """The server has closed after all its bytes."""

    def broken(self) -> None:
        """The connection was reset, or refused."""


class Watcher(Protocol):
    """Hears that something may have happened on a socket."""

    def look(self, fd: int) -> None:
        """It may."""

    def unregister(self, fd: int) -> None:
        """It is closed."""


class MemoryEpoll:
    """Implements what `Front` needs of `select.epoll`; calls `wake` when there are events."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self.interest: dict[int, int] = {}
        self._hot: dict[int, None] = {}
        self.wake: Callable[[], None] = lambda: None

    def fileno(self) -> int:
        """No real one."""
        return -1

    def register(self, fd: int, events: int) -> None:
        """See `select.epoll`."""
        self.interest[fd] = events
        self._network.sockets[fd].epoll = self
        self.look(fd)

    def modify(self, fd: int, events: int) -> None:
        """See `select.epoll`."""
        self.interest[fd] = events
        self.look(fd)

    def unregister(self, fd: int) -> None:
        """See `select.epoll`."""
        self.interest.pop(fd, None)
        self._hot.pop(fd, None)

    def look(self, fd: int) -> None:
        """Something may have happened on a socket."""
        if self._events(fd):
            self._hot[fd] = None
            self.wake()

    def _events(self, fd: int) -> int:
        wanted = self.interest.get(fd)
        one = self._network.sockets.get(fd)
        if wanted is None or one is None:
            return 0
        return int(one.events()) & (wanted | select.EPOLLERR | select.EPOLLHUP)

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        """See `select.epoll`."""
        if self._network.polls_left <= 0:
            return []
        self._network.polls_left -= 1
        found = []
        for fd in tuple(self._hot):
            events = self._events(fd)
            if events:
                found.append((fd, events))
            else:
                del self._hot[fd]
        if len(found) > 1:
            self._network.rng.shuffle(found)
        return found[:maxevents] if maxevents > 0 else found

    @property
    def hot(self) -> bool:
        """Whether there may be events."""
        return any(map(self._events, tuple(self._hot)))


class Listener:
    """A listening socket, however many descriptors it has."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.backlog: deque[ServerEnd] = deque()
        self.descriptors: dict[MemoryPort, None] = {}
        #: For how long a peer may acknowledge nothing; its connections inherit it.
        self.silence_s = math.inf

    def arrived(self, end: ServerEnd) -> None:
        """A client has connected."""
        self.backlog.append(end)
        for one in tuple(self.descriptors):
            if one.epoll is not None:
                one.epoll.look(one.fileno())


class MemoryPort:
    """A descriptor of a listening socket."""

    family = socket.AF_INET

    def __init__(self, network: MemoryNetwork, listener: Listener) -> None:
        self._network, self.listener = network, listener
        self._fd = network.add(self)
        listener.descriptors[self] = None
        self.epoll: MemoryEpoll | None = None
        self.process: VirtualReactor | None = None

    def fileno(self) -> int:
        """See `socket.socket`."""
        return self._fd

    def getsockname(self) -> tuple[str, int]:
        """See `socket.socket`."""
        return "127.0.0.1", self.listener.number

    def dup(self) -> MemoryPort:
        """See `socket.socket`: it is closed with the process that made it."""
        found = MemoryPort(self._network, self.listener)
        found.process = self._network.schedule.running
        return found

    def setsockopt(self, level: int, name: int, value: int) -> None:
        """See `socket.socket`."""
        if level == socket.IPPROTO_TCP and name == socket.TCP_USER_TIMEOUT:
            self.listener.silence_s = value / 1000.0

    def setblocking(self, flag: bool) -> None:
        """See `socket.socket`."""

    def listen(self, backlog: int) -> None:
        """See `socket.socket`."""
        listening = self._network.ports.setdefault(self.listener.number, [])
        if self.listener not in listening:
            listening.append(self.listener)

    def accept(self) -> tuple[ServerEnd, tuple[str, int]]:
        """See `socket.socket`."""
        if not self.listener.backlog:
            raise BlockingIOError
        found = self.listener.backlog.popleft()
        found.process = self._network.schedule.running
        self._network.moves += 1
        return found, (found.line.address, 40_000)

    def events(self) -> int:
        """What epoll would say."""
        return select.EPOLLIN if self.listener.backlog else 0

    def close(self) -> None:
        """See `socket.socket`: who waits to be accepted is reset with the last descriptor."""
        listener = self.listener
        if self._network.sockets.pop(self._fd, None) is None:
            return
        if self.epoll is not None:
            self.epoll.unregister(self._fd)
        del listener.descriptors[self]
        if not listener.descriptors:
            listening = self._network.ports.get(listener.number, [])
            if listener in listening:
                listening.remove(listener)
            while listener.backlog:
                end = listener.backlog.popleft()
                end.break_off()
                end.close()


class ServerEnd:
    """The server's socket of a connection; `line` is the connection."""

    family = socket.AF_INET

    def __init__(self, line: Channel) -> None:
        self.line = line
        self._network = line.network
        self._fd = self._network.add(self)
        self.epoll: Watcher | None = None
        self._unread: deque[bytes] = deque()
        self._peer_ended = False
        self._reset = False
        self._lingers = True
        self._ended = False
        self.closed = False
        self._least_unsent, self._least_unread = 1 << 30, 1
        #: The process that accepted it, and whether that is a mover.
        self.process: VirtualReactor | None = None
        self.is_movers = False

    # -- what the server calls --------------------------------------------------------------

    def fileno(self) -> int:
        """See `socket.socket`."""
        return -1 if self.closed else self._fd

    def setblocking(self, flag: bool) -> None:
        """See `socket.socket`."""

    def setsockopt(self, level: int, name: int, value: Any) -> None:
        """See `socket.socket`."""
        if level == socket.SOL_SOCKET and name == socket.SO_LINGER:
            self._lingers = struct.unpack("ii", value)[0] == 0
        elif level == socket.SOL_SOCKET and name == socket.SO_RCVLOWAT:
            self._least_unread = max(1, int(value))
        elif level == socket.IPPROTO_TCP and name == socket.TCP_NOTSENT_LOWAT:
            self._least_unsent = max(1, int(value))
            self.look()

    def getsockopt(self, level: int, name: int, size: int = 0) -> bytes:
        """See `socket.socket`: only how long the peer's window was shut."""
        shut = int(self.line.shut_s() * 1e6)
        return bytes(_TCP_INFO_SHUT_AT) + struct.pack("Q", shut)

    def recv(self, most: int, flags: int = 0) -> bytes:
        """See `socket.socket`."""
        if self._reset:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        self._network.moves += 1
        if flags & socket.MSG_PEEK and self._unread:
            return b"".join(self._unread)[:most]
        if self._unread:
            data = self._unread.popleft()
            if len(data) > most:
                self._unread.appendleft(data[most:])
                data = data[:most]
            return data
        if self._peer_ended:
            return b""
        self._network.moves -= 1
        raise BlockingIOError

    def _room(self) -> int:
        line = self.line
        return min(
            line.buffer_bytes - line.unsent_bytes - line.flying_bytes,
            self._least_unsent - line.unsent_bytes,
        )

    def send(self, data: Any, flags: int = 0) -> int:
        """See `socket.socket`."""
        if self._reset:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        if self._ended or self.closed:
            raise BrokenPipeError(errno.EPIPE, "ended")
        room = self._room()
        if room <= 0:
            raise BlockingIOError
        self._network.moves += 1
        part = bytes(data) if len(data) <= room else bytes(data[:room])
        self.line.push(part)
        return len(part)

    def room_for_file(self) -> int:
        """How much `sendfile` reads: what is taken, and at least a byte, to hear of errors."""
        return max(1, self._room())

    def sendmsg(self, parts: Sequence[Any], ancillary: Any = (), flags: int = 0) -> int:
        """See `socket.socket`."""
        return self.send(b"".join(parts))

    def queued_bytes(self) -> int:
        """What the kernel says of it (`TIOCOUTQ`)."""
        return self.line.unacknowledged_bytes

    def shutdown(self, how: int) -> None:
        """See `socket.socket`."""
        if self._reset:
            raise OSError(errno.ENOTCONN, "not connected")
        self._end()

    def close(self) -> None:
        """See `socket.socket`."""
        if self.closed:
            return
        self.closed = True
        self._network.moves += 1
        self._network.sockets.pop(self._fd, None)
        if self.epoll is not None:
            self.epoll.unregister(self._fd)
        if self._reset:
            self.line.look_gone()
            return
        if self._unread or not self._lingers:
            self.break_off()
        else:
            self._end()
        self.line.look_gone()

    @property
    def was_broken(self) -> bool:
        """Whether it was reset, by either end."""
        return self._reset

    @property
    def is_half_closed(self) -> bool:
        """Whether the client has said its last."""
        return self._peer_ended

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self.line.finish()

    def break_off(self) -> None:
        """Reset the connection."""
        self._reset = True
        self.line.drop()
        self.line.tell_broken()

    # -- what happens on the wire -----------------------------------------------------------

    def take(self, data: bytes) -> None:
        """Bytes from the client."""
        if self.closed:
            self.line.tell_broken()
        elif not self._reset:
            self._unread.append(data)
            self.look()

    def peer_ended(self) -> None:
        """The client has said its last."""
        self._peer_ended = True
        self.look()

    def was_reset(self) -> None:
        """The client has broken it off."""
        self._reset = True
        self.line.drop()
        self.line.look_gone()
        self.look()

    def look(self) -> None:
        """Something has changed."""
        if self.epoll is not None and not self.closed:
            self.epoll.look(self._fd)

    def events(self) -> int:
        """What epoll would say."""
        if self._reset:
            return select.EPOLLIN | select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP
        found = 0
        few = self._least_unread > 1 and sum(map(len, self._unread)) < self._least_unread
        if (self._unread and not few) or self._peer_ended:
            found = select.EPOLLIN
        line = self.line
        queued = line.unsent_bytes + line.flying_bytes
        if 3 * queued <= 2 * line.buffer_bytes and line.unsent_bytes < self._least_unsent:
            found |= select.EPOLLOUT
        return found


class Channel:
    """One connection, as its client and the line see it.

    `rate_bytes_s` is the client's own line. A client that does not `read` has a window that shuts.
    `lost`: nothing passes any more, and neither end is told. `deaf`: nothing reaches the client.
    """

    __slots__ = (
        "_dropped_bytes",
        "_finishing",
        "_gate_s",
        "_in_ring",
        "_port",
        "_said_end",
        "_shut_from_s",
        "_shut_s",
        "_tls",
        "_unread",
        "_unread_bytes",
        "_up_s",
        "address",
        "arrived_bytes",
        "buffer_bytes",
        "client_closed",
        "client_port",
        "deaf",
        "delay_s",
        "flying_bytes",
        "lost",
        "network",
        "peer",
        "rate_bytes_s",
        "reads",
        "receive_bytes",
        "server",
        "silence_s",
        "unsent",
        "unsent_bytes",
        "waits_for_gate",
        "window_bytes",
        "wire",
    )

    def __init__(
        self, network: MemoryNetwork, address: str, peer: Peer, rate_bytes_s: float, port: int
    ) -> None:
        self._port = port
        is_local = port == GATE_PORT
        self.wire = network.local if is_local else network.wire
        self.delay_s = network.local_delay_s if is_local else network.delay_s
        self.client_port = 0
        #: What the client has acknowledged.
        self.arrived_bytes = 0
        self.network, self.address, self.peer = network, address, peer
        self.rate_bytes_s = rate_bytes_s
        self.buffer_bytes = network.buffer_bytes
        self.receive_bytes = 128 * 1024
        self.unsent: deque[bytes] = deque()
        self.unsent_bytes = self.flying_bytes = 0
        self.window_bytes = _FIRST_WINDOW_BYTES
        self.reads, self.lost, self.client_closed = True, False, False
        self.deaf = False
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._finishing = self._in_ring = self.waits_for_gate = self._said_end = False
        self._gate_s = self._up_s = 0.0
        self._dropped_bytes = 0
        self._shut_from_s: float | None = None
        self._shut_s = 0.0
        is_secure = network.is_secure and not is_local
        self._tls = ClientTls(partial(self._upwards, self._write)) if is_secure else None
        self.server: ServerEnd | None = None
        self.silence_s = math.inf

    # -- the client's side ------------------------------------------------------------------

    def _upwards(self, call: Callable[..., Any], *words: Any) -> None:
        """Something travels to the server, after all that went before."""
        schedule = self.network.schedule
        self._up_s = max(self._up_s + 1e-6, schedule.now + self.delay_s())
        schedule.after(self._up_s - schedule.now, call, *words)

    def open(self, data: bytes) -> None:
        """Connect, with the first bytes."""
        if self._tls is not None:
            self._tls.write(data)
            data = self._tls.hello()
        self._upwards(self._reach, data)

    def _reach(self, data: bytes) -> None:
        open_here = self.network.ports.get(self._port)
        if not open_here:
            self.tell_broken()
        elif not self.lost:
            # Of several processes and machines it meets any.
            several = len(open_here) > 1
            listener = self.network.rng.choice(open_here) if several else open_here[0]
            self.server = ServerEnd(self)
            self.silence_s = listener.silence_s
            if data:
                self.server.take(data)
            listener.arrived(self.server)

    def speak_plainly(self) -> None:
        """Without TLS, whatever the server expects."""
        self._tls = None

    def write(self, data: bytes) -> None:
        """More bytes to the server."""
        if self._tls is not None:
            self._tls.write(data)
        else:
            self._upwards(self._write, data)

    def _deliver(self, data: bytes) -> None:
        """Bytes are here."""
        if self._tls is not None:
            data = self._tls.read(data)
        if data:
            self.peer.arrived(data)

    def _write(self, data: bytes) -> None:
        # A handshake cannot go on after the client has said its last.
        if self.server is not None and not self.lost and not self.server.is_half_closed:
            self.server.take(data)

    def end(self) -> None:
        """Say no more, but go on reading."""
        self._upwards(self._end)

    def _end(self) -> None:
        if self.server is not None and not self.lost:
            self.server.peer_ended()

    def close(self, *, reset: bool = False) -> None:
        """Leave; what comes later is answered by a reset."""
        if self.client_closed:
            return
        self.client_closed = True
        self._upwards(self._reset if reset or self._unread else self._end)

    def _reset(self) -> None:
        if self.server is not None and not self.lost:
            self.server.was_reset()

    def vanish(self) -> None:
        """Nothing passes any more. The server's kernel finds out as its peer acknowledges nothing.

        It probes connections on which nothing is under way.
        """
        self.lost = True
        self._give_up_later(self._times_out)

    def _give_up_later(self, call: Callable[..., None], *words: Any) -> None:
        if not math.isinf(self.silence_s):
            self.network.schedule.after(self.silence_s, call, *words)

    def _times_out(self) -> None:
        if self.server is not None:
            self.server.was_reset()

    def _stays_shut(self, since_s: float) -> None:
        """A window that opens no more ends the connection as silence does."""
        if self._shut_from_s == since_s and not self.lost:
            self._times_out()
            self.tell_broken()

    def read_on(self, reads: bool) -> None:
        """Read from now on, or not."""
        self.reads = reads
        if reads:
            while self._unread and not self.client_closed:
                self._unread_bytes -= len(self._unread[0])
                self._deliver(self._unread.popleft())
            self._open_window()
            self._say_end()
            self.wire.wake(self)

    # -- the server's side ------------------------------------------------------------------

    def push(self, data: bytes) -> None:
        """The server sends."""
        self.unsent.append(data)
        self.unsent_bytes += len(data)
        self.wire.wake(self)

    def finish(self) -> None:
        """The server closes after what it has sent."""
        self._finishing = True
        self._say_end()

    def _say_end(self) -> None:
        if self._said_end or self.lost or not self._finishing:
            return
        if not (self.unsent_bytes or self.flying_bytes or self._unread_bytes):
            self._said_end = True
            self.network.schedule.after(self.delay_s(), self._tell_end)

    def _tell_end(self) -> None:
        if not self.client_closed:
            self.peer.ended()

    def tell_broken(self) -> None:
        """A reset travels to the client."""
        if not self.lost:
            self.network.schedule.after(self.delay_s(), self._tell_broken)

    def _tell_broken(self) -> None:
        if not self.client_closed:
            self.client_closed = True
            self.peer.broken()

    def drop(self) -> None:
        """Nothing of what is unsent is sent; the kernel tells of it as not acknowledged."""
        self.unsent.clear()
        self._dropped_bytes += self.unsent_bytes + self.flying_bytes
        self.unsent_bytes = self.flying_bytes = 0

    @property
    def is_gone(self) -> bool:
        """Whether the server's kernel has no such connection any more."""
        end = self.server
        return end is None or end.was_broken or (end.closed and not self.queued_bytes)

    def look_gone(self) -> None:
        """The server's kernel may have destroyed the socket."""
        kernel, end = self.network.kernel, self.server
        if kernel is not None and end is not None and end.closed and self.is_gone:
            kernel.gone(self)

    @property
    def queued_bytes(self) -> int:
        """What was written and is still to arrive."""
        return self.unsent_bytes + self.flying_bytes

    @property
    def unread_bytes(self) -> int:
        """What has arrived, and the client has not read."""
        return self._unread_bytes

    @property
    def unacknowledged_bytes(self) -> int:
        """What was written and has not arrived, also once it never will."""
        return self.unsent_bytes + self.flying_bytes + self._dropped_bytes

    def shut_s(self) -> float:
        """How long bytes have waited for the client's window, in all."""
        since_s = self._shut_from_s
        return self._shut_s + (0.0 if since_s is None else self.network.schedule.now - since_s)

    def _open_window(self) -> None:
        if self._shut_from_s is not None:
            self._shut_s += self.network.schedule.now - self._shut_from_s
            self._shut_from_s = None

    # -- the line's side --------------------------------------------------------------------

    def sendable(self) -> int:
        """How much may go on the wire now; `gate` says when the client's own line is free."""
        if not self.unsent_bytes:
            return 0
        window = self.receive_bytes - self._unread_bytes - self.flying_bytes
        if window <= 0:
            if self._shut_from_s is None and not self.flying_bytes:
                self._shut_from_s = self.network.schedule.now
                self._give_up_later(self._stays_shut, self._shut_from_s)
            return 0
        return min(self.unsent_bytes, window, self.window_bytes - self.flying_bytes)

    def gate_in_s(self) -> float:
        """In how many seconds the client's own line is free."""
        return self._gate_s - self.network.schedule.now

    def take(self, most: int) -> bytes:
        """The next bytes, on their way."""
        data = self.unsent.popleft()
        if len(data) > most:
            self.unsent.appendleft(data[most:])
            data = data[:most]
        count = len(data)
        self.unsent_bytes -= count
        self.flying_bytes += count
        now = self.network.schedule.now
        self._gate_s = max(now, self._gate_s) + count / self.rate_bytes_s
        return data

    def arrive(self, data: bytes) -> None:
        """Bytes reach the client."""
        if self.lost or self.deaf:
            return
        if self.client_closed:
            if self.server is not None:
                self._upwards(self._reset)
            return
        count = len(data)
        self.arrived_bytes += count
        self.flying_bytes = max(0, self.flying_bytes - count)
        self.window_bytes = min(_MOST_WINDOW_BYTES, self.window_bytes + count)
        if self.reads:
            self._deliver(data)
        else:
            self._unread.append(data)
            self._unread_bytes += count
        self._say_end()
        if self.server is not None:
            self.server.look()
            self.look_gone()
        self.wire.wake(self)


class Wire:
    """The line of the server, which carries `rate_bytes_s`."""

    def __init__(
        self, schedule: Schedule, rate_bytes_s: float, delay_s: Callable[[], float]
    ) -> None:
        self._schedule = schedule
        self._delay_s = delay_s
        self.rate_bytes_s = rate_bytes_s
        self._ring: deque[Channel] = deque()
        self._busy = False
        self._arrival_s = 0.0
        self.sent_bytes = 0

    def wake(self, channel: Channel) -> None:
        """A connection may have something to send."""
        if channel._in_ring or channel.waits_for_gate or channel.sendable() <= 0:
            return
        channel._open_window()
        wait_s = channel.gate_in_s()
        if wait_s > 1e-6:
            channel.waits_for_gate = True
            self._schedule.after(wait_s, self._gate_opens, channel)
            return
        channel._in_ring = True
        self._ring.append(channel)
        if not self._busy:
            self._next()

    def _gate_opens(self, channel: Channel) -> None:
        channel.waits_for_gate = False
        self.wake(channel)

    def _next(self) -> None:
        while self._ring:
            channel = self._ring.popleft()
            channel._in_ring = False
            count = channel.sendable()
            if count > 0:
                rate = min(self.rate_bytes_s, channel.rate_bytes_s * 4)
                quantum = max(_SEGMENT_BYTES, int(rate * _QUANTUM_S))
                data = channel.take(min(count, quantum))
                self._busy = True
                self._schedule.after(len(data) / self.rate_bytes_s, self._sent, channel, data)
                return
        self._busy = False

    def _sent(self, channel: Channel, data: bytes) -> None:
        self.sent_bytes += len(data)
        now = self._schedule.now
        self._arrival_s = max(self._arrival_s + 1e-7, now + self._delay_s())
        self._schedule.after(self._arrival_s - now, channel.arrive, data)
        self._busy = False
        self.wake(channel)
        if not self._busy:
            self._next()


class MemoryNetwork:
    """All connections of one server. `latency_s` is one way; each trip takes a little more."""

    def __init__(
        self,
        schedule: Schedule,
        rng: random.Random,
        *,
        rate_bytes_s: float,
        latency_s: float,
        buffer_bytes: int,
        proxied: str = "",
        is_secure: bool = False,
    ) -> None:
        self.schedule, self.rng = schedule, rng
        #: Whether clients speak TLS.
        self.is_secure = is_secure
        #: How a proxy says whose requests it forwards, see `plan.PROXIED`.
        self.proxied = proxied
        self.latency_s, self.buffer_bytes = latency_s, buffer_bytes
        self.wire = Wire(schedule, rate_bytes_s, lambda: latency_s)
        #: What is between a gate and its mover is on no line.
        self.local = Wire(schedule, _LOCAL_BYTES_S, lambda: _LOCAL_S)
        #: What knows the sockets of a mover, where one is before a gate.
        self.kernel: Kernel | None = None
        self._next_port = 20_000
        self.groups = MemoryGroups(self, rng)
        #: Who listens, by the number of the port.
        self.ports: dict[int, list[Listener]] = {}
        self.sockets: dict[int, Any] = {}
        self.polls_left = 0
        #: How often a server has accepted, received, sent or closed, and how often its loop came to
        #: events and did nothing of it.
        self.moves = self.idle_turns = 0
        self._next_fd = _FIRST_FD

    @property
    def connections(self) -> list[ServerEnd]:
        """Those that a server has not closed."""
        return [one for one in self.sockets.values() if isinstance(one, ServerEnd)]

    def delay_s(self) -> float:
        """How long something takes to the other side."""
        return self.latency_s * (1.0 + 0.2 * self.rng.random())

    def local_delay_s(self) -> float:
        """The same within the machine."""
        return _LOCAL_S * (1.0 + 0.2 * self.rng.random())

    def add(self, one: Any) -> int:
        """Give a socket its descriptor."""
        self._next_fd += 1
        self.sockets[self._next_fd] = one
        return self._next_fd

    def connect(
        self,
        address: str,
        peer: Peer,
        rate_bytes_s: float,
        data: bytes,
        port: int = FILES_PORT,
        *,
        raw: bool = False,
    ) -> Channel:
        """A client connects and says this; `raw`: without TLS."""
        if self.proxied and port == FILES_PORT:
            if self.proxied == "preface":
                data = _preface(address) + data
            # A client that is not forwarded comes by itself.
            address = PROXY if self.proxied == "preface" or _FORWARDED in data else address
        channel = Channel(self, address, peer, rate_bytes_s, port)
        self._next_port = 20_000 + (self._next_port - 19_999) % 40_000
        channel.client_port = self._next_port
        if raw:
            channel.speak_plainly()
        channel.open(data)
        return channel


def _preface(address: str) -> bytes:
    """PROXY protocol, version 2: a connection of the client, and both of its ends."""
    family, kind = (socket.AF_INET6, b"\x21") if ":" in address else (socket.AF_INET, b"\x11")
    ends = 2 * socket.inet_pton(family, address) + struct.pack(">HH", 40_000, 80)
    return b"\r\n\r\n\0\r\nQUIT\n\x21" + kind + struct.pack(">H", len(ends)) + ends
