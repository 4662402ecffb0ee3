"""A server under a fake clock with in-memory connections, for tests that need no socket."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
from pathlib import Path
from typing import Any, ClassVar, cast

from twisted.internet.task import Clock

from tests.open_files import AdmitAll, MemoryDigestCache, Visible
from tidegate.server.files.digests import DigestService
from tidegate.server.files.pacer import Pacer
from tidegate.server.files.pages import Pages
from tidegate.server.files.site import Site
from tidegate.server.files.transfer import Admission
from tidegate.server.files.tree import Tree
from tidegate.server.http.connection import HttpConnection
from tidegate.server.http.factory import HttpFactory
from tidegate.server.http.front import Front, tcp_socket
from tidegate.server.http.limits import HttpLimits
from tidegate.server.http.proxies import TrustedProxies
from tidegate.server.http.tls import TlsServer

OLD_S = 1_700_000_000
#: Some events come again and again as long as nobody deals with them.
_TURNS = 32


class Answer:
    """One answer, taken apart."""

    def __init__(self, raw: bytes, head_only: bool = False) -> None:
        head, _, rest = raw.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        self.status = int(lines[0].split()[1])
        self.fields = [tuple(line.split(b": ", 1)) for line in lines[1:]]
        self.headers = {name.lower(): value for name, value in self.fields}
        length = int(self.headers.get(b"content-length", b"0"))
        if head_only or self.status in (204, 304) or self.status < 200:
            length = 0
        self.body = rest[:length]
        self.whole = len(self.body) == length
        self.rest = rest[length:]

    def text(self, name: str) -> str | None:
        """A field by name."""
        value = self.headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")


class Wire:
    """Stands for a socket that takes everything, and remembers how it was ended."""

    def __init__(self) -> None:
        self.aborted = False
        self.closed = False
        self.half_closed = False
        self._taken = bytearray()

    def value(self) -> bytes:
        return bytes(self._taken)

    def clear(self) -> None:
        self._taken.clear()

    @property
    def disconnecting(self) -> bool:
        """Whether the server has ended what it says."""
        return self.aborted or self.closed or self.half_closed

    # -- as a socket ------------------------------------------------------------------------

    def fileno(self) -> int:
        return -1

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        self._taken += data
        return len(data)

    def sendmsg(self, parts: tuple[bytes, ...]) -> int:
        return self.send(b"".join(parts))

    def setsockopt(self, level: int, name: int, value: bytes) -> None:
        self.aborted |= name == socket.SO_LINGER

    def shutdown(self, how: int) -> None:
        self.half_closed = how == socket.SHUT_WR

    def close(self) -> None:
        self.closed = True


class Watching:
    """Stands for the loop: every socket takes bytes all the time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def watch(self, connection: HttpConnection, events: int) -> None:
        connection.events = events
        if events & select.EPOLLOUT:
            self._clock.callLater(0, self._writable, connection)

    def _writable(self, connection: HttpConnection) -> None:
        if connection.alive and connection.events & select.EPOLLOUT:
            connection.writable()
            self.watch(connection, connection.events)

    def drop(self, connection: HttpConnection, *, closes: bool) -> None:
        """Nothing is watched."""


class Client:
    """One connection to the server under test."""

    def __init__(self, factory: HttpFactory, address: str = "192.0.2.1") -> None:
        self.factory = factory
        self.clock = cast(Clock, factory.reactor)
        self.wire = Wire()
        self.connection: HttpConnection | None = None
        if factory.takes(address):
            loop = Watching(self.clock)
            self.connection = HttpConnection(factory, loop, self.wire, address)
            self.connection.begin_life()

    @property
    def read_from(self) -> bool:
        """Whether the server reads what the client sends."""
        assert self.connection is not None
        return self.connection.events != 0

    def send(self, data: bytes) -> None:
        """Bytes to the server."""
        if self.connection is not None and self.connection.alive:
            self.connection.received(data)

    def close_sending(self) -> None:
        """The client says that it sends no more."""
        assert self.connection is not None
        self.connection.peer_closed()

    def taken(self) -> bytes:
        """Bytes from the server since the last call."""
        data = self.wire.value()
        self.wire.clear()
        return data

    def ask(self, data: bytes, head_only: bool = False) -> Answer:
        """Send and take one answer."""
        self.send(data)
        self.clock.advance(0)
        return Answer(self.taken(), head_only)

    def get(
        self, target: str | bytes, headers: dict[str, str] | None = None, method: str = "GET"
    ) -> Answer:
        """One request, in good manners."""
        raw = target.encode() if isinstance(target, str) else target
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        request = method.encode() + b" " + raw + b" HTTP/1.1\r\nHost: h\r\n"
        return self.ask(request + lines.encode("latin-1") + b"\r\n", head_only=method == "HEAD")

    def leave(self) -> None:
        """The connection is lost."""
        assert self.connection is not None
        self.connection.lost()


