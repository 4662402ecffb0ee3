"""A small event loop on the standard library: timers, TCP, TLS, names resolved in threads.

It reads into one large buffer that is lent to the receiver, so a byte is copied from the kernel
once and to the file once. Connections to a name try its addresses in turn, the next one after a
quarter of a second of silence (RFC 8305 in small).
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from client.attempt import Attempt
from client.net import Cancellable, Endpoint, Readable, Receiver

if TYPE_CHECKING:
    import ssl

_BUFFER_BYTES = 256 << 10
#: While bytes keep coming in dribs and drabs, they are let gather for a moment: a thousand packets
#: a second cost less when four of them are read at a time.
_NAP_S = 0.003
_DRIB_BYTES = 32 << 10
_DRIBS = 50
_PAUSE_S = 0.005


class _Timer:
    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """See `client.net.Network`. `run_until` runs it; it ends when the predicate is true."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._serial = itertools.count()
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._tls: ssl.SSLContext | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._from_threads: list[Callable[[], None]] = []
        #: Bytes read since the sockets were last looked at.
        self.taken_bytes = 0
        self._dribs = 0

    def now(self) -> float:
        return time.monotonic()

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Cancellable:
        timer = _Timer(call)
        heapq.heappush(self._timers, (self.now() + delay_s, next(self._serial), timer))
        return timer

    def connect(self, endpoint: Endpoint, receiver: Receiver, timeout_s: float) -> Cancellable:
        attempt = Attempt(self, endpoint, receiver, timeout_s)
        attempt.start()
        return attempt

    def run_until(self, done: Callable[[], bool]) -> None:
        """Serve sockets and timers until `done()`; KeyboardInterrupt passes through."""
        while not done():
            wait_s = None
            while self._timers and self._timers[0][2].call is None:
                heapq.heappop(self._timers)
            if self._timers:
                wait_s = max(0.0, self._timers[0][0] - self.now())
            before_s = self.now()
            ready = self._selector.select(wait_s)
            if ready and self.now() - before_s > _PAUSE_S:
                self._dribs = 0
            for key, events in ready:
                key.data(events)
            if self.taken_bytes:
                self._dribs = self._dribs + 1 if self.taken_bytes < _DRIB_BYTES else 0
                self.taken_bytes = 0
                if self._dribs > _DRIBS:
                    time.sleep(_NAP_S)
            now = self.now()
            while self._timers and self._timers[0][0] <= now:
                call = heapq.heappop(self._timers)[2].call
                if call is not None:
                    call()

    def close(self) -> None:
        self._selector.close()
        if self._wake is not None:
            for end in self._wake:
                end.close()

    def watch_reading(self, sock: Readable, call: Callable[[], None] | None) -> None:
        if call is None:
            self.watch(sock, 0, lambda events: None)
        else:
            wanted = call
            self.watch(sock, selectors.EVENT_READ, lambda events: wanted())

    # -- for the connections -------------------------------------------------------------------

    def watch(self, sock: Readable, events: int, call: Callable[[int], None]) -> None:
        """Call on readiness; events 0 stops watching."""
        known = sock.fileno() in self._selector.get_map()
        if events == 0:
            if known:
                self._selector.unregister(sock)
        elif known:
            self._selector.modify(sock, events, call)
        else:
            self._selector.register(sock, events, call)

    @property
    def buffer(self) -> memoryview:
        return self._buffer

    def tls_context(self) -> ssl.SSLContext:
        """The platform's trust; SSL_CERT_FILE and SSL_CERT_DIR are honoured by OpenSSL."""
        if self._tls is None:
            import ssl

            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls

    def in_thread(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run blocking `work` elsewhere; `then` gets its result or its exception, here."""
        import threading

        if self._wake is None:
            self._wake = socket.socketpair()
            self._wake[0].setblocking(False)
            self.watch(self._wake[0], selectors.EVENT_READ, self._woken)
        knock = self._wake[1]

        def run() -> None:
            result: Any
            try:
                result = work()
            except (OSError, UnicodeError, ValueError) as error:
                result = error
            self._from_threads.append(lambda: then(result))
            try:
                knock.send(b"\0")
            except OSError:
                return  # the loop has been closed meanwhile

        threading.Thread(target=run, daemon=True).start()

    def _woken(self, events: int) -> None:
        assert self._wake is not None
        self._wake[0].recv(4096)
        calls, self._from_threads = self._from_threads, []
        for call in calls:
            call()
