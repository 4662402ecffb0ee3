"""Compares told times with actual ones: corrects expectations, and sets their 90 % bounds.

The *calibrator* corrects an expectation by the ratio of actual to expected times. It takes the
middle of the shortest interval that holds half of the recent ratios. No other single guess has a
smaller median error (least median of squares, Rousseeuw 1984).

A *bound* is a quantile of how much longer than told recent waits were (split conformal prediction).
It becomes wider when bounds are broken, and narrower when they hold (adaptive conformal inference,
Gibbs and Candes 2021). So it is right in the long run. While few waits were seen, the first guess
counts as well.

Waits that start within a minute miss by about the same. So only one of them counts in each part of
a wait, and a hundred span several waits.

Both learn by order of magnitude, because short and long waits err differently. An order of the
calibrator that has seen little uses the ratios of all orders. The further it is from an order with
ratios of its own, the less they count. Memory is bounded.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import sub

#: Edges between the orders, seconds.
_EDGES = (5.0, 20.0, 80.0, 320.0)
#: How many of the latest ratios of one order count.
_OWN = 100
#: How many of the latest ratios of all orders count together.
_ALL = 300
#: One miss counts in each such part of a wait. A hundred then span four waits.
_APART = 4.0 / _OWN
#: Ratios of one order that count as much as those of all orders, or as the first guess.
_LEAN = 20.0
#: An order with fewer ratios is no evidence for its neighbours.
_SAYS = 5
#: The part of the waits that the bound of 90 % aims at. Told times drift before that is known.
_PART = 0.92
#: The quantile of a normal distribution at that part, in standard deviations.
DEVIATIONS = 1.4
#: How much one broken bound widens the next ones (logarithm).
_STEP = 0.15
#: The least width of a bound, as a factor.
_NARROW = 0.5
#: The greatest width of a bound, as a factor.
_WIDE = 4.0
#: No bound is nearer to the told time than this (logarithm).
FLOOR = 0.02
#: No bound is further from the told time than this (logarithm), unless a tenth of the waits was.
_FURTHEST = math.log(4.0)
#: Shorter times count as this, seconds.
_SHORTEST_S = 0.01
#: Before anything was seen: the expectation is right, within a quarter either way.
CLOSE = (-0.25, -0.12, 0.0, 0.0, 0.12, 0.25)
#: The same for a time that is rarely beaten and sometimes missed.
PUNCTUAL = (0.02, 0.03, 0.04, 0.05, 0.15, 0.4)
#: How much longer than told (logarithm, by order) 9 of 10 waits are before anything was seen: of
#: clients that wait inside their request.
HERE = (0.35, 0.3, 0.3, 0.25, 0.2)
#: The same of clients that return at the time they were told.
AWAY = (0.6, 0.45, 0.35, 0.35, 0.3)
#: No expectation is corrected by more than this (logarithm).
_MOST = 3.0


def next_below(values: Sequence[float], q: float) -> float:
    """What the next one stays below with probability q, by these in order, interpolated."""
    # Of n seen, the next falls below the i-th smallest with probability i / (n + 1).
    at = min(len(values) - 1.0, max(0.0, q * (len(values) + 1) - 1.0))
    low = min(int(at), len(values) - 2)
    return values[low] + (at - low) * (values[low + 1] - values[low]) if low >= 0 else values[0]


class _Window:
    """The latest values, in order of time and of size."""

    __slots__ = ("_at", "_centre", "_latest", "_most", "_sorted", "seen")

    def __init__(self, most: int, first: tuple[float, ...] = ()) -> None:
        self._most = most
        self._latest = array("d", first)
        self._sorted = sorted(first)
        self._at = 0
        #: None after a change. It is read far more often than a value is added.
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
        """The value that the part q of the next ones is likely to stay below."""
        return next_below(self._sorted, q)

    def centre(self) -> float:
        """The middle of the shortest interval that holds half of the values."""
        if self._centre is None:
            values = self._sorted
            half = len(values) // 2
            widths = list(map(sub, values[half:], values))
            low = widths.index(min(widths))
            self._centre = 0.5 * (values[low] + values[low + half])
        return self._centre


class Calibrator:
    """Learns ratios of actual to expected times, and predicts the next one."""

    __slots__ = ("_all", "_learnt_s", "_own", "_told")

    def __init__(self, first: tuple[float, ...] = CLOSE) -> None:
        self._all = _Window(_ALL, first)
        self._own = [_Window(_OWN) for _ in range(len(_EDGES) + 1)]
        self._learnt_s = [-math.inf] * (len(_EDGES) + 1)
        #: Centres by order until something is learnt. They are read far more often.
        self._told: dict[int, float] = {}

    def learn(self, expected_s: float, actual_s: float, now: float) -> None:
        """What was expected to take `expected_s` took `actual_s`."""
        if not _counts(self._learnt_s, bisect_left(_EDGES, expected_s), expected_s, now):
            return
        ratio = _ratio(actual_s, expected_s, 0.05, 0.25)
        order = bisect_left(_EDGES, expected_s)
        if order:
            # The shortest waits miss by a second or two, whatever was expected. As a ratio that is
            # no evidence for a long wait.
            self._all.add(ratio)
        self._own[order].add(ratio)
        self._told.clear()

    def centre(self, expected_s: float) -> float:
        """The most likely ratio of actual to expected for this expectation."""
        order = bisect_left(_EDGES, expected_s)
        told = self._told.get(order)
        if told is None:
            ratio = self._all.centre() / (1.0 + self._distance(order))
            own = self._own[order]
            if own.seen:
                ratio += own.seen / (own.seen + _LEAN) * (own.centre() - ratio)
            told = self._told[order] = math.exp(ratio)
        return told

    def _distance(self, order: int) -> int:
        """Orders between this one and the nearest with enough ratios; the shortest never counts."""
        others = range(1, len(self._own)) if order else ()
        known = (other for other in others if self._own[other].seen >= _SAYS)
        return min((abs(other - order) for other in known), default=0)


class WaitBounds:
    """Learns how much longer than told waits are, and sets the bound that 9 of 10 stay below."""

    __slots__ = ("_first", "_held_s", "_learnt", "_learnt_s", "_seen", "_width")

    def __init__(self, first: tuple[float, ...] = HERE) -> None:
        self._first = first
        self._seen = [_Window(_OWN) for _ in first]
        #: When the next wait of an order counts, and when the next bound does.
        self._learnt_s = [-math.inf] * len(first)
        self._held_s = list(self._learnt_s)
        self._width = 1.0
        #: By order: the weight of what was learnt, and its quantile.
        self._learnt: dict[int, tuple[float, float]] = {}

    def learn(self, told_s: float, waited_s: float, now: float) -> None:
        """A wait that was told as `told_s` took `waited_s`."""
        order = bisect_left(_EDGES, told_s)
        if _counts(self._learnt_s, order, told_s, now):
            self._seen[order].add(_ratio(waited_s, told_s, _SHORTEST_S, _SHORTEST_S))
            self._learnt.clear()

    def held(self, held: bool, told_s: float, now: float) -> None:
        """The bound of a wait that was told as `told_s` held or was broken."""
        if _counts(self._held_s, bisect_left(_EDGES, told_s), told_s, now):
            width = self._width * math.exp(_STEP * (_PART - held))
            self._width = min(_WIDE, max(_NARROW, width))

    def beyond(self, told_s: float, unsure: float = 0.0) -> float:
        """The ratio of the bound to the told time.

        `unsure` is the standard deviation of the wait as a part of it. While few waits were seen,
        the bound is at least as wide as that.
        """
        order = bisect_left(_EDGES, told_s)
        learnt = self._learnt.get(order)
        if learnt is None:
            seen = self._seen[order]
            quantile = seen.quantile(_PART) if seen.seen else 0.0
            learnt = self._learnt[order] = seen.seen / (seen.seen + _LEAN), quantile
        weight, quantile = learnt
        spread = max(self._first[order], math.log1p(DEVIATIONS * unsure))
        spread += weight * (quantile - spread)
        spread = min(spread * self._width, max(_FURTHEST, spread))
        return math.exp(max(FLOOR, spread))


def _ratio(actual_s: float, told_s: float, least_actual_s: float, least_told_s: float) -> float:
    """The logarithm of actual ÷ told, bounded."""
    ratio = math.log(max(actual_s, least_actual_s) / max(told_s, least_told_s))
    return min(_MOST, max(-_MOST, ratio))


def _counts(next_s: list[float], order: int, told_s: float, now: float) -> bool:
    """Whether a wait of this order counts now; if so, sets when the next one does."""
    if now < next_s[order]:
        return False
    next_s[order] = now + told_s * _APART
    return True
