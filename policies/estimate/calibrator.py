"""What came of what was said: the ratio of actual to expected times, among recent ones.

Two things are told of it. The *centre* is the middle of the shortest interval that holds half of
the ratios: no other single guess has a smaller median error (least median of squares, Rousseeuw
1984), also where most clients start at one moment and the others much later. The *bound* is the
quantile that a wanted part stays below, widened or narrowed by how often it has really held
(adaptive conformal inference, Gibbs and Candes 2021), so that it is right in the long run whatever
the day does.

What is told of long waits is judged only as long after, and all that start within a minute miss by
about the same: their ratios lie close together, wherever these have drifted meanwhile. So the bound
also stays as far away as what was told was missed over several times such a wait, either way.

Ratios are kept for each order of magnitude of the expectation, as short and long waits err
differently, and for all together. An order that has seen little leans on what all have seen, the
less the further it is from those that have seen something: short waits that took three times as
long say little of long ones that nobody has waited for yet. Memory is bounded.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable
from operator import sub

#: Edges between the orders, seconds.
_EDGES = (5.0, 20.0, 80.0, 320.0)
#: How many of the latest ratios count, in one order and in all.
_OWN, _ALL = 100, 300
#: Of what was missed, and of bounds that held, one counts in each such part of a wait: a hundred
#: are then four waits.
_APART = 4.0 / _OWN
#: An order that has seen as many as this counts as much as all together do.
_LEAN = 20.0
#: An order that has seen fewer says nothing of those beside it.
_SAYS = 5
#: How much one broken bound widens those to come (logarithm); they stay between these widths.
_STEP, _NARROW, _WIDE = 0.1, 0.5, 4.0
#: No bound is nearer to the centre than the first (logarithm), nor, while little has been seen of
#: that order beyond the first edge, than the second; and none is further from it than the third
#: unless a tenth was.
_FLOOR, _FIRST_FLOOR, _FURTHEST = 0.03, 0.3, math.log(4.0)
#: Before anything was seen: the expectation is right, within a quarter either way.
CLOSE = (-0.25, -0.12, 0.0, 0.0, 0.12, 0.25)
#: The same for a time that is hardly ever beaten but sometimes missed.
PUNCTUAL = (0.02, 0.03, 0.04, 0.05, 0.15, 0.4)
#: No expectation is corrected by more than this (logarithm).
_MOST = 3.0


class _Window:
    """The latest so many values, in order of time and of size."""

    __slots__ = ("_at", "_centre", "_latest", "_most", "_sorted", "seen")

    def __init__(self, most: int, first: tuple[float, ...] = ()) -> None:
        self._most = most
        self._latest = array("d", first)
        self._sorted = sorted(first)
        self._at = 0
        #: None after a change: it is asked for far more often than anything is learnt.
        self._centre: float | None = None
        self.seen = 0

    def add(self, value: float) -> None:
        self.seen += 1
        self._centre = None
        if len(self._latest) < self._most:
            self._latest.append(value)
        else:
            del self._sorted[bisect_left(self._sorted, self._latest[self._at])]
            self._latest[self._at] = value
            self._at = (self._at + 1) % self._most
        insort(self._sorted, value)

    def quantile(self, q: float) -> float:
        """Interpolated; the value that q of those to come are likely to stay below."""
        values = self._sorted
        # Of n seen, the next falls below the i-th smallest with probability i / (n + 1).
        at = q * (len(values) + 1) - 1.0
        if at <= 0.0:
            return values[0]
        if at >= len(values) - 1:
            return values[-1]
        low = int(at)
        return values[low] + (at - low) * (values[low + 1] - values[low])

    def centre(self) -> float:
        """The middle of the shortest interval that holds half of them."""
        if self._centre is None:
            values = self._sorted
            half = len(values) // 2
            widths = list(map(sub, values[half:], values))
            low = widths.index(min(widths))
            self._centre = 0.5 * (values[low] + values[low + half])
        return self._centre


class Calibrator:
    """Learns ratios of actual to expected times; tells what they are likely to be."""

    __slots__ = ("_all", "_held_s", "_missed", "_missed_s", "_own", "_part", "_told", "_width")

    def __init__(self, first: tuple[float, ...] = CLOSE, part: float = 0.9) -> None:
        self._all = _Window(_ALL, first)
        self._own = [_Window(_OWN) for _ in range(len(_EDGES) + 1)]
        #: By how much what was told was missed either way, and when that and whether bounds held
        #: is looked at again.
        self._missed = [_Window(_OWN) for _ in self._own]
        self._missed_s = [-math.inf] * len(self._own)
        self._held_s = list(self._missed_s)
        self._part = part
        self._width = 1.0
        #: Centre and bound by order, until something is learnt: they are asked for far more often.
        self._told: dict[int, tuple[float, float]] = {}

    def learn(self, expected_s: float, actual_s: float) -> None:
        """What was expected to take `expected_s` took `actual_s`."""
        ratio = math.log(max(actual_s, 0.05) / max(expected_s, 0.25))
        ratio = min(_MOST, max(-_MOST, ratio))
        order = bisect_left(_EDGES, expected_s)
        if order:
            # What falsifies the shortest is a second or two, whatever was expected: that times ten
            # says nothing of a long wait.
            self._all.add(ratio)
        self._own[order].add(ratio)
        self._told.clear()

    def missed(self, told_s: float, actual_s: float, now: float) -> None:
        """A wait told to be `told_s` was `actual_s`."""
        order = bisect_left(_EDGES, told_s)
        if not _counts(self._missed_s, order, told_s, now):
            return
        ratio = math.log(max(actual_s, 0.05) / max(told_s, 0.25))
        self._missed[order].add(min(_MOST, abs(ratio)))
        self._told.clear()

    def held(self, held: bool, told_s: float, now: float) -> None:
        """The bound of a wait told to be `told_s` held, or did not."""
        if not _counts(self._held_s, bisect_left(_EDGES, told_s), told_s, now):
            return
        width = self._width * math.exp(_STEP * (self._part - held))
        self._width = min(_WIDE, max(_NARROW, width))
        self._told.clear()

    def centre(self, expected_s: float) -> float:
        """The ratio that such expectations most likely come near to."""
        return self.tell(expected_s)[0]

    def tell(self, expected_s: float) -> tuple[float, float]:
        """The same, and the ratio that the wanted part of such expectations stays below."""
        order = bisect_left(_EDGES, expected_s)
        told = self._told.get(order)
        if told is None:
            centre = self._mixed(order, _Window.centre, 1.0 / (1.0 + self._distance(order)))
            bound = self._mixed(order, lambda window: window.quantile(self._part))
            seen = self._own[order].seen
            first = _FIRST_FLOOR * _LEAN / (_LEAN + seen) if order else 0.0
            floor = max(_FLOOR, first)
            wide = max(bound - centre, self._drift(order))
            spread = min(wide * self._width, max(_FURTHEST, bound - centre))
            spread = max(floor, spread)
            told = self._told[order] = math.exp(centre), math.exp(centre + spread)
        return told

    def _drift(self, order: int) -> float:
        """What the wanted part of such waits stays within, whatever drifts (logarithm)."""
        missed = self._missed[order]
        if not missed.seen:
            return 0.0
        # What was too long by a tenth a while ago may be too short by as much now.
        both_ways = 2.0 * self._part - 1.0
        return missed.seen / (missed.seen + _LEAN) * missed.quantile(both_ways)

    def _distance(self, order: int) -> int:
        """How many orders away the nearest is that speaks for all; the shortest waits never do."""
        others = range(1, len(self._own)) if order else ()
        known = (other for other in others if self._own[other].seen >= _SAYS)
        return min((abs(other - order) for other in known), default=0)

    def _mixed(self, order: int, tell: Callable[[_Window], float], near: float = 1.0) -> float:
        own = self._own[order]
        ratio = near * tell(self._all)
        if own.seen:
            ratio += own.seen / (own.seen + _LEAN) * (tell(own) - ratio)
        return ratio


def _counts(next_s: list[float], order: int, told_s: float, now: float) -> bool:
    """Whether it is time to look at what came of such a wait again; if so, the next time is set."""
    if now < next_s[order]:
        return False
    next_s[order] = now + told_s * _APART
    return True
