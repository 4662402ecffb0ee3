"""When will it be my turn? Expected wait, its 90 % bound, and how honest both have been.

The estimate is made in three steps:

1. *Schedule.* The remaining bytes of the active leases at their measured rates tell when slots
   free; the tickets ahead, with their bytes at the mean pace of late downloads, take these slots
   in turn. The first few hundred turns are laid out one by one, those beyond at the mean step.
2. *Thin.* A ticket ahead counts only as far as its owner is likely to come: the measured part of
   ready tickets that nobody claimed, and the measured rate at which waiting clients leave.
3. *Calibrate.* What waits turned out to be, as a ratio to a base, moves quantiles of that ratio for
   short, middling and long waits: the median corrects the expectation, the 90 % quantile makes
   the bound (stochastic approximation of quantiles, Robbins and Monro 1951). For a client that
   waits at the door the base is step 2. One that waits elsewhere mostly starts when it comes back
   as told: its base is that promised return. The promise itself is made from when slots were
   there, for else those told to come late would prove their estimate right.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Iterable
from itertools import islice

from policies.job import Estimate
from policies.slots import Lease

#: Turns laid out one by one; beyond, the mean step is used.
_LAID_OUT = 256
#: Edges between the classes of waits that are calibrated apart, seconds.
_EDGES = (4.0, 10.0, 25.0, 60.0, 150.0, 400.0, 1000.0)
_STEP_MEDIAN = 0.03
_FLOOR = 0.15
_STEP_BOUND = 0.05
#: What a download is taken to need before the first one has ended: 1 MB/s.
_FIRST_S_PER_BYTE = 1e-6
_MEMORY = 0.03


class _Class:
    """Quantiles of an actual wait to its base, in logarithms."""

    __slots__ = ("bound", "median", "seen")

    def __init__(self) -> None:
        self.median = 0.0
        self.bound = math.log(2.0)
        self.seen = 0

    def learn(self, ratio: float) -> None:
        """Move both quantiles a step towards this ratio (its logarithm)."""
        self.seen += 1
        quick = 1.0 + 8.0 / self.seen
        step = _STEP_MEDIAN * quick
        self.median += step if ratio > self.median else -step
        self.median = min(2.0, max(-3.0, self.median))
        step = _STEP_BOUND * quick
        self.bound += 0.9 * step if ratio > self.bound else -0.1 * step
        self.bound = min(4.0, max(self.median + _FLOOR, self.bound))


class _Classes:
    """One class for each order of magnitude of the base."""

    __slots__ = ("_all",)

    def __init__(self) -> None:
        self._all = [_Class() for _ in range(len(_EDGES) + 1)]

    def learn(self, base_s: float, waited_s: float) -> None:
        """A wait that was expected to be `base_s` was `waited_s`."""
        self._all[_class_of(base_s)].learn(math.log(max(waited_s, 0.05) / max(base_s, 0.25)))

    def at(self, base_s: float) -> _Class:
        """The class of that base, or while it has seen too little the nearest that has not."""
        own = _class_of(base_s)
        if self._all[own].seen >= 10:
            return self._all[own]
        known = [other for other in range(len(self._all)) if self._all[other].seen >= 10]
        return self._all[min(known, key=lambda other: abs(other - own)) if known else own]


class Estimator:
    """Learns from what happens; lays out the queue when asked."""

    def __init__(self) -> None:
        #: Starts of those at the door, starts of those away (to their promised return), and slots
        #: that were there.
        self._here, self._away, self._slot = _Classes(), _Classes(), _Classes()
        self._s_per_byte = _FIRST_S_PER_BYTE
        self._ended = 0
        self._claimed = 0.0
        self._unclaimed = 0.0
        self._left = 0.0
        self._waited_s = 1.0
        self._turns = array("d")
        self._step_s = 0.0
        self._laid_s = -math.inf
        self._within = 0
        self._promised = 0
        self._errors = _Median()
        self.last: Estimate | None = None

    # -- learning ------------------------------------------------------------------------------

    def ended(self, lease: Lease, now: float) -> None:
        """A large download is over: what it moved, and in what time."""
        moved = lease.started_bytes - lease.remaining_bytes
        took = now - lease.started_s
        if moved > 0 and took > 0:
            self._ended += 1
            pace = took / moved
            weight = max(_MEMORY, 1.0 / self._ended)
            self._s_per_byte += weight * (pace - self._s_per_byte)

    def started(
        self, raw_s: float, away_s: float, stated: Estimate, waited_s: float, needed_s: float
    ) -> None:
        """A waiting ticket starts: what was said at first against what came.

        `raw_s` is its scheduled wait; `away_s` its first promised return, 0 if it waited at the
        door; `needed_s` is how long it had to wait for a slot, whether or not it was there then.
        """
        if raw_s <= 0.0:
            return
        self._promised += 1
        self._within += waited_s <= stated.p90_s
        if waited_s > 10.0:
            self._errors.add(abs(waited_s - stated.expected_s) / waited_s)
        if away_s > 0.0:
            self._away.learn(away_s, waited_s)
            self._slot.learn(raw_s, needed_s)
        else:
            self._here.learn(raw_s, waited_s)

    def claimed(self, came: bool) -> None:
        """The owner of a ready ticket that did not wait at the door came, or never did."""
        self._claimed = self._claimed * (1 - _MEMORY) + came
        self._unclaimed = self._unclaimed * (1 - _MEMORY) + (not came)

    def left(self) -> None:
        """A waiting client withdrew."""
        self._left += 1.0

    def waited(self, ticket_seconds: float) -> None:
        """That many tickets waited that long, in all."""
        self._waited_s += ticket_seconds
        # Remember some thousand waits' worth, so that the rate follows the day.
        if self._left > 1_000.0:
            self._left /= 2
            self._waited_s /= 2

    @property
    def no_show_fraction(self) -> float:
        """The part of ready tickets whose owner never came."""
        # Five imagined arrivals, so that the first no-show does not mean that nobody comes.
        return min(0.9, self._unclaimed / (self._claimed + self._unclaimed + 5.0))

    @property
    def within_p90(self) -> float | None:
        """The part of waits that ended before their stated bound; None before the first."""
        return self._within / self._promised if self._promised else None

    @property
    def median_error(self) -> float | None:
        """Median of |actual - stated| / actual over waits above 10 s."""
        return self._errors.value

    def service_s(self, remaining_bytes: float) -> float:
        """How long a download of that size is likely to take."""
        return remaining_bytes * self._s_per_byte

    # -- telling -------------------------------------------------------------------------------

    def stale(self, now: float, fresh_s: float) -> bool:
        """Whether the last `lay_out` is older than `fresh_s`."""
        return not 0.0 <= now - self._laid_s < fresh_s

    def lay_out(
        self,
        now: float,
        slots: int,
        leases: Iterable[Lease],
        ahead: Iterable[float],
        count: int,
        total_bytes: float,
    ) -> None:
        """Lay out the queue: `ahead` are the bytes of waiting tickets in the order of turn."""
        pace = self._s_per_byte
        frees = [
            lease.remaining_bytes / lease.rate_bytes_s
            if lease.rate_bytes_s > 0.0
            else lease.remaining_bytes * pace
            for lease in leases
        ]
        slots = max(slots, len(frees), 1)
        frees.extend([0.0] * (slots - len(frees)))
        heapq.heapify(frees)
        shows = 1.0 - self.no_show_fraction
        leaving = self._left / self._waited_s
        turns = array("d")
        for size in islice(ahead, _LAID_OUT):
            turn = frees[0]
            turns.append(turn)
            comes = shows * math.exp(-leaving * turn)
            heapq.heapreplace(frees, turn + size * pace * comes)
        turns.append(frees[0])
        self._turns = turns
        mean = total_bytes / count if count else 0.0
        comes = shows * math.exp(-leaving * turns[-1])
        self._step_s = mean * pace * comes / slots
        self._laid_s = now

    def raw_s(self, place: int, now: float) -> float:
        """The scheduled wait of the ticket at `place` (from 1), before calibration."""
        turns = self._turns
        index = place - 1
        if index < len(turns):
            wait = turns[index]
        else:
            wait = turns[-1] + (index - len(turns) + 1) * self._step_s
        return max(0.0, wait - (now - self._laid_s))

    def state(self, raw_s: float, away_s: float = 0.0) -> Estimate:
        """The calibrated estimate for a scheduled wait, or for a promised return."""
        base = max(away_s or raw_s, 0.25)
        klass = (self._away if away_s > 0.0 else self._here).at(base)
        return Estimate(base * math.exp(klass.median), base * math.exp(klass.bound))

    def slot_s(self, raw_s: float) -> float:
        """When a slot is likely to be there for a client that waits elsewhere."""
        return max(raw_s, 0.25) * math.exp(self._slot.at(raw_s).median)


def _class_of(raw_s: float) -> int:
    for at, edge in enumerate(_EDGES):
        if raw_s < edge:
            return at
    return len(_EDGES)


class _Median:
    """A running median of relative errors, in a fixed set of bins (1 % wide up to 200 %)."""

    __slots__ = ("_bins", "_count")

    def __init__(self) -> None:
        self._bins = array("L", [0] * 201)
        self._count = 0

    def add(self, value: float) -> None:
        self._bins[min(200, int(value * 100.0))] += 1
        self._count += 1

    @property
    def value(self) -> float | None:
        if not self._count:
            return None
        seen = 0
        for at, count in enumerate(self._bins):
            seen += count
            if 2 * seen >= self._count:
                return (at + 0.5) / 100.0
        return None
