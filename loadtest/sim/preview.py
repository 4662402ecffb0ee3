"""The simulator behind the admin page's preview: one JSON document in, one out.

The server starts it as a process of its own, so neither imports the other.

Recorded arrivals are played as they came. A line that was not measured has the speed that
`trace.line_rate` draws from the client's key, so both sides of a comparison see the same lines.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...policies.settings import SMALL_BELOW_BYTES
from ..trace import asked_bandwidth, line_rate
from ..workloads import File, Visitor, Workload, make_workload
from .chronology import Chronicle, draw, natural_end
from .metrics import columns, measure
from .outcome import DOWNLOAD_FIELDS
from .scenario import Scenario
from .workers import end_with_parent


def population(request: Mapping[str, Any]) -> Workload:
    """The workload of a request: recorded arrivals, or one of the load test's own by name."""
    name = request["workload"]
    if name != "recorded":
        found = make_workload("release-artefacts" if name == "release" else name, 1)
        # A preview is waited for.
        return replace(found, visitors=found.visitors[:2_000])
    rows = request["arrivals"]
    small = int(request["sides"][0]["settings"].get("small_below_bytes", SMALL_BELOW_BYTES))
    start = min(row[0] for row in rows)
    visitors = [
        Visitor(
            key=f"{client}/{file}/{number}",
            arrival_s=at - start,
            rate_bytes_s=rate or line_rate(client),
            files=(File(file, max(1, int(size))),),
            patience_s=1800.0,
        )
        for number, (at, client, file, size, rate) in enumerate(rows)
    ]
    visitors.sort(key=lambda visitor: visitor.arrival_s)
    return Workload("recorded", 0, tuple(visitors), asked_bandwidth(visitors), small)


@dataclass(frozen=True, slots=True)
class Played:
    """One policy's run: what it did and what it was played under."""

    policy: str
    figures: Mapping[str, float]
    slots_used: float
    paused_s: float | None
    chronicle: Chronicle


def play(
    workload: Workload,
    policy: str,
    settings: Mapping[str, Any],
    capacity_bytes_s: float,
    can_pause: bool = True,
) -> Played:
    """Run the workload against one policy."""
    total, reserve = int(settings["slots"]), int(settings["reserve_small"])
    scenario = Scenario(
        policy="http" if policy == "fcfs" else policy,
        slots=total - reserve,
        reserve_small=reserve,
        bandwidth_bytes_s=capacity_bytes_s,
        tells_bandwidth=not can_pause,
        can_pause=can_pause,
        settings=settings,
    )
    chronicle = Chronicle()
    tally = scenario.simulate(workload, 1, chronicle)
    figures = measure(workload, scenario.conditions(workload), tally)
    table = columns(tally.downloads, DOWNLOAD_FIELDS)
    # Without a start the difference is nan, which is not above 0.
    busy_s = math.fsum(
        ended_s - admitted_s
        for ended_s, admitted_s in zip(table["ended_s"], table["admitted_s"], strict=True)
        if ended_s - admitted_s >= 0
    )
    large = [
        bar.paused_s(tally.ended_s)
        for client, bar in chronicle.bars.items()
        if workload.visitors[client].total_bytes >= workload.small_below_bytes
    ]
    return Played(
        policy,
        figures,
        slots_used=busy_s / max(tally.ended_s, 1e-9),
        paused_s=sum(large) / len(large) if large else None,
        chronicle=chronicle,
    )


def told(played: Played, workload: Workload, capacity_bytes_s: float, until_s: float) -> Any:
    """One side of the answer: the measures and the picture, both on the same time axis."""
    figures = played.figures
    return {
        "wait_small_mean_s": _known(figures["wait_small_s"]),
        "wait_small_p95_s": _known(figures["wait_small_p95_s"]),
        "wait_large_mean_s": _known(figures["wait_large_s"]),
        "wait_large_p95_s": _known(figures["wait_large_p95_s"]),
        "paused_large_mean_s": played.paused_s,
        "abandoned": round(figures["gave_up"] * len(workload.visitors)),
        "attempts": figures["attempts"],
        "slots_used": played.slots_used,
        "session_mean_s": _known(figures["mean_session_s"]),
        "picture_svg": draw(played.chronicle, capacity_bytes_s, played.policy, until_s=until_s),
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def main() -> None:
    """Read the request from stdin, write the comparison to stdout."""
    os.nice(int(os.environ.get("TIDEGATE_NICE", "0")))
    request = json.load(sys.stdin)
    workload = population(request)
    capacity = request["capacity_bytes_s"] or workload.bandwidth_bytes_s
    rest = capacity, request["can_pause"]
    runs = [play(workload, one["policy"], one["settings"], *rest) for one in request["sides"]]
    until_s = max(natural_end(one.chronicle) for one in runs)
    sides = [told(one, workload, capacity, until_s) for one in runs]
    sys.stdout.write(json.dumps({"jobs": workload.files, "sides": sides}))


if __name__ == "__main__":
    end_with_parent()
    main()
