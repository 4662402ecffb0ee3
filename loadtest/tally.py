"""What a load test counts (waits, attempts, promises, bytes; mergeable), and its objectives.

One `Tally` a process. Workers send theirs to the master as plain JSON (`drain`), which adds them
up (`merge`): histograms and counters add exactly, so a figure over four workers is the figure one
process would have seen. Times are seconds.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..client.net.retry import FailureReason, Refused, RetryAfter, RetryState
from ..protocol.errors import ProtocolError
from ..protocol.units import parse_duration, parse_size

#: Each bucket is 2 % wider than the one before: a percentile is off by 1 % at the most.
_LOG_STEP = math.log(1.02)
_FLOOR_S = 1e-4


@dataclass(slots=True)
class Histogram:
    """A log-bucketed histogram of non-negative values with exact count, sum and maximum."""

    buckets: Counter[int] = field(default_factory=Counter)
    count: int = 0
    total: float = 0.0
    largest: float = 0.0

    def add(self, value: float) -> None:
        """Count one value; what is below 0.1 ms counts as 0."""
        index = -1 if value < _FLOOR_S else int(math.log(value / _FLOOR_S) / _LOG_STEP)
        self.buckets[index] += 1
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)

    def merge(self, other: Histogram) -> None:
        self.buckets.update(other.buckets)
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def percentile(self, fraction: float) -> float | None:
        """The value that `fraction` of all are at or below; None when nothing was counted."""
        if not self.count:
            return None
        rank = math.ceil(fraction * self.count)
        for index in sorted(self.buckets):
            rank -= self.buckets[index]
            if rank <= 0:
                return 0.0 if index < 0 else min(_middle(index), self.largest)
        return self.largest

    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready form that `from_json` reads back exactly."""
        return {
            "buckets": {str(key): n for key, n in self.buckets.items()},
            "count": self.count,
            "total": self.total,
            "largest": self.largest,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Histogram:
        buckets = Counter({int(key): int(n) for key, n in raw["buckets"].items()})
        return cls(buckets, int(raw["count"]), float(raw["total"]), float(raw["largest"]))


def _middle(index: int) -> float:
    return _FLOOR_S * math.exp((index + 0.5) * _LOG_STEP)


@dataclass(slots=True)
class Tally:
    """All that one load-generating process has seen since it last reported.

    Histogram names: `wait_small`, `wait_large` (first attempt to first byte), `session` (first
    attempt to last verified byte), `visit` (the same for all files of one visitor, as paper A
    measures its sessions), `attempts` (per finished download), `eta_error` (|actual −
    promised| ÷ actual wait), `lateness` (how long after its planned time an arrival began).
    """

    histograms: dict[str, Histogram] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)

    def observe(self, name: str, value: float) -> None:
        self.histograms.setdefault(name, Histogram()).add(value)

    def count(self, name: str, by: int = 1) -> None:
        self.counters[name] += by

    def merge(self, other: Tally) -> None:
        for name, histogram in other.histograms.items():
            self.histograms.setdefault(name, Histogram()).merge(histogram)
        self.counters.update(other.counters)

    def drain(self) -> dict[str, Any]:
        """A JSON-ready form of everything so far; this tally is empty afterwards."""
        report = {
            "histograms": {name: h.to_json() for name, h in self.histograms.items()},
            "counters": dict(self.counters),
        }
        self.histograms.clear()
        self.counters.clear()
        return report

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Tally:
        return cls(
            {name: Histogram.from_json(h) for name, h in raw["histograms"].items()},
            Counter({name: int(n) for name, n in raw["counters"].items()}),
        )

    def figures(self) -> dict[str, float]:
        """Every figure by name, only those that exist: the vocabulary of objectives and reports."""
        return dict(self._figures())

    def _figures(self) -> Iterator[tuple[str, float]]:
        for name, histogram in sorted(self.histograms.items()):
            mean = histogram.mean()
            if mean is None:
                continue
            yield f"mean_{name}", mean
            for label, fraction in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
                value = histogram.percentile(fraction)
                if value is not None:
                    yield f"{label}_{name}", value
            yield f"max_{name}", histogram.largest
        for name in COUNTERS:
            yield name, float(self.counters[name])
        ended = self.counters["finished"] + self.counters["gave_up"] + self.counters["failed"]
        if ended:
            yield "give_up_fraction", self.counters["gave_up"] / ended
            yield "failed_fraction", self.counters["failed"] / ended
        polite, rude = (self.histograms.get(f"wait_large_{m}") for m in ("polite", "rude"))
        if polite and rude and (mean := polite.mean()) and (other := rude.mean()) is not None:
            yield "rude_gain", 1.0 - other / mean
        if promised := self.counters["promises"]:
            yield "eta_within_p90", self.counters["promises_kept"] / promised


