"""The past in numbers: samples every few seconds, the last hour in memory, the rest in the store.

The charts draw it, `GET /history.csv` exports it, previews replay the recorded arrivals.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from twisted.logger import Logger
from twisted.python.failure import Failure

from ..admission.popularity import Popularity
from ..http.bounded_table import BoundedTable
from ..http.clock import Clock, Repeat
from ..store.history import RAW, read_binned, read_samples, thin, write_samples
from ..store.journal import forget_tickets
from ..store.queries import forget_digests, forget_events, read_arrivals, write_arrivals
from ..store.records import ArrivalRecord, SampleRecord
from ..store.store import Store
from ..store.usage import add_usage, forget_usage
from .events import ask
from .vitals import Vitals

SAMPLE_S = 5.0
_RECENT_S = 3600.0
_MOMENTS = round(_RECENT_S / SAMPLE_S) + 1
_THIN_EVERY = 12
_SAME_JOB_S = 600.0
_SEEN_MOST = 50_000
_WAITING_MOST = 100_000
#: Answers to clients wait for the batch in which these are written: no more than so many at once.
_ARRIVALS_AT_ONCE = 100
_ARRIVALS_KEPT_S = 30 * 86_400.0
_DIGESTS_KEPT_S = 90 * 86_400.0
_USAGE_KEPT_S = 365 * 86_400.0
_USAGE_HOURS_KEPT_S = 90 * 86_400.0
#: Small files in a preview; more of them change nothing.
_SMALL_MOST = 3_000
#: Many who look at the same page cost one look at the past. A chart of a week has steps of 42
#: minutes: it may be older than one of an hour.
_FRESH_S, _FRESH_SHARE, _FRESH_MOST_S = 4.0, 1 / 4, 60.0
_KEPT_MOST = 16
log = Logger()


#: What is recorded (docs/admin.md says what each is), and what of it is growth per second.
SERIES = (
    *("small_active", "large_active", "paused", "waiting", "ready", "held", "connections"),
    *("goodput_bytes_s", "offers", "admitted", "completed", "refused", "errors", "last_wait_s"),
    *("last_wait_p90_s", "eta_within_p90", "eta_median_error", "multicast_receivers"),
)
#: The last one is what previews replay small files by.
RECORDED = (*SERIES, "admitted_small")
_RATES = frozenset({"offers", "admitted", "completed", "refused", "errors", "admitted_small"})


@dataclass(frozen=True, slots=True)
class Series:
    """Series on one time axis; a missing value is None."""

    t: tuple[float, ...]
    series: Mapping[str, tuple[float | None, ...]]


class Sampler:
    """Looks at the server's figures; counters become growth per second from the second look on."""

    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals
        self._last: tuple[float, Mapping[str, Any]] | None = None

    def look(self, at_s: float) -> dict[str, float]:
        """Every series that has a value now."""
        figures, last = self._vitals.figures(), self._last
        self._last = at_s, figures
        found = {name: figures[name] for name in RECORDED if name not in _RATES}
        if last is not None and at_s > last[0]:
            for name in _RATES:
                grown = figures[f"{name}_total"] - last[1][f"{name}_total"]
                # A counter that fell has begun anew.
                found[name] = max(0, grown) / (at_s - last[0])
        return {n: float(v) for n, v in found.items() if v is not None and math.isfinite(v)}

    def grown(self, name: str) -> int:
        """By how much a counter has grown since the last look."""
        if self._last is None:
            return 0
        total = f"{name}_total"
        return int(max(0, self._vitals.figures()[total] - self._last[1][total]))


