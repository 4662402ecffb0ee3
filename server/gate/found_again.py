"""Bodies that a mover goes on sending while the gate is restarted: they are found again.

Each body that is handed over is written down with the request that it answers. A gate that starts
looks for their sockets. It admits those requests once more, whose sockets are there, before it
admits any other, so that no slot is given twice. Nothing is written to their clients.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from twisted.logger import Logger

from ..http.proxies import Preface
from ..http.request import ListenerBounds, Request
from .inet_diag import SocketName

_log = Logger()
#: What tells who asks, and for what; nothing else of a request is written down.
_KEPT = frozenset(
    {
        *(b"accept", b"cookie", b"forwarded", b"host", b"if-range", b"range", b"sec-fetch-dest"),
        *(b"sec-fetch-mode", b"tidegate-client", b"tidegate-mover", b"tidegate-pass"),
        *(b"tidegate-remaining", b"tidegate-ticket", b"user-agent", b"x-forwarded-for"),
        *(b"x-forwarded-proto", b"x-real-ip"),
    }
)
#: The file is written anew when it has this many lines more than bodies.
_SPARE_LINES = 2000


class KeptBody(msgspec.Struct, frozen=True):
    """A body on its way, as it is written down. `acked_bytes` is what its socket had before."""

    lease: str
    target: str
    peer_address: str
    headers: dict[str, str]
    socket: SocketName
    acked_bytes: int


def kept_body(request: Request, lease: str, name: SocketName, acked_bytes: int) -> KeptBody:
    """What is written down of a body."""
    headers = {
        field.decode("latin-1"): value.decode("latin-1")
        for field, value in request.headers.items()
        if field in _KEPT
    }
    target = request.target.decode("latin-1")
    return KeptBody(lease, target, request.peer_address, headers, name, acked_bytes)


def request_of(body: KeptBody, factory: ListenerBounds) -> Request:
    """The request that this body answers."""
    headers = {
        name.encode("latin-1"): value.encode("latin-1") for name, value in body.headers.items()
    }
    return Request(FoundConnection(factory, body), b"GET", body.target.encode("latin-1"), headers)


class MovesJournal:
    """The file in which bodies on their way stand, a line for each begin and each end.

    Its lines are safe from the end of this process, not from that of the machine, whose sockets
    end with it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._live: dict[str, bytes] = {}
        self._lines = 0

    def open(self) -> list[KeptBody]:
        """What stood there; begin anew."""
        found: dict[str, KeptBody] = {}
        with contextlib.suppress(FileNotFoundError):
            for line in self._path.read_bytes().splitlines():
                _read_line(line, found)
        self._write_anew()
        return list(found.values())

    def close(self) -> None:
        """Write no more; what is on its way stands there."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def begin(self, body: KeptBody) -> None:
        """A body is on its way."""
        line = self._live[body.lease] = msgspec.json.encode(body)
        self._write(line)

    def end(self, lease: str) -> None:
        """It is over."""
        if self._live.pop(lease, None) is not None:
            self._write(msgspec.json.encode(lease))

    def _write(self, line: bytes) -> None:
        if self._file is None:
            return
        try:
            os.write(self._file, line + b"\n")
            self._lines += 1
            if self._lines > _SPARE_LINES + 2 * len(self._live):
                self._write_anew()
        except OSError as fault:
            _log.error("Bodies on their way cannot be written down: {fault}", fault=fault)
            self.close()

    def _write_anew(self) -> None:
        self.close()
        fresh = self._path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._file = os.open(fresh, flags, 0o600)
        os.write(self._file, b"".join(line + b"\n" for line in self._live.values()))
        os.replace(fresh, self._path)
        self._lines = len(self._live)


#: A line: a body that begins, or the lease of one that has ended.
_LINE: msgspec.json.Decoder[KeptBody | str] = msgspec.json.Decoder(KeptBody | str)


def _read_line(line: bytes, found: dict[str, KeptBody]) -> None:
    # The last line may be a part of one.
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        value = _LINE.decode(line)
        if isinstance(value, str):
            found.pop(value, None)
        else:
            found[value.lease] = value


class FoundConnection:
    """The connection of a request that is admitted again: what is answered goes nowhere."""

    def __init__(self, factory: ListenerBounds, body: KeptBody) -> None:
        self.factory = factory
        self.body = body
        self.peer_address = self.client_address = body.peer_address
        self.forwarded: Preface | None = None
        self.is_tls = False
        self.socket: Any = None
        self.monitor: Any = None
        self.bodies_bytes = self.lost_bytes = 0
        self.line = ""
        self.elsewhere = False
        self.alive = self.running = True

    def answer(self, request: Request, *parts: Any, **more: Any) -> None:
        """See `RequestConnection`, as all that follows."""
        request.ended(gone=False)

    def begin(self, *parts: Any) -> None:
        """Say nothing: it has no socket, and its mover goes on sending."""

    def when_flushed(self, callback: Callable[[], None]) -> None:
        """It has no buffers."""
        callback()

    def queued_bytes(self) -> int:
        return 0

    finish = answer
    write_body = drip = abort = release_buffers = await_room = begin