#: Every counter and what it means; shown in this order by all reports.
COUNTERS: Mapping[str, str] = {
    "arrived": "downloads begun",
    "finished": "downloads whose every byte was verified",
    "gave_up": "downloads abandoned by their client's patience",
    "failed": "downloads that ended wrong",
    "queued": "answers that said when to come back",
    "tickets_issued": "tickets received",
    "tickets_redeemed": "tickets that became a download",
    "tickets_expired": "tickets that the server called expired",
    "early_polls": "polls before the promised time",
    "refused": "answers that refused a ticket or a client",
    "not_found": "answers that the server has no such file: is it the right workload?",
    "promises": "waits with a promised 90 % bound",
    "promises_kept": "of these, started within the bound",
    "verified_bytes": "bytes whose digest was right",
    "multicast_bytes": "of these, received by multicast",
    "part_downloads": "downloads that came in several parts at a time",
    "late_arrivals": "arrivals begun over 1 s late: too few users",
}


#: What is observed, and which figures are made of each.
OBSERVED: Mapping[str, str] = {
    **{
        f"wait_{kind}{manner}": f"from asking for a {kind} file to its first byte{who}"
        for kind in ("small", "large")
        for manner, who in (("", ""), ("_polite", ", the polite"), ("_rude", ", the rude"))
    },
    "session": "from asking for a file to its last verified byte",
    "visit": "the same for all files of one client",
    "attempts": "requests for one download",
    "eta_error": "how wrong the first told time was, relative to the wait",
    "lateness": "how long after its planned time an arrival began",
}
_RATIOS: Mapping[str, str] = {
    "give_up_fraction": "of all downloads that ended: given up",
    "failed_fraction": "of all downloads that ended: failed",
    "rude_gain": "how much sooner the rude are served than the polite",
    "eta_within_p90": "of all told times: started before their 90 % bound",
}
#: What belongs together in a list of figures, by words of its members' names.
_GROUPS: Mapping[str, str] = {
    "Waiting": "wait|rude_gain",
    "Downloads": "session|visit|arrived|finished|gave_up|failed|_fraction",
    "Promises": "eta_|promises",
    "Asking": "attempts|queued|tickets_|early_polls|refused|not_found",
    "Bytes": "verified_bytes|multicast_bytes",
    "The load itself": "",
}


def is_figure(name: str) -> bool:
    """Whether some run can have a figure of that name."""
    shape, _, of = name.partition("_")
    return (
        name in COUNTERS
        or name in _RATIOS
        or (shape in ("mean", "p50", "p95", "p99", "max") and of in OBSERVED)
    )


def rows(figures: dict[str, float]) -> list[dict[str, str]]:
    """Figures as group, name, value and meaning, ready to show; groups stand together."""
    found = [
        {
            "group": _group(name),
            "name": name,
            "value": spell(name, value),
            "meaning": meaning(name),
        }
        for name, value in figures.items()
    ]
    order = list(_GROUPS)
    return sorted(found, key=lambda row: order.index(row["group"]))


def _group(name: str) -> str:
    return next(group for group, words in _GROUPS.items() if re.search(words, name))


def meaning(name: str) -> str:
    if name in COUNTERS or name in _RATIOS:
        return COUNTERS.get(name) or _RATIOS[name]
    shape, _, of = name.partition("_")
    shapes = {
        "mean": "in the mean",
        "p50": "half of them at the most",
        "p95": "95 of 100 at the most",
        "p99": "99 of 100 at the most",
        "max": "the largest",
    }
    return f"{OBSERVED.get(of, of)}: {shapes.get(shape, shape)}"


def spell(name: str, value: float) -> str:
    """A figure as people read it: fractions as percent, times in seconds, counts whole."""
    if name in COUNTERS:
        return f"{value:.0f}"
    if name.endswith(("_fraction", "_within_p90", "_gain")) or "eta_error" in name:
        return f"{100 * value:.1f} %"
    if name.partition("_")[2] == "attempts":
        return f"{value:.2f}"
    return f"{value:.3f} s"


