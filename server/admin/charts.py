"""The series that are recorded, the charts that show them, and their drawing without a script.

One table names every series; sampling, history, the live stream, uPlot and the plain SVG read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from policies.contract import Snapshot
from protocol.units import format_duration, format_rate
from server.admin.vitals import Health

#: name -> what the number is. `offers`, `admitted`, `completed`, `refused` and `errors` are per
#: second; everything else is a level at the instant of the sample.
SERIES: Mapping[str, str] = {
    "small_active": "small downloads running",
    "large_active": "large downloads running",
    "paused": "downloads paused",
    "waiting": "tickets waiting",
    "ready": "tickets ready to start and not yet come",
    "held": "clients held inside their request",
    "connections": "connections",
    "goodput_bytes_s": "bytes sent per second",
    "offers": "requests to start",
    "admitted": "downloads started",
    "completed": "downloads finished",
    "refused": "requests refused",
    "errors": "faults",
    "last_wait_s": "expected wait of the last in line",
    "last_wait_p90_s": "its 90 % bound",
    "eta_within_p90": "share that started before the 90 % bound",
    "eta_median_error": "median error of the estimate, as a share of the wait",
    "multicast_receivers": "multicast receivers",
}

#: Everything that is recorded; the last one is what previews replay small files by.
RECORDED = (*SERIES, "admitted_small")


@dataclass(frozen=True, slots=True)
class Series:
    """Series on one time axis; a missing value is None."""

    t: tuple[float, ...]
    series: Mapping[str, tuple[float | None, ...]]


def levels_of(snapshot: Snapshot, health: Health) -> dict[str, float]:
    """All levels now; those without a value are left out."""
    found: dict[str, float | None] = {
        "small_active": snapshot.small_active,
        "large_active": snapshot.large_active,
        "paused": snapshot.paused,
        "waiting": snapshot.waiting,
        "ready": snapshot.ready,
        "held": health.held,
        "connections": health.connections,
        "goodput_bytes_s": health.goodput_bytes_s,
        "last_wait_s": snapshot.last_wait.expected_s if snapshot.last_wait else None,
        "last_wait_p90_s": snapshot.last_wait.p90_s if snapshot.last_wait else None,
        "eta_within_p90": snapshot.eta_within_p90,
        "eta_median_error": snapshot.eta_median_error,
        "multicast_receivers": health.multicast_receivers,
    }
    return {
        name: float(value)
        for name, value in found.items()
        if value is not None and math.isfinite(value)
    }


def totals_of(snapshot: Snapshot, health: Health) -> dict[str, float]:
    """The counters whose growth per second are the other series."""
    return {
        "offers": snapshot.offers_total,
        "admitted": snapshot.admitted_small_total + snapshot.admitted_large_total,
        "admitted_small": snapshot.admitted_small_total,
        "completed": snapshot.completed_total,
        "refused": snapshot.refused_total,
        "errors": health.errors_total,
    }


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line of a chart."""

    series: str
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture: lines with one unit. `unit` is one of count, per_s, bit_s, s, share."""

    name: str
    title: str
    unit: str
    lines: tuple[ChartLine, ...]


CHARTS = (
    Chart(
        "slots",
        "Slots in use",
        "count",
        (
            ChartLine("large_active", "large"),
            ChartLine("small_active", "small"),
            ChartLine("paused", "paused"),
        ),
    ),
    Chart(
        "queue",
        "People in line",
        "count",
        (ChartLine("waiting", "waiting"), ChartLine("ready", "ready")),
    ),
    Chart(
        "flow",
        "Requests a second",
        "per_s",
        (
            ChartLine("offers", "asked"),
            ChartLine("admitted", "started"),
            ChartLine("completed", "finished"),
        ),
    ),
    Chart("goodput", "Goodput", "bit_s", (ChartLine("goodput_bytes_s", "sent"),)),
    Chart(
        "wait",
        "Wait of the last in line",
        "s",
        (ChartLine("last_wait_s", "expected"), ChartLine("last_wait_p90_s", "9 of 10 sooner")),
    ),
    Chart(
        "eta",
        "Are our promises kept?",
        "share",
        (
            ChartLine("eta_within_p90", "started in time"),
            ChartLine("eta_median_error", "typical error"),
        ),
    ),
    Chart(
        "held",
        "Connections",
        "count",
        (
            ChartLine("connections", "open"),
            ChartLine("held", "held"),
            ChartLine("multicast_receivers", "group"),
        ),
    ),
    Chart(
        "faults",
        "Refusals and faults a second",
        "per_s",
        (
            ChartLine("refused", "refused"),
            ChartLine("errors", "faults"),
        ),
    ),
)


def lines_of(chart: Chart, history: Series) -> list[tuple[str, list[float | None]]]:
    """The numbers of a chart's lines on the history's time axis."""
    gap = (None,) * len(history.t)
    return [
        (line.label, [drawn(chart, value) for value in history.series.get(line.series, gap)])
        for line in chart.lines
    ]


def drawn(chart: Chart, value: float | None) -> float | None:
    """A recorded number in the chart's unit: rates are recorded in bytes and read in bits."""
    return value * 8 if value is not None and chart.unit == "bit_s" else value


