"""Whole answers that were handed to their sockets and have not arrived yet.

On a slow line a file of 200 kB takes as long as many ticks; counted as arrived at once, each would
look like a line that carries more for a moment and less for the next.
"""

from __future__ import annotations

from typing import Protocol

#: More connections than so many are not watched: each costs a system call at every look.
_MOST = 500


class AnsweredConnection(Protocol):
    """A connection on which an answer was sent whole."""

    #: Bytes of bodies that others send on it piece by piece, and watch themselves.
    bodies_bytes: int

    def queued_bytes(self) -> int:
        """What has not arrived of all that was sent on it; 0 once it is closed."""
        ...


class UnarrivedAnswers:
    """Connections whose last answer was sent in one go and is still on its way.

    Nothing is watched until somebody wants to know.
    """

    __slots__ = ("_connections", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        #: With the bodies that had gone over each when it was answered.
        self._connections: dict[AnsweredConnection, int] = {}

    def add(self, connection: AnsweredConnection) -> None:
        """One was just answered."""
        if len(self._connections) < _MOST:
            self._connections[connection] = connection.bodies_bytes

    def flying_bytes(self, *, wanted: bool) -> int:
        """All that has not arrived, in bytes; `wanted`: whether to go on watching."""
        self.wanted = wanted
        total = 0
        for connection, bodies_bytes in tuple(self._connections.items()):
            # A body that began since is watched by its sender, with all that lies before it.
            flying = connection.queued_bytes() if connection.bodies_bytes == bodies_bytes else 0
            if not flying or not wanted:
                del self._connections[connection]
            total += flying
        return total
