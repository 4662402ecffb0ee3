"""A server under a fake clock with in-memory connections, for tests that need no socket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from server.catalog import Catalog, MemoryDigestCache
from server.files import Tree
from server.generated import Generated
from server.http.factory import HttpFactory
from server.http.limits import HttpLimits
from server.http.proxies import TrustedProxies
from server.listing import Listings
from server.pacer import Pacer
from server.pages import Pages
from server.site import Site
from server.transfer import Admission, AdmitAll

OLD_S = 1_700_000_000


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


class Wire(StringTransport):
    """A transport that remembers how it was ended."""

    def __init__(self, address: str) -> None:
        super().__init__(peerAddress=IPv4Address("TCP", address, 5000))
        self.aborted = False
        self.half_closed = False

    def abortConnection(self) -> None:
        self.aborted = True
        self.disconnecting = True

    def loseWriteConnection(self) -> None:
        self.half_closed = True

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Nothing to delay here."""


class Client:
    """One connection to the server under test."""

    def __init__(self, factory: HttpFactory, address: str = "192.0.2.1") -> None:
        self.factory = factory
        self.wire = Wire(address)
        self.protocol = factory.buildProtocol(self.wire.getPeer())
        self.protocol.makeConnection(self.wire)

    def send(self, data: bytes) -> None:
        """Bytes to the server."""
        self.protocol.dataReceived(data)

    def taken(self) -> bytes:
        """Bytes from the server since the last call."""
        data = self.wire.value()
        self.wire.clear()
        return data

    def ask(self, data: bytes, head_only: bool = False) -> Answer:
        """Send and take one answer."""
        self.send(data)
        self.factory.reactor.advance(0)
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
        from twisted.internet.error import ConnectionDone
        from twisted.python.failure import Failure

        self.protocol.connectionLost(Failure(ConnectionDone()))


class Bench:
    """A whole site over a directory; time moves only by `clock.advance`."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.clock = Clock()
        self.clock.advance(OLD_S + 1_000_000)
        self.tree = Tree(str(root), show_hidden=options.get("show_hidden", False))
        self.cache = MemoryDigestCache()
        self.catalog = Catalog(self.clock, self.cache, threads=0)
        self.pacer = Pacer(self.clock, options.get("bandwidth_bytes_s"))
        admission: Admission = options.get("admission", AdmitAll())
        self.site = Site(
            self.tree,
            self.catalog,
            admission,
            self.pacer,
            mirrors=options.get("mirrors", ()),
            # Files made by a test have a change time of today, whatever the fake clock says.
            wall=options.get("wall", lambda: 4_000_000_000.0),
        )
        pages = Pages()
        self.site.listing = Listings(self.site, pages, self.clock).answer
        self.site.generated = Generated(self.site, self.clock).answer
        self.site.add_route("/-/static", pages.answer_static)
        self.factory = HttpFactory(
            options.get("handler", self.site),
            self.clock,
            limits=options.get("limits", HttpLimits()),
            proxies=TrustedProxies(options.get("proxies", ())),
            access_log=options.get("access_log"),
        )

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
