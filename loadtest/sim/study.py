"""Many runs: one scenario over seeds, beside its control and its lower bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ..registry import find_workload
from ..workloads import Workload, with_rude
from .bounds import lower_bounds
from .metrics import mean_and_error, measure, net_faster, rude_gain, session_times
from .outcome import mean
from .scenario import Scenario
from .workers import worker_processes


@dataclass(frozen=True, slots=True)
class StudyResult:
    """One scenario over its seeds: every figure's mean, standard error and single values."""

    scenario: Scenario
    workload: str
    seeds: tuple[int, ...]
    mean: Mapping[str, float]
    error: Mapping[str, float]
    runs: tuple[Mapping[str, float], ...] = field(repr=False)


def _run_one(workload: Workload, scenario: Scenario, seed: int) -> dict[str, float]:
    """All figures of one run, beside HTTP and the lower bound.

    With rude clients there is one more run, in which the same are polite.
    """
    played = with_rude(workload, scenario.rude) if scenario.rude > 0.0 else workload
    calm = replace(scenario, rude=0.0)
    tally = calm.simulate(played, seed)
    figures = measure(played, calm.conditions(played), tally)
    times: Sequence[float] = session_times(tally, len(played.visitors))
    figures["rude_gain"] = math.nan
    if scenario.rude > 0.0:
        polite = session_times(calm.simulate(workload, seed), len(played.visitors))
        figures["rude_gain"] = rude_gain(played, times, polite)
    best_s = _bound(workload, played, calm, times)
    figures["bound_s"] = best_s
    figures["ratio_to_bound"] = figures["mean_session_s"] / best_s if best_s else math.nan
    other = times
    if scenario != scenario.control():
        other = _control_times(played, scenario.control(), seed)
    figures["net_faster"] = net_faster(times, other)
    http = mean([time for time in other if not math.isnan(time)])
    figures["http_mean_session_s"] = http
    figures["ratio_to_http"] = figures["mean_session_s"] / http
    return figures


def _bound(
    workload: Workload, played: Workload, scenario: Scenario, times: Sequence[float]
) -> float:
    conditions = scenario.conditions(played)
    connect_s = conditions.attempt_s + conditions.accept_s
    if not any(map(math.isnan, times)):
        return _bound_of_all(workload, conditions.bandwidth_bytes_s, connect_s)
    # Clients that left took nothing; a bound for the others is a bound for their mean.
    stayed = tuple(
        visitor
        for visitor, time in zip(played.visitors, times, strict=True)
        if not math.isnan(time)
    )
    remaining = replace(played, visitors=stayed)
    return lower_bounds(remaining, conditions.bandwidth_bytes_s, connect_s).best_s


@lru_cache(maxsize=64)
def _bound_of_all(workload: Workload, bandwidth_bytes_s: float, connect_s: float) -> float:
    return lower_bounds(workload, bandwidth_bytes_s, connect_s).best_s


#: Session times of HTTP by what it was run on; the same control stands beside many scenarios.
_controls: dict[tuple[Workload, str, int], Sequence[float]] = {}


def _control_times(workload: Workload, control: Scenario, seed: int) -> Sequence[float]:
    key = (workload, repr(control), seed)
    times = _controls.get(key)
    if times is None:
        if len(_controls) >= 64:
            _controls.pop(next(iter(_controls)))
        tally = replace(control, rude=0.0).simulate(workload, seed)
        times = _controls[key] = session_times(tally, len(workload.visitors))
    return times


@lru_cache(maxsize=32)
def _population(name: str, seed: int) -> Workload:
    return find_workload(name, seed)


def _named(task: tuple[str, int, Scenario]) -> dict[str, float]:
    name, seed, scenario = task
    return _run_one(_population(name, seed), scenario, seed)


def run_seeds(
    workload: str,
    scenario: Scenario,
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    told: Callable[[], object] = lambda: None,
) -> StudyResult:
    """The scenario once for each seed; `jobs` processes at a time. Same figures for any `jobs`.

    `told` is called after each run.
    """
    tasks = [(workload, seed, scenario) for seed in seeds]
    runs = []
    if jobs > 1 and len(tasks) > 1:
        with worker_processes(min(jobs, len(tasks))) as pool:
            for run in pool.map(_named, tasks):
                runs.append(run)
                told()
    else:
        for task in tasks:
            runs.append(_named(task))
            told()
    return gather(scenario, workload, seeds, runs)


def gather(
    scenario: Scenario, workload: str, seeds: Sequence[int], runs: Sequence[Mapping[str, float]]
) -> StudyResult:
    """Means and standard errors of single runs.

    A ratio is the mean of the runs' ratios: runs are paired by their seed, so its error is small.
    """
    means: dict[str, float] = {}
    error: dict[str, float] = {}
    for name in runs[0] if runs else ():
        means[name], error[name] = mean_and_error([run[name] for run in runs])
    return StudyResult(scenario, workload, tuple(seeds), means, error, tuple(runs))
