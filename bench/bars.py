"""Measures the policies in the simulator against their bars.

    python -m bench.bars [--seeds 20] [--jobs N] [--only TEXT] [--cache FILE]

A bar compares policies on the same populations; "not behind" means by at most two standard errors
of the paired difference. `--only` selects the bars with this text in their title. `--cache` keeps
finished runs in a JSON file with a digest of the code that they depend on: a second call runs only
what has changed. Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

import tidegate
from bench.shared.ending import end_cleanly
from bench.shared.subject import require
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.sim.study import run_one
from tidegate.loadtest.sim.workers import worker_processes
from tidegate.loadtest.workloads import Workload, make_workload

#: The sources that are measured: those of the installed program.
PACKAGE = Path(tidegate.__file__).parent
EXPERIMENTS = ("exp1", "exp2")
LOADS = (1.0, 0.75, 0.5, 0.3)
DAYS = ("release-pareto", "release-artefacts")
ABANDON = tuple(f"{day}-abandon" for day in DAYS)
#: Every cell: a workload at a load.
CELLS = [(name, load) for name in EXPERIMENTS for load in LOADS]
CELLS += [(name, 1.0) for name in (*DAYS, *ABANDON)]
HEAVY = [("exp2", 0.5), ("exp1", 0.5), ("release-pareto", 1.0), ("release-artefacts", 1.0)]

Run = tuple[str, float, Scenario, int]
Figures = Mapping[str, float]


def scenario(policy: str, load: float, extra: int = 6, *, rude: float = 0.0) -> Scenario:
    """30 slots for large downloads, `extra` for small ones."""
    return Scenario(policy, reserve_small=extra, bandwidth=load, rude=rude)


def http(load: float) -> Scenario:
    """The paper's control."""
    return scenario("http", load, 0)


@dataclass
class Bar:
    """One line of the table: its title, the runs that it needs, and how it is judged."""

    title: str
    wants: Sequence[tuple[str, float, Scenario]]
    judge: Callable[[Sequence[Sequence[Figures]]], tuple[str, bool]]
    runs: list[list[Figures]] = field(default_factory=list)


def _mean(figures: Iterable[Figures], name: str) -> float:
    known = [one[name] for one in figures if not math.isnan(one[name])]
    return statistics.fmean(known) if known else math.nan


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def at_most(name: str, most: float) -> Callable[..., tuple[str, bool]]:
    """Judges the mean over seeds of a figure."""

    def judge(runs: Sequence[Sequence[Figures]]) -> tuple[str, bool]:
        mean = _mean(runs[0], name)
        error = _error([one[name] for one in runs[0] if not math.isnan(one[name])])
        return f"{mean:.3f} ± {error:.3f}", mean <= most

    return judge


def between(name: str, low: float, high: float) -> Callable[..., tuple[str, bool]]:
    """Judges the mean over seeds of a figure, weighted by the clients that were told a time."""

    def judge(runs: Sequence[Sequence[Figures]]) -> tuple[str, bool]:
        told = [one for one in runs[0] if one["eta_told"] and not math.isnan(one[name])]
        weight = sum(one["eta_told"] for one in told)
        mean = sum(one[name] * one["eta_told"] for one in told) / weight if weight else math.nan
        # NaN, if no client was told a time, is between no bounds.
        return f"{mean:.3f} (n = {weight:.0f})", low <= mean <= high

    return judge


def ratio(name: str, low: float, high: float) -> Callable[..., tuple[str, bool]]:
    """Judges the ratio of the means of the first and the second scenario."""

    def judge(runs: Sequence[Sequence[Figures]]) -> tuple[str, bool]:
        value = _mean(runs[0], name) / _mean(runs[1], name)
        return f"{value:.3f}", low <= value <= high

    return judge


def not_behind(runs: Sequence[Sequence[Figures]]) -> tuple[str, bool]:
    """Whether the first is slower than the second by at most two standard errors (paired)."""
    pairs = list(zip(runs[0], runs[1], strict=True))
    differences = [one["mean_session_s"] - other["mean_session_s"] for one, other in pairs]
    mean, error = statistics.fmean(differences), _error(differences)
    value = _mean(runs[0], "mean_session_s") / _mean(runs[1], "mean_session_s")
    return f"{value:.3f} ({mean:+.1f} ± {error:.1f} s)", mean <= 2 * error or value <= 1.0