class Recent:
    """Samples of the last `kept_s` seconds by series; memory is bounded by `most` moments. Pure."""

    def __init__(self, kept_s: float, most: int) -> None:
        self._kept_s = kept_s
        self._moments: deque[tuple[float, Mapping[str, float]]] = deque(maxlen=most)
        self.whole = False

    def add(self, at_s: float, values: Mapping[str, float]) -> None:
        """One sample of every series."""
        self._moments.append((at_s, values))
        while self._moments[0][0] < at_s - self._kept_s:
            self._moments.popleft()

    def complete(self, earlier: Iterable[SampleRecord]) -> None:
        """Put what was sampled before this run in front; from now on the hour is `whole`."""
        own_s = self._moments[0][0] if self._moments else float("inf")
        before: dict[float, dict[str, float]] = {}
        for sample in earlier:
            if sample.at_s < own_s:
                before.setdefault(sample.at_s, {})[sample.series] = sample.mean
        for at_s in sorted(before, reverse=True):
            if len(self._moments) == self._moments.maxlen:
                break
            self._moments.appendleft((at_s, before[at_s]))
        self.whole = True

    def reaches(self, since_s: float, until_s: float) -> bool:
        """Whether all that is known of this stretch is here."""
        newest_s = self._moments[-1][0] if self._moments else until_s
        return self.whole and since_s >= newest_s - self._kept_s - SAMPLE_S

    def binned(
        self, series: Sequence[str], since_s: float, until_s: float, points: int, least_s: float
    ) -> tuple[list[float], dict[str, list[float | None]]]:
        """Means on one axis of about `points` equal steps of at least `least_s` seconds.

        A step without a value is None.
        """
        width_s = max((until_s - since_s) / points, least_s)
        steps = max(1, round((until_s - since_s) / width_s))
        axis = [since_s + (step + 0.5) * width_s for step in range(steps)]
        bins: list[list[Mapping[str, float]]] = [[] for _ in range(steps)]
        for at_s, values in self._moments:
            # As the database divides: a quotient that is rounded up to the next step counts there.
            step = math.floor((at_s - since_s) / width_s)
            if 0 <= step < steps and at_s < until_s:
                bins[step].append(values)
        return axis, {name: [_mean(one, name) for one in bins] for name in series}


def _mean(moments: Sequence[Mapping[str, float]], name: str) -> float | None:
    known = [values[name] for values in moments if name in values]
    return sum(known) / len(known) if known else None


class Arrivals:
    """Jobs that came for the first time, until they are written."""

    def __init__(self) -> None:
        self._seen: BoundedTable[tuple[str, str], float] = BoundedTable(_SEEN_MOST)
        self._fresh: list[ArrivalRecord] = []
        self._taken: list[ArrivalRecord] = []

    def note(self, record: ArrivalRecord) -> None:
        """A job has come; a client that asks again for the same file soon is the same job."""
        key = (record.client, record.file)
        known = self._seen.get(key)
        self._seen[key] = record.at_s
        fresh = known is None or record.at_s - known > _SAME_JOB_S
        if fresh and len(self._fresh) < _WAITING_MOST:
            self._fresh.append(record)

    def take(self) -> list[ArrivalRecord]:
        """What came since the last call."""
        fresh, self._fresh = self._fresh, []
        self._taken = fresh
        return fresh

    def lately(self) -> list[ArrivalRecord]:
        """What the database may not have yet: what came since the last `take`, and that one's."""
        return [*self._taken, *self._fresh]