class Dialled:
    """A client on a real socket of the server's loop, which turns when the client says so.

    What it says `first` is there when its connection is taken. With `tls` it speaks TLS, and
    believes any certificate.
    """

    #: All of them, for `hang_up`.
    open: ClassVar[list[Dialled]] = []

    def __init__(
        self,
        bench: Bench,
        address: str = "192.0.2.1",
        send_buffer: int = 0,
        first: bytes = b"",
        tls: TlsServer | None = None,
    ) -> None:
        self._bench = bench
        self.open.append(self)
        self.sock, theirs = socket.socketpair()
        if send_buffer:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.sock.setblocking(False)
        self.closed = False
        self.sock.sendall(first)
        bench.front.adopt(theirs, address, tls)
        if tls is not None:
            self._shake_hands()

    @classmethod
    def hang_up(cls) -> None:
        """Close all, and let their servers know."""
        while cls.open:
            one = cls.open.pop()
            one.sock.close()
            one.turn()
            for connection in tuple(one._bench.factory.connections):
                connection.lost()

    def _shake_hands(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        secured = context.wrap_socket(self.sock, do_handshake_on_connect=False)
        self.sock = secured
        for _ in range(_TURNS):
            with contextlib.suppress(ssl.SSLWantReadError):
                secured.do_handshake()
                break
            self.turn()
        self.turn()

    def send(self, data: bytes) -> None:
        """Bytes to the server, which deals with them at once."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
            self.sock.sendall(data)
        self.turn()

    def turn(self) -> None:
        """Let the server's loop turn, until it has nothing to do.

        It stays for 2 ms at a time, in which a busy machine may do next to nothing.
        """
        self._bench.clock.advance(0)
        front = self._bench.front
        waits = select.poll()
        waits.register(front, select.POLLIN)
        for _ in range(_TURNS):
            front.doRead()
            if not waits.poll(0):
                break
        self._bench.clock.advance(0)

    def taken(self) -> bytes:
        """All that the server has said by now; `closed` when it ended."""
        pieces = []
        patience = 2
        while not self.closed:
            piece: bytes | None = None
            with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
                try:
                    piece = self.sock.recv(1 << 20)
                except (ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
                    piece = b""
            if piece:
                pieces.append(piece)
                patience = 2
            elif piece is not None:
                self.closed = True
            elif patience:
                patience -= 1
                self.turn()
            else:
                break
        return b"".join(pieces)

    def get(self, target: str, method: str = "GET", **fields: str) -> bytes:
        """One request, whole; all that is said to it."""
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
        self.send(f"{method} {target} HTTP/1.1\r\nHost: h\r\n{lines}\r\n".encode("latin-1"))
        return self.taken()


def bound(host: str) -> socket.socket:
    """A TCP socket at a free port."""
    found = tcp_socket(host)
    found.bind((host, 0))
    return found


class Bench:
    """A whole site over a directory; time moves only by `clock.advance`."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.clock = options.get("clock") or Clock()
        self.clock.advance(OLD_S + 1_000_000 - self.clock.seconds())
        # No thread and no descriptor is asked for: time is all it needs of a reactor.
        reactor: Any = self.clock
        self.tree = Tree(str(root), show_hidden=options.get("show_hidden", False))
        self.cache = MemoryDigestCache()
        self.catalog = DigestService(reactor, self.cache, threads=0)
        self.pacer = Pacer(self.clock, options.get("bandwidth_bytes_s"))
        admission: Admission = options.get("admission", AdmitAll())
        self.visible = Visible()
        self.site = Site(
            self.tree,
            self.catalog,
            admission,
            options.get("visibility", self.visible),
            self.pacer,
            Pages(),
            reactor,
            mirrors=options.get("mirrors", ()),
            # Files made by a test have a change time of today, whatever the fake clock says.
            disk=options.get("disk"),
            wall=options.get("wall", lambda: 4_000_000_000.0),
        )
        self.factory = HttpFactory(
            options.get("handler", self.site),
            self.clock,
            limits=options.get("limits", HttpLimits()),
            proxies=TrustedProxies(
                options.get("proxies", ()), preface=options.get("preface", False)
            ),
            access_log=options.get("access_log"),
            charge=options.get("charge", self.pacer.charge_answers if self.pacer.capped else None),
            requests=self.pacer.requests,
            denylist=options.get("denylist"),
            wall=self.clock.seconds,
            shortcut=self.site,
        )
        self.front = Front(reactor, self.factory, shortcuts=options.get("shortcuts", True))

    def connect(self, address: str = "192.0.2.1") -> Client:
        """A new connection."""
        return Client(self.factory, address)

    def tick(self, seconds: float) -> None:
        """Let time pass in steps that the sweep sees."""
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
        self.clock.advance(seconds % 1.0)

    def write(self, name: str, data: bytes, mtime_s: float = OLD_S) -> Path:
        """A file with a settled modification time."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (mtime_s, mtime_s))
        return path
