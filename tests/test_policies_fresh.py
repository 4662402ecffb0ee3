"""What clients of a new server are told: nothing was learnt, and every day is another."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from statistics import fmean as mean
from typing import Any

import pytest

from tidegate.loadtest.sim.metrics import columns
from tidegate.loadtest.sim.outcome import DOWNLOAD_FIELDS
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.workloads import MB, File, Visitor, Workload, bounded_pareto

#: The first that were told, whom nothing helped that others had.
FIRST = 30
SERVERS: Mapping[str, Mapping[str, Any]] = {
    "fair": {"policy": "fair"},
    "fair, polled": {"policy": "fair", "hold": False},
    "fair, unknown line": {"policy": "fair", "tells_bandwidth": False},
    "ticket": {"policy": "ticket", "hold": True},
    "ticket, polled": {"policy": "ticket"},
}


def sizes(kind: str, usual: float, rng: random.Random) -> Callable[[], float]:
    return {
        "one": lambda: usual,
        "lognormal": lambda: 0.6 * usual * math.exp(rng.gauss(0.0, 1.0)),
        "pareto": lambda: bounded_pareto(rng.random(), 1.2, 0.3 * usual, 30.0 * usual),
        "two": lambda: usual * (0.3 if rng.random() < 0.7 else 3.0),
    }[kind]


def speeds(kind: str, line: float, rng: random.Random) -> Callable[[], float]:
    return {
        "mixed": lambda: line * math.exp(rng.uniform(math.log(0.03), math.log(0.6))),
        "equal": lambda: 0.25 * line,
        "slow": lambda: line * rng.uniform(0.02, 0.1),
        "split": lambda: line * (0.1 if rng.random() < 0.5 else 0.8),
        "fast": lambda: 4.0 * line,
    }[kind]


def new_day(number: int) -> Workload:
    """A line, a crowd, its sizes, its speeds and its load, by chance."""
    rng = random.Random(f"new/{number}")
    count, line = rng.choice((40, 80)), MB * rng.choice((1.2, 4.0, 12.0, 25.0))
    usual = max(MB, line * rng.choice((0.5, 1.5, 4.0)))
    size = sizes(rng.choice(("one", "lognormal", "pareto", "two")), usual, rng)
    speed = speeds(rng.choice(("mixed", "equal", "slow", "split", "fast")), line, rng)
    wanted = [max(300_000, int(size())) for _ in range(count)]
    span_s = rng.choice((2.0, sum(wanted) / line / rng.choice((1.2, 1.6, 2.5, 5.0))))
    visitors = tuple(
        Visitor(f"c{one}", at_s, speed(), (File(f"f{one}", wanted[one]),))
        for one, at_s in enumerate(sorted(rng.uniform(0.0, span_s) for _ in range(count)))
    )
    return Workload("new", number, visitors, line, 256_000)


def kept(
    server: Mapping[str, Any], workload: Workload, slots: int, most: int = FIRST
) -> tuple[float, float]:
    """The part of the first told starts, and of the ends, that came within their bounds."""
    scenario = Scenario(
        slots=slots, reserve_small=6, bandwidth_bytes_s=workload.bandwidth_bytes_s, **server
    )
    found = columns(scenario.simulate(workload).downloads, DOWNLOAD_FIELDS)
    at_s, starts, ends = (
        found[name] for name in ("promised_at_s", "promised_p90_s", "promised_end_p90_s")
    )
    told = [one for one, promised_s in enumerate(starts) if not math.isnan(promised_s)]
    first = sorted(told, key=lambda one: at_s[one])[:most]
    if len(first) < FIRST // 3:
        return math.nan, math.nan
    return (
        mean([found["admitted_s"][one] - at_s[one] <= starts[one] for one in first]),
        mean([found["ended_s"][one] - at_s[one] <= ends[one] for one in first]),
    )


@pytest.mark.parametrize("server", SERVERS)
def test_a_new_server_keeps_what_it_tells(server: str) -> None:
    """Under Fair 43 of 100 starts were kept, as told by the slack of a moment."""
    days = [
        kept(SERVERS[server], new_day(number), random.Random(number).choice((4, 10, 30)))
        for number in range(28)
    ]
    days = [day for day in days if not math.isnan(day[0])]
    assert len(days) >= 20
    starts, ends = (mean(parts) for parts in zip(*days, strict=True))
    assert starts >= 0.85
    assert ends >= 0.85


def full_day(number: int) -> tuple[Workload, float]:
    """More than the line carries all day, and how long it takes."""
    rng = random.Random(f"full/{number}")
    line = MB * rng.choice((3.0, 12.0))
    size = sizes(rng.choice(("one", "lognormal", "two")), 2.0 * line, rng)
    speed = speeds(rng.choice(("mixed", "equal", "slow")), line, rng)
    wanted = [max(300_000, int(size())) for _ in range(200)]
    span_s = sum(wanted) / line / rng.uniform(1.3, 2.0)
    visitors = tuple(
        Visitor(f"c{one}", at_s, speed(), (File(f"f{one}", wanted[one]),))
        for one, at_s in enumerate(sorted(rng.uniform(0.0, span_s) for _ in wanted))
    )
    return Workload("full", number, visitors, line, 256_000), span_s


@pytest.mark.parametrize("server", ["fair", "ticket"])
def test_a_line_that_becomes_faster_breaks_no_told_time(server: str) -> None:
    """Its change counted twice: 80 of 100 ends were kept."""
    days = []
    for number in range(6):
        workload, span_s = full_day(number)
        line = ((0.0, 0.4), (0.4 * span_s, 1.0))
        days.append(kept({**SERVERS[server], "line": line}, workload, 6, 200))
    starts, ends = (mean(parts) for parts in zip(*days, strict=True))
    assert starts >= 0.8
    assert ends >= 0.9
