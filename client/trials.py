"""Whether a second connection to a mirror helps: tries, measures, keeps or takes back. Pure.

One connection is as good as several where the line is what limits (paper B, section V). Where a
server limits each connection, or a window is too small for a long line, more of them bring more.
Nobody can tell these apart without trying, so long downloads try: one mirror at a time, the total
rate before against the total rate with it. A gain doubles the number; no gain bars the mirror for
a while, longer each time.

    step = trials.tick(now, readings, left_bytes)      # Add | Drop | None

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
    """Open so many more connections to the mirror."""

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
    mirror: int
    count: int
    before: Mapping[int, float]
    lanes: int
    begin_s: float
    start: Mapping[int, int] | None = None


class Trials:
    """One download's experiments."""

    settle_s = 1.0
    warm_s = 0.4
    measure_s = 1.0
    #: A download that is through sooner is not worth an experiment.
    worth_s = 7.0
    #: What the mirror must gain, per connection added, of what one of its connections brings.
    gain = 0.3
    #: A mirror that brings less of the total than this is left alone.
    least_share = 0.1
    pause_s = 10.0

    def __init__(self) -> None:
        self._trial: _Trial | None = None
        self._since_s: float | None = None
        self._start: Mapping[int, int] = {}
        self._lanes: Mapping[int, int] = {}
        self._barred: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self.kept = 0

    @property
    def trying(self) -> int | None:
        """The mirror under trial."""
        return self._trial.mirror if self._trial is not None else None

    def tick(self, now: float, readings: Readings, left_bytes: int) -> Step | None:
        """Call a few times a second with the mirrors that are working now."""
        lanes = {mirror: one.lanes for mirror, one in readings.items()}
        if self._since_s is None or lanes != self._lanes:
            trial = self._trial
            if trial is not None and lanes.get(trial.mirror) != trial.lanes:
                # The new connection did not come to be, or the mirror left.
                self._bar(now)
            self._settle(now, readings, lanes)
            return None
        if self._trial is not None:
            return self._judge(now, readings, self._trial)
        if now - self._since_s < self.settle_s:
            return None
        rates = self._rates(self._start, readings, now - self._since_s)
        total = sum(rates.values())
        mirror = self._candidate(now, readings, rates)
        if mirror is None or left_bytes < total * self.worth_s:
            self._settle(now, readings, lanes)
            return None
        return self._add(now, mirror, readings, rates)

    def _settle(self, now: float, readings: Readings, lanes: Mapping[int, int]) -> None:
        self._since_s, self._lanes = now, lanes
        self._start = self._counts(readings)

    @staticmethod
    def _counts(readings: Readings) -> dict[int, int]:
        return {mirror: one.received_bytes for mirror, one in readings.items()}

    @staticmethod
    def _rates(start: Mapping[int, int], readings: Readings, span_s: float) -> dict[int, float]:
        return {
            n: (one.received_bytes - start[n]) / span_s for n, one in readings.items() if n in start
        }

    def _candidate(self, now: float, readings: Readings, rates: Mapping[int, float]) -> int | None:
        least = sum(rates.values()) * self.least_share
        fit = [
            mirror
            for mirror, one in readings.items()
            if one.lanes < one.most
            and now >= self._barred.get(mirror, 0.0)
            and rates[mirror] > max(0.0, least)
        ]
        return max(fit, key=lambda n: rates[n], default=None)

    def _add(self, now: float, mirror: int, readings: Readings, rates: Mapping[int, float]) -> Add:
        one = readings[mirror]
        count = min(one.lanes, one.most - one.lanes)
        self._trial = _Trial(mirror, count, rates, one.lanes + count, now)
        self._lanes = {**self._lanes, mirror: one.lanes + count}
        return Add(mirror, count)

    def _judge(self, now: float, readings: Readings, trial: _Trial) -> Step | None:
        if trial.start is None:
            if now - trial.begin_s >= self.warm_s:
                trial.start, trial.begin_s = self._counts(readings), now
            return None
        if now - trial.begin_s < self.measure_s:
            return None
        after = self._rates(trial.start, readings, now - trial.begin_s)
        before = trial.before
        own = after[trial.mirror] - before[trial.mirror]
        # Mirrors that came or went meanwhile say nothing.
        total = sum(rate - before[n] for n, rate in after.items() if n in before)
        each = before[trial.mirror] / (trial.lanes - trial.count)
        wanted = self.gain * each * trial.count
        if own >= wanted and total >= wanted / 2:
            self._trial = None
            self.kept += trial.count
            self._failures.pop(trial.mirror, None)
            self._settle(now, readings, self._lanes)
            # What was just measured is what the next trial is compared with.
            self._since_s, self._start = trial.begin_s, trial.start
            return None
        self._bar(now)
        fewer = {**self._lanes, trial.mirror: trial.lanes - trial.count}
        self._settle(now, readings, fewer)
        return Drop(trial.mirror, trial.count)

    def _bar(self, now: float) -> None:
        assert self._trial is not None
        mirror, self._trial = self._trial.mirror, None
        failures = self._failures[mirror] = self._failures.get(mirror, 0) + 1
        self._barred[mirror] = now + self.pause_s * 4 ** (failures - 1)
