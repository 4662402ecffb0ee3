"""Where tickets stand that were issued elsewhere: between the numbers of their time.

A node without a leader gives numbers from `ELSEWHERE` on. The next leader takes such a ticket up
behind the last number that was given at or before its time of issue, and before the next one; those
of one gap stand in the order of their times. For that the queue remembers when its numbers were
given, to a quarter of a second.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right

from policies.contract import ELSEWHERE

#: Of numbers that were given within so long, the first is remembered, seconds; and so many in all.
_STEP_S = 0.25
_MOST = 200_000


class IssueTimes:
    """When numbers were given, and the turns of those that were given elsewhere."""

    def __init__(self) -> None:
        self._times = array("d")
        self._numbers = array("q")
        self._last = 0
        self._elsewhere: dict[int, float] = {}

    def turn_of(self, number: int) -> float:
        """Where this ticket stands among the numbers."""
        return self._elsewhere.get(number, number) if number >= ELSEWHERE else number

    def issued(self, number: int, at_s: float) -> None:
        """This number was given; numbers come in ascending order."""
        times = self._times
        self._last = number
        if not times or at_s >= times[-1] + _STEP_S:
            times.append(at_s)
            self._numbers.append(number)
            if len(times) > _MOST:
                # Every second one of the older half tells enough.
                del times[: _MOST // 2 : 2]
                del self._numbers[: _MOST // 2 : 2]

    def taken_up(self, number: int, issued_s: float) -> float:
        """A ticket of an earlier queue, or of another one, is here now: where it stands."""
        if number < ELSEWHERE:
            if number > self._last:
                self.issued(number, issued_s)
            return number
        at = bisect_right(self._times, issued_s) - 1
        if at < 0:
            first = self._numbers[0] if self._numbers else 1
            turn = first - 1.0 + _part(issued_s)
        else:
            since_s = issued_s - self._times[at]
            before = self._numbers[at]
            if since_s >= _STEP_S:
                # All of that moment come before it.
                later = at + 1 < len(self._numbers)
                before = self._numbers[at + 1] - 1 if later else self._last
            turn = before + _part(since_s)
        self._elsewhere[number] = turn
        return turn

    def over(self, number: int) -> None:
        """This ticket is over."""
        self._elsewhere.pop(number, None)


def _part(seconds: float) -> float:
    """Time as a part of one, growing for ever."""
    return 1.0 - 1.0 / (1.0 + max(0.0, seconds)) if math.isfinite(seconds) else 0.0
