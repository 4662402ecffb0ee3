"""Work in steps, so that visitors wait for no page of an operator."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from twisted.internet.defer import Deferred

from ..http.clock import Clock, T


class LoopTurns:
    """In each turn of the reactor one of those who wait goes on, in the order in which they came.

    So others wait for one piece of work at most, however many want to go on.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Deferred[None]] = deque()

    def turn(self) -> Deferred[None]:
        """Fires when one may go on."""
        mine: Deferred[None] = Deferred()
        self._waiting.append(mine)
        if len(self._waiting) == 1:
            self._clock.callLater(0, self._next)
        return mine

    async def all_of(self, steps: Iterable[T]) -> list[T]:
        """What these steps give, none of which may take long; others have turns in between."""
        done, began_s = [], self._clock.seconds()
        for one in steps:
            done.append(one)
            # How long work in steps may keep others from the reactor.
            if self._clock.seconds() - began_s > 0.001:
                await self.turn()
                began_s = self._clock.seconds()
        return done

    def _next(self) -> None:
        first = self._waiting.popleft()
        if self._waiting:
            self._clock.callLater(0, self._next)
        first.callback(None)
