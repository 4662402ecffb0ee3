"""Where tickets stand that were issued elsewhere: between the numbers of their time.

A node without a leader gives numbers from `ELSEWHERE` on. The next leader takes such a ticket up
behind the last number that was given at or before its time of issue, and before the next one; those
of one gap stand in the order of their times. For that the queue remembers when its numbers were
given. Each server of a row of them finds the same order: else told places would grow.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right

from ..contract import ELSEWHERE

#: Moments that are remembered: 3 MB.
_MOST = 200_000


class IssueTimes:
    """When numbers were given, and the turns of those that were given elsewhere."""

    def __init__(self) -> None:
        #: The moments at which numbers were given, and the last number of each.
        self._times = array("d")
        self._lasts = array("q")
        self._elsewhere: dict[int, float] = {}

    def turn_of(self, number: int) -> float:
        """Where this ticket stands among the numbers; its own node's block has 2^20 of them."""
        return number if number < ELSEWHERE else self._elsewhere.get(number, number % (1 << 20))

    def issued(self, number: int, at_s: float) -> None:
        """This number was given; numbers come in ascending order."""
        times, lasts = self._times, self._lasts
        if times and at_s <= times[-1]:
            lasts[-1] = number
            return
        times.append(at_s)
        lasts.append(number)
        if len(times) > _MOST:
            # Every second moment of the older half tells enough.
            del times[: _MOST // 2 : 2]
            del lasts[: _MOST // 2 : 2]

    def taken_up(self, number: int, issued_s: float) -> float:
        """A ticket of an earlier queue, or of another one, is here now: where it stands."""
        if number < ELSEWHERE:
            if not self._lasts or number > self._lasts[-1]:
                self.issued(number, issued_s)
            return number
        at = bisect_right(self._times, issued_s) - 1
        part = _part(issued_s - self._times[at]) if at >= 0 else _part(issued_s)
        self._elsewhere[number] = turn = part + (self._lasts[at] if at >= 0 else 0)
        return turn

    def over(self, number: int) -> None:
        """This ticket is over."""
        self._elsewhere.pop(number, None)


def _part(seconds: float) -> float:
    """Time as a part of one, growing for ever: in the first minute by 1/256 within a second."""
    return 1.0 - 60.0 / (60.0 + max(0.0, seconds)) if math.isfinite(seconds) else 0.0
