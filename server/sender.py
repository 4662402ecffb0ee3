"""What all senders share: a planned body on its way, with pause, pace and an honest end.

Two ways to send: `sendfile` on plain TCP (and unix) sockets, `producer` under TLS; `starts` picks.

Never a mixture: the file's size and modification time are compared before each piece, and the
last piece leaves by a copy that is compared once more before it goes. A file that changed in place
ends its transfer with a reset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from twisted.logger import Logger

from server.http.request import Request
from server.openfile import OpenFile
from server.pacer import Pacer
from server.transfer import TransferListener

#: One piece of a body: bytes as they are, or a half-open range of the file.
Piece = bytes | tuple[int, int]

_log = Logger()


class BodySender(ABC):
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

    def _suspend(self) -> None:  # noqa: B027 - there may be nothing to stop
        """Stop asking for turns. A place in the ring lapses by itself at the next turn."""

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _await_room(self) -> None: ...

    @abstractmethod
    def _send_some(self, most_bytes: int) -> int: ...