#: A picture that begins with the first value still spans so many steps.
_STEPS_LEAST = 8


def from_first_value(history: Series) -> Series:
    """The history without its empty beginning: a young server's pictures are not one thin line."""
    values = history.series.values()
    filled = (at for at in range(len(history.t)) if any(row[at] is not None for row in values))
    first = max(0, min(next(filled, 0), len(history.t) - _STEPS_LEAST))
    return Series(history.t[first:], {name: row[first:] for name, row in history.series.items()})


def show(value: float | None, unit: str) -> str:
    """A number with its unit for people."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "bit_s":
        return format_rate(value / 8)
    if unit == "s":
        return format_duration(value)
    if unit == "share":
        return f"{value * 100:.0f} %"
    if unit == "per_s":
        return f"{value:.3g}/s"
    return f"{value:,.0f}"


_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 480, 150, 66, 20


#: Durations that read well as the top of an axis with one line at its half.
_SPANS = (2, 4, 10, 20, 30, 60, 120, 240, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 86_400)


def _nice(top: float, unit: str = "") -> float:
    """The next round number at or above `top`."""
    if top <= 0:
        return 1.0
    if unit == "s" and top <= _SPANS[-1]:
        return float(next(step for step in _SPANS if step >= top * 0.999))
    power = 10.0 ** math.floor(math.log10(top))
    steps = (1, 2, 2.5, 5, 10)
    return float(next(step * power for step in steps if step * power >= top * 0.999))


def svg(chart: Chart, history: Series, clock: Callable[[float], str]) -> Markup:
    """The chart as a picture that needs no script; `clock` writes the time of day."""
    lines = lines_of(chart, history)
    known = [v for _, values in lines for v in values if v is not None]
    top = 1.0 if chart.unit == "share" else _nice(max(known, default=1.0), chart.unit)
    first, last = (history.t[0], history.t[-1]) if history.t else (0.0, 1.0)
    width = max(last - first, 1e-9)

    def x(at: float) -> float:
        return _LEFT + (at - first) / width * (_WIDTH - _LEFT - 4)

    def y(value: float) -> float:
        return 6 + (1 - min(value / top, 1.0)) * (_HEIGHT - _BOTTOM - 6)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(chart.title)}">'
    ]
    for share in (0.0, 0.5, 1.0):
        at = y(top * share)
        label = escape(show(top * share, chart.unit))
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 4}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{at + 4:.1f}">{label}</text>')
    for index, (_, values) in enumerate(lines):
        for run in _runs(history.t, values):
            points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in run)
            if index == 0:
                foot = f"{x(run[-1][0]):.1f},{y(0):.1f} {x(run[0][0]):.1f},{y(0):.1f}"
                parts.append(f'<polygon class="area" points="{points} {foot}"/>')
            parts.append(f'<polyline class="line c{index + 1}" points="{points}"/>')
    if history.t:
        for at, anchor in ((first, "start"), (last, "end")):
            place = _LEFT if anchor == "start" else _WIDTH - 4
            parts.append(
                f'<text class="when {anchor}" x="{place}" y="{_HEIGHT - 4}">'
                f"{escape(clock(at))}</text>"
            )
    parts.append("</svg>")
    # Every piece above is a number of ours or escaped.
    return Markup("".join(str(part) for part in parts))


def _runs(t: Sequence[float], values: Sequence[float | None]) -> list[list[tuple[float, float]]]:
    """Stretches without a gap; a single point becomes a short dash."""
    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in zip(t, values, strict=True):
        if value is None:
            if runs[-1]:
                runs.append([])
        else:
            runs[-1].append((at, value))
    return [run if len(run) > 1 else [run[0], run[0]] for run in runs if run]
