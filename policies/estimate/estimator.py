"""When will it be my turn? Expected wait, its 90 % bound, and how honest both have been.

The estimate is made in three steps:

1. *Schedule.* The remaining bytes of the active leases at their measured rates tell when slots
   free; the tickets ahead, with their bytes at the pace of a slot and the time that every download
   needs besides its bytes, take these slots in turn. The first few hundred turns are laid out one
   by one, those beyond at the mean step.
2. *Thin.* A ticket ahead counts only as far as its owner is likely to come still: newcomers as
   far as newcomers come lately (`no_shows`), all by the measured rate at which those who wait
   leave, announced or not.
3. *Calibrate.* What waits turned out to be, as a ratio to their base, among recent clients: the
   middle corrects the expectation, and what told times are missed by makes the bound
   (`calibrator`). For a client
   that waits inside its request the base is step 2. One that waits elsewhere mostly starts when it
   comes back as told: its base is that promised return. The promise itself is made from when slots
   were there, for else those told to come late would prove their estimate right.
"""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice

from ..contract import BRIEF_BYTES, Estimate
from ..leases import Lease
from .calibrator import AWAY, HERE, PUNCTUAL, Calibrator, WaitBounds
from .ends import ToldEnds
from .judged import Judged
from .no_shows import NoShows
from .paces import Paces

#: Turns laid out one by one; beyond, the mean step is used.
_LAID_OUT = 256
#: The queue is laid out anew once it has grown by this factor: a crowd that comes within a second
#: is nothing like its first two clients.
_GROWN = 1.25
#: The queue must also have grown by this many clients.
_FEW = 4
#: What a download is taken to need before the first one was measured: 1 MB/s.
_FIRST_S_PER_BYTE = 1e-6
#: What a download needs besides its bytes, before one was measured.
_FIRST_OVERHEAD_S = 0.1
#: The most that a download is believed to need besides its bytes.
_MOST_OVERHEAD_S = 5.0
#: Downloads shorter than this teach what a download needs besides its bytes.
_SHORT_S = 2.0
_MEMORY = 0.03
#: How long a small job is taken to hold its slot before one was seen.
_FIRST_SMALL_S = 0.2
#: The pace of full slots is that of the latest downloads, as many for each slot as the first; it
#: follows them within this time; so many of the slots must be taken.
_STARTED = 2
_PACE_MEMORY_S, _FULL_PART = 5.0, 0.8
#: Waiting clients leave at some rate, known once so many seconds were waited for each that left.
_FIRST_WAITED_S = 300.0


class _Ratios:
    """What came of told times."""

    __slots__ = ("_away", "_here", "slot")

    def __init__(self) -> None:
        #: What starts were beside what was expected, and beside what was told.
        self._here = Calibrator(), WaitBounds(HERE)
        self._away = Calibrator(PUNCTUAL), WaitBounds(AWAY)
        #: Slots that were there for those who are away.
        self.slot = Calibrator()

    def of(self, away: bool) -> tuple[Calibrator, WaitBounds]:
        """Of those at the door, or away (to their promised return)."""
        return self._away if away else self._here


