"""When ready tickets run out: an ordered set of (deadline, number) in which deadlines may move."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator


class Deadlines:
    """Deadlines by ticket number, in absolute seconds; `inf` is none."""

    def __init__(self) -> None:
        self._at: dict[int, float] = {}
        self._order: list[tuple[float, int]] = []

    def set(self, number: int, deadline_s: float) -> None:
        """The ticket runs out then, whatever was said before."""
        if self._at.get(number) == deadline_s:
            return
        self.drop(number)
        if deadline_s < math.inf:
            self._at[number] = deadline_s
            insort(self._order, (deadline_s, number))

    def drop(self, number: int) -> None:
        """The ticket has no deadline any more."""
        deadline_s = self._at.pop(number, None)
        if deadline_s is not None:
            del self._order[bisect_left(self._order, (deadline_s, number))]

    def take_due(self, now: float, most: int) -> list[int]:
        """The tickets whose time is over, earliest first, no more at a time; each is told once."""
        if not self._order or self._order[0][0] > now:
            return []
        end = min(most, self._index_after(now))
        due, self._order[:end] = [number for _, number in self._order[:end]], []
        for number in due:
            del self._at[number]
        return due

    def next(self) -> float | None:
        """The earliest deadline."""
        return self._order[0][0] if self._order else None

    def between(self, low_s: float, high_s: float) -> Iterator[int]:
        """Tickets whose time ends between these, both included, earliest first."""
        for at in range(bisect_left(self._order, (low_s, 0)), self._index_after(high_s)):
            yield self._order[at][1]

    def count(self, low_s: float, high_s: float) -> int:
        """How many those are: asked at each event, so it looks at a few entries only."""
        if not self._order:
            return 0
        return max(0, self._index_after(high_s) - bisect_left(self._order, (low_s, 0)))

    def _index_after(self, high_s: float) -> int:
        return bisect_right(self._order, (high_s, math.inf))
