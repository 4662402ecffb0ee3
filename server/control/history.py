"""Recorded series: samples every few seconds, kept in the store.

Charts draw them, `GET /history.csv` exports them, and previews replay the recorded arrivals.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from twisted.logger import Logger

from ...protocol.bounded_table import BoundedTable
from ..admission.popularity import Popularity
from ..http.clock import Clock, Repeat
from ..store.history import SAMPLE_S, read_binned, thin, write_samples
from ..store.journal import forget_tickets
from ..store.queries import forget, read_arrivals, write_arrivals
from ..store.records import ArrivalRecord, SampleRecord
from ..store.store import Store
from ..store.usage import add_usage
from .events import ask
from .vitals import Vitals

log = Logger()


#: The series of the charts; docs/admin.md says what each is.
SERIES = (
    *("small_active", "large_active", "paused", "waiting", "ready", "held", "connections"),
    *("goodput_bytes_s", "offers", "admitted", "completed", "refused", "errors", "last_wait_s"),
    *("last_wait_p90_s", "eta_within_p90", "eta_median_error", "multicast_receivers"),
    *("people_waiting", "end_within_p90", "end_median_error"),
)
#: Previews replay small files from the third last one; reports count judged and kept ends.
RECORDED = (*SERIES, "admitted_small", "ends_judged", "ends_kept")
_RATES = frozenset(
    {
        *("offers", "admitted", "completed", "refused", "errors"),
        *("admitted_small", "ends_judged", "ends_kept"),
    }
)


@dataclass(frozen=True, slots=True)
class Series:
    """Series on one time axis; a missing value is None."""

    t: tuple[float, ...]
    series: Mapping[str, tuple[float | None, ...]]

    @property
    def first_value(self) -> int:
        """The first step of which anything is known; 0 where nothing is."""
        rows = self.series.values()
        filled = (at for at in range(len(self.t)) if any(row[at] is not None for row in rows))
        return next(filled, 0)


class Sampler:
    """Samples the server's figures; counters become growth per second."""

    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals
        self._last: tuple[float, Mapping[str, Any]] | None = None

    def look(self, at_s: float) -> dict[str, float]:
        """One sample of every series that has a value now."""
        figures, last = self._vitals.figures(), self._last
        self._last = at_s, figures
        found = {name: figures[name] for name in RECORDED if name not in _RATES}
        if last is not None and at_s > last[0]:
            for name in _RATES:
                grown = figures[f"{name}_total"] - last[1][f"{name}_total"]
                # A counter that fell was reset.
                found[name] = max(0, grown) / (at_s - last[0])
        return {n: float(v) for n, v in found.items() if v is not None and math.isfinite(v)}

    def grown(self, name: str) -> int:
        """The growth of a counter since the last sample."""
        if self._last is None:
            return 0
        total = f"{name}_total"
        return int(max(0, self._vitals.figures()[total] - self._last[1][total]))


class Arrivals:
    """First requests for large files, until they are written."""

    def __init__(self) -> None:
        #: Hashes of the clients and files of arrivals whose repetitions are recognized: those since
        #: `_since_s`, and those of the time before.
        self._seen: set[int] = set()
        self._seen_before: set[int] = set()
        self._since_s = 0.0
        self._programs: BoundedTable[int, str] = BoundedTable(10_000)
        self._fresh: list[ArrivalRecord] = []
        self._taken: list[ArrivalRecord] = []

    def note(self, record: ArrivalRecord) -> None:
        """Add a request, unless the client requested the file shortly before."""
        key = hash((record.client, record.file))
        # Within ten minutes it is the same arrival, after twenty it never is.
        passed_s = record.at_s - self._since_s
        if passed_s > 600.0 or len(self._seen) >= 16_000:
            self._seen_before = self._seen if passed_s <= 1200.0 else set()
            self._seen, self._since_s = set(), record.at_s
        fresh = key not in self._seen and key not in self._seen_before
        self._seen.add(key)
        self._programs[key] = record.program
        # A bound on memory: they wait for the next sample.
        if fresh and len(self._fresh) < 100_000:
            self._fresh.append(record)

    def program_of(self, client: str, file: str) -> str:
        """What program of a client asked for a file lately; empty where it is unknown."""
        return self._programs.get(hash((client, file)), "")

    def take(self) -> list[ArrivalRecord]:
        fresh, self._fresh = self._fresh, []
        self._taken = fresh
        return fresh

    def lately(self) -> list[ArrivalRecord]:
        """Arrivals that the database may not have yet: those of the last `take`, and later ones."""
        return [*self._taken, *self._fresh]


