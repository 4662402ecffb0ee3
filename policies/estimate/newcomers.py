"""Newcomers that overtake: how much work arrives that a rank puts before a waiting ticket."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from policies.contract import Ranked

#: The latest arrivals that stand for those to come.
_SAMPLE = 48
#: No more than this part of a server's work is taken to overtake: beyond, a wait has no end.
_MOST = 0.9


class Newcomers:
    """The latest jobs that asked for a place, as a sample of those to come."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        #: When each came, its size, what it wanted and its weight.
        self._latest: deque[tuple[float, int, int, float]] = deque(maxlen=_SAMPLE)

    def note(self, now: float, size_bytes: int, remaining_bytes: int, weight: float) -> None:
        """One has come."""
        self._latest.append((now, size_bytes, remaining_bytes, weight))

    def rate(self, now: float) -> float:
        """How many come in a second lately."""
        if len(self._latest) < 2:
            return 0.0
        return len(self._latest) / max(1.0, now - self._latest[0][0])

    def overtaking(
        self,
        key: float,
        rank: Callable[[Ranked], float],
        next_number: int,
        now: float,
        seconds_of: Callable[[float], float],
    ) -> float:
        """The part of the server's time that newcomers with a rank below `key` will take.

        `seconds_of` tells how long the whole server needs for so many bytes.
        """
        if len(self._latest) < 2:
            return 0.0
        span_s = max(1.0, now - self._latest[0][0])
        taken_s = 0.0
        for _, size, remaining, weight in self._latest:
            if rank(Ranked(next_number, size, remaining, weight, now)) < key:
                taken_s += seconds_of(remaining)
        return min(_MOST, taken_s / span_s)
