"""Samples of the live server for the store: what the admin page draws and previews replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twisted.python.failure import Failure

from server.gate import Gate
from server.gateparts import Link
from server.recent import Recent
from server.store.history import RAW, read_samples, thin, write_samples
from server.store.journal import forget_tickets
from server.store.ledger import forget_digests, forget_events, write_arrivals
from server.store.records import ArrivalRecord, SampleRecord
from server.store.store import Store
from server.store.usage import add_usage, forget_usage

SAMPLE_S = 5.0
#: What the charts' first look shows is kept in memory.
_RECENT_S = 3600.0
_MOMENTS = round(_RECENT_S / SAMPLE_S) + 1
_THIN_EVERY = 12
_SAME_JOB_S = 600.0
_SEEN_MOST = 50_000
_ARRIVALS_KEPT_S = 30 * 86_400.0
_DIGESTS_KEPT_S = 90 * 86_400.0
_USAGE_KEPT_S = 365 * 86_400.0
#: Snapshot counters that become rates per second.
_RATES = {
    "offers": "offers_total",
    "admitted_small": "admitted_small_total",
    "admitted_large": "admitted_large_total",
    "completed": "completed_total",
    "tickets_issued": "tickets_issued_total",
    "tickets_expired": "tickets_expired_total",
    "refused": "refused_total",
}
_LEVELS = ("small_active", "large_active", "paused", "waiting", "ready", "ready_target", "slots")


class Recorder:
    """Takes a sample every few seconds; `latest` is the last one, by series."""

    def __init__(
        self,
        reactor: Any,
        now: Callable[[], float],
        store: Store,
        gate: Gate,
        link: Link,
        extra: Callable[[], Mapping[str, float]],
        ticket_max_age_s: float,
        series: Sequence[str],
    ) -> None:
        self._reactor = reactor
        self._now = now
        self._store = store
        self._gate = gate
        self._link = link
        self._extra = extra
        self._kept_s = ticket_max_age_s
        self._series = series
        self._call: Any = None
        self._counts: dict[str, int] = {}
        self._taken = 0
        self._arrivals: list[ArrivalRecord] = []
        self._seen: dict[tuple[str, str], float] = {}
        self.latest: dict[str, float] = {}
        self.recent = Recent(_RECENT_S, _MOMENTS)

    def start(self) -> None:
        """Begin to sample, and fetch what an earlier run sampled in the last hour."""
        self._sample()
        until_s = self._now()
        since_s, most = until_s - _RECENT_S, _MOMENTS * len(self._series)

        def ill(_fault: Failure) -> None:
            # The store says so itself; the charts then begin with this run.
            self.recent.complete(())

        self._store.read(
            lambda session: read_samples(session, self._series, RAW, since_s, until_s, most)
        ).addCallbacks(self.recent.complete, ill)

    def stop(self) -> None:
        """Stop sampling, and write what was counted since the last time."""
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._write_usage(self._now())

    def recorded(
        self, series: Sequence[str], since_s: float, until_s: float, points: int
    ) -> tuple[list[float], dict[str, list[float | None]]]:
        """The series as memory has them, on one axis as `store.history.read_binned` makes it."""
        return self.recent.binned(series, since_s, until_s, points, SAMPLE_S)

    def arrived(self, record: ArrivalRecord) -> None:
        """Note a job that comes for the first time; written with the next sample.

        A client that asks again for the same file within ten minutes is the same job.
        """
        key = (record.client, record.file)
        known = self._seen.pop(key, None)
        self._seen[key] = record.at_s
        if len(self._seen) > _SEEN_MOST:
            del self._seen[next(iter(self._seen))]
        fresh = known is None or record.at_s - known > _SAME_JOB_S
        if fresh and len(self._arrivals) < 100_000:
            self._arrivals.append(record)

    def _write_usage(self, now: float) -> None:
        usage = self._gate.parts.popularity.take(now)
        if usage:
            self._store.note(lambda session: add_usage(session, usage))

    def _sample(self) -> None:
        self._call = self._reactor.callLater(SAMPLE_S, self._sample)
        now = self._now()
        snapshot = self._gate.policy.snapshot(now)
        values: dict[str, float] = {name: float(getattr(snapshot, name)) for name in _LEVELS}
        for series, counter in _RATES.items():
            count = getattr(snapshot, counter)
            values[series] = max(0, count - self._counts.get(counter, count)) / SAMPLE_S
            self._counts[counter] = count
        values["held"] = float(len(self._gate.holds))
        values["goodput_bytes_s"] = self._link.goodput_bytes_s()
        if snapshot.last_wait is not None:
            values["last_wait_s"] = snapshot.last_wait.expected_s
        values.update(self._extra())
        self.latest = values
        self.recent.add(now, values)
        samples = [SampleRecord(now, series, value, value) for series, value in values.items()]
        self._store.note(lambda session: write_samples(session, samples))
        if self._arrivals:
            arrivals, self._arrivals = self._arrivals, []
            self._store.note(lambda session: write_arrivals(session, arrivals))
        self._taken += 1
        if self._taken % _THIN_EVERY == 0:
            self._write_usage(now)
            self._store.note(lambda session: thin(session, now))
        if self._taken % (_THIN_EVERY * 60) == 1:
            kept_s = self._kept_s
            self._store.note(lambda session: forget_tickets(session, now - 2 * kept_s))
            self._store.note(lambda session: forget_events(session, now - _ARRIVALS_KEPT_S))
            self._store.note(lambda session: forget_digests(session, now - _DIGESTS_KEPT_S))
            self._store.note(lambda session: forget_usage(session, now - _USAGE_KEPT_S))
