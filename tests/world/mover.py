"""The program in front of a gate, and what its kernel tells: as nginx and others do (docs/gate.md).

It has the clients' connections, asks the gate for each request, passes answers on, and sends the
files that it is told to. Its reports come by datagram or by request, where none gets lost.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import random
import re
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .programs import read_head
from .schedule import Schedule, ScheduledEvent
from .wire import FILES_PORT, GATE_PORT, Channel, MemoryNetwork, ServerEnd

_HEAD_END = b"\r\n\r\n"
#: What is read of a file, or kept of an answer, at a time.
_PIECE_BYTES = 64 * 1024
#: Connections that nobody uses are closed after this time, to clients and to the gate.
_CLIENT_IDLE_S, _GATE_IDLE_S = 65.0, 5.0
#: A client that takes nothing for this time is cut; its kernel finds others that are gone.
_SEND_TIMEOUT_S = 60.0
#: An event is dealt with within this time, and reports are posted so often.
_TURN_S, _POST_S = 0.0005, 0.1
#: How long a client of a gate that is away is told to stay away.
_ABSENT = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 30\r\nContent-Type: text/html\r\n"
    b"Content-Length: 9\r\n\r\nBack soon"
)
_ODD = b"HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "te"})
#: Fields of the gate's answer that a client gets with the file.
_PASSED = ("tidegate-ticket", "tidegate-lease-connections", "repr-digest", "link")


@dataclass(frozen=True, slots=True)
class MoverManner:
    """How a program in front differs from nginx."""

    #: It tells its own end of the socket, too.
    knows_its_end: bool = True
    #: `line`: a datagram of syslog; `entry`: one of JSON; `post`: a request now and then.
    report: str = "line"
    #: It asks before it passes a request on (`/-/authorize`).
    asks_first: bool = False
    #: It knows the folder of the release, and is told the whole path (X-Sendfile).
    has_root: bool = False
    #: What its line says of a body that was sent whole.
    whole: str = "OK"
    #: It compares tags by itself: its own is the gate's.
    has_tags: bool = False


MOVERS: Mapping[str, MoverManner] = {
    "nginx": MoverManner(has_tags=True),
    "caddy": MoverManner(knows_its_end=False, report="entry"),
    "apache": MoverManner(has_root=True, whole="+"),
    "lighttpd": MoverManner(has_root=True, whole="-"),
    "haproxy": MoverManner(whole="--"),
    "envoy": MoverManner(report="post", asks_first=True, whole="-"),
}


class MoverListener:
    """Stands for a `wire.Listener` whose clients are the mover's."""

    silence_s = _SEND_TIMEOUT_S

    def __init__(self, mover: Mover) -> None:
        self._mover = mover

    def arrived(self, end: ServerEnd) -> None:
        """A client has connected."""
        self._mover.accept(end)