class Estimator:
    """Learns from what happens; lays out the queue when asked."""

    def __init__(self) -> None:
        #: Small jobs wait for any slot, and a moment: what came of that says nothing of large ones.
        self._large, self._small = _Ratios(), _Ratios()
        self._small_s = _FIRST_SMALL_S
        self._s_per_byte = _FIRST_S_PER_BYTE
        self._overhead_s = _FIRST_OVERHEAD_S
        self._ended = 0
        self._full_s_per_byte: float | None = None
        self._paces = Paces()
        self._claimed = 0.0
        self._unclaimed = 0.0
        self.no_shows = NoShows()
        self._left = 0.0
        self._waited_s = _FIRST_WAITED_S
        self._turns = array("d")
        self._step_s = 0.0
        #: How unlike the downloads before are in time, as so many of one length are as sure; and
        #: how uneven in pace.
        self._unlike, self._uneven = 1.0, 0.0
        #: How long those who wait will hold a slot, in the mean, when the queue was laid out last.
        self.held_by_next_s = 0.0
        self._laid_s = -math.inf
        #: About how many waited then.
        self._laid_out = 0
        #: Told starts.
        self.judged = Judged()
        self.ends = ToldEnds()

    # -- learning ------------------------------------------------------------------------------

    def ended(self, lease: Lease, now: float, least_bytes_s: float) -> None:
        """A large download is over: what it moved, in what time, no slower than the least rate."""
        moved = lease.started_bytes - lease.remaining_bytes
        took = now - lease.started_s
        if moved <= 0 or took <= 0:
            return
        if lease.rate_bytes_s <= 0.0 and lease.started_bytes <= BRIEF_BYTES:
            # It left in one go, which tells nothing of what a byte costs a slot.
            return
        self._ended += 1
        weight = max(_MEMORY, 1.0 / self._ended)
        if lease.rate_bytes_s > 0.0 and moved < _SHORT_S * lease.rate_bytes_s:
            besides = min(_MOST_OVERHEAD_S, max(0.0, took - moved / lease.rate_bytes_s))
            self._overhead_s += weight * (besides - self._overhead_s)
        pace = min(max(0.0, took - self._overhead_s) / moved, 1.0 / max(1.0, least_bytes_s))
        self._s_per_byte += weight * (pace - self._s_per_byte)
        self._paces.end(lease.id, pace)

    def small_ended(self, took_s: float) -> None:
        """A small job held its slot for so long."""
        self._small_s += _MEMORY * (took_s - self._small_s)

    @property
    def held_by_small_s(self) -> float:
        """How long a small job holds its slot in the mean."""
        return self._small_s

    def small_s(self, before: int, slots: int) -> float:
        """The scheduled wait of a small job after so many others, on so many slots."""
        return (before + 0.5) * self._small_s / max(1, slots)

    def started(
        self,
        raw_s: float,
        away_s: float,
        stated: Estimate,
        waited_s: float,
        needed_s: float,
        now: float,
        *,
        small: bool = False,
    ) -> None:
        """A waiting ticket starts: what was said at first against what came.

        `raw_s` is its scheduled wait; `away_s` its first promised return, 0 if it waited at the
        door; `needed_s` is how long it had to wait for a slot, whether or not it was there then.
        A bound below 0 was broken and told by `broken` before.
        """
        if raw_s <= 0.0:
            return
        ratios = self._small if small else self._large
        calibrator, bounds = ratios.of(away_s > 0.0)
        if stated.p90_s >= 0.0:
            self._judge(bounds, waited_s <= stated.p90_s, stated.expected_s, now)
        bounds.learn(stated.expected_s, waited_s, now)
        self.judged.error(stated.expected_s, waited_s)
        if away_s > 0.0:
            # Those who looked sooner and found a slot are known before all that find none: that
            # would shorten what is told to the others.
            calibrator.learn(away_s, max(waited_s, away_s))
            if waited_s >= away_s:
                ratios.slot.learn(raw_s, needed_s)
        else:
            calibrator.learn(raw_s, waited_s)

    def broken(self, away_s: float, told_s: float, now: float, *, small: bool = False) -> None:
        """A ticket still waits beyond its stated bound: sooner known than when it starts."""
        ratios = self._small if small else self._large
        self._judge(ratios.of(away_s > 0.0)[1], False, told_s, now)

    def _judge(self, bounds: WaitBounds, held: bool, told_s: float, now: float) -> None:
        self.judged.bound(kept=held)
        bounds.held(held, told_s, now)

    def claimed(self, came: bool) -> None:
        """The owner of a ready ticket that did not wait at the door came, or never did."""
        self._claimed = self._claimed * (1 - _MEMORY) + came
        self._unclaimed = self._unclaimed * (1 - _MEMORY) + (not came)

    def left(self) -> None:
        """A waiting client left, as it said itself or as nobody claimed its ticket."""
        self._left += 1.0

    def waited(self, ticket_seconds: float) -> None:
        """That many tickets waited that long, in all."""
        self._waited_s += ticket_seconds
        # Remember some thousand waits' worth, so that the rate follows the day.
        if self._left > 1_000.0:
            self._left /= 2
            self._waited_s /= 2

    def stays(self, seconds: float) -> float:
        """How likely somebody who waits is still there after that time."""
        return math.exp(-self._left / self._waited_s * seconds)

    @property
    def no_show_fraction(self) -> float:
        """The part of ready tickets whose owner never came."""
        # Five imagined arrivals, so that the first no-show does not mean that nobody comes.
        return min(0.9, self._unclaimed / (self._claimed + self._unclaimed + 5.0))

    def service_s(self, remaining_bytes: float) -> float:
        """How long a download of that size is likely to hold its slot."""
        return self._overhead_s + remaining_bytes * (self._full_s_per_byte or self._s_per_byte)

    # -- telling -------------------------------------------------------------------------------

    def stale(self, now: float, fresh_s: float, waiting: int) -> bool:
        """Whether the last `lay_out` is older than `fresh_s`, or was of a far shorter queue."""
        return not 0.0 <= now - self._laid_s < fresh_s or waiting > _GROWN * self._laid_out + _FEW

    @property
    def laid_out(self) -> bool:
        """Whether there are turns to tell of."""
        return len(self._turns) > 0

    def skip(self, now: float, waiting: int) -> None:
        """Nobody asks for turns just now: what was laid out is forgotten, not made anew."""
        self._turns = array("d")
        self._laid_s, self._laid_out = now, waiting

    def lay_out(
        self,
        now: float,
        slots: int,
        leases: Iterable[Lease],
        ahead: Iterable[tuple[float, float]],
        waiting: int,
        mean_bytes: float | None,
        least_bytes_s: float,
        loses_s: float = math.inf,
        line_bytes_s: float = math.inf,
    ) -> None:
        """Lay out the queue.

        `ahead` are the tickets in the order of turn: their bytes, and how likely their owner is
        still there. `waiting` are all of them, `mean_bytes` is of those that are not ready (None:
        there are none). A lease that takes less than `least_bytes_s` will have lost its slot in
        `loses_s`; it tells nothing of the pace of those after it.
        """
        leases = list(leases)
        least = max(1.0, least_bytes_s)
        self._measure_pace(now, slots, leases, least)
        pace = self._full_s_per_byte or self._s_per_byte
        overhead = self._overhead_s
        frees = [
            lease.remaining_bytes / lease.rate_bytes_s
            if lease.rate_bytes_s >= least
            else min(loses_s, lease.remaining_bytes / least)
            if lease.rate_bytes_s > 0.0 or now - lease.started_s > _SHORT_S
            else lease.remaining_bytes * pace
            for lease in leases
        ]
        slots = max(slots, len(frees), 1)
        frees.extend([0.0] * (slots - len(frees)))
        heapq.heapify(frees)
        leaving = self._left / self._waited_s
        first = list(islice(ahead, _LAID_OUT))
        self._laid_out = waiting
        first_mean = sum(size for size, _ in first) / len(first) if first else 0.0
        # The line carries no more than it does, however many slots there are. While these were
        # never all taken, nothing else tells what a byte will cost one. As much as is under way now
        # will be so when a turn comes, or less: those who run then are half done.
        near_bytes_s = line_bytes_s if self._full_s_per_byte is None else math.inf
        carries = sum(lease.remaining_bytes for lease in leases) - 0.5 * slots * first_mean
        carries = min(0.0, carries)
        turns = array("d")
        likely = work_s = squares = 0.0
        for size, there in first:
            turn = max(frees[0], carries / near_bytes_s)
            turns.append(turn)
            likely += there
            comes = there * math.exp(-leaving * turn)
            takes_s = (overhead + size * pace) * comes
            work_s += takes_s
            squares += takes_s * takes_s
            heapq.heapreplace(frees, turn + takes_s)
            carries += size * comes
        turns.append(max(frees[0], carries / near_bytes_s))
        self._turns = turns
        self._unlike = len(first) * squares / (work_s * work_s) if work_s > 0.0 else 1.0
        self._uneven = self._paces.unevenness
        mean = first_mean if mean_bytes is None else mean_bytes
        comes = self.stays(turns[-1]) * (likely / (len(turns) - 1) if likely else 1.0)
        self.held_by_next_s = overhead + mean * pace
        self._step_s = max(self.held_by_next_s / slots, mean / line_bytes_s) * comes
        self._laid_s = now

    def _measure_pace(self, now: float, slots: int, leases: list[Lease], least: float) -> None:
        """What a byte costs a slot while all are taken: the mean of those that started lately."""
        seen = [lease for lease in leases if lease.rate_bytes_s >= least]
        self._paces.look((lease.id, 1.0 / lease.rate_bytes_s) for lease in seen)
        self._paces.keep(_STARTED * slots)
        if len(seen) < _FULL_PART * slots:
            if len(leases) >= max(_FULL_PART * slots, 2 * len(seen)):
                # One that stands still now was slow on the way there: that must not be kept.
                self._full_s_per_byte = None
            return
        pace = self._paces.mean
        if self._full_s_per_byte is None:
            self._full_s_per_byte = pace
        else:
            weight = 1.0 - math.exp(-max(0.0, now - self._laid_s) / _PACE_MEMORY_S)
            self._full_s_per_byte += weight * (pace - self._full_s_per_byte)

    def raw_s(self, place: int, now: float) -> float:
        """The scheduled wait of the ticket at `place` (from 1), before calibration."""
        turns = self._turns
        index = place - 1
        if index < len(turns):
            wait = turns[index]
        else:
            wait = turns[-1] + (index - len(turns) + 1) * self._step_s
        return max(0.0, wait - (now - self._laid_s))

    def turns_within(self, seconds: float) -> int:
        """How many turns come so soon, as they were laid out; no more than are laid out."""
        return bisect_left(self._turns, seconds)

    def state(self, raw_s: float, away_s: float = 0.0, *, small: bool = False) -> Estimate:
        """The calibrated estimate for a scheduled wait, or for a promised return."""
        base = max(away_s or raw_s, 0.25)
        ratios = self._small if small else self._large
        calibrator, bounds = ratios.of(away_s > 0.0)
        told_s = base * calibrator.centre(base)
        unsure = 0.0 if small else self._unsure(raw_s)
        return Estimate(told_s, told_s * bounds.beyond(told_s, unsure))

    def _unsure(self, raw_s: float) -> float:
        """How far a schedule may be off, as a part of the wait, whatever came of others.

        The sizes of those before are known, their paces are not: the fewer they are and the more
        unlike, the less they make up for each other. And the mean pace is known of so many.
        """
        if not self._turns:
            return 0.0
        before = bisect_left(self._turns, raw_s)
        if before == len(self._turns) and self._step_s > 0.0:
            before += int((raw_s - self._turns[-1]) / self._step_s)
        of_those = self._unlike / max(1, before)
        return math.sqrt(self._uneven * (of_those + 1.0 / max(1, len(self._paces))))

    def slot_s(self, raw_s: float, *, small: bool = False) -> float:
        """When a slot is likely to be there for a client that waits elsewhere."""
        ratios = self._small if small else self._large
        return max(raw_s, 0.25) * ratios.slot.centre(raw_s)
