"""The charts of the recorded series, and their drawing without a script.

uPlot and the plain SVG read the same table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...protocol.units import format_duration, format_rate
from ..control.history import Series


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture: `lines` (series and label) share a unit: count, per_s, bit_s, s or share."""

    name: str
    title: str
    unit: str
    lines: Mapping[str, str]


#: The first `LEADING` are drawn wide, and also while they are empty.
LEADING = 2
CHARTS = (
    Chart(
        "queue",
        "People in line",
        "count",
        {"people_waiting": "waiting, begun or not", "ready": "ready", "paused": "paused"},
    ),
    Chart("goodput", "Goodput", "bit_s", {"goodput_bytes_s": "sent"}),
    Chart(
        "slots",
        "Downloads",
        "count",
        {"large_active": "large", "small_active": "small", "paused": "paused"},
    ),
    Chart(
        "flow",
        "Requests a second",
        "per_s",
        {"offers": "asked", "admitted": "started", "completed": "finished"},
    ),
    Chart(
        "wait",
        "Wait of the last in line",
        "s",
        {"last_wait_s": "expected", "last_wait_p90_s": "9 of 10 sooner"},
    ),
    Chart(
        "eta",
        "Are our promises kept?",
        "share",
        {
            "end_within_p90": "done in time",
            "end_median_error": "typical error",
            "eta_within_p90": "started in time",
        },
    ),
    Chart(
        "held",
        "Connections",
        "count",
        {"connections": "open", "held": "held", "multicast_receivers": "group"},
    ),
    Chart(
        "faults",
        "Refusals and faults a second",
        "per_s",
        {"refused": "refused", "errors": "faults"},
    ),
)


def lines_of(chart: Chart, history: Series) -> list[list[float | None]]:
    """The numbers of a chart's lines on the history's time axis.

    Rates are recorded in bytes and read in bits. A second line that is always zero has no numbers.
    """
    times = 8 if chart.unit == "bit_s" else 1
    rows = [history.series[name] for name in chart.lines]
    rows[1:] = [row if any(row) else (None,) * len(row) for row in rows[1:]]
    return [[None if value is None else value * times for value in row] for row in rows]


def is_empty(chart: Chart, history: Series) -> bool:
    """Whether all that it could show is nothing."""
    return not any(value for line in lines_of(chart, history) for value in line)


def recorded_since(history: Series, started_s: float) -> float | None:
    """When the first value of it was recorded; None where its beginning was recorded, too.

    The time axis has the middles of its steps, and a step can be an hour: where the server started
    in the first one, that is when.
    """
    first = history.first_value
    if not first:
        return None
    at_s = history.t[first]
    half_s = (at_s - history.t[first - 1]) / 2
    return started_s if abs(started_s - at_s) <= half_s else at_s


def from_first_value(history: Series) -> Series:
    """The history without its empty beginning: a young server's pictures are not one thin line."""
    # The least number of steps that a picture spans when it begins with the first value.
    first = max(0, min(history.first_value, len(history.t) - 8))
    return Series(history.t[first:], {name: row[first:] for name, row in history.series.items()})


def show(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "bit_s":
        return format_rate(value / 8)
    if unit == "s":
        return format_duration(value)
    if unit == "share":
        return f"{value * 100:.0f} %"
    return f"{value:.3g}/s" if unit == "per_s" else f"{value:,.0f}"


def _nice(top: float, unit: str = "") -> float:
    """The next round number at or above `top`."""
    if top <= 0:
        return 1.0
    # Durations that read well as the top of an axis with one line at its half.
    spans = (2, 4, 10, 20, 30, 60, 120, 240, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 86_400)
    if unit == "s" and top <= spans[-1]:
        return float(next(step for step in spans if step >= top * 0.999))
    power = 10.0 ** math.floor(math.log10(top))
    return float(next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= top * 0.999))


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart laid out for `templates/admin/chart.html`, in a box of 480 by 150.

    `grid` are heights with their labels, `lines` the stretches of each line as points, `feet` where
    the areas below the first line's end, `times` the ends of the time axis.
    """

    title: str
    grid: Sequence[tuple[float, str]]
    lines: Sequence[Sequence[str]]
    feet: Sequence[str]
    times: Sequence[str]


def picture(chart: Chart, history: Series, clock: Callable[[float], str]) -> Picture:
    """The chart as it is drawn without a script; `clock` writes the time of day."""
    lines = lines_of(chart, history)
    known = [v for values in lines for v in values if v is not None]
    top = 1.0 if chart.unit == "share" else _nice(max(known, default=1.0), chart.unit)
    first, last = (history.t[0], history.t[-1]) if history.t else (0.0, 1.0)
    width = max(last - first, 1e-9)
    # The box of the lines in a picture: left, right, top, bottom.
    left, right, box_top, bottom = (66, 476, 6, 130)

    def point(at: float, value: float) -> str:
        x = left + (at - first) / width * (right - left)
        return f"{x:.1f},{height(value):.1f}"

    def height(value: float) -> float:
        return box_top + (1 - min(value / top, 1.0)) * (bottom - box_top)

    runs = [_runs(history.t, values) for values in lines]
    return Picture(
        chart.title,
        [(height(top * share), show(top * share, chart.unit)) for share in (0.0, 0.5, 1.0)],
        [[" ".join(point(*one) for one in run) for run in line] for line in runs],
        [f"{point(run[-1][0], 0)} {point(run[0][0], 0)}" for run in runs[0]],
        [clock(at) for at in (first, last)] if history.t else (),
    )


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
