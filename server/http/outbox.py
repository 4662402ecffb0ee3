"""What a socket has not taken yet, in order. A connection makes one when it needs it."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable

#: What is offered to the socket at a time, and what a peer's pace is measured by.
PIECE_BYTES = 64 * 1024


class Outbox:
    """Bytes on their way out. It has no socket: `flush` is given a way to push bytes.

    A piece that a push refused is offered again byte for byte, as TLS demands (SSL_write(3)).
    """

    __slots__ = ("_pieces", "_position", "piece_bytes")

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self._position = 0
        #: Bytes of the piece that is on its way; 0 when all is out.
        self.piece_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """What no push has taken yet."""
        return sum(map(len, self._pieces)) - self._position

    def add(self, data: bytes | memoryview) -> None:
        """More bytes, after all others."""
        if data:
            self._pieces.append(memoryview(data))
            if not self.piece_bytes:
                self.piece_bytes = min(len(data), PIECE_BYTES)

    def flush(self, push: Callable[[memoryview], int]) -> bool:
        """Push until all is out or the socket is full; whether a piece was finished.

        `push` sends some of the bytes and says how many; it raises BlockingIOError when it can
        send none now. Other errors pass through.
        """
        finished = False
        pieces = self._pieces
        while pieces:
            first = pieces[0]
            left = self.piece_bytes
            try:
                sent = push(first[self._position : self._position + left])
            except BlockingIOError:
                break
            self._position += sent
            self.piece_bytes = left - sent
            if sent == left:
                finished = True
                if self._position == len(first):
                    pieces.popleft()
                    self._position = 0
                if pieces:
                    self.piece_bytes = min(len(pieces[0]) - self._position, PIECE_BYTES)
        return finished


def queued_bytes(sock: socket.socket | None) -> int:
    """What the kernel still holds of all that was sent on a socket; 0 where that is not known."""
    if sock is None:
        return 0
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    except (OSError, ValueError):
        return 0