def bars() -> list[Bar]:
    """All bars."""
    found: list[Bar] = []

    def bar(title: str, judge: Callable[..., tuple[str, bool]], *wants: object) -> None:
        found.append(Bar(title, wants, judge))  # type: ignore[arg-type]

    heavy = ("exp2", 0.5)
    ticket, held = scenario("ticket", 0.5), scenario("ticket-hold", 0.5)
    bar("ticket exp2 0.5: to HTTP <= 0.46", at_most("ratio_to_http", 0.46), (*heavy, ticket))
    faster = at_most("not_net_faster", 0.50)
    bar("ticket exp2 0.5: 1 - net faster <= 0.5", faster, (*heavy, ticket))
    quarter = ratio("attempts", 0.0, 0.25)
    bar(
        "ticket exp2 0.5: attempts to HTTP's <= 0.25",
        quarter,
        (*heavy, ticket),
        (*heavy, http(0.5)),
    )
    bar("ticket-hold exp2 0.5: attempts <= 1", at_most("attempts", 1.0), (*heavy, held))
    near = ratio("mean_session_s", 0.0, 1.02)
    bar("ticket-hold exp2 0.5: to polled <= 1.02", near, (*heavy, held), (*heavy, ticket))

    limits = {"fair": (1.07, 1.12, 1.2, 1.2), "adaptive": (1.25, 1.25, 1.25, 1.25)}
    for policy, most in limits.items():
        for (name, load), limit in zip(HEAVY, most, strict=True):
            title = f"{policy} {name} {load}: to bound <= {limit}"
            bar(title, at_most("ratio_to_bound", limit), (name, load, scenario(policy, load)))
    for name, load in CELLS:
        cell = (name, load)
        fair, ps = scenario("fair", load), scenario("ps", load)
        bar(f"fair {name} {load}: not behind ps", not_behind, (*cell, fair), (*cell, ps))
        title = f"fair {name} {load}: p99 of large to ps's <= 1.15"
        bar(title, ratio("large_p99_s", 0.0, 1.15), (*cell, fair), (*cell, ps))
        other = scenario("adaptive", load)
        own = scenario("ticket", load)
        bar(f"adaptive {name} {load}: not behind ticket", not_behind, (*cell, other), (*cell, own))
        for policy in ("reserve", "ticket", "ticket-hold", "fair", "adaptive"):
            for extra in (0, 3, 6):
                mine = scenario(policy, load, extra)
                title = f"{policy}+{extra} {name} {load}: not behind HTTP+0"
                if policy != "reserve" or extra:
                    bar(title, not_behind, (*cell, mine), (*cell, http(load)))
    for name, load in HEAVY:
        for policy in ("http", "ticket", "fair", "adaptive"):
            title = f"{policy} {name} {load}: 10 % rude gain <= 0.05"
            rude = (name, load, scenario(policy, load, rude=0.1))
            bar(title, at_most("rude_gain", 0.05 if policy != "http" else 1.0), rude)
    for name in (*DAYS, *ABANDON):
        for policy in ("ticket", "ticket-hold", "fair", "adaptive"):
            day = (name, 1.0, scenario(policy, 1.0))
            title = f"{policy} {name}: whole before the stated p90, 0.85 to 0.97"
            bar(title, between("end_within_p90", 0.85, 0.97), day)
            title = f"{policy} {name}: median error of the told end <= 0.15"
            bar(title, between("end_median_error", 0.0, 0.15), day)
    return found


# -- running -----------------------------------------------------------------------------------

#: Modules of the simulator that only show what was played.
_SHOWS = ("cli", "study", "chronology", "tables")


def digest() -> str:
    """A digest of the sources that a run depends on."""
    files = [PACKAGE / "loadtest/workloads.py", PACKAGE / "client/net/retry.py"]
    files += sorted((PACKAGE / "loadtest/sim").glob("*.py"))
    files += sorted((PACKAGE / "policies").rglob("*.py"))
    whole = hashlib.sha256()
    for path in files:
        if path.stem not in _SHOWS:
            whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


def one(run: Run) -> dict[str, float]:
    """All figures of one run."""
    name, _, played, seed = run
    return run_one(
        _population(name, seed),
        played,
        seed,
        control=played.policy == "ticket" and name == "exp2",
        bound=not name.endswith("abandon"),
    )


_known: dict[tuple[str, int], Workload] = {}


def _population(name: str, seed: int) -> Workload:
    if (name, seed) not in _known:
        _known.clear()
        _known[name, seed] = make_workload(name, seed)
    return _known[name, seed]


def finish(runs: Sequence[Run], jobs: int, cache: Path | None) -> dict[Run, dict[str, float]]:
    """The figures of these runs, from the cache or measured now."""
    code = digest()

    def mark(run: Run) -> str:
        return f"{code}/{run[0]}/{run[3]}/{run[2]!r}"

    kept: dict[str, dict[str, float]] = {}
    if cache is not None and cache.exists():
        kept = json.loads(cache.read_text())
    missing = [run for run in runs if mark(run) not in kept]
    missing.sort(key=lambda run: (run[0], run[3]))
    with worker_processes(jobs) as pool:
        for number, (run, figures) in enumerate(
            zip(missing, pool.map(one, missing, chunksize=4), strict=True), start=1
        ):
            figures["not_net_faster"] = 1.0 - figures.get("net_faster", math.nan)
            kept[mark(run)] = figures
            if cache is not None and (number % 100 == 0 or number == len(missing)):
                cache.write_text(json.dumps(kept))
            if sys.stderr.isatty():
                click.echo(f"\r{number} of {len(missing)} runs", nl=False, err=True)
    return {run: kept[mark(run)] for run in runs}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--missed", action="store_true", help="print only what is missed")
    options = parser.parse_args()
    chosen = [bar for bar in bars() if all(text in bar.title for text in options.only)]
    require(chosen, f"No bar has {options.only} in its line.")
    require(options.seeds > 0, "No population was asked for.")
    wanted = {
        (name, load, played, seed): None
        for bar in chosen
        for name, load, played in bar.wants
        for seed in range(options.seeds)
    }
    figures = finish(list(wanted), options.jobs, options.cache)
    missed = 0
    for bar in chosen:
        runs = [
            [figures[name, load, played, seed] for seed in range(options.seeds)]
            for name, load, played in bar.wants
        ]
        value, held = bar.judge(runs)
        missed += not held
        if not (held and options.missed):
            click.echo(f"{'held  ' if held else 'MISSED'}  {bar.title:<64} {value}")
    click.echo(f"{len(chosen) - missed} of {len(chosen)} bars held, {options.seeds} seeds")
    return 1 if missed else 0


if __name__ == "__main__":
    end_cleanly()
    sys.exit(main())
