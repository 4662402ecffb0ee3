"""How much arriving work overtakes a waiting ticket by its rank."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import accumulate

from ..contract import Ranked


class Newcomers:
    """The latest jobs that asked for a place, as a sample of those to come."""

    def __init__(self) -> None:
        #: The sample by rank: its keys, and the sums of seconds up to each.
        self._keys: list[float] = []
        self._taken_s: list[float] = [0.0]
        self._since_s = 0.0
        #: When it was ranked, and by which rank.
        self._ranked_s = -math.inf
        self._rank: Callable[[Ranked], float] | None = None
        #: Time of arrival, size, wanted bytes and weight of those that stand for the next ones.
        self._latest: deque[tuple[float, int, int, float]] = deque(maxlen=48)

    def note(self, now: float, size_bytes: int, remaining_bytes: int, weight: float) -> None:
        """Add an arrival."""
        self._latest.append((now, size_bytes, remaining_bytes, weight))

    def rate(self, now: float) -> float:
        """Recent arrivals a second."""
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
        """The part of the server's time that arrivals with a rank below `key` will take.

        `seconds_of` says how long the whole server needs for a number of bytes.
        """
        if len(self._latest) < 2:
            return 0.0
        # The ranked sample is used again for half a second.
        if self._rank != rank or not 0.0 <= now - self._ranked_s < 0.5:
            ranked = sorted(
                (rank(Ranked(next_number, size, remaining, weight, now)), seconds_of(remaining))
                for _, size, remaining, weight in self._latest
            )
            self._keys = [key for key, _ in ranked]
            self._taken_s = list(accumulate((taken_s for _, taken_s in ranked), initial=0.0))
            self._since_s = self._latest[0][0]
            self._rank, self._ranked_s = rank, now
        taken_s = self._taken_s[bisect_left(self._keys, key)]
        # If all of the server's time were taken, a wait would have no end.
        return min(0.9, taken_s / max(1.0, now - self._since_s))
