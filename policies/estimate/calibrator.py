"""What came of what was said: how far expectations are off, and how far told times.

The *calibrator* corrects an expectation by the ratio of actual to expected times: the middle of the
shortest interval that holds half of the recent ratios. No other single guess has a smaller median
error (least median of squares, Rousseeuw 1984), also where most clients start at one moment and the
others much later.

*Bounds* tell what a wanted part of the waits stays below: a quantile of how much longer than told
such waits were (split conformal prediction), widened or narrowed by how often that has really held
(adaptive conformal inference, Gibbs and Candes 2021), so that it is right in the long run whatever
the day does. While few have been seen it leans on what such waits are like elsewhere. What is told
of long waits is judged only as long after, and all that start within a minute miss by about the
same; so one counts in each part of a wait, and a hundred of them span several.

Both keep what they learn for each order of magnitude of the expectation, as short and long waits
err differently. The calibrator also keeps ratios for all orders together: an order that has seen
little leans on what all have seen, the less the further it is from those that have seen something,
as short waits that took three times as long say little of long ones that nobody has waited for yet.
Memory is bounded.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from operator import sub

#: Edges between the orders, seconds.
_EDGES = (5.0, 20.0, 80.0, 320.0)
#: How many of the latest ratios of one order count.
_OWN = 100
#: How many of the latest ratios of all orders count together.
_ALL = 300
#: Of what was missed, and of bounds that held, one counts in each such part of a wait: a hundred
#: are then four waits.
_APART = 4.0 / _OWN
#: An order that has seen as many as this counts as much as all together do, or as the first guess.
_LEAN = 20.0
#: An order that has seen fewer says nothing of those beside it.
_SAYS = 5
#: The part of the waits that is to end within the bound that is called that of 90 %: as told times
#: drift while nobody knows yet, it aims a little above.
_PART = 0.92
#: So many standard deviations above the mean that part ends (of a normal distribution).
_DEVIATIONS = 1.4
#: How much one broken bound widens those to come (logarithm).
_STEP = 0.15
#: The least width of a bound, as a factor.
_NARROW = 0.5
#: The greatest width of a bound, as a factor.
_WIDE = 4.0
#: No bound is nearer to the told time than this (logarithm).
_FLOOR = 0.02
#: No bound is further from the told time than this (logarithm), unless a tenth of the waits was.
_FURTHEST = math.log(4.0)
#: Shorter times are not told apart, seconds.
_SHORTEST_S = 0.01
#: Before anything was seen: the expectation is right, within a quarter either way.
CLOSE = (-0.25, -0.12, 0.0, 0.0, 0.12, 0.25)
#: The same for a time that is hardly ever beaten but sometimes missed.
PUNCTUAL = (0.02, 0.03, 0.04, 0.05, 0.15, 0.4)
#: How much longer than told (logarithm, by order) nearly all waits are before anything was seen:
#: of clients that wait here, and of those that come back when they were told to.
HERE = (0.35, 0.3, 0.3, 0.25, 0.2)
AWAY = (0.6, 0.45, 0.35, 0.35, 0.3)
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
    """Learns ratios of actual to expected times; tells what they most likely are."""

    __slots__ = ("_all", "_own", "_told")

    def __init__(self, first: tuple[float, ...] = CLOSE) -> None:
        self._all = _Window(_ALL, first)
        self._own = [_Window(_OWN) for _ in range(len(_EDGES) + 1)]
        #: Centres by order, until something is learnt: they are asked for far more often.
        self._told: dict[int, float] = {}

    def learn(self, expected_s: float, actual_s: float) -> None:
        """What was expected to take `expected_s` took `actual_s`."""
        ratio = _ratio(actual_s, expected_s, 0.05, 0.25)
        order = bisect_left(_EDGES, expected_s)
        if order:
            # What falsifies the shortest is a second or two, whatever was expected: that times ten
            # says nothing of a long wait.
            self._all.add(ratio)
        self._own[order].add(ratio)
        self._told.clear()

    def centre(self, expected_s: float) -> float:
        """The ratio that such expectations most likely come near to."""
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
        """How many orders away the nearest is that speaks for all; the shortest waits never do."""
        others = range(1, len(self._own)) if order else ()
        known = (other for other in others if self._own[other].seen >= _SAYS)
        return min((abs(other - order) for other in known), default=0)


class WaitBounds:
    """Learns how much longer than told waits are; tells what nine in ten stay below."""

    __slots__ = ("_first", "_held_s", "_learnt", "_learnt_s", "_seen", "_width")

    def __init__(self, first: tuple[float, ...] = HERE) -> None:
        self._first = first
        self._seen = [_Window(_OWN) for _ in first]
        #: When what came of such a wait, and whether its bound held, is looked at again.
        self._learnt_s = [-math.inf] * len(first)
        self._held_s = list(self._learnt_s)
        self._width = 1.0
        #: What was learnt by order and how far it counts, as it is asked for far more often.
        self._learnt: dict[int, tuple[float, float]] = {}

    def learn(self, told_s: float, waited_s: float, now: float) -> None:
        """A wait told to be `told_s` was `waited_s`."""
        order = bisect_left(_EDGES, told_s)
        if _counts(self._learnt_s, order, told_s, now):
            self._seen[order].add(_ratio(waited_s, told_s, _SHORTEST_S, _SHORTEST_S))
            self._learnt.clear()

    def held(self, held: bool, told_s: float, now: float) -> None:
        """The bound of a wait told to be `told_s` held, or did not."""
        if _counts(self._held_s, bisect_left(_EDGES, told_s), told_s, now):
            width = self._width * math.exp(_STEP * (_PART - held))
            self._width = min(_WIDE, max(_NARROW, width))

    def beyond(self, told_s: float, unsure: float = 0.0) -> float:
        """The ratio of the bound to what is told.

        While little was seen it is at least that of a wait that is known to `unsure`: the standard
        deviation of what it may be, as a part of it.
        """
        order = bisect_left(_EDGES, told_s)
        learnt = self._learnt.get(order)
        if learnt is None:
            seen = self._seen[order]
            quantile = seen.quantile(_PART) if seen.seen else 0.0
            learnt = self._learnt[order] = seen.seen / (seen.seen + _LEAN), quantile
        weight, quantile = learnt
        spread = max(self._first[order], math.log1p(_DEVIATIONS * unsure))
        spread += weight * (quantile - spread)
        spread = min(spread * self._width, max(_FURTHEST, spread))
        return math.exp(max(_FLOOR, spread))


def _ratio(actual_s: float, said_s: float, least_actual_s: float, least_said_s: float) -> float:
    """As a logarithm, bounded."""
    ratio = math.log(max(actual_s, least_actual_s) / max(said_s, least_said_s))
    return min(_MOST, max(-_MOST, ratio))


def _counts(next_s: list[float], order: int, told_s: float, now: float) -> bool:
    """Whether it is time to look at what came of such a wait again; if so, the next time is set."""
    if now < next_s[order]:
        return False
    next_s[order] = now + told_s * _APART
    return True