class Mover:
    """The program. `kill` ends it and its connections; `start` begins it anew."""

    def __init__(
        self,
        schedule: Schedule,
        rng: random.Random,
        network: MemoryNetwork,
        release: Path,
        name: str,
    ) -> None:
        self.schedule, self.rng, self.network = schedule, rng, network
        self.release, self.name, self.manner = release, name, MOVERS[name]
        self.listener: Any = MoverListener(self)
        self.kernel = Kernel(network, self)
        self.connections: dict[ClientConnection, None] = {}
        self._idle: list[GateExchange] = []
        self._posts: list[str] = []
        #: Until when reports get lost.
        self.loses_until_s = -1.0
        self.alive = False

    def start(self) -> None:
        """Listen."""
        self.alive = True
        self.network.ports[FILES_PORT] = [self.listener]

    def kill(self) -> None:
        """As SIGKILL does."""
        self.alive = False
        self.network.ports[FILES_PORT] = []
        for one in tuple(self.connections):
            one.cut(reset=True)
        for idle in tuple(self._idle):
            idle.close()

    def accept(self, end: ServerEnd) -> None:
        """A client has connected."""
        one = ClientConnection(self, end)
        self.connections[one] = None
        self.kernel.add(end.line)
        one.look(0)

    def ask(self, request: bytes, heard: GateListener) -> GateExchange:
        """Send a request to the gate, by a connection that is there if one is."""
        while self._idle:
            kept = self._idle.pop()
            if kept.use(request, heard):
                return kept
        return GateExchange(self, request, heard)

    def keep(self, exchange: GateExchange) -> None:
        """The next request may use it."""
        self._idle.append(exchange)

    def forget(self, exchange: GateExchange) -> None:
        """It is closed."""
        if exchange in self._idle:
            self._idle.remove(exchange)

    def report(self, lease: str, status: int, sent: int, *, whole: bool) -> None:
        """Tell the gate that a body is over."""
        if self.schedule.now < self.loses_until_s or not self.alive:
            return
        manner = self.manner
        word = manner.whole if whole else {"OK": "", "--": "CD", "-": "DC"}.get(manner.whole, "X")
        line = f"tidegate: {lease} {status} {sent} {word}"
        if manner.report == "post":
            if not self._posts:
                self.schedule.after(_POST_S, self._post)
            self._posts.append(f"{line};")
        elif manner.report == "entry":
            entry = {"status": status, "size": sent, "resp_headers": {"Tidegate-Lease": [lease]}}
            self.kernel.send(json.dumps(entry).encode())
        else:
            self.kernel.send(f"<190>Nov 28 20:00:00 {line}".encode())

    def _post(self) -> None:
        body, self._posts = "\n".join(self._posts).encode(), []
        head = f"POST /-/gate HTTP/1.1\r\nHost: gate\r\nContent-Length: {len(body)}\r\n\r\n"
        self.ask(head.encode() + body, GateListener())


class GateListener:
    """Hears an answer of the gate; this one of a report, which nobody waits for."""

    def head(self, status: int, fields: dict[str, str], text: bytes) -> None:
        """The header is here."""

    def body(self, data: bytes) -> None:
        """A part of the body."""

    def whole(self) -> None:
        """That was all."""

    def broken(self) -> None:
        """The connection has ended before."""


class GateExchange:
    """A connection to the gate, and the request on it; a `wire.Peer`."""

    def __init__(self, mover: Mover, request: bytes, heard: GateListener) -> None:
        self._mover = mover
        self._heard: GateListener | None = heard
        self._request = b""
        self._is_used = self._stays = False
        self._begin(request)
        self.channel: Channel = mover.network.connect("127.0.0.1", self, 1e9, request, GATE_PORT)

    def _begin(self, request: bytes) -> None:
        self._head, self._left, self.status = b"", 0, 0
        self._request = request
        self._idle_s = self._mover.schedule.now

    def use(self, request: bytes, heard: GateListener) -> bool:
        """Send the next request; whether the connection is there."""
        if self.channel.client_closed:
            return False
        self._is_used = True
        self._begin(request)
        self._heard = heard
        self.channel.write(request)
        return True

    def arrived(self, data: bytes) -> None:
        """See `wire.Peer`."""
        heard = self._heard
        if heard is None:
            self.close()
            return
        if not self.status:
            self._head += data
            head, found, data = self._head.partition(_HEAD_END)
            if not found:
                return
            self.status, fields = read_head(head)
            has_body = not self._request.startswith(b"HEAD") and self.status not in (204, 304)
            self._left = int(fields.get("content-length", "0")) if has_body else 0
            self._stays = fields.get("connection", "") != "close"
            heard.head(self.status, fields, head)
        if data and self._heard is heard:
            self._left -= len(data)
            heard.body(data)
        if not self._left and self._heard is heard:
            self._heard = None
            if self._stays and not self.channel.client_closed:
                self._mover.keep(self)
                self._mover.schedule.after(_GATE_IDLE_S, self._rest, self._idle_s)
            else:
                self.close()
            heard.whole()

    def _rest(self, since_s: float) -> None:
        if self._heard is None and self._idle_s == since_s:
            self.close()

    def ended(self) -> None:
        """See `wire.Peer`."""
        self.channel.close()
        self.broken()

    def broken(self) -> None:
        """See `wire.Peer`."""
        self._mover.forget(self)
        heard, self._heard = self._heard, None
        if heard is None:
            return
        if self._is_used and not self._head:
            # The gate has closed it as the request was on its way.
            self._heard = heard
            self._is_used = False
            network = self._mover.network
            self._begin(self._request)
            self.channel = network.connect("127.0.0.1", self, 1e9, self._request, GATE_PORT)
        else:
            heard.broken()

    def close(self) -> None:
        """Nobody wants the answer any more."""
        self._heard = None
        self._mover.forget(self)
        self.channel.close()


