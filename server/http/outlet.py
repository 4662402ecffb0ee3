"""The sending half of a connection: bytes leave in order, at once where they can.

While nothing is buffered, straight through the socket: one system call, no trip through epoll. What
the socket does not take goes to the transport in pieces, each when the one before is out, so a long
answer to a slow reader costs a piece and not a copy of itself. `when_flushed` tells when all is
out; a body sender has the socket to itself from then on.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet import interfaces
from twisted.internet.protocol import Protocol
from zope.interface import implementer

if TYPE_CHECKING:
    from server.http.factory import HttpFactory

#: How much of an answer the transport holds at a time.
PIECE_BYTES = 64 * 1024


@implementer(interfaces.IPullProducer)
class _FlushBarrier:
    """Hears once when the transport's buffer is empty.

    A pull producer is asked for data when it is registered and again each time the buffer has
    been written out; the second question is the news.
    """

    __slots__ = ("_connection", "_registered")

    def __init__(self, connection: Outlet) -> None:
        self._connection = connection
        self._registered = False

    def resumeProducing(self) -> None:
        """The transport asks for data."""
        if self._registered:
            self._connection.flushed()
        self._registered = True

    def stopProducing(self) -> None:
        """The transport is gone; `connectionLost` says so too."""


class Outlet(Protocol, ABC):
    """Sends for `HttpConnection`, which says when the connection is over."""

    __slots__ = (
        "_borrower",
        "_buffered",
        "_socket",
        "_waiting",
        "deadline",
        "factory",
        "transport",
    )

    transport: Any
    factory: HttpFactory

    def __init__(self, factory: HttpFactory) -> None:
        self.factory = factory
        self.transport = None
        self.deadline = float("inf")
        self._socket: Any = None
        self._buffered = False
        #: What the transport has not been given yet.
        self._waiting: deque[memoryview] | None = None
        self._borrower: Callable[[], None] | None = None

    def send(self, data: bytes, more: bool = False) -> None:
        """Send bytes now or soon, in order. `more`: the packet may wait for what follows."""
        charge = self.factory.charge
        if charge is not None:
            charge(len(data))
        if self._buffered:
            if self._waiting is None:
                self.transport.write(data)
            else:
                self._waiting.append(memoryview(data))
            return
        sent = 0
        sock = self._socket
        if sock is not None:
            try:
                sent = sock.send(data, socket.MSG_MORE if more else 0)
            except BlockingIOError:
                sent = 0
            except OSError:
                # The transport hears of it too, and ends everything in its own time.
                self.transport.abortConnection()
                return
            if sent == len(data):
                return
        elif len(data) <= PIECE_BYTES:
            if self.transport is not None:
                self.transport.write(data)
            return
        self._buffered = True
        rest = memoryview(data)[sent:]
        if len(rest) > PIECE_BYTES:
            self._waiting = deque((rest,))
            self._next_piece()
        else:
            self.deadline = self.factory.write_deadline(len(rest))
            self.transport.write(bytes(rest))
        self.transport.registerProducer(_FlushBarrier(self), False)

    def flushed(self) -> None:
        """From the barrier: the transport's buffer is empty."""
        if self._waiting is not None:
            self._next_piece()
            return
        self._buffered = False
        self.transport.unregisterProducer()
        self.deadline = self._deadline_when_flushed()
        borrower, self._borrower = self._borrower, None
        if borrower is not None:
            borrower()

    def _next_piece(self) -> None:
        waiting = self._waiting
        assert waiting is not None
        first = waiting[0]
        piece = first[:PIECE_BYTES]
        if len(first) > PIECE_BYTES:
            waiting[0] = first[PIECE_BYTES:]
        else:
            waiting.popleft()
            if not waiting:
                self._waiting = None
        self.deadline = self.factory.write_deadline(len(piece))
        self.transport.write(bytes(piece))

    @abstractmethod
    def _deadline_when_flushed(self) -> float: ...

    def when_flushed(self, callback: Callable[[], None]) -> None:
        """Call back once, when everything sent so far has left this process (or now)."""
        if self._buffered:
            self._borrower = callback
        else:
            callback()

    @property
    def socket(self) -> Any:
        """The plain socket, for senders that push bytes past the transport; None under TLS."""
        return self._socket
