"""Whether a second connection to a mirror helps: tries, measures, keeps or takes back. Pure.

One connection is as good as several where the line is what limits (paper B, section V). Where a
server limits each connection, or a window is too small for a long line, more of them bring more.
Only a trial tells these apart, so long downloads try, all mirrors at a time: rates
before against rates with them. A mirror that gains, while the total does too, keeps them, and is
tried with twice as many; one that does not is barred for a while, longer each time.

    steps = trials.tick(now, readings, left_bytes)      # Add and Drop

Times are seconds, `now` never runs backwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """One working mirror: bytes received from it so far, its connections, the most it may have."""

    received_bytes: int
    lanes: int
    most: int


@dataclass(frozen=True, slots=True)
class Add:
    """Open `count` more connections to the mirror."""

    mirror: int
    count: int


@dataclass(frozen=True, slots=True)
class Drop:
    """They did not help: let them finish what they have, and close them."""

    mirror: int
    count: int


Step = Add | Drop
Readings = Mapping[int, Reading]


@dataclass(slots=True)
class _Trial:
    counts: Mapping[int, int]
    before: Mapping[int, float]
    lanes: Mapping[int, int]
    begin_s: float
    start: Mapping[int, int] | None = None


class Trials:
    """One download's experiments."""

    settle_s = 1.0
    warm_s = 0.4
    measure_s = 1.0
    #: Nothing is measured while the second half of it brings so much more than the first.
    growing = 1.3
    #: A download that is through sooner is not worth an experiment.
    worth_s = 7.0
    #: After one that has helped, the next is likely to.
    worth_again_s = 3.0
    #: What the mirror must gain, per connection added, of what one of its connections brings.
    gain = 0.3
    #: A mirror that brings less of the total than this is left alone.
    least_share = 0.1
    pause_s = 10.0
    #: On a narrower line than this, an experiment costs more bytes than it could win time.
    least_bytes_s = 32 << 10

    def __init__(self) -> None:
        self._trial: _Trial | None = None
        self._since_s: float | None = None
        self._start: Mapping[int, int] = {}
        #: Half way through a measurement: when, and the counts then.
        self._middle: tuple[float, Mapping[int, int]] | None = None
        self._lanes: Mapping[int, int] = {}
        self._barred: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self.kept = 0

    @property
    def trying(self) -> set[int]:
        """The mirrors under trial."""
        return set(self._trial.counts) if self._trial is not None else set()

    def tick(self, now: float, readings: Readings, left_bytes: int) -> list[Step]:
        """Call a few times a second with the mirrors that are working now."""
        lanes = {mirror: one.lanes for mirror, one in readings.items()}
        if self._since_s is None or lanes != self._lanes:
            steps = self._part(now, readings)
            for step in steps:
                lanes[step.mirror] -= step.count
            self._settle(now, readings, lanes)
            return steps
        if self._trial is not None:
            return self._judge(now, readings, self._trial)
        if self._middle is None and now - self._since_s >= self.settle_s / 2:
            self._middle = now, self._counts(readings)
        if now - self._since_s < self.settle_s:
            return []
        if self._still_growing(now, readings):
            self._settle(now, readings, lanes)
            return []
        rates = self._rates(self._start, readings, now - self._since_s)
        mirrors = self._candidates(now, readings, rates)
        worth_s = self.worth_again_s if self.kept else self.worth_s
        total = sum(rates.values())
        if not mirrors or total < self.least_bytes_s or left_bytes < total * worth_s:
            self._settle(now, readings, lanes)
            return []
        return self._add(now, mirrors, readings, rates)

    def _part(self, now: float, readings: Readings) -> list[Step]:
        """A mirror came or left, or a connection did not come to be: nothing can be compared."""
        trial, self._trial = self._trial, None
        if trial is None:
            return []
        steps: list[Step] = []
        for mirror, count in trial.counts.items():
            self._bar(now, mirror)
            extra = (
                readings[mirror].lanes - trial.lanes[mirror] + count if mirror in readings else 0
            )
            if extra > 0:
                steps.append(Drop(mirror, extra))
        return steps

    def _settle(self, now: float, readings: Readings, lanes: Mapping[int, int]) -> None:
        self._since_s, self._lanes = now, lanes
        self._start = self._counts(readings)
        self._middle = None

    def _still_growing(self, now: float, readings: Readings) -> bool:
        """Whether windows are still opening: what came then is no measure for what comes next."""
        if self._middle is None or self._since_s is None:
            return False
        middle_s, counts = self._middle
        first_s, second_s = middle_s - self._since_s, now - middle_s
        before = sum(counts[n] - start for n, start in self._start.items() if n in counts)
        after = sum(readings[n].received_bytes - got for n, got in counts.items() if n in readings)
        return after * first_s > self.growing * before * second_s

    @staticmethod
    def _counts(readings: Readings) -> dict[int, int]:
        return {mirror: one.received_bytes for mirror, one in readings.items()}

    @staticmethod
    def _rates(start: Mapping[int, int], readings: Readings, span_s: float) -> dict[int, float]:
        return {
            n: (one.received_bytes - start[n]) / span_s for n, one in readings.items() if n in start
        }

    def _candidates(self, now: float, readings: Readings, rates: Mapping[int, float]) -> list[int]:
        least = sum(rates.values()) * self.least_share
        return [
            mirror
            for mirror, one in readings.items()
            if one.lanes < one.most
            and now >= self._barred.get(mirror, 0.0)
            and rates[mirror] > max(0.0, least)
        ]

    def _add(
        self, now: float, mirrors: list[int], readings: Readings, rates: Mapping[int, float]
    ) -> list[Step]:
        counts = {n: min(readings[n].lanes, readings[n].most - readings[n].lanes) for n in mirrors}
        self._lanes = {n: one.lanes + counts.get(n, 0) for n, one in readings.items()}
        self._trial = _Trial(counts, rates, self._lanes, now)
        return [Add(mirror, count) for mirror, count in counts.items()]

    def _judge(self, now: float, readings: Readings, trial: _Trial) -> list[Step]:
        if trial.start is None:
            if now - trial.begin_s >= self.warm_s:
                trial.start, trial.begin_s = self._counts(readings), now
            return []
        if now - trial.begin_s < self.measure_s:
            return []
        after = self._rates(trial.start, readings, now - trial.begin_s)
        before = trial.before
        wanted = {
            n: self.gain * before[n] / (trial.lanes[n] - count) * count
            for n, count in trial.counts.items()
        }
        kept = {n for n, least in wanted.items() if after[n] - before[n] >= least}
        total = sum(after.values()) - sum(before.values())
        if total < sum(wanted[n] for n in kept) / 2:
            # What some gained, others lost.
            kept = set()
        self._trial = None
        steps: list[Step] = []
        for mirror, count in trial.counts.items():
            if mirror in kept:
                self.kept += count
                self._failures.pop(mirror, None)
            else:
                self._bar(now, mirror)
                steps.append(Drop(mirror, count))
        fewer = {step.mirror: step.count for step in steps}
        self._settle(now, readings, {n: c - fewer.get(n, 0) for n, c in self._lanes.items()})
        if not steps:
            # What was just measured is what the next trial is compared with.
            self._since_s, self._start = trial.begin_s, trial.start
            self._middle = None
        return steps

    def _bar(self, now: float, mirror: int) -> None:
        failures = self._failures[mirror] = self._failures.get(mirror, 0) + 1
        self._barred[mirror] = now + self.pause_s * 4 ** (failures - 1)
