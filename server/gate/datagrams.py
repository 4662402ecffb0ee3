"""Datagrams of a socket that the reactor watches."""

from __future__ import annotations

import socket
from collections.abc import Callable

from ..http.clock import Reactor


class DatagramReader:
    """Gives each datagram of a socket to `receive` until `close`; an `IReadDescriptor`."""

    def __init__(
        self, reactor: Reactor, source: socket.socket, receive: Callable[[bytes], None]
    ) -> None:
        self._reactor, self._source, self._receive = reactor, source, receive
        source.setblocking(False)
        reactor.addReader(self)

    def fileno(self) -> int:
        return self._source.fileno()

    def logPrefix(self) -> str:
        return "datagrams"

    def doRead(self) -> None:
        # About 1 ms in one go: requests are answered before the rest is read.
        for _ in range(100):
            try:
                data = self._source.recv(4096)
            except BlockingIOError:
                return
            except OSError:
                # Some were lost, or it was closed meanwhile.
                continue
            self._receive(data)

    def connectionLost(self, reason: object) -> None:
        """The reactor watches it no more."""

    def close(self) -> None:
        self._reactor.removeReader(self)
        self._source.close()
