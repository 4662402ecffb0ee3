"""Bodies by `sendfile(2)`, through a second descriptor of the connection's socket.

That descriptor stands on the reactor as a write descriptor of its own. It starts when the transport
has nothing left to write and ends before the transport writes again, so the two never mix.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from typing import Any

from twisted.internet import interfaces
from twisted.python.failure import Failure
from zope.interface import implementer

from server.sender import BodySender, Piece

_SENDFILE_BYTES = 2 << 20
#: The first piece is smaller: a range of 1 MiB then leaves in two turns, so that its reader works
#: while the next one is served (measured: half the CPU per byte, and twice the throughput).
_FIRST_BYTES = 512 * 1024
_TAIL_BYTES = 1024


@implementer(interfaces.IWriteDescriptor)
class SendfileSender(BodySender):
    """`sendfile(2)` on a second descriptor of the connection's socket."""

    __slots__ = ("_fd", "_writing")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._fd = -1
        self._writing = False

    def fileno(self) -> int:
        """The descriptor the reactor watches."""
        return self._fd

    def logPrefix(self) -> str:
        """For Twisted's log."""
        return "SendfileSender"

    def doWrite(self) -> Failure | None:
        """The reactor says that the socket takes bytes."""
        self.blocked = False
        if self._pacer.capped:
            self._stop_writing()
            self._go()
        else:
            self._pacer.sent_bytes_total += self._send_some(_SENDFILE_BYTES)
        return None

    def connectionLost(self, reason: Failure) -> None:
        """The reactor found the descriptor broken."""
        self._writing = False
        if not self._over:
            self._request.abort()
            self._end(False)

    def delivered_bytes(self) -> int:
        """Bytes sent, less what waits in the kernel unacknowledged (SIOCOUTQ)."""
        if self._fd < 0:
            return self.sent_bytes
        try:
            queued = struct.unpack("i", fcntl.ioctl(self._fd, termios.TIOCOUTQ, b"\0\0\0\0"))[0]
        except OSError:
            return self.sent_bytes
        return max(0, self.sent_bytes - int(queued))

    def _open(self) -> None:
        self._fd = os.dup(self._request.connection.socket.fileno())

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _go(self) -> None:
        if self._fd >= 0:
            if self._pacer.capped:
                super()._go()
            else:
                # Try first: a socket with room needs no trip through the reactor.
                self._pacer.sent_bytes_total += self._send_some(_FIRST_BYTES)
                if not self._over:
                    self._await_room()

    def _await_room(self) -> None:
        self.blocked = True
        if not self._writing:
            self._writing = True
            self._request.connection.factory.reactor.addWriter(self)

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._request.connection.factory.reactor.removeWriter(self)

    def _suspend(self) -> None:
        self._stop_writing()

    def _send_some(self, most_bytes: int) -> int:
        """Send until the socket is full, the most is reached or all is out."""
        total = 0
        while total < most_bytes:
            piece = self._piece()
            if piece is None:
                self._end(True)
                return total
            try:
                asked, sent = self._send_piece(piece, most_bytes - total)
            except BlockingIOError:
                return total
            except OSError:
                self._request.abort()
                self._end(False)
                return total
            if self._over:
                return total
            self._advance(sent)
            total += sent
            if sent < asked:
                return total
        if self.sent_bytes == self.total_bytes:
            self._end(True)
        return total

    def _send_piece(self, piece: Piece, most_bytes: int) -> tuple[int, int]:
        """Send from one piece; returns how many bytes were asked for and how many went."""
        if isinstance(piece, bytes):
            chunk = piece[self._position : self._position + most_bytes]
            return len(chunk), _send(self._fd, chunk)
        offset = piece[0] + self._position
        left = piece[1] - offset
        if left <= _TAIL_BYTES:
            chunk = os.pread(self._file.fd, min(left, most_bytes), offset)
            if not self._check_file() or not chunk:
                if not chunk:
                    self.abort("the file became shorter while it was sent")
                return 0, 0
            return len(chunk), _send(self._fd, chunk)
        if not self._check_file():
            return 0, 0
        asked = min(left - _TAIL_BYTES, most_bytes)
        sent = os.sendfile(self._fd, self._file.fd, offset, asked)
        if sent == 0:
            self.abort("the file became shorter while it was sent")
        return asked, sent


def _send(fd: int, data: bytes) -> int:
    """Send on a non-blocking socket known by its descriptor, as `write(2)` without SIGPIPE."""
    return os.write(fd, data)
