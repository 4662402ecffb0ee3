"""What a run says about the clients: one flat set of figures, and its mean over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..workloads import Workload
from .bounds import alone_s
from .conditions import Conditions
from .outcome import DOWNLOAD_FIELDS, SESSION_FIELDS, RunRecord

_Vector = NDArray[np.float64]

#: The paper counts a difference between two runs of one client only beyond both of these.
SIGNIFICANT_FRACTION, SIGNIFICANT_S = 0.05, 5.0
#: An estimate is judged by its error relative to the wait only for waits longer than this.
ETA_WAIT_S = 10.0

#: Figure -> what it is, with its unit. Everything printed, written or drawn is one of these.
MEANING: Mapping[str, str] = {
    "mean_session_s": "mean time from a client's arrival to its last byte, s",
    "p50_session_s": "median session time, s",
    "p95_session_s": "95th percentile of session time, s",
    "p99_session_s": "99th percentile of session time, s",
    "mean_slowdown": "mean of session time / session time alone on the server",
    "max_slowdown": "largest such ratio",
    "jain": "Jain's fairness index of 1 / slowdown (1: all alike)",
    "wait_small_s": "mean wait for the first byte of a small file, s",
    "wait_small_p95_s": "its 95th percentile, s",
    "wait_large_s": "mean wait for the first byte of a large file, s",
    "wait_large_p95_s": "its 95th percentile, s",
    "small_p99_s": "99th percentile of the time from asking for a small file to having it, s",
    "large_p99_s": "99th percentile of the time from asking for a large file to having it, s",
    "attempts": "requests per download",
    "attempts_total": "requests in all",
    "wasted_polls": "requests per download that were answered with later, but for the first",
    "gave_up": "fraction of the clients that left without all their files",
    "utilisation": "bytes delivered / bytes the link could carry until the last arrival was served",
    "eta_within_p90": "fraction of the clients that were told a time and started before its "
    "90 % bound (those who left after the bound had passed count as not)",
    "eta_median_error": "median of |told - actual| / actual wait, for waits over 10 s",
    "eta_told": "how many clients were told a time",
    "rude_gain": "how much sooner rude clients are done than the same ones were when polite, "
    "beside what those who stay polite gain or lose by them",
    "net_faster": "paper: fraction of clients faster than under HTTP less those slower "
    "(by more than 5 % and 5 s)",
    "ratio_to_http": "mean session time / that of HTTP with the same slots and nothing extra",
    "ratio_to_bound": "mean session time / the best lower bound",
    "bound_s": "the best lower bound on the mean session time, s",
    "http_mean_session_s": "mean session time of the HTTP control, s",
}


def columns(data: Sequence[float], fields: Sequence[str]) -> dict[str, _Vector]:
    """The flat rows of a tally as one vector a field."""
    table = np.asarray(data, dtype=np.float64).reshape(-1, len(fields))
    return {name: table[:, index] for index, name in enumerate(fields)}


def session_times(tally: RunRecord, clients: int) -> _Vector:
    """Session time by client number; nan for those who gave up."""
    sessions = columns(tally.sessions, SESSION_FIELDS)
    times = np.full(clients, math.nan)
    whole = sessions["gave_up"] == 0.0
    numbers = sessions["client"][whole].astype(int)
    times[numbers] = (sessions["ended_s"] - sessions["arrived_s"])[whole]
    return times


def _quantile(values: _Vector, q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else math.nan


def _mean(values: _Vector) -> float:
    return float(values.mean()) if len(values) else math.nan


def measure(workload: Workload, conditions: Conditions, tally: RunRecord) -> dict[str, float]:
    """All figures of one run that need no other run beside it."""
    times = session_times(tally, len(workload.visitors))
    done = ~np.isnan(times)
    connect_s = conditions.attempt_s + conditions.accept_s
    alone = alone_s(
        workload, conditions.bandwidth_bytes_s, connect_s, joint=conditions.one_connection
    )
    slowdown = times[done] / alone[done]
    downloads = columns(tally.downloads, DOWNLOAD_FIELDS)
    small = downloads["size_bytes"] < workload.small_below_bytes
    served = ~np.isnan(downloads["first_byte_s"])
    wait = downloads["first_byte_s"] - downloads["asked_s"]
    taken = downloads["ended_s"] - downloads["asked_s"]
    complete = downloads["gave_up"] == 0.0
    attempts = downloads["attempts"]
    speed = 1.0 / slowdown
    span = max(tally.ended_s, 1e-9)
    figures = {
        "mean_session_s": _mean(times[done]),
        "p50_session_s": _quantile(times[done], 0.5),
        "p95_session_s": _quantile(times[done], 0.95),
        "p99_session_s": _quantile(times[done], 0.99),
        "mean_slowdown": _mean(slowdown),
        "max_slowdown": float(slowdown.max()) if len(slowdown) else math.nan,
        "jain": float(speed.sum() ** 2 / (len(speed) * (speed**2).sum()))
        if len(speed)
        else math.nan,
        "wait_small_s": _mean(wait[small & served]),
        "wait_small_p95_s": _quantile(wait[small & served], 0.95),
        "wait_large_s": _mean(wait[~small & served]),
        "wait_large_p95_s": _quantile(wait[~small & served], 0.95),
        "small_p99_s": _quantile(taken[small & complete], 0.99),
        "large_p99_s": _quantile(taken[~small & complete], 0.99),
        "attempts": _mean(attempts),
        "attempts_total": float(attempts.sum()),
        "wasted_polls": _mean(np.maximum(0.0, attempts - 2.0)),
        "gave_up": float(1.0 - done.mean()) if len(done) else 0.0,
        "utilisation": tally.delivered_bytes / (conditions.bandwidth_bytes_s * span),
    }
    return figures | _eta(downloads)


def _eta(downloads: Mapping[str, _Vector]) -> dict[str, float]:
    promised = ~np.isnan(downloads["promised_s"])
    start = downloads["admitted_s"] - downloads["promised_at_s"]
    started = promised & ~np.isnan(start)
    left_after = downloads["ended_s"] - downloads["promised_at_s"]
    too_late = promised & ~started & (left_after > downloads["promised_p90_s"])
    judged = int(started.sum() + too_late.sum())
    within = started & (start <= downloads["promised_p90_s"] + 1e-6)
    long = started & (start > ETA_WAIT_S)
    error = np.abs(downloads["promised_s"] - start)[long] / start[long]
    return {
        "eta_told": float(judged),
        "eta_within_p90": float(within.sum() / judged) if judged else math.nan,
        "eta_median_error": _quantile(error, 0.5),
    }


def rude_gain(workload: Workload, times: _Vector, calm: _Vector) -> float:
    """What rudeness pays: `calm` are the session times of the same clients when all were polite.

    Comparing the same clients, the few who are rude need not be like the others.
    """
    rude = np.array([visitor.rude for visitor in workload.visitors], dtype=bool)
    done = ~np.isnan(times) & ~np.isnan(calm)
    if not (rude & done).any() or not (~rude & done).any():
        return math.nan
    changes = [times[who].mean() / calm[who].mean() for who in (rude & done, ~rude & done)]
    return float(1.0 - changes[0] / changes[1])


def later(times: _Vector, control: _Vector) -> float:
    """The part of the clients that are done significantly later than in the control run."""
    both = ~np.isnan(times) & ~np.isnan(control)
    if not both.any():
        return math.nan
    loss = times[both] - control[both]
    return float((loss > np.maximum(SIGNIFICANT_FRACTION * control[both], SIGNIFICANT_S)).mean())


def net_faster(times: _Vector, control: _Vector) -> float:
    """The paper's net proportion of clients faster than in the control run, -1 to 1."""
    both = ~np.isnan(times) & ~np.isnan(control)
    if not both.any():
        return math.nan
    gain = control[both] - times[both]
    counted = np.abs(gain) > np.maximum(SIGNIFICANT_FRACTION * control[both], SIGNIFICANT_S)
    return float(np.sign(gain[counted]).sum() / both.sum())


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds and its standard error; nan values (no such thing in a run) are left out."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan, math.nan
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return mean, math.nan
    variance = math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)
    return mean, math.sqrt(variance / len(known))
