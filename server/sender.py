"""Senders: a planned body, from a file to a socket, with pause, pace and an honest end.

Two ways. On plain TCP (and unix) sockets `sendfile(2)` through a second descriptor of the same
socket, which stands on the reactor as a write descriptor of its own; it starts when the transport
has nothing left to write and ends before the transport writes again, so they never mix. Under TLS
a push producer reads and writes.

Never a mixture: the file's size and modification time are compared before each piece, and the
last piece leaves by a copy that is compared once more before it goes. A file that changed in place
ends its transfer with a reset.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Sequence
from typing import Any

from twisted.internet import interfaces
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from server.files import OpenFile
from server.http.request import Request
from server.pacer import Pacer
from server.transfer import TransferListener

#: One piece of a body: bytes as they are, or a half-open range of the file.
Piece = bytes | tuple[int, int]

_log = Logger()
_SENDFILE_BYTES = 2 << 20
#: The first piece is smaller: a range of 1 MiB then leaves in two turns, so that its reader works
#: while the next one is served (measured: half the CPU per byte, and twice the throughput).
_FIRST_BYTES = 512 * 1024
_TAIL_BYTES = 1024
_READ_BYTES = 64 * 1024


class BodySender:
    """What both ways share. A sender is made for one request after its header was sent.

    It keeps the file open by having it, and tells its listener exactly once.
    """

    __slots__ = (
        "_checked_bytes",
        "_checked_s",
        "_file",
        "_in_ring",
        "_index",
        "_listener",
        "_over",
        "_pacer",
        "_paused",
        "_pieces",
        "_position",
        "_request",
        "blocked",
        "sent_bytes",
        "total_bytes",
    )

    def __init__(
        self,
        request: Request,
        file: OpenFile,
        pieces: Sequence[Piece],
        total_bytes: int,
        listener: TransferListener,
        pacer: Pacer,
    ) -> None:
        self.sent_bytes = 0
        self.total_bytes = total_bytes
        self.blocked = False
        self._request = request
        self._file = file
        self._pieces = pieces
        self._index = 0
        self._position = 0
        self._listener = listener
        self._pacer = pacer
        self._paused = False
        self._over = False
        self._in_ring = False
        self._checked_s = pacer.now()
        self._checked_bytes = 0

    # -- Transfer ---------------------------------------------------------------------------

    def pause(self) -> None:
        """Send nothing until `resume`."""
        if not self._paused and not self._over:
            self._paused = True
            self._suspend()

    def resume(self) -> None:
        """Go on after `pause`."""
        if self._paused and not self._over:
            self._paused = False
            self._checked_s = self._pacer.now()
            self._checked_bytes = self.delivered_bytes()
            self._go()

    def abort(self, reason: str) -> None:
        """Cut the connection with a reset."""
        if not self._over:
            _log.info(
                "download of {target} cut: {reason}", target=self._request.target, reason=reason
            )
            self._request.abort()
            self._end(False)

    def delivered_bytes(self) -> int:
        """Bytes that the peer has acknowledged."""
        return self.sent_bytes

    # -- for the two ways -------------------------------------------------------------------

    def start(self) -> None:
        """Send the first bytes as soon as the header has left."""
        connection = self._request.connection
        self._request.on_gone(self._gone)
        if not self._over:
            connection.slim()
            connection.monitor = self._monitor
            connection.when_flushed(self._begin)

    def _begin(self) -> None:
        if not self._over:
            self._open()
            if not self._paused:
                self._go()

    def _gone(self) -> None:
        self._end(False)

    def _monitor(self, now: float) -> None:
        """Cut a peer that takes less than the lowest rate over a whole window."""
        limits = self._request.connection.factory.limits
        elapsed_s = now - self._checked_s
        if self._paused or self._in_ring or elapsed_s < limits.min_rate_window_s:
            return
        delivered = self.delivered_bytes()
        if delivered - self._checked_bytes < limits.min_rate_bytes_s * elapsed_s:
            self.abort(
                f"the client took {delivered - self._checked_bytes} bytes in {elapsed_s:.0f} s, "
                f"less than {limits.min_rate_bytes_s:g} bytes/s"
            )
        else:
            self._checked_s = now
            self._checked_bytes = delivered

    def _go(self) -> None:
        """Move on: by the pacer's turns where there is a cap, by writability where not."""
        if self._pacer.capped:
            if not self._in_ring:
                self._in_ring = True
                self._pacer.ready(self)
        else:
            self._await_room()

    def push(self, most_bytes: int) -> int:
        """The pacer's turn; see `Paced`."""
        self._in_ring = False
        if self._over or self._paused:
            return 0
        sent = self._send_some(most_bytes)
        if self._running():
            self._in_ring = sent >= most_bytes
            if not self._in_ring:
                self._await_room()
        return sent

    def _running(self) -> bool:
        return not self._over and not self._paused

    def uncapped(self) -> None:
        """The cap is gone; see `Paced`."""
        self._in_ring = False
        if not self._over and not self._paused:
            self._go()

    def _advance(self, count: int) -> None:
        self.sent_bytes += count
        self._position += count
        self._request.bytes_out += count

    def _piece(self) -> Piece | None:
        """The piece to go on with; None when all is sent."""
        while self._index < len(self._pieces):
            piece = self._pieces[self._index]
            size = len(piece) if isinstance(piece, bytes) else piece[1] - piece[0]
            if self._position < size:
                return piece
            self._index += 1
            self._position = 0
        return None

    def _check_file(self) -> bool:
        """Whether the file is still the one the header promised; ends the transfer if not."""
        if self._file.unchanged():
            return True
        self.abort("the file changed while it was sent")
        return False

    def _end(self, complete: bool) -> None:
        if self._over:
            return
        self._over = True
        self._suspend()
        self._close()
        try:
            self._listener.transfer_done(self, complete)
        finally:
            if complete:
                self._request.finish()

    def _suspend(self) -> None:
        """Stop asking for turns. A place in the ring lapses by itself at the next turn."""

    def _open(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def _await_room(self) -> None:
        raise NotImplementedError

    def _send_some(self, most_bytes: int) -> int:
        raise NotImplementedError


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


@implementer(interfaces.IPushProducer)
class ProducerSender(BodySender):
    """Reads and writes through the transport: for TLS, and for transports without a socket."""

    __slots__ = ("_call", "_full", "_registered")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._registered = False
        self._full = False
        self._call: Any = None

    def pauseProducing(self) -> None:
        """The transport is full."""
        self._full = True
        self.blocked = True

    def resumeProducing(self) -> None:
        """The transport has room."""
        self._full = False
        self.blocked = False
        if not self._paused and not self._over:
            self._go()

    def stopProducing(self) -> None:
        """The transport is gone."""
        self._end(False)

    def _open(self) -> None:
        self._registered = True
        self._request.connection.transport.registerProducer(self, True)

    def _close(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None
        if self._registered:
            self._registered = False
            if self._request.connection.alive:
                self._request.connection.transport.unregisterProducer()

    def _suspend(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _go(self) -> None:
        if self._registered and not self._full:
            super()._go()

    def _await_room(self) -> None:
        # Without a cap, one piece a reactor turn keeps the server fair to everybody else.
        if not self._full and self._call is None and not self._over:
            self._call = self._request.connection.factory.reactor.callLater(0, self._turn)

    def _turn(self) -> None:
        self._call = None
        if self._over or self._paused or self._full:
            return
        if self._pacer.capped:
            self._go()
            return
        self._pacer.sent_bytes_total += self._send_some(_READ_BYTES)
        if not self._over:
            self._await_room()

    def _send_some(self, most_bytes: int) -> int:
        total = 0
        while total < most_bytes and not self._full:
            piece = self._piece()
            if piece is None:
                break
            if isinstance(piece, bytes):
                chunk = piece[self._position : self._position + most_bytes - total]
            else:
                offset = piece[0] + self._position
                want = min(piece[1] - offset, most_bytes - total, _READ_BYTES)
                chunk = os.pread(self._file.fd, want, offset)
                if not self._check_file():
                    return total
                if not chunk:
                    self.abort("the file became shorter while it was sent")
                    return total
            self._advance(len(chunk))
            total += len(chunk)
            self._request.connection.transport.write(chunk)
            if self._over:
                return total
        if self.sent_bytes == self.total_bytes:
            self._end(True)
        return total


class WholeTransfer:
    """A body that was sent in one write; over before anybody could pause it."""

    __slots__ = ("blocked", "sent_bytes", "total_bytes")

    def __init__(self, total_bytes: int) -> None:
        self.sent_bytes = total_bytes
        self.total_bytes = total_bytes
        self.blocked = False

    def pause(self) -> None:
        """Over already."""

    def resume(self) -> None:
        """Over already."""

    def abort(self, reason: str) -> None:
        """Over already."""

    def delivered_bytes(self) -> int:
        """All."""
        return self.total_bytes


def sender_for(
    request: Request,
    file: OpenFile,
    pieces: Sequence[Piece],
    total_bytes: int,
    listener: TransferListener,
    pacer: Pacer,
) -> BodySender:
    """The right sender for this request's transport; call `start` on it after the header."""
    kind = SendfileSender if request.connection.socket is not None else ProducerSender
    return kind(request, file, pieces, total_bytes, listener, pacer)
