"""One connection that is asked before the program is loaded, and asks for more by itself.

Only modules that cost next to nothing are imported: `socket` alone takes longer to load than a
short round trip. A thread reads; the kernel fills the buffer without waking it for every packet.
"""

from __future__ import annotations

import _socket
import _thread
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # known to type checkers by its name; importing `typing` takes too long
    from collections.abc import Callable

#: What each of several mirrors is asked for before the size is known, at first.
OPENING_BYTES = 128 << 10
#: Before that, so many bytes from within the first opening, the same of all, to compare.
SAMPLE_BYTES = 1024
_MOST_BYTES = 8 << 20
#: How long the reading thread may overlook that it is wanted no more.
_BREATH_S = 0.01
#: More is asked for so that no fast mirror runs dry before the program is there.
_LEAST_MORE = 64 << 10
_MOST_AHEAD = 2 << 20
_AHEAD_S = 0.04


class Group:
    """The mirrors that were started together; hands out what follows the openings."""

    def __init__(self, count: int, sampled: bool) -> None:
        self.sampled = sampled
        self.stop = False
        self._next = count * OPENING_BYTES
        self._lock = _thread.allocate_lock()
        self._samples: dict[int, bytes] = {}

    def take(self, count: int) -> tuple[int, int] | None:
        """The next bytes of the file; None when it is too late."""
        with self._lock:
            if self.stop:
                return None
            start = self._next
            self._next += count
            return start, self._next

    def agree(self, number: int, sample: bytes) -> bool:
        """Whether most of those heard, and at least one other, sent the same sample."""
        with self._lock:
            self._samples[number] = sample
            votes = sum(other == sample for other in self._samples.values())
            return votes >= 2 and votes * 2 > len(self._samples)


class Early:
    """`buffer[:length]` is what has arrived; `spans` what was asked for beyond the opening."""

    def __init__(
        self,
        group: Group,
        number: int,
        host: str,
        port: int,
        request: bytes,
        more: Callable[[int, int], bytes],
    ) -> None:
        self.host = host
        self.port = port
        #: All that has been asked, byte for byte.
        self.presented = request
        self.group = group
        self.number = number
        self.spans: list[tuple[int, int]] = []
        self.buffer = bytearray()
        self.length = 0
        self.asked_s = 0.0
        self.heard_s = 0.0
        self.rtt_s = 0.001
        self.sock: _socket.socket | None = None
        #: Whether it is settled that there is a connection, or is none.
        self.settled = False
        self.abandoned = False
        self._more = more
        self._asked = OPENING_BYTES
        self._trusted = False
        self._failed = False
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            if self._connect():
                self._read()
        finally:
            self.settled = True
            self._ended.release()

    def _connect(self) -> bool:
        try:
            # As bytes, a name is not put through IDNA, whose tables take long to load.
            kind = _socket.SOCK_STREAM
            found = _socket.getaddrinfo(self.host.encode(), self.port, 0, kind)
            sock = _socket.socket(found[0][0], kind)
            sock.settimeout(3)
            sock.connect(found[0][4])
            if self.abandoned:
                sock.close()
                return False
            sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            if self.group.stop:
                # Too late to guess what to ask for; the open connection is welcome all the same.
                self.presented = b""
            sock.sendall(self.presented)
            self.asked_s = time.monotonic()
            sock.settimeout(None)
            pause = struct.pack("ll", 0, int(_BREATH_S * 1e6))
            sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, pause)
        except (OSError, UnicodeError):
            return False
        try:
            info = sock.getsockopt(_socket.IPPROTO_TCP, _socket.TCP_INFO, 104)
            self.rtt_s = struct.unpack_from("I", info, 68)[0] / 1e6
        except (OSError, AttributeError, struct.error):
            pass
        self.sock = sock
        self.settled = True
        return True

    def _read(self) -> None:
        assert self.sock is not None
        self.buffer = bytearray(_MOST_BYTES)
        view = memoryview(self.buffer)
        first_s = 0.0
        while not self.group.stop and self.length < _MOST_BYTES:
            try:
                count = self.sock.recv_into(view[self.length :], 0, _socket.MSG_WAITALL)
            except BlockingIOError:
                continue
            except OSError:
                self._failed = True
                return
            if count == 0:
                # The end will be read once more by whoever takes over.
                return
            self.length += count
            self.heard_s = time.monotonic()
            first_s = first_s or self.heard_s
            try:
                self._ask_more(self.heard_s - first_s + self.rtt_s)
            except OSError:
                self._failed = True
                return

    def _ask_more(self, spent_s: float) -> None:
        """While a window opens, each round trip brings twice the last one's bytes; so what is
        under way has to be three times what the last one brought, and a little for the delay."""
        if not self._trusted:
            self._trusted = self._judge()
            if not self._trusted:
                return
        lately = min(1.0, (self.rtt_s + _AHEAD_S) / max(spent_s, 1e-6)) * self.length
        wanted = min(_MOST_AHEAD, max(OPENING_BYTES * 3 // 4, int(3 * lately)))
        if self._asked - self.length >= wanted or self._asked + wanted > _MOST_BYTES:
            return
        span = self.group.take(max(_LEAST_MORE, wanted // 2))
        if span is not None and self.sock is not None:
            self.spans.append(span)
            self._asked += span[1] - span[0]
            request = self._more(*span)
            self.presented += request
            self.sock.sendall(request)

    def _judge(self) -> bool:
        """Whether this mirror sends parts, and of the same file as others."""
        head = bytes(self.buffer[: min(self.length, 8192)]).find(b"\r\n\r\n") + 4
        if head < 4 or self.buffer[9:12] != b"206":
            return False
        if not self.group.sampled:
            return True
        sample = bytes(self.buffer[head : min(head + SAMPLE_BYTES, self.length)])
        return len(sample) == SAMPLE_BYTES and self.group.agree(self.number, sample)

    def take(self) -> _socket.socket | None:
        """The socket, non-blocking, once it is `settled`; None when it did not come to anything."""
        if not self._ended.acquire(timeout=1.0) or self.sock is None or self._failed:
            return None
        self.sock.setblocking(False)
        return self.sock
