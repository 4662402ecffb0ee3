"""How long what was served would have taken at the speed that a told time was made for.

Later times are told by the new speed of a line or a slot. So what corrects them must not count its
change again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import NamedTuple


class _Change(NamedTuple):
    """From `since_s` on `speed` is served a second; until then it was `work` in all."""

    since_s: float
    work: float
    speed: float

    def work_at(self, when_s: float) -> float:
        return self.work + (when_s - self.since_s) * self.speed


class WorkClock:
    """The latest thousand changes of speed by more than 2 %."""

    def __init__(self) -> None:
        self._changes = [_Change(0.0, 0.0, 0.0)]
        self._of_line = False

    def run_to(self, now: float, speed: float, *, of_line: bool) -> None:
        """From now on the line or a slot serves `speed` a second. The other one is forgotten."""
        if of_line != self._of_line:
            self._changes, self._of_line = [_Change(0.0, 0.0, 0.0)], of_line
        latest = self._changes[-1]
        if now >= latest.since_s and abs(speed - latest.speed) > 0.02 * latest.speed:
            self._changes.append(_Change(now, latest.work_at(now), speed))
            del self._changes[:-1_000]

    def _at(self, when_s: float) -> _Change:
        return self._changes[max(0, bisect_right(self._changes, (when_s, math.inf)) - 1)]

    def as_told_s(self, told_s: float, until_s: float) -> float:
        """How long what was served since `told_s` takes at the speed of then."""
        told = self._at(told_s)
        if told.speed <= 0.0:
            return until_s - told_s
        return (self._at(until_s).work_at(until_s) - told.work_at(told_s)) / told.speed
