"""The expected wait of a ticket, its 90 % bound, and how well both held.

The estimate has three steps:

1. *Schedule.* Active leases free their slots by their remaining bytes and measured rates. The
   tickets ahead take these slots in turn. Each holds its slot for its bytes at the pace of a slot,
   and for the time that a download needs besides its bytes. The first few hundred turns are
   scheduled one by one, later ones at the mean step.
2. *Thin.* A ticket ahead counts by how likely its client is still there. New tickets count by the
   part of recent clients that returned (`no_shows`). All count by the rate at which waiting clients
   leave.
3. *Calibrate.* Recent actual waits as a ratio to their base correct the expectation and set the
   bound (`calibrator`). For a client that waits inside its request, the base is step 2. A client
   that waits elsewhere usually starts at its return, so its base is the promised return. The
   promise is learnt from when slots were free. Otherwise a late promise would prove itself right.
"""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from ..contract import BRIEF_BYTES, Estimate
from ..leases import Lease
from .calibrator import AWAY, HERE, PUNCTUAL, Calibrator, WaitBounds
from .ends import EndForecast, ToldEnds
from .judged import Judged
from .no_shows import NoShows
from .paces import Paces
from .work_clock import WorkClock


@dataclass(frozen=True, slots=True)
class ScheduleTuning:
    """How the queue is laid out, and how the pace of a slot is learnt.

    What is learnt replaces the first guesses after a few downloads.
    """

    #: Turns that are scheduled one by one. Later ones use the mean step.
    laid_out: int = 256
    #: The schedule is made anew once the queue has grown by this factor and this many clients: the
    #: first two of a crowd say nothing about the crowd.
    grown: float = 1.25
    grown_by: int = 4
    #: The first guess of a slot's pace: 1 MB/s.
    first_s_per_byte: float = 1e-6
    #: The first guess of what a download needs besides its bytes, and the most, seconds.
    first_overhead_s: float = 0.1
    most_overhead_s: float = 5.0
    #: Downloads shorter than this show what a download needs besides its bytes.
    short_s: float = 2.0
    #: The weight of the newest observation.
    memory: float = 0.03
    #: The first guess of how long a small job holds its slot.
    first_small_s: float = 0.2
    #: Downloads for each slot, the latest ones, whose mean is the pace of full slots.
    downloads_per_slot: int = 2
    #: The pace of full slots follows that mean within this time.
    pace_memory_s: float = 5.0
    #: Slots are full when this part of them is taken.
    full_part: float = 0.8
    #: The time of a download is unsure by this part of it at least, where all are alike.
    least_unsure: float = 0.2
    #: By how much the first guess of a slot's pace is unsure, as a part of it.
    first_unsure: float = 1.0
    #: Told starts are unsure by this, seconds: clients come back in whole ones.
    moment_s: float = 1.5
    #: Starts that wait to be learnt from, at most.
    most_unripe: int = 300
    #: Tickets that are looked at once they are overdue, at most.
    most_watched: int = 256
    #: Imagined seconds of waiting in which no client left, before the first was seen.
    first_waited_s: float = 300.0


SCHEDULE = ScheduleTuning()


class _Ratios:
    """Actual waits as ratios to what was expected, and to what was told."""

    def __init__(self) -> None:
        self._here = Calibrator(), WaitBounds(HERE)
        self._away = Calibrator(PUNCTUAL), WaitBounds(AWAY)
        #: When slots were free for clients that are away.
        self.slot = Calibrator()

    def of(self, away: bool) -> tuple[Calibrator, WaitBounds]:
        """Of clients that wait inside their request, or away (to their promised return)."""
        return self._away if away else self._here


class _Start(NamedTuple):
    """A start that is learnt from at `ripe_s`; see `Estimator.started`."""

    ripe_s: float
    small: bool
    raw_s: float
    away_s: float
    told_s: float
    waited_s: float
    as_told_s: float
    needed_s: float


