"""Short answers that were handed to their sockets whole and have not arrived yet.

On a slow line a file of 100 kB takes many ticks; counted as arrived at once, each would look like a
line that carries more for a moment and less for the next.
"""

from __future__ import annotations

import socket
from typing import Protocol

from .outbox import queued_bytes

#: No more answers than this are watched: each costs a system call at every look.
_MOST = 500


class AnsweredConnection(Protocol):
    """A connection on which an answer was sent whole."""

    #: Bytes of bodies that others send on it piece by piece, and watch themselves.
    bodies_bytes: int

    def queued_bytes(self) -> int:
        """What has not arrived of all that was sent on it; 0 once it is closed."""
        ...


class SentBody(Protocol):
    """A body that was handed over whole, piece by piece."""

    def flying_bytes(self) -> int:
        """What has not arrived of it."""
        ...


class _Answer:
    """An answer that was sent in one go."""

    __slots__ = ("_bodies_bytes", "_connection")

    def __init__(self, connection: AnsweredConnection) -> None:
        self._connection, self._bodies_bytes = connection, connection.bodies_bytes

    def flying_bytes(self) -> int:
        # A body that began since is watched by its sender, with all that lies before it.
        alone = self._connection.bodies_bytes == self._bodies_bytes
        return self._connection.queued_bytes() if alone else 0


class UnarrivedAnswers:
    """Answers that no sender watches. Nothing is watched until the pacer wants to know."""

    __slots__ = ("_parted", "_ways", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        #: Sockets that no connection has any more, and since which look.
        self._parted: dict[socket.socket, float | None] = {}
        #: One for each connection, as its queue has all that went out before.
        self._ways: dict[object, SentBody] = {}

    def add(self, connection: AnsweredConnection) -> None:
        """One was just answered."""
        if len(self._ways) < _MOST:
            self._ways[connection] = _Answer(connection)

    def add_body(self, connection: object, body: SentBody) -> None:
        """A body without a lease was just handed over whole."""
        if self.wanted and len(self._ways) < _MOST:
            self._ways[connection] = body

    def take_over(self, sock: socket.socket) -> bool:
        """A connection has had all and would be closed now, which hides what has not arrived.

        True: its peer is told that this was the end, and its socket is closed from here. False:
        close it.
        """
        if not self.wanted or len(self._parted) >= _MOST or not queued_bytes(sock):
            return False
        try:
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        self._parted[sock] = None
        return True

    def flying_bytes(self, now: float, *, wanted: bool) -> int:
        """All that has not arrived, in bytes; `wanted`: whether to go on watching."""
        self.wanted = wanted
        total = 0
        for connection, way in tuple(self._ways.items()):
            flying = way.flying_bytes()
            if not flying or not wanted:
                del self._ways[connection]
            total += flying
        for sock, since in tuple(self._parted.items()):
            flying = queued_bytes(sock)
            since_s = now if since is None else since
            self._parted[sock] = since_s
            # A connection that is over is kept no longer than this for what has not arrived of
            # it, seconds.
            if not flying or not wanted or now >= since_s + 20.0:
                del self._parted[sock]
                sock.close()
            total += flying
        return total
