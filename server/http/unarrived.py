"""Short answers that were handed to their sockets whole and have not arrived yet.

On a slow line a file of 100 kB takes many ticks; counted as arrived at once, each would look like a
line that carries more for a moment and less for the next.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
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


class UnarrivedAnswers:
    """Answers that no sender watches. Nothing is watched until the pacer wants to know."""

    __slots__ = ("_flying", "_parted", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        #: Sockets that no connection has any more, and since which look.
        self._parted: dict[socket.socket, float | None] = {}
        #: What has not arrived of the last one, by connection: its queue has all before it, too.
        self._flying: dict[object, Callable[[], int]] = {}

    def add(self, connection: AnsweredConnection) -> None:
        """An answer was just sent on it in one go."""
        before = connection.bodies_bytes

        def flying_bytes() -> int:
            # A body that began since is watched by its sender, with all that lies before it.
            return connection.queued_bytes() if connection.bodies_bytes == before else 0

        if len(self._flying) < _MOST:
            self._flying[connection] = flying_bytes

    def add_body(self, connection: object, flying_bytes: Callable[[], int]) -> None:
        """A body without a lease was just handed over whole; how much of it has not arrived."""
        if self.wanted and len(self._flying) < _MOST:
            self._flying[connection] = flying_bytes

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
        for connection, flying_bytes in tuple(self._flying.items()):
            flying = flying_bytes()
            if not flying or not wanted:
                del self._flying[connection]
            total += flying
        for sock, since in tuple(self._parted.items()):
            flying = queued_bytes(sock)
            since_s = now if since is None else since
            self._parted[sock] = since_s
            # A connection that is over is kept no longer than this for what has not arrived.
            if not flying or not wanted or now >= since_s + 20.0:
                del self._parted[sock]
                sock.close()
            total += flying
        return total