class DownloadTally:
    """Counts the requests, the wait and the end of one download.

    `kind` is small or large. `manner` is `_polite` or `_rude` where both are compared, else empty.
    """

    def __init__(
        self, tally: Tally, visit: RetryState, kind: str, manner: str, began_s: float
    ) -> None:
        self.visit = visit
        self.kind = kind
        self._tally = tally
        self._manner = manner
        self._began_s = began_s
        self._told_until_s: float | None = None
        self._promise: tuple[float, float, float] | None = None
        self._has_ticket = False

    def ask(self, now: float) -> dict[str, str]:
        """The fields of the next request; one before the told time counts as early."""
        # Half a second before the told time is early; below, clocks and the line decide.
        if self._told_until_s is not None and now < self._told_until_s - 0.5:
            self._tally.count("early_polls")
        return dict(self.visit.headers())

    def note_answer(self, now: float, answer: object) -> bool:
        """Count an answer without a body; whether it told the client when to come back."""
        if isinstance(answer, RetryAfter):
            self._tally.count("queued")
            if answer.retry_after_s is not None:
                self._told_until_s = now + answer.retry_after_s
            if answer.ticket is not None and not self._has_ticket:
                self._has_ticket = True
                self._tally.count("tickets_issued")
            if self._promise is None and answer.p90_s is not None:
                expected_s = answer.p90_s if answer.expected_s is None else answer.expected_s
                self._promise = (now, expected_s, answer.p90_s)
            return answer.retry_after_s is not None
        if isinstance(answer, Refused) and answer.reason is FailureReason.NOT_FOUND:
            self._tally.count("not_found")
        elif isinstance(answer, Refused):
            self._tally.count("refused")
            if answer.ticket_fault:
                self._tally.count("tickets_expired")
        return False

    def note_start(self, now: float) -> None:
        wait_s = now - self._began_s
        self._tally.observe(f"wait_{self.kind}", wait_s)
        if self._manner:
            self._tally.observe(f"wait_{self.kind}{self._manner}", wait_s)
        if self._has_ticket:
            self._tally.count("tickets_redeemed")
        if self._promise is not None:
            told_s, expected_s, p90_s = self._promise
            actual_s = now - told_s
            self._tally.count("promises")
            if actual_s <= p90_s:
                self._tally.count("promises_kept")
            # Below this, the error of a told time is the scheduling of this machine.
            if actual_s > 1.0:
                self._tally.observe("eta_error", abs(actual_s - expected_s) / actual_s)

    def note_done(self, now: float, count_bytes: int) -> None:
        self._tally.count("finished")
        self._tally.count("verified_bytes", count_bytes)
        self._tally.observe("session", now - self._began_s)
        self._tally.observe("attempts", float(self.visit.attempts))


_RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}


def _bound(text: str) -> float:
    if text.endswith("%"):
        return float(text[:-1]) / 100.0
    return float(parse_size(text)) if text.endswith("B") else parse_duration(text)


@dataclass(frozen=True, slots=True)
class Objective:
    """One figure and the bound that it must keep."""

    text: str
    figure: str
    relation: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Read `figure<bound`; a bound is a number, a duration (`2s`), a size or a percentage.

        Raises ValueError with what is wrong and what would be right.
        """
        match = re.fullmatch(r"\s*([a-z][a-z0-9_]*)\s*(<=|>=|==|<|>)\s*(\S+)\s*", text)
        if match is None:
            raise ValueError(f"{text!r} is no objective; write for example p95_wait_small<2s")
        figure, relation, bound = match.groups()
        try:
            return cls(text.strip(), figure, relation, _bound(bound))
        except (ProtocolError, ValueError) as error:
            raise ValueError(f"{text!r}: {error}") from None

    def untried(self, figures: Mapping[str, float]) -> bool:
        """Whether it is about promises and no client waited, or files that no client wanted.

        If all downloads ended well and have no figure of a kind, none was of that kind.
        """
        if self.figure == "eta_within_p90":
            return figures.get("promises") == 0 and figures.get("queued") == 0
        absent = self.figure not in figures and re.search("_(small|large)$", self.figure)
        return bool(absent) and 0 < figures.get("arrived", 0) == figures.get("finished")

    def verdict(self, figures: Mapping[str, float]) -> str | None:
        """None when kept or untried, else one sentence. A figure that was never seen is a miss."""
        if self.untried(figures):
            return None
        if self.figure not in figures:
            return f"{self.text}: this run has no such figure, so it counts as missed"
        value = figures[self.figure]
        if _RELATIONS[self.relation](value, self.bound):
            return None
        return f"{self.text}: measured {value:.4g}"


def misses(objectives: Iterable[Objective], figures: Mapping[str, float]) -> list[str]:
    """What was missed, in words; the first rule always holds: something must have finished."""
    found = [verdict for o in objectives if (verdict := o.verdict(figures)) is not None]
    if not figures.get("finished"):
        found.insert(0, "no download finished")
    return found
