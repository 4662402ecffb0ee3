"""What a policy may meet: a population and a line for each condition of the table of policies.

The cells of the paper's experiments and the release days are `loadtest.workloads`' own; the others
are what a public server sees on other days, or what goes wrong.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.loadtest.workloads import (
    MB,
    RELEASE_DAY,
    File,
    ReleaseDay,
    Visitor,
    Workload,
    bounded_pareto,
    bounded_pareto_mean,
    make_workload,
    release_artefacts,
    release_pareto,
)
from tidegate.server.admission.client_keys import client_key
from tidegate.server.http.proxies import block_of, prefixes_of

#: Where many honest people come from.
ONE_ADDRESS = "198.51.100.1"
_LINE_BYTES_S = 25.0 * MB
#: Artefacts at 1.5 times the line for a while, and then little: a release day in short.
_RUSH = ReleaseDay(rush_s=240.0, calm_s=240.0)


@dataclass(frozen=True, slots=True)
class Condition:
    """A population, by its seed, and how its scenario differs from the usual one."""

    workload: Callable[[int], Workload]
    scenario: Mapping[str, Any] = field(default_factory=dict)


def _named(name: str) -> Callable[[int], Workload]:
    return lambda seed: make_workload(name, seed)


def _crowd(
    name: str, seed: int, times: list[float], size: Callable[[random.Random], float]
) -> Workload:
    rng = random.Random(f"{name}/{seed}")
    visitors = tuple(
        Visitor(
            f"c{number}",
            at,
            math.exp(rng.uniform(math.log(1.0 * MB), math.log(10.0 * MB))),
            (File(f"f{number}", max(1_000, int(size(rng)))),),
        )
        for number, at in enumerate(sorted(times))
    )
    return Workload(name, seed, visitors, _LINE_BYTES_S)


def _poisson(
    name: str, seed: int, load: Callable[[float], float], mean: float, span_s: float
) -> Any:
    rng = random.Random(f"{name} arrivals/{seed}")
    times, now, most = [], 0.0, max(load(span_s * step / 100.0) for step in range(101))
    while (now := now + rng.expovariate(most * _LINE_BYTES_S / mean)) < span_s:
        if rng.random() * most < load(now):
            times.append(now)
    return times


def flash_crowd(seed: int) -> Workload:
    """4 000 clients within 12 s for small downloads, median 0.7 MB."""
    rng = random.Random(f"flash arrivals/{seed}")
    times = [rng.uniform(0.0, 12.0) for _ in range(4_000)]
    return _crowd("flash crowd", seed, times, lambda rng: 0.7 * MB * math.exp(rng.gauss(0.0, 1.0)))


def diurnal(seed: int) -> Workload:
    """A day in an hour: load between 0.2 and 1.3."""
    mean = 10.0 * MB
    times = _poisson(
        "diurnal",
        seed,
        lambda now: 0.75 - 0.55 * math.cos(2.0 * math.pi * now / 3_600.0),
        mean,
        3_600.0,
    )
    return _crowd("diurnal", seed, times, lambda rng: rng.expovariate(1.0 / mean))


def heavy_tail(seed: int) -> Workload:
    """Pareto 1.1 from 1 MB to 10 GB, at 1.2 times the line for ten minutes."""
    low, high = 1.0 * MB, 10_000.0 * MB
    mean = bounded_pareto_mean(1.1, low, high)
    times = _poisson("heavy tail", seed, lambda now: 1.2, mean, 600.0)
    return _crowd(
        "heavy tail", seed, times, lambda rng: bounded_pareto(rng.random(), 1.1, low, high)
    )


def sustained(seed: int) -> Workload:
    """1.2 times the line for an hour."""
    mean = 20.0 * MB
    times = _poisson("sustained", seed, lambda now: 1.2, mean, 3_600.0)
    return _crowd("sustained", seed, times, lambda rng: rng.expovariate(1.0 / mean))


def elephants(seed: int) -> Workload:
    """Four downloads of 5 GB at the start, beside small ones at half the line."""
    times = _poisson("elephants", seed, lambda now: 0.5, 2.0 * MB, 900.0)
    small = _crowd("elephants", seed, times, lambda rng: rng.expovariate(1.0 / (2.0 * MB)))
    large = tuple(
        Visitor(f"e{number}", 0.0, 10.0 * MB, (File(f"e{number}", 5_000 * MB),))
        for number in range(4)
    )
    return replace(small, visitors=(*large, *small.visitors))


def split_speeds(seed: int) -> Workload:
    """Half the clients at 1 Mbit/s, half at 200."""
    day = release_artefacts(seed, shape=_RUSH)
    rng = random.Random(f"split/{seed}")
    visitors = tuple(
        replace(one, rate_bytes_s=rng.choice((0.125, 25.0)) * MB) for one in day.visitors
    )
    return replace(day, visitors=visitors)


def never_return(seed: int) -> Workload:
    """Half of those who must wait leave within a second."""
    day = release_artefacts(seed, shape=_RUSH)
    rng = random.Random(f"never/{seed}")
    visitors = tuple(
        replace(one, patience_s=1.0 if rng.random() < 0.5 else math.inf) for one in day.visitors
    )
    return replace(day, visitors=visitors)


def impatient(seed: int) -> Workload:
    """Clients without a first byte after a log-normal patience, median 30 s, leave."""
    return release_artefacts(seed, abandon=True, shape=replace(_RUSH, patience_s=30.0))


def one_address(seed: int, people: int = 500, shape: ReleaseDay = RELEASE_DAY) -> Workload:
    """A release day. Every other visitor, up to so many, comes from behind one address, where a
    cookie tells it from the rest; all others from a network of their own."""
    workload = release_artefacts(seed, shape=shape)
    visitors = []
    for number, visitor in enumerate(workload.visitors):
        address = f"172.{16 + number // 250}.{number % 250}.1"
        if number % 2 and number // 2 < people:
            address = ONE_ADDRESS
        key = client_key(block_of(address), f"v{number}")
        visitors.append(replace(visitor, key=key, network=prefixes_of(address)))
    return replace(workload, visitors=tuple(visitors))


def _rush(seed: int) -> Workload:
    return release_artefacts(seed, shape=_RUSH)


def _pareto_rush(seed: int) -> Workload:
    return release_pareto(seed, shape=_RUSH)


CONDITIONS: Mapping[str, Condition] = {
    **{
        f"Experiment {number} at {load:.0%}": Condition(_named(f"exp{number}"), {"bandwidth": load})
        for number in (2, 1)
        for load in (0.3, 0.5, 0.75, 1.0)
    },
    "release day, artefacts": Condition(_named("release-artefacts")),
    "the same on 2/3 of its line": Condition(_named("release-artefacts"), {"bandwidth": 0.67}),
    "release day, Pareto": Condition(_named("release-pareto")),
    "flash crowd": Condition(flash_crowd),
    "diurnal day": Condition(diurnal),
    "heavy tail 1.1": Condition(heavy_tail),
    "split speeds": Condition(split_speeds),
    "elephants": Condition(elephants),
    "sustained 1.2": Condition(sustained),
    "line falls to 30 % for 2 min": Condition(_rush, {"line": ((60.0, 0.3), (180.0, 1.0))}),
    "unknown line": Condition(_rush, {"tells_bandwidth": False}),
    "impatient": Condition(impatient),
    "half never return": Condition(never_return),
    "500 behind one address": Condition(one_address),
    "2 slots": Condition(_pareto_rush, {"slots": 2, "reserve_small": 1}),
    "2 000 slots": Condition(_pareto_rush, {"slots": 2_000}),
}
