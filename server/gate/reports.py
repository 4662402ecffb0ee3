"""How a mover says that a body is over: one datagram a body.

It is a line of syslog (RFC 3164), as of nginx and logger(1), or an entry of Caddy's log in JSON.
Envoy sends no datagrams: it posts the ends of a tenth of a second, as texts in protobuf.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from ..http.clock import Reactor
from .datagrams import DatagramReader

#: What the end of a line is: lease, status, bytes, whether all was sent. nginx says `OK` for that,
#: HAProxy `--`. Apache and lighttpd say whether the connection is kept (`+`) or closed (`-`), and
#: `X` for a client that left; HAProxy has two letters for what went wrong. Envoy says `-`, or names
#: what went wrong, and ends its text by a semicolon.
_LINE = re.compile(
    rb"tidegate: ([0-9a-f]{32}) ([0-9]{3}) ([0-9]{1,18}) "
    rb"(?:(OK|--?|\+)|[A-Za-z,-]{1,40})?(?:\s*\Z|;)"
)


#: The parameter of a signed URL by which a log names the lease.
LEASE_QUERY = "tidegate-lease"


class EndReport(msgspec.Struct, frozen=True):
    """What a mover sent of a body. `whole`: it handed all that it meant to send to the kernel."""

    lease: str
    status: int
    sent_bytes: int
    whole: bool


def read_report(data: bytes) -> EndReport | None:
    """The report in a datagram; None for another text."""
    return _read_entry(data) if data.startswith(b"{") else next(read_posted(data), None)


def read_posted(data: bytes) -> Iterator[EndReport]:
    """All lines in the body of a request."""
    for found in _LINE.finditer(data):
        lease, status, sent, whole = found.groups()
        yield EndReport(lease.decode("ascii"), int(status), int(sent), whole is not None)


class LoggedAnswer(msgspec.Struct, frozen=True):
    """A line of a CDN's log: an answer to a client that was sent there. Other members are ignored.

    `url` may be the query alone. `bytes` are those of the body, or of the whole answer.
    """

    url: str
    status: int
    bytes: Annotated[int, msgspec.Meta(ge=0)]


def read_log(data: bytes) -> Iterator[tuple[str, int]]:
    """Lease and bytes of each answer with a lease and with a body of the file."""
    for line in data.splitlines():
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            one = msgspec.json.decode(line, type=LoggedAnswer, strict=False)
            found = re.search(rf"[?&]{LEASE_QUERY}=([0-9a-f]{{32}})(?![^&])", f"?{one.url}")
            if found is not None and one.status in (200, 206):
                yield found[1], one.bytes


def _read_entry(data: bytes) -> EndReport | None:
    """An entry of Caddy's access log. Its size is what was sent, whole or not."""
    try:
        entry = json.loads(data)
        (lease,) = entry["resp_headers"]["Tidegate-Lease"]
        status, sent = entry["status"], entry["size"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not (isinstance(lease, str) and re.fullmatch(r"[0-9a-f]{32}", lease)):
        return None
    if type(status) is not int or type(sent) is not int or min(status, sent) < 0:
        return None
    return EndReport(lease, status, sent, True)


class ReportSocket:
    """Receives reports at `unix:PATH` or `HOST:PORT` (UDP) and gives them to `receive`.

    `path` is the file of a unix socket, `address` host and port of another one. A report of
    another user does no harm: the identifier of a lease is a secret of 128 bits.
    """

    def __init__(
        self,
        reactor: Reactor,
        receive: Callable[[EndReport], None],
        *,
        path: Path | None = None,
        address: tuple[str, int] = ("", 0),
    ) -> None:
        self._reactor = reactor
        self._receive = receive
        self._path = path
        self._address = address
        self._reader: DatagramReader | None = None

    def open(self) -> None:
        """Begin to receive. Raises OSError."""
        path, family = self._path, socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        if path is not None and path.is_socket():
            path.unlink()
        one = socket.socket(family if path is None else socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            one.bind(self._address if path is None else str(path))
            if path is not None:
                # The mover runs as a user of its own.
                path.chmod(0o666)
        except OSError:
            one.close()
            raise
        self._reader = DatagramReader(self._reactor, one, self._read)

    def close(self) -> None:
        """Receive no more."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
            if self._path is not None:
                with contextlib.suppress(OSError):
                    self._path.unlink()

    def _read(self, data: bytes) -> None:
        report = read_report(data)
        if report is not None:
            self._receive(report)