class ClientConnection(GateListener):
    """A client's connection to the mover: one request after the other. It is its socket's epoll."""

    def __init__(self, mover: Mover, end: ServerEnd) -> None:
        self._mover, self.end = mover, end
        end.epoll, end.is_movers = self, True
        self._data = b""
        self._out: deque[bytes] = deque()
        self._exchange: GateExchange | None = None
        self._file: SentFile | None = None
        self._fields: dict[str, str] = {}
        self._closes = self._ends = self._is_head = False
        self._woken: ScheduledEvent | None = None
        self._moved_s = mover.schedule.now
        mover.schedule.after(_SEND_TIMEOUT_S / 2, self._watch)

    # -- its socket -------------------------------------------------------------------------

    def look(self, fd: int) -> None:
        """See `wire.MemoryEpoll`."""
        self._soon(self._mover.rng.random() * _TURN_S)

    def unregister(self, fd: int) -> None:
        """See `wire.MemoryEpoll`."""

    def _soon(self, delay_s: float) -> None:
        if self._woken is None:
            self._woken = self._mover.schedule.after(delay_s, self._turn)

    def _turn(self) -> None:
        self._woken = None
        if self.end.closed:
            return
        try:
            gone = self._read()
            self._write()
        except OSError:
            gone = True
        if gone and not self.end.closed:
            self.cut()
        elif not self._busy and not self.end.closed:
            self._next()

    @property
    def _busy(self) -> bool:
        return bool(self._exchange or self._file or self._out)

    def _read(self) -> bool:
        """Whether the client has said its last."""
        while True:
            try:
                data = self.end.recv(_PIECE_BYTES)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._data += data
            self._moved_s = self._mover.schedule.now

    def _write(self) -> None:
        while self._out:
            try:
                sent = self.end.send(self._out[0])
            except BlockingIOError:
                break
            self._moved_s = self._mover.schedule.now
            part = self._out.popleft()
            if sent < len(part):
                self._out.appendleft(part[sent:])
        if self._exchange is not None:
            self._exchange.channel.read_on(sum(map(len, self._out)) < _PIECE_BYTES)
        if self._out:
            return
        if self._ends:
            self.cut()
        elif self._file is not None:
            self._send(self._file)

    def _watch(self) -> None:
        """Its time-outs."""
        if self.end.closed:
            return
        silent_s = self._mover.schedule.now - self._moved_s
        sends = bool(self._out or self._file)
        waits = self._exchange is not None and not self._out
        if not waits and silent_s > (_SEND_TIMEOUT_S if sends else _CLIENT_IDLE_S):
            self.cut(reset=sends)
        else:
            self._mover.schedule.after(_SEND_TIMEOUT_S / 2, self._watch)

    def cut(self, *, reset: bool = False) -> None:
        """Close it, whatever is under way."""
        if self._file is not None:
            self._over(self._file, whole=False)
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        self._mover.connections.pop(self, None)
        if reset and not self.end.closed:
            self.end.break_off()
        self.end.close()

    # -- requests ---------------------------------------------------------------------------

    def _next(self) -> None:
        head, found, rest = self._data.partition(_HEAD_END)
        if not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        fields = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
        if "transfer-encoding" in fields:
            self._ends = True
            self._say(_ODD)
            return
        size = int(fields.get("content-length", "0"))
        if len(rest) < size:
            return
        body, self._data = rest[:size], rest[size:]
        self._closes = fields.get("connection", "") == "close"
        self._fields = fields
        method, target, _ = lines[0].split(" ")
        self._is_head = method == "HEAD"
        if self._mover.manner.asks_first and not target.startswith("/-/"):
            target = f"/-/authorize{target}"
        kept = [line for line in lines[1:] if line.partition(":")[0].strip().lower() not in _ALONE]
        asked = [
            f"{method} {target} HTTP/1.1",
            *kept,
            f"X-Forwarded-For: {self.end.line.address}",
            f"Tidegate-Mover: {self._names()}",
        ]
        request = "\r\n".join(asked).encode("latin-1") + _HEAD_END + body
        self._exchange = self._mover.ask(request, self)

    def _names(self) -> str:
        """What the snippet of the mover has it say."""
        mover, line = self._mover, self.end.line
        words = [mover.name, "HTTP/1.1", line.address, str(line.client_port)]
        if mover.manner.knows_its_end:
            words += [own_address(line.address), str(FILES_PORT)]
        if mover.manner.has_root:
            words.append(str(mover.release))
        return " ".join(words)

    def _say(self, data: bytes) -> None:
        self._out.append(data)
        self._soon(0.0)

    # -- answers of the gate ----------------------------------------------------------------

    def head(self, status: int, fields: dict[str, str], text: bytes) -> None:
        """See `GateListener`."""
        order = fields.get("x-sendfile") or fields.get("x-accel-redirect")
        if order is not None:
            self._file = SentFile(self._mover, order, fields, self._fields)
            self._say(self._file.head(fields))
            return
        if self._mover.manner.asks_first and status >= 450:
            # 2xx and 5xx are told so (`authorize.told_status`).
            status = status - 250 if status < 470 else status + 30
        lines = text.decode("latin-1").split("\r\n")
        kept = [line for line in lines[1:] if line.partition(":")[0].strip().lower() not in _HOP]
        answer = [f"HTTP/1.1 {status} As The Gate Says", *kept]
        if self._closes:
            answer.append("Connection: close")
        self._say("\r\n".join(answer).encode("latin-1") + _HEAD_END)

    def body(self, data: bytes) -> None:
        """See `GateListener`."""
        if self._file is None:
            self._say(data)

    def whole(self) -> None:
        """See `GateListener`."""
        self._exchange = None
        self._ends = self._closes and self._file is None
        self._soon(0.0)

    def broken(self) -> None:
        """See `GateListener`: the gate is away, or fell silent in an answer."""
        said = self._exchange is not None and bool(self._exchange.status)
        self._exchange = None
        if said:
            self._ends = True
            self._soon(0.0)
        else:
            self._ends = self._closes
            head, _, page = _ABSENT.partition(_HEAD_END)
            self._say(head + _HEAD_END + (b"" if self._is_head else page))

    # -- files ------------------------------------------------------------------------------

    def _send(self, file: SentFile) -> None:
        while file.left:
            now = self._mover.schedule.now
            most = min(_PIECE_BYTES, file.left)
            if file.rate_bytes_s:
                due = int(file.rate_bytes_s * (now - file.began_s + 1.0)) - file.sent
                if due <= 0:
                    self._soon(0.01 - due / file.rate_bytes_s)
                    return
                most = min(most, due)
            try:
                count = self.end.send(file.read(most))
            except BlockingIOError:
                return
            if not count:
                break
            file.sent += count
            file.left -= count
            self._moved_s = now
        self._over(file, whole=not file.left)
        if self._closes or file.left:
            self.cut(reset=bool(file.left))

    def _over(self, file: SentFile, *, whole: bool) -> None:
        self._file = None
        file.close()
        self._mover.report(file.lease, file.status, file.sent, whole=whole)


