"""Alert rules over the figures of a running server: what fires, since when, and what is to be told.

`deploy/alerts.yml` has the same rules for Prometheus. Here they need no other program.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: The figures are looked at this often, seconds.
LOOK_S = 15.0
#: Increases of counters are known over this time, seconds.
_REMEMBERED_S = 600.0


class Readings:
    """The newest figures, and the counters of the last ten minutes."""

    __slots__ = ("_older", "figures")

    def __init__(self) -> None:
        self.figures: Mapping[str, Any] = {}
        self._older: deque[tuple[float, Mapping[str, Any]]] = deque()

    def note(self, now: float, figures: Mapping[str, Any]) -> None:
        self.figures = figures
        counters = ("errors_total", "forged_total", "sent_bytes_total")
        self._older.append((now, {name: figures[name] for name in counters}))
        while now - self._older[0][0] > _REMEMBERED_S:
            self._older.popleft()

    def increase(self, name: str, span_s: float) -> float:
        """How far a counter rose in this time, or since the first look if that is shorter."""
        since_s = self._older[-1][0] - span_s
        before = next(kept for at, kept in self._older if at >= since_s)
        return float(self.figures[name] - before[name])


@dataclass(frozen=True, slots=True)
class AlertRule:
    """`holds` for `for_s` seconds makes it fire."""

    name: str
    severity: Literal["critical", "warning"]
    for_s: float
    summary: str
    advice: str
    holds: Callable[[Readings], bool]


@dataclass(frozen=True, slots=True)
class AlertChange:
    """A rule that began to fire, or ended."""

    rule: AlertRule
    firing: bool
    since_s: float


@dataclass(slots=True)
class _Standing:
    #: Since when the rule holds, and when it last did.
    since_s: float | None = None
    held_s: float = 0.0
    firing: bool = False
    #: Whether the operator was told that it fires, and when that was last.
    told: bool = False
    told_s: float = float("-inf")


class AlertBook:
    """Which rules fire. Time and figures are given."""

    def __init__(self, rules: tuple[AlertRule, ...]) -> None:
        self.rules = rules
        self._readings = Readings()
        self._standings = {rule.name: _Standing() for rule in rules}

    def firing_since(self, rule: AlertRule) -> float | None:
        standing = self._standings[rule.name]
        return standing.since_s if standing.firing else None

    def look(self, now: float, figures: Mapping[str, Any]) -> list[AlertChange]:
        """Judge the figures of this moment; what the operators are to be told."""
        self._readings.note(now, figures)
        return [told for rule in self.rules if (told := self._judge(rule, now)) is not None]

    def _judge(self, rule: AlertRule, now: float) -> AlertChange | None:
        standing = self._standings[rule.name]
        if rule.holds(self._readings):
            standing.held_s = now
            if standing.since_s is None:
                standing.since_s = now
        elif standing.since_s is not None and (
            # A value at its bound is told once.
            not standing.firing or now - standing.held_s >= 120.0
        ):
            began_s, told = standing.since_s, standing.told
            standing.since_s, standing.firing, standing.told = None, False, False
            return AlertChange(rule, False, began_s) if told else None
        if standing.since_s is None or now - standing.since_s < rule.for_s:
            return None
        standing.firing = True
        # While it comes and goes, a rule is told once an hour.
        if standing.told or now - standing.told_s < 3600.0:
            return None
        standing.told, standing.told_s = True, now
        return AlertChange(rule, True, standing.since_s)


def _more_than(name: str, bound: float) -> Callable[[Readings], bool]:
    return lambda seen: (seen.figures[name] or 0.0) > bound


RULES = (
    AlertRule(
        "TidegateDatabaseDown",
        "critical",
        60.0,
        "The database takes no writes.",
        "Downloads and the queue go on. A crash loses the places that are given now. The page Now "
        "says why.",
        lambda seen: bool(seen.figures["store_degraded"]),
    ),
    AlertRule(
        "TidegateFaults",
        "warning",
        0.0,
        "The server has logged faults.",
        "Read its log (standard error, or the journal) of the last ten minutes.",
        lambda seen: seen.increase("errors_total", _REMEMBERED_S) > 0,
    ),
    AlertRule(
        "TidegateStalled",
        "critical",
        300.0,
        "Clients wait and nothing is sent.",
        "Look at the page Queue. The doors may be closed for maintenance, or the network is cut.",
        lambda seen: seen.figures["waiting"] > 0 and seen.increase("sent_bytes_total", 300.0) == 0,
    ),
    AlertRule(
        "TidegateLongWait",
        "warning",
        600.0,
        "The longest wait in the queue is more than an hour.",
        "More bandwidth or mirrors shorten it. The page Policy shows beforehand what a change "
        "does.",
        _more_than("last_wait_s", 3600.0),
    ),
    AlertRule(
        "TidegateTimesWrong",
        "warning",
        1800.0,
        "Fewer than 7 of 10 downloads are complete within the time they were told.",
        "The line may carry less than its limit says, or other traffic shares it.",
        lambda seen: (1.0 if (kept := seen.figures["end_within_p90"]) is None else kept) < 0.7,
    ),
    AlertRule(
        "TidegateNoShows",
        "warning",
        1800.0,
        "More than half of the clients are absent when their turn comes.",
        "Addresses may be hoarding places. Search the page Queue and block them.",
        _more_than("no_show_fraction", 0.5),
    ),
    AlertRule(
        "TidegateForgedTokens",
        "warning",
        600.0,
        "Forged tickets or passes keep coming.",
        "They are refused. The access log names the addresses.",
        lambda seen: seen.increase("forged_total", _REMEMBERED_S) > _REMEMBERED_S,
    ),
    AlertRule(
        "TidegateMirrorBehind",
        "warning",
        1800.0,
        "A mirror is behind, silent or in trouble.",
        "The page Network says which, and what it reports.",
        lambda seen: any(
            state in ("behind", "silent", "troubled") for state in seen.figures["mirror_states"]
        ),
    ),
    AlertRule(
        "TidegateLoopLag",
        "warning",
        600.0,
        "One turn of the event loop takes more than a quarter of a second.",
        "Small files wait that long. Close admin pages that reload, or give the server a core of "
        "its own.",
        _more_than("loop_lag_s", 0.25),
    ),
    AlertRule(
        "TidegateCertificate",
        "warning",
        0.0,
        "The certificate expires within a week.",
        "Renew it, or clients will refuse it. The server reads new files by itself.",
        lambda seen: (left := seen.figures["certificate_left_s"]) is not None and left < 7 * 86_400,
    ),
    AlertRule(
        "TidegateDescriptors",
        "warning",
        300.0,
        "The server runs out of file descriptors.",
        "Raise the limit (LimitNOFILE) or lower limits.max_connections.",
        _more_than("descriptors_part", 0.85),
    ),
)
