"""Takes a body as a client of a given speed would, and checks every byte of it."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass
from typing import Any, Protocol

import gevent
import gevent.socket
from geventhttpclient.client import HTTPClientPool

from ..client.storage.piece_writer import Pieces

#: A slow client reads this often, so that its pace is even.
_BEAT_S = 0.1


class ReadableBody(Protocol):
    """A body: `read` gives at most `length` bytes, none at the end."""

    def read(self, length: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Received:
    """What came: how many bytes, their SHA-256, and what went wrong (None: nothing)."""

    count_bytes: int
    sha256_hex: str
    fault: str | None


class PieceCheck:
    """Checks the pieces of a file as they pass; begins at one, at byte `first` of the file."""

    def __init__(self, pieces: Pieces, first: int) -> None:
        self._pieces = pieces
        self._index = first // pieces.length
        self._left = pieces.length
        self._digest = hashlib.new(pieces.algorithm)
        #: What was wrong first; None: nothing yet.
        self.fault: str | None = None

    def feed(self, block: bytes) -> None:
        """The next bytes."""
        view = memoryview(block)
        while view:
            part, view = view[: self._left], view[self._left :]
            self._digest.update(part)
            self._left -= len(part)
            if not self._left:
                self.end()

    def end(self) -> None:
        """The piece is over; the last of a file is shorter."""
        if self._left == self._pieces.length:
            return
        digests = self._pieces.digests
        right = self._index < len(digests) and digests[self._index] == self._digest.digest()
        if not right and self.fault is None:
            self.fault = f"piece {self._index} is not what the server's Metalink names"
        self._index += 1
        self._left = self._pieces.length
        self._digest = hashlib.new(self._pieces.algorithm)


def receive(
    body: ReadableBody,
    expected_bytes: int | None,
    rate_bytes_s: float,
    check: PieceCheck | None = None,
) -> Received:
    """Read to the end, no faster than `rate_bytes_s`; never raises for a broken connection."""
    digest = hashlib.sha256()
    count = 0
    fault: str | None = None
    # Large reads: a small one costs as much CPU as a large one.
    step = 256 * 1024
    if math.isfinite(rate_bytes_s):
        step = min(step, max(1024, int(rate_bytes_s * _BEAT_S)))
    earliest_s = time.monotonic()
    while True:
        try:
            block = body.read(step)
        except OSError as error:
            fault = f"the connection broke after {count} bytes ({error.__class__.__name__})"
            break
        if not block:
            break
        digest.update(block)
        if check is not None:
            check.feed(block)
        count += len(block)
        if math.isfinite(rate_bytes_s):
            # A stalled transfer earns no credit: a line that was idle is not faster later.
            earliest_s = max(earliest_s, time.monotonic() - _BEAT_S) + len(block) / rate_bytes_s
            gevent.sleep(max(0.0, earliest_s - time.monotonic()))
    if fault is None and expected_bytes is not None and count != expected_bytes:
        fault = f"{count} bytes came of {expected_bytes}"
    if fault is None and check is not None:
        check.end()
        fault = check.fault
    return Received(count, digest.hexdigest(), fault)


class NarrowPool(HTTPClientPool):
    """Connections whose receive buffer holds little: else the kernel would take a whole file at
    once, and a slow client would look like a fast one to the server.
    """

    def __init__(self, receive_buffer_bytes: int, **options: Any) -> None:
        super().__init__(**options)
        self._receive_buffer_bytes = receive_buffer_bytes

    def get_client(self, url: Any) -> Any:
        """The client of that host, its sockets narrowed before they connect."""
        client = super().get_client(url)
        pool = client._connection_pool
        if "_create_tcp_socket" not in vars(pool):
            make = pool._create_tcp_socket

            def narrow(*arguments: Any) -> gevent.socket.socket:
                made = make(*arguments)
                made.setsockopt(
                    gevent.socket.SOL_SOCKET, gevent.socket.SO_RCVBUF, self._receive_buffer_bytes
                )
                return made

            pool._create_tcp_socket = narrow
        return client