#: What the mover writes by itself.
_ALONE = frozenset({"connection", "x-forwarded-for", "tidegate-mover"})


class SentFile:
    """A file that the mover was told to send, or its error where it has none."""

    def __init__(
        self, mover: Mover, order: str, told: Mapping[str, str], asked: Mapping[str, str]
    ) -> None:
        manner, place = mover.manner, order
        self.lease = told.get("tidegate-lease", "")
        self.rate_bytes_s = float(told.get("x-accel-limit-rate", "0"))
        self.began_s = mover.schedule.now
        self.sent = 0
        if manner.has_root:
            path = Path(order)
        else:
            path = mover.release / place.removeprefix("/-/moved").lstrip("/")
        self._file: int | None = None
        self._at = self.left = self.size = 0
        self.status, self.tag = 404, ""
        try:
            self._file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        status = os.fstat(self._file)
        self.size = self.left = status.st_size
        self.status = 200
        self.tag = f'"{status.st_mtime_ns // 1_000_000_000:x}-{status.st_size:x}"'
        wanted = told.get("tidegate-range", "")
        if manner.has_tags:
            named = asked.get("if-range", self.tag)
            wanted = asked.get("range", "") if named == self.tag else ""
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
        if found is not None and int(found[1]) < self.size:
            last = min(self.size - 1, int(found[2] or self.size))
            self._at, self.left, self.status = int(found[1]), last + 1 - int(found[1]), 206

    def head(self, told: Mapping[str, str]) -> bytes:
        """The answer's header."""
        lines = [f"HTTP/1.1 {self.status} Moved Here", f"Content-Length: {self.left}"]
        if self.status != 404:
            lines.append(f"ETag: {self.tag}")
            lines += [f"{name}: {told[name]}" for name in _PASSED if name in told]
        if self.status == 206:
            last = self._at + self.left - 1
            lines.append(f"Content-Range: bytes {self._at}-{last}/{self.size}")
        return "\r\n".join(lines).encode("latin-1") + _HEAD_END

    def read(self, most: int) -> bytes:
        """The next bytes."""
        assert self._file is not None
        return os.pread(self._file, most, self._at + self.sent)

    def close(self) -> None:
        """It is read no more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


# -- what the kernel of mover and gate does ---------------------------------------------------


def own_address(client: str) -> str:
    """The mover's end of a client's connection."""
    return "2001:db8:ffff::1" if ":" in client else "203.0.113.80"


class Datagrams:
    """A socket of the gate that has datagrams; `watch` is called when there are some."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._kept: deque[bytes] = deque()
        self.watch: Callable[[], None] = lambda: None

    def setblocking(self, flag: bool) -> None:
        """See `socket.socket`."""

    def fileno(self) -> int:
        """No real one."""
        return -1

    def arrived(self, data: bytes) -> None:
        """One has come."""
        self._kept.append(data)
        self.watch()

    def recv(self, most: int) -> bytes:
        """See `socket.socket`."""
        if not self._kept:
            raise BlockingIOError
        return self._kept.popleft()[:most]

    def close(self) -> None:
        """See `socket.socket`."""
        self._kept.clear()
        if self.kernel.reports is self:
            self.kernel.reports = None
        self.kernel.watchers.pop(self, None)