class History:
    """Samples the server, and reads the past. `kept_s` is how long tickets are remembered."""

    def __init__(
        self,
        reactor: Clock,
        now: Callable[[], float],
        store: Store,
        vitals: Vitals,
        popularity: Popularity,
        arrivals: Arrivals,
        kept_s: float,
    ) -> None:
        self._now = now
        self._store = store
        self._vitals = vitals
        self._popularity = popularity
        self._arrivals = arrivals
        self._kept_s = kept_s
        self._timer = Repeat(reactor, SAMPLE_S, self._sample)
        self._sampler = Sampler(vitals)
        self._taken = 0
        self._drawn: BoundedTable[tuple[int, int], tuple[float, Series]] = BoundedTable(_KEPT_MOST)
        self._thin = random.Random(0)
        self.recent = Recent(_RECENT_S, _MOMENTS)

    def start(self) -> None:
        """Begin to sample, and fetch what an earlier run sampled in the last hour."""
        self._timer.start()
        self._sample()
        until_s = self._now()
        since_s, most = until_s - _RECENT_S, _MOMENTS * len(RECORDED)

        def ill(_fault: Failure) -> None:
            # The store says so itself; the charts then begin with this run.
            self.recent.complete(())

        self._store.read(
            lambda connection: read_samples(connection, RECORDED, RAW, since_s, until_s, most)
        ).addCallbacks(self.recent.complete, ill)

    def stop(self) -> None:
        """Stop sampling, and write what was counted since the last time."""
        self._timer.stop()
        self._write_usage(self._now())

    # -- the past ----------------------------------------------------------------------------

    async def drawn(self, span_s: float, until_s: float, points: int) -> Series:
        """The last `span_s` seconds for charts: what was drawn lately is drawn again."""
        key = (round(span_s), points)
        fresh_s = min(_FRESH_MOST_S, max(_FRESH_S, span_s / points * _FRESH_SHARE))
        kept = self._drawn.get(key)
        if kept is not None and 0 <= until_s - kept[0] < fresh_s:
            return kept[1]
        found = await self.read(until_s - span_s, until_s, points)
        self._drawn[key] = (until_s, found)
        return found

    async def read(self, since_s: float, until_s: float, points: int) -> Series:
        """All series on about `points` steps; while the database is ill, what memory has."""
        axis, found = self.recent.binned(RECORDED, since_s, until_s, points, SAMPLE_S)
        if not self.recent.reaches(since_s, until_s):
            try:
                axis, found = await self._store.read(
                    lambda connection: read_binned(connection, RECORDED, since_s, until_s, points)
                )
            except Exception as fault:  # noqa: BLE001 - whatever a database raises
                log.warn("The history cannot be read: {fault}", fault=str(fault))
        return Series(tuple(axis), {name: tuple(values) for name, values in found.items()})

    async def arrivals(self, since_s: float, limit: int) -> list[ArrivalRecord]:
        """Recorded wishes for a preview, thinned at random beyond `limit`. Raises StoreSilent."""
        stored = await ask(self._store, lambda s: read_arrivals(s, since_s, limit * 10))
        found = list(dict.fromkeys((*stored, *self._arrivals.lately())))
        if len(found) > limit:
            chosen = sorted(self._thin.sample(range(len(found)), limit))
            found = [found[index] for index in chosen]
        return sorted([*found, *await self._small_ones(since_s)], key=lambda a: a.at_s)

    async def _small_ones(self, since_s: float) -> list[ArrivalRecord]:
        """Small files that were answered at once are only counted: as many, at random moments."""
        now = self._now()
        # One step for each sample: a wider one of which only a part was sampled counts too many.
        past = await self.read(since_s, now, max(1, round((now - since_s) / SAMPLE_S)))
        rates = [rate for rate in past.series.get("admitted_small", ()) if rate is not None]
        span_s = len(rates) * (now - since_s) / max(1, len(past.t))
        sampled = sum(rates) / len(rates) * span_s if rates else 0.0
        # Those since the last sample, too: a preview may be asked for right after a download.
        count = min(_SMALL_MOST, round(sampled + self._sampler.grown("admitted_small")))
        span_s = max(span_s, SAMPLE_S)
        size = max(1, self._vitals.gate.settings.small_below_bytes // 2)
        moments = sorted(self._thin.uniform(now - span_s, now) for _ in range(count))
        return [ArrivalRecord(at, f"small-{i}", "small", size) for i, at in enumerate(moments)]

    # -- recording ---------------------------------------------------------------------------

    def _write_usage(self, now: float) -> None:
        usage = self._popularity.take(now)
        if usage:
            self._store.note(lambda connection: add_usage(connection, usage))

    def _sample(self) -> None:
        now = self._now()
        values = self._sampler.look(now)
        self.recent.add(now, values)
        samples = [SampleRecord(now, series, value, value) for series, value in values.items()]
        self._store.note(lambda connection: write_samples(connection, samples))
        arrivals = self._arrivals.take()
        for at in range(0, len(arrivals), _ARRIVALS_AT_ONCE):
            some = arrivals[at : at + _ARRIVALS_AT_ONCE]
            self._store.note(partial(write_arrivals, records=some))
        self._taken += 1
        if self._taken % _THIN_EVERY == 0:
            self._write_usage(now)
            self._store.note(lambda connection: thin(connection, now))
        if self._taken % (_THIN_EVERY * 60) == 1:
            self._forget(now)

    def _forget(self, now: float) -> None:
        kept_s = self._kept_s
        self._store.note(lambda connection: forget_tickets(connection, now - 2 * kept_s))
        self._store.note(lambda connection: forget_events(connection, now - _ARRIVALS_KEPT_S))
        self._store.note(lambda connection: forget_digests(connection, now - _DIGESTS_KEPT_S))
        self._store.note(
            lambda connection: forget_usage(
                connection, now - _USAGE_KEPT_S, now - _USAGE_HOURS_KEPT_S
            )
        )
