"""A connected socket of `client.loop`, plain or inside TLS."""

from __future__ import annotations

import selectors
import socket
from typing import TYPE_CHECKING

from client.net import Receiver

if TYPE_CHECKING:
    import ssl

    from client.loop import Loop


class Stream:
    """A connected socket, plain or inside TLS."""

    def __init__(
        self, loop: Loop, sock: socket.socket, receiver: Receiver, *, waiting: bool = False
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._receiver = receiver
        self._out = bytearray()
        self._paused = False
        self._closed = False
        self._shaking = False
        self._tls: ssl.SSLSocket | None = None
        self.connect_s: float | None = None
        self.asked_before_s = 0.0
        self.heard_s: float | None = None
        self.asked_spans: tuple[tuple[int, int], ...] = ()
        #: What has been sent already: the same, written now, is not sent again.
        self.presented: bytes | None = None
        self._mismatch = False
        self._waiting = waiting
        self._interest()

    def write(self, data: bytes) -> None:
        if self._closed:
            return
        if self.presented is not None:
            known, self.presented = self.presented, None
            if known.startswith(data):
                self.presented = known[len(data) :] or None
                return
            # What is being answered is not what is wanted after all.
            self._mismatch = True
            self._loop.call_later(0.0, lambda: self._lose("the connection was closed"))
            return
        self._out += data
        if not self._shaking:
            self._flush()

    def replay(self, data: memoryview) -> None:
        """What was read before there was a receiver."""
        self._waiting = False
        self._interest()
        if len(data) and not self._closed and not self._mismatch:
            self._receiver.received(data)
        self.heard_s = None

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.watch(self._sock, 0, self._ready)
            self._sock.close()

    def release(self) -> None:
        self.abort()

    def pause(self) -> None:
        self._paused = True
        self._interest()

    def resume(self) -> None:
        self._paused = False
        self._interest()
        if self._tls is not None and not self._closed and self._tls.pending():
            self._loop.call_later(0.0, self._read)

    def start_tls(self, name: str) -> None:
        self._loop.watch(self._sock, 0, self._ready)
        self._tls = self._loop.tls_context().wrap_socket(
            self._sock, server_hostname=name, do_handshake_on_connect=False
        )
        self._sock = self._tls
        self._shaking = True
        self._handshake()

    # -- readiness -----------------------------------------------------------------------------

    def _interest(self, extra: int = 0) -> None:
        if self._closed:
            return
        events = extra
        if not self._paused and not self._shaking and not self._waiting:
            events |= selectors.EVENT_READ
        if self._out and not self._shaking:
            events |= selectors.EVENT_WRITE
        self._loop.watch(self._sock, events, self._ready)

    def _ready(self, events: int) -> None:
        if self._shaking:
            self._handshake()
            return
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ and not self._closed:
            self._read()

    def _read(self) -> None:
        if self._closed or self._paused:
            return
        buffer = self._loop.buffer
        try:
            count = self._sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if self._tls is not None and self._wants(error):
                return
            self._lose(self._words(error))
            return
        if count == 0:
            self._lose("the connection was closed")
            return
        self._loop.taken_bytes += count
        self._receiver.received(buffer[:count])
        # What TLS has decrypted already wakes no selector.
        while self._tls is not None and not self._closed and not self._paused:
            if not self._tls.pending():
                break
            try:
                count = self._tls.recv_into(buffer)
            except OSError:
                break
            if count == 0:
                break
            self._receiver.received(buffer[:count])

    def _flush(self) -> None:
        while self._out and not self._closed:
            try:
                count = self._sock.send(self._out)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if self._tls is not None and self._wants(error):
                    break
                self._lose(self._words(error))
                return
            del self._out[:count]
        self._interest()

    def _handshake(self) -> None:
        import ssl

        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.watch(self._sock, selectors.EVENT_READ, self._ready)
            return
        except ssl.SSLWantWriteError:
            self._loop.watch(self._sock, selectors.EVENT_WRITE, self._ready)
            return
        except ssl.SSLCertVerificationError as error:
            self._lose(f"its certificate is not trusted: {error.verify_message}", permanent=True)
            return
        except OSError as error:
            wrong = isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER"
            text = "it does not speak TLS on that port" if wrong else self._tls_words(error)
            self._lose(text, permanent=wrong)
            return
        self._shaking = False
        self._interest()
        self._receiver.secured()
        self._flush()

    @staticmethod
    def _wants(error: OSError) -> bool:
        import ssl

        return isinstance(error, ssl.SSLWantReadError | ssl.SSLWantWriteError)

    @staticmethod
    def _words(error: OSError) -> str:
        return (error.strerror or str(error) or "the connection broke").lower()

    @staticmethod
    def _tls_words(error: OSError) -> str:
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        return f"TLS failed: {reason.replace('_', ' ').lower()}"

    def _lose(self, text: str, permanent: bool = False) -> None:
        if not self._closed:
            self.abort()
            self._receiver.lost(text, permanent)