class History:
    """Samples the server and reads what was sampled; tickets are kept for `kept_s`."""

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
        self._reactor: Any = reactor
        self._now = now
        self._store = store
        self._vitals = vitals
        self._popularity = popularity
        self._arrivals = arrivals
        self.program_of = arrivals.program_of
        self._kept_s = kept_s
        self._timer = Repeat(reactor, SAMPLE_S, self._sample)
        self._sampler = Sampler(vitals)
        self._taken = 0
        self._drawn: BoundedTable[tuple[int, int], tuple[float, Series]] = BoundedTable(16)
        self._thin = random.Random(0)

    def start(self) -> None:
        self._timer.start()
        self._sample()

    def stop(self) -> None:
        """Stop sampling, and write the last counts."""
        self._timer.stop()
        self._write_usage(self._now())

    # -- the past ----------------------------------------------------------------------------

    async def drawn(self, span_s: float, until_s: float, points: int) -> Series:
        """The last `span_s` seconds for charts, from a cache."""
        key = (round(span_s), points)
        # A quarter of a step, 4 s to a minute. A chart of a week has steps of 42 minutes.
        fresh_s = min(60.0, max(4.0, span_s / points / 4))
        kept = self._drawn.get(key)
        if kept is not None and 0 <= until_s - kept[0] < fresh_s:
            return kept[1]
        found = await self.read(until_s - span_s, until_s, points)
        self._drawn[key] = (until_s, found)
        return found

    async def read(self, since_s: float, until_s: float, points: int) -> Series:
        """All series on about `points` steps; empty if the database fails."""
        try:
            # An hour is read in 0.07 s. A page waits no longer for a database that hangs.
            axis, found = await self._store.read(
                lambda connection: read_binned(connection, RECORDED, since_s, until_s, points)
            ).addTimeout(3.0, self._reactor)
        except Exception as fault:  # noqa: BLE001 - any fault of a database
            log.warn("The history cannot be read: {fault}", fault=str(fault))
            return Series((), dict.fromkeys(RECORDED, ()))
        return Series(tuple(axis), {name: tuple(values) for name, values in found.items()})

    async def arrivals(self, since_s: float, limit: int) -> list[ArrivalRecord]:
        """Recorded arrivals for a preview, a random sample beyond `limit`. Raises StoreSilent."""
        stored = await ask(self._store, lambda s: read_arrivals(s, since_s, limit * 10))
        found = list(dict.fromkeys((*stored, *self._arrivals.lately())))
        if len(found) > limit:
            found = [found[index] for index in sorted(self._thin.sample(range(len(found)), limit))]
        return sorted([*found, *await self._small_ones(since_s)], key=lambda a: a.at_s)

    async def _small_ones(self, since_s: float) -> list[ArrivalRecord]:
        """Arrivals for small files at random times: the server records only their number."""
        now = self._now()
        # One step per sample: a wider step that is partly sampled would count too much.
        past = await self.read(since_s, now, max(1, round((now - since_s) / SAMPLE_S)))
        rates = [rate for rate in past.series.get("admitted_small", ()) if rate is not None]
        span_s = len(rates) * (now - since_s) / max(1, len(past.t))
        sampled = sum(rates) / len(rates) * span_s if rates else 0.0
        # Also those since the last sample: a preview may follow right after a download.
        # More than 3 000 small files change nothing in a preview.
        count = min(3_000, round(sampled + self._sampler.grown("admitted_small")))
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
        samples = [SampleRecord(now, series, value, value) for series, value in values.items()]
        self._store.note(lambda connection: write_samples(connection, samples))
        arrivals = self._arrivals.take()
        most = 100  # Answers to clients wait for the same commit.
        for at in range(0, len(arrivals), most):
            self._store.note(partial(write_arrivals, records=arrivals[at : at + most]))
        self._taken += 1
        # Every minute, and every hour.
        if self._taken % 12 == 0:
            self._write_usage(now)
            self._store.note(lambda connection: thin(connection, now, _RATES))
        if self._taken % 720 == 1:
            self._store.note(lambda connection: forget_tickets(connection, now - 2 * self._kept_s))
            self._store.note(lambda connection: forget(connection, now))
