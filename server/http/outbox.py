"""What a socket has not taken yet, in order. A connection makes one when it needs it."""

from __future__ import annotations

import fcntl
import socket
import ssl
import termios
from array import array
from collections import deque
from collections.abc import Callable

#: What is offered to the socket at a time, and what a peer's pace is measured by.
PIECE_BYTES = 64 * 1024
#: What a socket raises that cannot do it now.
BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_COUNT = array("i", (0,))


class Outbox:
    """Bytes on their way out. It has no socket: `flush` is given a way to push bytes.

    A piece that a push refused is offered again byte for byte, as TLS demands (SSL_write(3)).
    """

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()

    @property
    def piece_bytes(self) -> int:
        """Bytes of the piece that is on its way; 0 when all is out."""
        return len(self._pieces[0]) if self._pieces else 0

    @property
    def waiting_bytes(self) -> int:
        """What no push has taken yet."""
        return sum(map(len, self._pieces))

    def add(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        self._pieces.extend(view[at : at + PIECE_BYTES] for at in range(0, len(view), PIECE_BYTES))

    def flush(self, push: Callable[[memoryview], int]) -> bool:
        """Push until all is out or the socket is full; whether a piece was finished.

        `push` sends some of the bytes and says how many; it raises one of `BLOCKED` when it can
        send none now. Other errors pass through.
        """
        finished = False
        pieces = self._pieces
        while pieces:
            try:
                sent = push(pieces[0])
            except BLOCKED:
                break
            if sent < len(pieces[0]):
                pieces[0] = pieces[0][sent:]
            else:
                pieces.popleft()
                finished = True
        return finished


def queued_bytes(sock: socket.socket | None) -> int:
    """What the kernel still holds of all that was sent on a socket; 0 where that is not known."""
    if sock is None:
        return 0
    try:
        fcntl.ioctl(sock, termios.TIOCOUTQ, _COUNT)
    except (OSError, ValueError):
        return 0
    return _COUNT[0]