class ReportPort(Datagrams):
    """Where reports come."""

    def bind(self, place: tuple[str, int]) -> None:
        """See `socket.socket`."""
        if self.kernel.reports is not None:
            raise OSError(errno.EADDRINUSE, "in use")
        self.kernel.reports = self


class Netlink(Datagrams):
    """A socket of sock_diag(7)."""

    def send(self, asked: bytes) -> int:
        """A question: its answer is there at once."""
        family = asked[16]
        flags = struct.unpack_from("=H", asked, 6)[0]
        mover_port, client_port, mover, client = struct.unpack_from("!HH16s16s", asked, 24)
        kernel = self.kernel
        if flags & 0x300:
            # All with this port of the client, and an end of them.
            for line in kernel.lines():
                if line.client_port == client_port and kernel.family(line) == family:
                    self.arrived(kernel.message(line))
            self.arrived(struct.pack("=IHHII", 20, 3, 2, 0, 0) + bytes(4))
            return len(asked)
        width = 4 if family == socket.AF_INET else 16
        address = str(ipaddress.ip_address(client[:width]))
        found = kernel.find(address, client_port)
        if found is not None:
            self.arrived(kernel.message(found))
        elif kernel.listens:
            self.arrived(_diag(family, 10, 0, mover_port, 0, mover, client, None))
        else:
            # ENOENT.
            self.arrived(struct.pack("=IHHIIi", 36, 2, 0, 0, 0, -2) + asked[:16])
        return len(asked)


