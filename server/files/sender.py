"""A planned body on its way, with pause, pace and an honest end.

On plain TCP (and unix) sockets by `sendfile(2)`, under TLS by reading and writing. It has the
connection's socket to itself from the time the header has left until `finish`.

Never a mixture: the file's size and modification time are compared before each piece, and the
last piece leaves by a copy that is compared once more before it goes. A file that changed in place
ends its transfer with a reset, unless only its times did: then its content is compared first.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from ..http.accesslog import without_tokens
from ..http.outbox import BLOCKED, queued_bytes
from ..http.request import Request
from .disk import AHEAD_BYTES, Disk
from .openfile import OpenFile, Piece, Unreadable
from .pacer import Pacer, Share, TransferState
from .transfer import TcpState, TransferListener

_TAIL_BYTES = 1024
_COPY_BYTES = 64 * 1024
#: No bound on what lies unsent in the kernel is above this: its own is no larger.
_UNSENT_BYTES = 4 << 20

_log = Logger()


#: `struct tcp_info` of Linux up to `tcpi_min_rtt` and `tcpi_rwnd_limited` (microseconds). Before
#: these `tcpi_snd_mss`, `tcpi_unacked`, `tcpi_sacked`, `tcpi_lost`, `tcpi_snd_ssthresh` and
#: `tcpi_snd_cwnd` (packets).
_TCP_INFO = struct.Struct("=16xI4xIII40xII64xI24xQ")


def tcp_state(sock: socket.socket) -> TcpState:
    """What the kernel says of a connection; an older one says less."""
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except (OSError, ValueError):  # a unix socket has no such option
        return TcpState()
    packet_bytes, flying, sacked, lost, until, window, trip_us, shut_us = _TCP_INFO.unpack(
        told.ljust(_TCP_INFO.size, b"\0")
    )
    grows = window < until and 2 * flying > window
    # All bits are set before a round trip was measured.
    trip_s = 1e-6 * trip_us if trip_us < 0xFFFFFFFF else 0.0
    return TcpState(shut_us * 1e-6, sacked * packet_bytes, lost > 0, grows, trip_s)


@dataclass(slots=True, eq=False, repr=False)
class BodySender:
    """A sender is made for one request, after its header was sent.

    It keeps the file open by having it, and tells its listener exactly once.
    """

    _request: Request
    _file: OpenFile
    _pieces: Sequence[Piece]
    total_bytes: int
    _listener: TransferListener
    _pacer: Pacer
    #: Says whether a file that changed has its content still; asked once at a time.
    _still: Callable[[OpenFile], Deferred[bool]]
    _disk: Disk
    sent_bytes: int = field(init=False, default=0)
    blocked: bool = field(init=False, default=False)
    #: See `Paced`, as what follows.
    share: Share = field(init=False)
    state: TransferState = field(init=False, default=TransferState.HELD_UP)
    state_since_s: float = field(init=False)
    sent_at_s: float = field(init=False)
    stands_in: Share | None = field(init=False, default=None)
    pause_number: int = field(init=False, default=0)
    burst_at_s: float = field(init=False, default=-math.inf)
    run_from_bytes: int = field(init=False, default=0)
    _by_copy: bool = field(init=False)
    #: The piece to go on with, and where in it.
    _index: int = field(init=False, default=0)
    _position: int = field(init=False, default=0)
    #: The part of the file that was found in the page cache, or brought there.
    _at_hand: tuple[int, int] = field(init=False, default=(0, 0))
    #: What TLS could not send: it must be offered the same bytes again.
    _stuck_bytes: int = field(init=False, default=0)
    _open: bool = field(init=False, default=False)
    #: Waits for what it needs beside its socket.
    _checking: bool = field(init=False, default=False)
    #: The file was compared in this very turn.
    _compared: bool = field(init=False, default=False)
    #: What had arrived when it ended before its time.
    _delivered_bytes: int | None = field(init=False, default=None)
    #: What was under way when it ended, and its connection's `bodies_bytes` by then.
    _left_bytes: int = field(init=False, default=0)
    _end_bytes: int = field(init=False, default=0)
    #: The listener hears of the end in this very turn: what was under way is so still.
    _telling: bool = field(init=False, default=False)
    #: What may lie unsent in the kernel, and what may once its peer has taken so much.
    _unsent_bytes: int = field(init=False, default=_UNSENT_BYTES)
    _unsent_goal_bytes: int = field(init=False, default=_UNSENT_BYTES)
    #: How long it has waited for its peer since its rate was checked, up to `state_since_s`,
    #: and what had arrived by then.
    _waited_s: float = field(init=False, default=0.0)
    _checked_bytes: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        connection = self._request.connection
        sock = connection.socket
        self._by_copy = connection.is_tls or sock is None or sock.fileno() < 0
        self.share = self._listener.share or Share()
        self.state_since_s = self.sent_at_s = self._pacer.now()
        self._pacer.add(self)

    # -- Transfer ---------------------------------------------------------------------------

    def pause(self) -> None:
        """Send next to nothing until `resume`."""
        self._pacer.move(self, TransferState.PAUSED)

    def resume(self) -> None:
        """Go on after `pause`."""
        if self.state is TransferState.PAUSED:
            self._go()

    def abort(self, reason: str) -> None:
        """Cut the connection with a reset."""
        if not self._over:
            _log.info("download of {target} cut: {reason}", target=self._target(), reason=reason)
            self._request.abort()
            self._end(False)

    def delivered_bytes(self) -> int:
        """Bytes that the peer has acknowledged: those sent, less what the kernel still holds."""
        if self._delivered_bytes is not None:
            return self._delivered_bytes
        return self.sent_bytes - (0 if self._over else min(self.sent_bytes, self._queued_bytes()))

    def flying_bytes(self) -> int:
        """Bytes sent that the peer has not acknowledged; once over, no more than at the end."""
        if self._telling:
            return self._left_bytes
        queued = self._queued_bytes()
        return min(self.sent_bytes, queued) if not self._over else self._left_of(queued)

    def missing_bytes(self) -> int:
        """See `Transfer`."""
        if self._delivered_bytes is not None:
            return self.total_bytes - self._delivered_bytes
        connection = self._request.connection
        return self._left_of(self._queued_bytes() if connection.alive else connection.lost_bytes)

    def _left_of(self, queued: int) -> int:
        """What of a body that is over lies in its connection's queue; later ones lie behind it."""
        later = self._request.connection.bodies_bytes - self._end_bytes
        return max(0, min(self._left_bytes, queued - later))

    def tcp_state(self) -> TcpState:
        """See `Transfer`."""
        sock = self._request.connection.socket
        return TcpState() if sock is None or self._over else tcp_state(sock)

    def limit_unsent(self, most_bytes: int) -> None:
        """Let no more lie in the kernel beyond what is on the wire, so that a pause is felt soon.

        Where the socket's own buffer is smaller anyway, this costs and changes nothing. Under a
        cap and in a jam it is no more than the peer has taken so far.
        """
        if self._over:
            return
        self._unsent_goal_bytes = most_bytes
        if most_bytes > 2.0 * self._unsent_bytes:
            most_bytes = min(most_bytes, max(self._untried_bytes, self.delivered_bytes()))
        if not 0.5 * self._unsent_bytes <= most_bytes <= 2.0 * self._unsent_bytes:
            self._bound_unsent(most_bytes)

    def share_changed(self) -> None:
        """See `Transfer`: the pacer has the share itself."""

    def _bound_unsent(self, most_bytes: int) -> None:
        sock = self._request.connection.socket
        if sock is not None and min(most_bytes, self._unsent_bytes) < _UNSENT_BYTES:
            self._unsent_bytes = min(most_bytes, _UNSENT_BYTES)
            with contextlib.suppress(OSError, ValueError):  # a unix socket has no such option
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self._unsent_bytes)

    @property
    def _untried_bytes(self) -> int:
        """What may lie unsent before the peer has taken as much."""
        rate = self._pacer.bandwidth_bytes_s
        if rate is not None:
            # What a reader's socket swallows was paid for, even if the reader takes nothing.
            return max(4096, int(rate * 0.002))
        # With more in a jam, 60 sockets held two seconds of a line of 33 Mbit/s after the first one
        # of a burst, and what they hold leaves in no order.
        return 16 * 1024 if self._pacer.jammed else _UNSENT_BYTES

    @property
    def _turn_bytes(self) -> int:
        """How much one turn sends at the most without a cap: others wait meanwhile.

        A buffer of the kernel takes 64 KiB, so that more may lie unsent than its bound.
        """
        return min(self._unsent_bytes, 256 * 1024 if self._by_copy else 2 << 20)

    def _queued_bytes(self) -> int:
        """What the kernel still holds of all that went out here, headers and other bodies too."""
        return queued_bytes(self._request.connection.socket)

    # -- the way of a body ------------------------------------------------------------------

    def start(self) -> None:
        """Send the first bytes as soon as the header has left."""
        connection = self._request.connection
        self._request.on_gone(self._gone)
        if not self._over:
            # A body above this takes so long that its connection gives up what only the next
            # request needs.
            if self.total_bytes > 2 << 20:
                connection.release_buffers()
            connection.monitor = self._monitor
            # The caller that starts a body has just compared its file.
            self._compared = True
            connection.when_flushed(self._begin)
            self._compared = False

    def _begin(self) -> None:
        if not self._over:
            self._open = True
            self._bound_unsent(self._untried_bytes)
            if self.state is not TransferState.PAUSED:
                self._go()

    def _gone(self) -> None:
        self._end(False)

    def _monitor(self, now: float) -> float:
        """Cut a peer that takes less than the lowest rate over a whole window; when to ask next.

        Only time in which this waited for the peer counts. Otherwise a transfer that the server
        itself starves would be cut.
        """
        limits = self._request.connection.factory.limits
        waited_s = self._waited_s
        if self.state is TransferState.SOCKET:
            waited_s += now - self.state_since_s
        if waited_s < limits.min_rate_window_s:
            return now + limits.min_rate_window_s - waited_s
        delivered = self.delivered_bytes()
        if delivered - self._checked_bytes < limits.min_rate_bytes_s * waited_s:
            self.abort(
                f"the client took {delivered - self._checked_bytes} bytes in {waited_s:.0f} s, "
                f"less than {limits.min_rate_bytes_s:g} bytes/s"
            )
        else:
            self._waited_s -= waited_s
            self._checked_bytes = delivered
        return now + limits.min_rate_window_s

    @property
    def _over(self) -> bool:
        return self.state is TransferState.OVER

    def _go(self) -> None:
        """Move on: by the pacer's turns where there is a cap, by writability where not."""
        if not self._open or self._checking:
            self._pacer.move(self, TransferState.HELD_UP)
            return
        if self._pacer.capped:
            self._pacer.move(self, TransferState.RING)
            return
        self._pacer.move(self, TransferState.HELD_UP)
        # Try first: a socket with room needs no trip through the loop.
        # The first piece is smaller: a range of 1 MiB then leaves in two turns, so that its
        # reader works while the next one is served (measured: half the CPU per byte, and twice
        # the throughput).
        self._pacer.sent_bytes_total += self._send_some(min(self._turn_bytes, 512 * 1024))
        if self._running():
            self._await_room()

    def _await_room(self) -> None:
        self.blocked = True
        self._pacer.move(self, TransferState.SOCKET)

    def watch_socket(self, *, watches: bool) -> None:
        """See `Paced`."""
        if not watches:
            # Its peer does not limit it until its socket takes no more again.
            self.blocked = False
            self._waited_s += self._pacer.now() - self.state_since_s
        self._request.connection.await_room(self._has_room if watches else None)

    def _has_room(self) -> None:
        """The socket takes bytes."""
        self.blocked = False
        self._listener.moves()
        if self._unsent_bytes < self._unsent_goal_bytes:
            self.limit_unsent(self._unsent_goal_bytes)
        if self._pacer.capped:
            self._go()
        else:
            most = self._turn_bytes
            sent = self._send_some(most)
            self._pacer.sent_bytes_total += sent
            self.blocked = sent < most and self.state is TransferState.SOCKET

    def push(self, most_bytes: int) -> int:
        """The pacer's turn; see `Paced`."""
        sent = self._send_some(most_bytes)
        if sent < most_bytes and self._running():
            self._await_room()
        return sent

    def trickle(self, most_bytes: int) -> int:
        """What keeps a paused client from giving up; see `Paced`."""
        return self._send_some(most_bytes) if self._open and not self._checking else 0

    def _running(self) -> bool:
        return self.state not in (TransferState.PAUSED, TransferState.OVER) and not self._checking

    def uncapped(self) -> None:
        """The cap is gone; see `Paced`."""
        self._go()

    def _advance(self, count: int) -> None:
        self.sent_bytes += count
        self._position += count
        self.sent_at_s = self._pacer.now()
        request = self._request
        request.bytes_out += count
        request.connection.bodies_bytes += count

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
        """Whether the file is still the one the header promised; finds out more if not."""
        if self._compared:
            self._compared = False
            return True
        if self._file.unchanged():
            return True

        def compare(go_on: Callable[[], None]) -> None:
            def compared(same: bool) -> None:
                if not same:
                    self.abort("the file changed while it was sent")
                go_on()

            self._still(self._file).addCallback(compared)

        return self._has_come(compare) and not self._over

    def _at_hand_bytes(self, offset: int, wanted: int, limit: int) -> int:
        """How many bytes of the file, `wanted` at most, need no wait for the disk; fetches if none.

        `limit` is where what is to be sent ends.
        """
        start, stop = self._at_hand
        known = stop - offset if start <= offset else 0
        if known >= wanted:
            return wanted
        # So much of what was found in the page cache is sent before more of it is looked for: a
        # socket that takes little at a time would have us ask for each little again.
        goes_on = known >= 128 * 1024
        begin = stop if goes_on else offset
        far = min(limit, max(offset + wanted, begin + AHEAD_BYTES))
        if self._file.at_hand(begin, far):
            self._at_hand = (start if goes_on else offset, far)
            return wanted
        if goes_on:
            return known
        if self._file.at_hand(offset, offset + wanted):
            self._at_hand = (offset, offset + wanted)
            return wanted

        def fetch(go_on: Callable[[], None]) -> None:
            def fetched(_: None) -> None:
                self._at_hand = (offset, far)
                go_on()

            self._disk.fetch(self._file, offset, far).addCallback(fetched)

        return wanted if self._has_come(fetch) else 0

    def _may_end(self) -> bool:
        """Whether the last bytes may leave; waits until they may if not."""

        def ask(go_on: Callable[[], None]) -> None:
            if self._listener.may_end(go_on):
                go_on()

        return self._has_come(ask)

    def _has_come(self, begin: Callable[[Callable[[], None]], None]) -> bool:
        """Begin what this body needs; whether it is there already. If not, the body goes on once
        `begin` has called what it was given. A pause goes on, too.
        """
        self._checking, waits = True, False

        def go_on() -> None:
            self._checking = False
            if waits and self.state is TransferState.HELD_UP:
                self._go()

        begin(go_on)
        waits = self._checking
        if waits and self.state is not TransferState.PAUSED:
            self._pacer.move(self, TransferState.HELD_UP)
        return not waits

    def _end(self, complete: bool) -> None:
        if self._over:
            return
        self._left_bytes = min(self.sent_bytes, self._queued_bytes())
        self._end_bytes = self._request.connection.bodies_bytes
        if not complete:
            self._delivered_bytes = self.sent_bytes - self._left_bytes
        self._telling = True
        self._pacer.move(self, TransferState.OVER)
        try:
            self._listener.transfer_done(self, complete)
        finally:
            self._telling = False
            if complete:
                self._request.finish()

    def _target(self) -> str:
        return without_tokens(self._request.target)

    # -- sending ----------------------------------------------------------------------------

    def _send_some(self, most_bytes: int) -> int:
        """Send until the socket is full, the most is reached or all is out.

        A fault of ours on the way ends this body and no other: the pacer goes on with
        the next one.
        """
        try:
            return self._send_up_to(most_bytes)
        except Exception:  # noqa: BLE001 - logged, counted, and the end of this body
            _log.failure("The download of {target} failed", target=self._target())
            self._request.abort()
            with _log.failuresHandled("The end of a download failed"):
                self._end(False)
            return 0

    def _send_up_to(self, most_bytes: int) -> int:
        total = 0
        while total < most_bytes:
            piece = self._piece()
            if piece is None:
                self._end(True)
                return total
            try:
                asked, sent = self._send_piece(piece, most_bytes - total)
            except BLOCKED:
                return total
            except (OSError, Unreadable) as error:
                if isinstance(error, OSError) and error.errno == errno.EIO:
                    self._file.unreadable(error)
                self._request.abort()
                self._end(False)
                return total
            if self._over or not sent:
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
        size = len(piece) if isinstance(piece, bytes) else piece[1] - piece[0]
        left = size - self._position
        if not isinstance(piece, bytes) and left > _TAIL_BYTES and not self._by_copy:
            if not self._check_file():
                return 0, 0
            offset = piece[0] + self._position
            asked = self._at_hand_bytes(offset, min(left - _TAIL_BYTES, most_bytes), piece[1])
            if not asked:
                return 0, 0
            sock = self._request.connection.socket
            sent = os.sendfile(sock.fileno(), self._file.fd, offset, asked)
            if sent == 0:
                self.abort("the file became shorter while it was sent")
            return asked, sent
        # What is read and offered at once: TLS must be offered the same bytes again.
        asked = self._stuck_bytes or min(left, most_bytes, 256 * 1024)
        if self.sent_bytes + asked == self.total_bytes:
            # What waits for the listener, and is read once more where it waits for room, is short.
            asked = self._stuck_bytes or (asked - 1) % _COPY_BYTES + 1
        if not isinstance(piece, bytes):
            asked = self._at_hand_bytes(piece[0] + self._position, asked, piece[1])
        if not asked or (self.sent_bytes + asked == self.total_bytes and not self._may_end()):
            return 0, 0
        if isinstance(piece, bytes):
            chunk = piece[self._position : self._position + asked]
        else:
            chunk = self._file.read_at(piece[0] + self._position, asked)
            if not self._check_file():
                return 0, 0
            if len(chunk) < asked:
                self.abort("the file became shorter while it was sent")
                return 0, 0
        return asked, self._send_chunk(chunk)

    def _send_chunk(self, chunk: bytes) -> int:
        """Send what was read, as much as the socket takes."""
        connection, view, sent = self._request.connection, memoryview(chunk), 0
        self._stuck_bytes = 0
        try:
            while sent < len(chunk):
                step = view[sent : sent + _COPY_BYTES]
                went = connection.socket.send(step)
                sent += went
                if went < len(step):
                    break
        except BLOCKED:
            if connection.is_tls:
                self._stuck_bytes = len(step)
            if not sent:
                raise
        return sent
