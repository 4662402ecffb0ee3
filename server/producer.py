"""Bodies through the transport, read and written: for TLS, and transports without a socket."""

from __future__ import annotations

import os
from typing import Any

from twisted.internet import interfaces
from zope.interface import implementer

from server.sender import BodySender

_READ_BYTES = 64 * 1024


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
