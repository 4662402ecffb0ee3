"""Results as text tables and JSON objects."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from .metrics import MEANING
from .paper import Cell, Finding
from .study import StudyResult

#: The columns of the printed comparison: figure, heading, format.
_COLUMNS = (
    ("mean_session_s", "mean s", "{:.1f}"),
    ("ratio_to_http", "/HTTP", "{:.3f}"),
    ("ratio_to_bound", "/bound", "{:.3f}"),
    ("p50_session_s", "p50 s", "{:.1f}"),
    ("p95_session_s", "p95 s", "{:.1f}"),
    ("p99_session_s", "p99 s", "{:.1f}"),
    ("wait_small_s", "wait small", "{:.1f}"),
    ("wait_large_s", "wait large", "{:.1f}"),
    ("mean_slowdown", "slowdown", "{:.1f}"),
    ("net_faster", "net faster", "{:+.0%}"),
    ("attempts", "attempts", "{:.2f}"),
    ("gave_up", "gave up", "{:.1%}"),
    ("eta_within_p90", "ETA<p90", "{:.0%}"),
    ("eta_median_error", "ETA err", "{:.0%}"),
    ("end_within_p90", "end<p90", "{:.0%}"),
    ("end_median_error", "end err", "{:.0%}"),
)

#: What the columns mean that do not say it themselves.
LEGEND = """\
mean, p50 …   from a client's arrival to its last byte, seconds
/HTTP /bound  the mean, divided by that of plain HTTP, and by what no policy can be below
slowdown      session time divided by what it is alone on the server, mean
net faster    clients that are sooner done than under plain HTTP, less those that are later
ETA<p90, err  started within the told 90 % bound; how wrong the told time was, median
end<p90, err  the same of the last byte"""


def number(value: float) -> float | None:
    """A figure for JSON, which knows no nan."""
    return None if math.isnan(value) or math.isinf(value) else value


def as_object(result: StudyResult) -> dict[str, Any]:
    """One scenario as a JSON object: means by figure, `se` of the mean session time, all errors."""
    scenario = dataclasses.asdict(result.scenario)
    scenario["settings"] = dict(result.scenario.settings)
    return {
        **{name: number(result.mean.get(name, math.nan)) for name in MEANING},
        "se": number(result.error.get("mean_session_s", math.nan)),
        "errors": {name: number(value) for name, value in result.error.items()},
        "workload": result.workload,
        "seeds": list(result.seeds),
        "config": scenario,
    }


def _grid(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)


def comparison_rows(results: Sequence[StudyResult]) -> list[list[str]]:
    """Heading and one row a scenario, as text."""
    rows = [["policy", *(heading for _, heading, _ in _COLUMNS)]]
    for result in results:
        cells = []
        for name, _, form in _COLUMNS:
            value = result.mean.get(name, math.nan)
            cells.append("–" if math.isnan(value) else form.format(value))
        error = result.error.get("mean_session_s", math.nan)
        if not math.isnan(error):
            cells[0] += f" ±{error:.1f}"
        rows.append([result.scenario.policy, *cells])
    return rows


def comparison(results: Sequence[StudyResult]) -> str:
    first = results[0]
    head = (
        f"{first.workload}, {len(first.seeds)} seed(s), "
        f"{first.scenario.slots}+{first.scenario.reserve_small} slots, "
        f"lower bound {first.mean['bound_s']:.1f} s"
    )
    by_mean = sorted(results, key=lambda one: one.mean["mean_session_s"])
    means = (f"{one.mean['mean_session_s']:.0f} s under {one.scenario.policy}" for one in by_mean)
    told = f"On average a client has its last byte {', '.join(means)} after it came."
    return f"{told}\n{head}\n\n{_grid(comparison_rows(results))}"


# --- the paper -------------------------------------------------------------------------------


def paper_rows(cells: Sequence[Cell]) -> list[list[str]]:
    """Heading and one row a cell, as text."""
    heading = ["cell", "paper s", "ours s", "paper gain", "our gain", "sign", "paper net"]
    rows = [[*heading, "our net", "attempts", "/bound"]]
    for cell in cells:
        mean, error = cell.result.mean, cell.result.error
        spread = error["mean_session_s"]
        rows.append(
            [
                f"{cell.experiment} {cell.load} {cell.label}",
                "–" if cell.paper_mean_s is None else f"{cell.paper_mean_s:.0f}",
                f"{mean['mean_session_s']:.0f}" + ("" if math.isnan(spread) else f" ±{spread:.0f}"),
                "–" if cell.paper_improvement is None else f"{cell.paper_improvement:+.0%}",
                f"{cell.improvement:+.0%}",
                "–" if cell.sign is None else "reproduced" if cell.sign else "not reproduced",
                "–" if cell.paper_net_faster is None else f"{cell.paper_net_faster:+.0%}",
                f"{mean['net_faster']:+.0%}",
                f"{mean['attempts']:.1f}",
                f"{mean['ratio_to_bound']:.2f}",
            ]
        )
    return rows


def paper_table(
    cells: Sequence[Cell],
    statements: Sequence[Finding],
    orders: Mapping[tuple[str, str], float | None],
) -> str:
    """Cells, findings and orders as printed."""
    parts = [_grid(paper_rows(cells)), ""]
    for (experiment, load), share in orders.items():
        if share is not None:
            parts.append(f"{experiment} {load}: {share:.0%} of the paper's orderings reproduced")
    parts.append("")
    for finding in statements:
        mark = "reproduced    " if finding.reproduced else "not reproduced"
        parts.append(f"{mark}  {finding.text}")
    return "\n".join(parts)


def paper_object(
    cells: Sequence[Cell],
    statements: Sequence[Finding],
    orders: Mapping[tuple[str, str], float | None],
) -> dict[str, Any]:
    """Everything `paper` found as one JSON object."""
    return {
        "cells": [
            {
                "experiment": cell.experiment,
                "load": cell.load,
                "label": cell.label,
                "paper_mean_s": cell.paper_mean_s,
                "paper_improvement": cell.paper_improvement,
                "paper_net_faster": cell.paper_net_faster,
                "improvement": number(cell.improvement),
                "sign_reproduced": cell.sign,
                **as_object(cell.result),
            }
            for cell in cells
        ],
        "findings": [dataclasses.asdict(finding) for finding in statements],
        "order_agreement": {f"{e} {load}": share for (e, load), share in orders.items()},
    }
