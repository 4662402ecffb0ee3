"""When ready tickets run out: an ordered set of (deadline, number) in which deadlines may move."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator


class Deadlines:
    """Deadlines by ticket number, in absolute seconds; `inf` is kept and never comes."""

    __slots__ = ("_at", "_order")

    def __init__(self) -> None:
        self._at: dict[int, float] = {}
        #: In order; entries that `_at` does not confirm are stale.
        self._order: list[tuple[float, int]] = []

    def set(self, number: int, deadline_s: float) -> None:
        """The ticket runs out then, whatever was said before."""
        if self._at.get(number) == deadline_s:
            return
        self._at[number] = deadline_s
        if deadline_s < math.inf:
            insort(self._order, (deadline_s, number))

    def drop(self, number: int) -> None:
        """The ticket has no deadline any more."""
        self._at.pop(number, None)

    def take_due(self, now: float) -> list[int]:
        """The tickets whose time is over, earliest first; each is told once."""
        end = bisect_right(self._order, (now, math.inf))
        past, self._order[:end] = self._order[:end], []
        out = []
        for deadline_s, number in past:
            # The same deadline may stand here twice.
            if self._at.get(number) == deadline_s:
                del self._at[number]
                out.append(number)
        return out

    def next(self) -> float | None:
        """The earliest deadline."""
        stale = 0
        for deadline_s, number in self._order:
            if self._at.get(number) == deadline_s:
                break
            stale += 1
        del self._order[:stale]
        return self._order[0][0] if self._order else None

    def between(self, low_s: float, high_s: float) -> Iterator[int]:
        """Tickets whose time ends between these, earliest first."""
        for at in range(bisect_left(self._order, (low_s, 0)), len(self._order)):
            deadline_s, number = self._order[at]
            if deadline_s > high_s:
                return
            if self._at.get(number) == deadline_s:
                yield number