class Kernel:
    """What the gate asks its kernel of the mover's sockets, and hears of them."""

    def __init__(self, network: MemoryNetwork, mover: Mover) -> None:
        self._network, self._mover = network, mover
        self.reports: ReportPort | None = None
        self.watchers: dict[Datagrams, None] = {}
        self._lines: dict[tuple[str, int], Channel] = {}
        #: Until when news of sockets that ended get lost.
        self.deaf_until_s = -1.0
        network.kernel = self

    @property
    def listens(self) -> bool:
        """Whether the mover has its listening socket."""
        return self._mover.alive

    def add(self, line: Channel) -> None:
        """A client has connected to the mover."""
        self._lines[line.address, line.client_port] = line

    def find(self, address: str, port: int) -> Channel | None:
        """The connection of a client's end, if there is one."""
        found = self._lines.get((address, port))
        return None if found is None or found.is_gone else found

    def lines(self) -> list[Channel]:
        """All connections to the mover that there are."""
        return [one for one in self._lines.values() if not one.is_gone]

    def drawn(self) -> random.Random:
        """What secrets of leases are drawn from."""
        return random.Random(self._network.rng.getrandbits(64))

    def process_ended(self) -> None:
        """The gate has been killed, or has stopped."""
        self.reports = None
        self.watchers.clear()

    @staticmethod
    def family(line: Channel) -> int:
        """Of its addresses."""
        return socket.AF_INET6 if ":" in line.address else socket.AF_INET

    def message(self, line: Channel) -> bytes:
        """What the kernel says of a connection."""
        end = line.server
        assert end is not None
        state = 1
        if end.closed:
            state = 4
        elif end.is_half_closed:
            state = 8
        return self._named(line, state)

    def _named(self, line: Channel, state: int) -> bytes:
        mover = socket.inet_pton(self.family(line), own_address(line.address))
        client = socket.inet_pton(self.family(line), line.address)
        ports = FILES_PORT, line.client_port
        acked = line.arrived_bytes
        return _diag(self.family(line), state, line.queued_bytes, *ports, mover, client, acked)

    def send(self, report: bytes) -> None:
        """A datagram to the gate; nobody hears of one that is lost."""
        if self.reports is not None:
            self.reports.arrived(report)

    def make_netlink(self, groups: int) -> Netlink:
        """Stands for `inet_diag._diag_socket`."""
        found = Netlink(self)
        if groups:
            self.watchers[found] = None
        return found

    def gone(self, line: Channel) -> None:
        """A socket is destroyed."""
        if self._lines.pop((line.address, line.client_port), None) is None:
            return
        if self._network.schedule.now >= self.deaf_until_s:
            for one in tuple(self.watchers):
                one.arrived(self._named(line, 7))


def put_mover(put: Callable[[Any, str, Any], None], kernel: Callable[[], Kernel]) -> None:
    """Have the gate ask this kernel while a world runs."""
    from tidegate.server.gate import inet_diag, reports, room

    put(inet_diag, "_diag_socket", lambda groups: kernel().make_netlink(groups))
    names = {name: getattr(socket, name) for name in ("AF_INET", "AF_INET6", "AF_UNIX")}
    names["SOCK_DGRAM"] = socket.SOCK_DGRAM
    make = SimpleNamespace(socket=lambda family, kind: ReportPort(kernel()), **names)
    put(reports, "socket", make)
    put(room, "random", SimpleNamespace(SystemRandom=lambda: kernel().drawn()))


def _diag(
    family: int,
    state: int,
    queued: int,
    mover_port: int,
    client_port: int,
    mover: bytes,
    client: bytes,
    acked: int | None,
) -> bytes:
    """`struct inet_diag_msg` with `struct tcp_info` (linux/inet_diag.h)."""
    body = struct.pack("=BBBB", family, state, 0, 0)
    body += struct.pack("!HH16s16s", mover_port, client_port, mover, client)
    body += bytes(12) + struct.pack("=IIIII", 0, 0, queued, 0, 0)
    if acked is not None:
        info = bytes(120) + struct.pack("=Q", acked) + bytes(24)
        body += struct.pack("=HH", 4 + len(info), 2) + info
    return struct.pack("=IHHII", 16 + len(body), 20, 0, 0, 0) + body
