"""What a run says about the clients: one flat set of figures, and its mean over seeds."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from itertools import compress

from ..workloads import Workload
from .bounds import alone_s
from .conditions import Conditions
from .outcome import DOWNLOAD_FIELDS, SESSION_FIELDS, RunRecord, mean, quantile

#: Figure -> what it is, with its unit. Everything printed, written or drawn is one of these.
MEANING: Mapping[str, str] = {
    "mean_session_s": "mean time from a client's arrival to its last byte, s",
    "p50_session_s": "median session time, s",
    "p95_session_s": "95th percentile of session time, s",
    "p99_session_s": "99th percentile of session time, s",
    "mean_slowdown": "mean of session time / session time alone on the server",
    "wait_small_s": "mean wait for the first byte of a small file, s",
    "wait_small_p95_s": "its 95th percentile, s",
    "wait_large_s": "mean wait for the first byte of a large file, s",
    "wait_large_p95_s": "its 95th percentile, s",
    "small_p99_s": "99th percentile of the time from asking for a small file to having it, s",
    "attempts": "requests per download",
    "gave_up": "fraction of the clients that left without all their files",
    "utilisation": "bytes delivered / bytes the link could carry until the last arrival was served",
    "eta_within_p90": "fraction of the clients that were told a time and started before its "
    "90 % bound (those who left after the bound had passed count as not)",
    "eta_median_error": "median of |told - actual| / actual wait, for waits over 10 s",
    "end_within_p90": "fraction of the clients that were told when their download ends and had it "
    "before its 90 % bound (judged as starts are)",
    "end_median_error": "median of |told - actual| / actual time to the last byte, over 10 s",
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


def columns(data: array[float], fields: Sequence[str]) -> dict[str, array[float]]:
    """The flat rows of a tally as one column a field."""
    return {name: data[index :: len(fields)] for index, name in enumerate(fields)}


def session_times(tally: RunRecord, clients: int) -> list[float]:
    """Session time by client number; nan for those who gave up."""
    times = [math.nan] * clients
    sessions = columns(tally.sessions, SESSION_FIELDS)
    for client, arrived_s, ended_s, gave_up in zip(
        sessions["client"],
        sessions["arrived_s"],
        sessions["ended_s"],
        sessions["gave_up"],
        strict=True,
    ):
        if gave_up == 0.0:
            times[int(client)] = ended_s - arrived_s
    return times


def measure(workload: Workload, conditions: Conditions, tally: RunRecord) -> dict[str, float]:
    """All figures of one run that need no other run beside it."""
    times = session_times(tally, len(workload.visitors))
    connect_s = conditions.attempt_s + conditions.accept_s
    alone = alone_s(
        workload, conditions.bandwidth_bytes_s, connect_s, joint=conditions.one_connection
    )
    slowdown = [
        time / least for time, least in zip(times, alone, strict=True) if not math.isnan(time)
    ]
    done = sorted(time for time in times if not math.isnan(time))
    downloads = columns(tally.downloads, DOWNLOAD_FIELDS)
    span = max(tally.ended_s, 1e-9)
    figures = {
        "mean_session_s": mean(done),
        "p50_session_s": quantile(done, 0.5),
        "p95_session_s": quantile(done, 0.95),
        "p99_session_s": quantile(done, 0.99),
        "mean_slowdown": mean(slowdown),
        "attempts": mean(downloads["attempts"]),
        "gave_up": 1.0 - len(done) / len(times) if times else 0.0,
        "utilisation": tally.delivered_bytes / (conditions.bandwidth_bytes_s * span),
    }
    return figures | _by_size(downloads, workload.small_below_bytes) | _eta(downloads)


def _by_size(
    downloads: Mapping[str, Sequence[float]], small_below_bytes: float
) -> dict[str, float]:
    """Waits for small and for large files, and the whole times of small ones."""
    waits: dict[str, list[float]] = {"small": [], "large": []}
    taken: list[float] = []
    for size_bytes, asked_s, first_byte_s, ended_s, gave_up in zip(
        downloads["size_bytes"],
        downloads["asked_s"],
        downloads["first_byte_s"],
        downloads["ended_s"],
        downloads["gave_up"],
        strict=True,
    ):
        kind = "small" if size_bytes < small_below_bytes else "large"
        if not math.isnan(first_byte_s):
            waits[kind].append(first_byte_s - asked_s)
        if gave_up == 0.0 and kind == "small":
            taken.append(ended_s - asked_s)
    figures = {"small_p99_s": quantile(sorted(taken), 0.99)}
    for kind in ("small", "large"):
        figures[f"wait_{kind}_s"] = mean(waits[kind])
        figures[f"wait_{kind}_p95_s"] = quantile(sorted(waits[kind]), 0.95)
    return figures


def _eta(downloads: Mapping[str, Sequence[float]]) -> dict[str, float]:
    whole_s = [
        math.nan if gave_up else ended_s
        for ended_s, gave_up in zip(downloads["ended_s"], downloads["gave_up"], strict=True)
    ]
    judged, within, error = _told(
        downloads, "promised_s", "promised_p90_s", downloads["admitted_s"]
    )
    _, end_within, end_error = _told(downloads, "promised_end_s", "promised_end_p90_s", whole_s)
    return {
        "eta_told": float(judged),
        "eta_within_p90": within,
        "eta_median_error": error,
        "end_within_p90": end_within,
        "end_median_error": end_error,
    }


def _told(
    downloads: Mapping[str, Sequence[float]], told: str, bound: str, came_s: Sequence[float]
) -> tuple[int, float, float]:
    """How many told times are judged, the part within their bound, and the median error."""
    judged = within = 0
    errors = []
    for promised_s, p90_s, told_at_s, at_s, ended_s in zip(
        downloads[told],
        downloads[bound],
        downloads["promised_at_s"],
        came_s,
        downloads["ended_s"],
        strict=True,
    ):
        if math.isnan(promised_s):
            continue
        after_s = at_s - told_at_s
        if math.isnan(after_s):
            # A client that left before its bound had passed cannot be judged.
            judged += ended_s - told_at_s > p90_s
            continue
        judged += 1
        within += after_s <= p90_s + 1e-6
        # An estimate is judged by its error relative to the wait only for waits longer than this.
        if after_s > 10.0:
            errors.append(abs(promised_s - after_s) / after_s)
    return judged, within / judged if judged else math.nan, quantile(sorted(errors), 0.5)


def _both(times: Sequence[float], others: Sequence[float]) -> list[tuple[float, float]]:
    """The times of those clients that have one in both runs."""
    return [
        pair
        for pair in zip(times, others, strict=True)
        if not math.isnan(pair[0]) and not math.isnan(pair[1])
    ]


def rude_gain(workload: Workload, times: Sequence[float], calm: Sequence[float]) -> float:
    """What rudeness pays: `calm` are the session times of the same clients when all were polite.

    Comparing the same clients, the few who are rude need not be like the others.
    """
    changes = []
    for rude in (True, False):
        members = [visitor.rude == rude for visitor in workload.visitors]
        pairs = _both(list(compress(times, members)), list(compress(calm, members)))
        if not pairs:
            return math.nan
        changes.append(mean([time for time, _ in pairs]) / mean([time for _, time in pairs]))
    return 1.0 - changes[0] / changes[1]


def _significant_s(control_s: float) -> float:
    # The paper counts a difference between two runs of one client only beyond both of these.
    return max(0.05 * control_s, 5.0)


def later(times: Sequence[float], control: Sequence[float]) -> float:
    """The part of the clients that are done significantly later than in the control run."""
    return mean([one - other > _significant_s(other) for one, other in _both(times, control)])


def net_faster(times: Sequence[float], control: Sequence[float]) -> float:
    """The paper's net proportion of clients faster than in the control run, -1 to 1."""
    return mean(
        [
            math.copysign(abs(other - one) > _significant_s(other), other - one)
            for one, other in _both(times, control)
        ]
    )


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds and its standard error; nan values (no such thing in a run) are left out."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan, math.nan
    center = mean(known)
    if len(known) == 1:
        return center, math.nan
    variance = math.fsum((value - center) ** 2 for value in known) / (len(known) - 1)
    return center, math.sqrt(variance / len(known))