class Estimator:
    """Learns from starts and ends, and schedules the queue."""

    def __init__(self) -> None:
        #: Small jobs wait for any slot, and briefly. That is no evidence for large ones.
        self._large, self._small = _Ratios(), _Ratios()
        #: How long a small job holds its slot in the mean.
        self.held_by_small_s = SCHEDULE.first_small_s
        self._s_per_byte = SCHEDULE.first_s_per_byte
        self._overhead_s = SCHEDULE.first_overhead_s
        self._ended = 0
        self._full_s_per_byte: float | None = None
        self._paces = Paces()
        #: By which part the mean pace of a slot is unsure, and a download's own.
        self.pace_unsure = SCHEDULE.first_unsure
        self._unsure = SCHEDULE.first_unsure
        self._claimed = 0.0
        self._unclaimed = 0.0
        self.no_shows = NoShows()
        self._left = 0.0
        self._waited_s = SCHEDULE.first_waited_s
        self._turns = array("d")
        self._step_s = 0.0
        #: How long waiting tickets will hold a slot in the mean, by the last schedule.
        self.held_by_next_s = 0.0
        self._laid_s = -math.inf
        #: About how many tickets waited then.
        self._laid_out = 0
        self._unripe: list[_Start] = []
        #: By the speed of the line or of a slot.
        self.served = WorkClock()
        self._watched: list[tuple[float, int]] = []
        #: Told starts.
        self.judged = Judged()
        self.ends = ToldEnds()

    # -- learning ------------------------------------------------------------------------------

    def ended(self, lease: Lease, now: float, least_bytes_s: float) -> None:
        """A large download is over; its pace counts as `least_bytes_s` or faster."""
        moved = lease.started_bytes - lease.remaining_bytes
        took = now - lease.started_s
        if moved <= 0 or took <= 0:
            return
        if lease.rate_bytes_s <= 0.0 and lease.started_bytes <= BRIEF_BYTES:
            # It left in one write, which says nothing about the pace of a slot.
            return
        self._ended += 1
        weight = max(SCHEDULE.memory, 1.0 / self._ended)
        if lease.rate_bytes_s > 0.0 and moved < SCHEDULE.short_s * lease.rate_bytes_s:
            besides = min(SCHEDULE.most_overhead_s, max(0.0, took - moved / lease.rate_bytes_s))
            self._overhead_s += weight * (besides - self._overhead_s)
        pace = min(max(0.0, took - self._overhead_s) / moved, 1.0 / max(1.0, least_bytes_s))
        self._s_per_byte += weight * (pace - self._s_per_byte)
        self._paces.end(lease.id, pace)

    def small_ended(self, took_s: float) -> None:
        """A small job held its slot for this time."""
        self.held_by_small_s += SCHEDULE.memory * (took_s - self.held_by_small_s)

    def small_s(self, before: int, slots: int) -> float:
        """The scheduled wait of a small job: `before` are ahead of it, on this number of slots."""
        return (before + 0.5) * self.held_by_small_s / max(1, slots)

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
        """A waiting ticket starts: compare its first estimate with what happened.

        `raw_s` is its scheduled wait. `away_s` is its first promised return, 0 if it waited inside
        its request. `needed_s` is how long it had to wait for a slot, whether or not its client was
        there then. A bound below 0 was broken and reported by `late` before.
        """
        if raw_s <= 0.0:
            return
        told_s, ratios = stated.expected_s, self._small if small else self._large
        if stated.p90_s >= 0.0:
            self._judge(ratios.of(away_s > 0.0)[1], waited_s <= stated.p90_s, told_s, now)
        self.judged.error(told_s, waited_s)
        # The first of a crowd that start are those that start at once, which says nothing of the
        # others. So what was sooner counts halfway to its told time, by order of magnitude. At the
        # told time itself, a line that has become faster would be believed too late.
        later_s = max(0.0, math.sqrt(told_s * max(0.0, waited_s)) - waited_s)
        since_s = now - waited_s
        as_told_s = self.served.as_told_s(since_s, now)
        needed_s = self.served.as_told_s(since_s, since_s + needed_s)
        start = _Start(now + later_s, small, raw_s, away_s, told_s, waited_s, as_told_s, needed_s)
        heapq.heappush(self._unripe, start)
        most = SCHEDULE.most_unripe
        while self._unripe and (self._unripe[0].ripe_s <= now or len(self._unripe) > most):
            self._learn(heapq.heappop(self._unripe), now)

    def _learn(self, start: _Start, now: float) -> None:
        _, small, raw_s, away_s, told_s, waited_s, as_told_s, needed_s = start
        ratios = self._small if small else self._large
        calibrator, bounds = ratios.of(away_s > 0.0)
        bounds.learn(told_s, waited_s, now)
        if away_s > 0.0:
            # A client that looked sooner and found a slot is known before all that find none. It
            # would shorten what the others are told.
            calibrator.learn(away_s, max(waited_s, away_s), now)
            if waited_s >= away_s:
                ratios.slot.learn(raw_s, needed_s, now)
        else:
            calibrator.learn(raw_s, as_told_s, now)

    def watch(self, number: int, due_s: float) -> None:
        """A ticket was told to start by `due_s` at the latest."""
        if len(self._watched) < SCHEDULE.most_watched:
            heapq.heappush(self._watched, (due_s, number))

    def overdue(self, now: float) -> Iterator[int]:
        """Tickets that should have started by now, of those that are watched."""
        while self._watched and self._watched[0][0] < now:
            yield heapq.heappop(self._watched)[1]

    def late(
        self, away_s: float, told_s: float, waits_s: float, now: float, *, small: bool = False
    ) -> None:
        """A ticket waits beyond its stated bound; as forecast now it waits `waits_s` in all."""
        ratios = self._small if small else self._large
        _, bounds = ratios.of(away_s > 0.0)
        self._judge(bounds, False, told_s, now)
        # Those that still wait are the longest. Once they start it is too late for all the others.
        bounds.learn(told_s, waits_s, now)

    def _judge(self, bounds: WaitBounds, held: bool, told_s: float, now: float) -> None:
        self.judged.bound(kept=held)
        bounds.held(held, told_s, now)

    def claimed(self, came: bool) -> None:
        """The client of a ready ticket, which waited away, came or stayed away."""
        self._claimed = self._claimed * (1 - SCHEDULE.memory) + came
        self._unclaimed = self._unclaimed * (1 - SCHEDULE.memory) + (not came)

    def left(self) -> None:
        """A waiting client left: it said so, or did not claim its ticket."""
        self._left += 1.0

    def waited(self, ticket_seconds: float) -> None:
        """Add seconds that tickets waited, in all."""
        self._waited_s += ticket_seconds
        # A memory of about a thousand waits lets the rate follow the day.
        if self._left > 1_000.0:
            self._left /= 2
            self._waited_s /= 2

    def stays(self, seconds: float) -> float:
        """How likely a waiting client is still there after this time."""
        return math.exp(-self._left / self._waited_s * seconds)

    @property
    def no_show_fraction(self) -> float:
        """The part of ready tickets whose client never came."""
        # Five imagined arrivals keep the first no-show from counting as all clients.
        return min(0.9, self._unclaimed / (self._claimed + self._unclaimed + 5.0))

    @property
    def s_per_byte(self) -> float:
        """How long a slot needs for a byte."""
        return max(1e-15, self._full_s_per_byte or self._s_per_byte)

    def service_s(self, remaining_bytes: float) -> float:
        """How long a download of this size is likely to hold its slot."""
        return self._overhead_s + remaining_bytes * self.s_per_byte

    def service(self, remaining_bytes: float) -> EndForecast:
        """The same, as unsure as downloads of late differ."""
        return EndForecast(self.service_s(remaining_bytes), self._unsure)

    # -- telling -------------------------------------------------------------------------------

    def stale(self, now: float, fresh_s: float, waiting: int) -> bool:
        """Whether the last `lay_out` is older than `fresh_s`, or was of a far shorter queue."""
        return (
            not 0.0 <= now - self._laid_s < fresh_s
            or waiting > SCHEDULE.grown * self._laid_out + SCHEDULE.grown_by
        )

    @property
    def laid_out(self) -> bool:
        """Whether there is a schedule."""
        return len(self._turns) > 0

    def skip(self, now: float, waiting: int) -> None:
        """Forget the schedule without a new one: no client asks for turns now."""
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
        """Schedule the queue.

        `ahead` are the tickets in the order of turn: their bytes, and how likely their client is
        still there. `waiting` is their number. `mean_bytes` is the mean of those that are not ready
        (None: there are none). A lease slower than `least_bytes_s` loses its slot in `loses_s`, and
        says nothing about the pace of the next.
        """
        leases = list(leases)
        least = max(1.0, least_bytes_s)
        self._measure_pace(now, slots, leases, least)
        pace = self.s_per_byte
        overhead = self._overhead_s
        frees = [
            lease.remaining_bytes / lease.rate_bytes_s
            if lease.rate_bytes_s >= least
            else min(loses_s, lease.remaining_bytes / least)
            if lease.rate_bytes_s > 0.0 or now - lease.started_s > SCHEDULE.short_s
            else lease.remaining_bytes * pace
            for lease in leases
        ]
        slots = max(slots, len(frees), 1)
        frees.extend([0.0] * (slots - len(frees)))
        heapq.heapify(frees)
        leaving = self._left / self._waited_s
        first = list(islice(ahead, SCHEDULE.laid_out))
        self._laid_out = waiting
        first_mean = sum(size for size, _ in first) / len(first) if first else 0.0
        # While the slots were never all taken, only the line bounds the pace. The bytes under way
        # when a turn comes are taken as those of now, less half of the next downloads.
        near_bytes_s = line_bytes_s if self._full_s_per_byte is None else math.inf
        carries = sum(lease.remaining_bytes for lease in leases) - 0.5 * slots * first_mean
        carries = min(0.0, carries)
        turns = array("d")
        likely = 0.0
        for size, there in first:
            turn = max(frees[0], carries / near_bytes_s)
            turns.append(turn)
            likely += there
            comes = there * math.exp(-leaving * turn)
            takes_s = (overhead + size * pace) * comes
            heapq.heapreplace(frees, turn + takes_s)
            carries += size * comes
        turns.append(max(frees[0], carries / near_bytes_s))
        self._turns = turns
        mean = first_mean if mean_bytes is None else mean_bytes
        comes = self.stays(turns[-1]) * (likely / (len(turns) - 1) if likely else 1.0)
        self.held_by_next_s = overhead + mean * pace
        self._step_s = max(self.held_by_next_s / slots, mean / line_bytes_s) * comes
        self._laid_s = now

    def _measure_pace(self, now: float, slots: int, leases: list[Lease], least: float) -> None:
        """Follow the pace of full slots: the mean of the downloads that started lately."""
        seen = [lease for lease in leases if lease.rate_bytes_s >= least]
        self._paces.look((lease.id, 1.0 / lease.rate_bytes_s) for lease in seen)
        self._paces.keep(SCHEDULE.downloads_per_slot * slots)
        known, deviation = len(self._paces), self._paces.deviation
        self.pace_unsure = math.hypot(SCHEDULE.first_unsure, deviation) / math.sqrt(1.0 + known)
        self._unsure = max(SCHEDULE.least_unsure, math.hypot(self.pace_unsure, deviation))
        if len(seen) < SCHEDULE.full_part * slots:
            if len(leases) >= max(SCHEDULE.full_part * slots, 2 * len(seen)):
                # A download that stands still was slow before that. Its pace must not be kept.
                self._full_s_per_byte = None
            return
        pace = self._paces.mean
        if self._full_s_per_byte is None:
            self._full_s_per_byte = pace
        else:
            weight = 1.0 - math.exp(-max(0.0, now - self._laid_s) / SCHEDULE.pace_memory_s)
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
        """How many of the scheduled turns come within this time."""
        return bisect_left(self._turns, seconds)

    def estimate(
        self, raw_s: float, away_s: float = 0.0, unsure: float = 0.0, *, small: bool = False
    ) -> Estimate:
        """The calibrated estimate for a scheduled wait, or for a promised return.

        `unsure` is its standard deviation at least, as a part of the wait.
        """
        base = max(away_s or raw_s, 0.25)
        ratios = self._small if small else self._large
        calibrator, bounds = ratios.of(away_s > 0.0)
        told_s = base * calibrator.centre(base)
        unsure = max(unsure, SCHEDULE.moment_s / told_s)
        return Estimate(told_s, told_s * bounds.beyond(told_s, unsure))

    def slot_s(self, raw_s: float, *, small: bool) -> float:
        """When a slot is likely to be there for a client that waits elsewhere."""
        ratios = self._small if small else self._large
        return max(raw_s, 0.25) * ratios.slot.centre(raw_s)
