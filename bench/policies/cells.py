"""The cells of the table of laws: small populations that exercise each law of Fair, and attackers.

A cell takes about a second of CPU time. `measure` plays it under Fair, in virtual time, beside
processor sharing (what a server without admission does) for the same clients.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from bench.attacks import live
from bench.attacks.simulated import (
    ATTACKERS,
    CONDUCTS,
    SHARE,
    TEN_ADDRESSES,
    Attacked,
    Attacker,
    Conduct,
    one_address,
    play,
    sessions_s,
)
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.metrics import columns, later, measure, session_times
from tidegate.loadtest.sim.outcome import DOWNLOAD_FIELDS, mean
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.workloads import (
    MB,
    RELEASE_DAY,
    File,
    Visitor,
    Workload,
    bounded_pareto,
    make_workload,
    release_artefacts,
)

#: A release day in short: 230 visitors.
_SHORT = replace(RELEASE_DAY, rush_s=120.0, calm_s=120.0)
#: As small as a large download may be, again and again: shortest first would favour these.
_SHORT_FILES = Conduct(sizes=(1_000_000,), keeps_names=True)


@dataclass(frozen=True, slots=True)
class CellFigures:
    """What one cell shows: seconds, and parts of the clients. Nan: there is no such figure."""

    mean_s: float
    #: Clients done later than under processor sharing by more than 5 % and 5 s.
    later: float
    #: Clients that started within the 90 % bound, of those that were told a time.
    within: float
    #: Clients that left without their file.
    gave_up: float
    #: Clients that had their last byte within the told 90 % bound; the median error of told ends.
    end_within: float
    end_error: float


@dataclass(frozen=True, slots=True)
class LawCell:
    """A population by its seed, and how its scenario differs from the usual one."""

    workload: Callable[[int], Workload]
    seeds: tuple[int, ...] = (700,)
    scenario: Mapping[str, Any] = field(default_factory=dict)
    #: What an attacker does beside the population; by default it has one IPv4 address.
    attack: Conduct | None = None
    attacker: Attacker = ATTACKERS[0]


def _crowd(
    name: str, count: int, span_s: float, size: Callable[[random.Random], float], seed: int
) -> Workload:
    rng = random.Random(f"{name}/{seed}")
    visitors = tuple(
        Visitor(
            f"c{number}",
            at_s,
            math.exp(rng.uniform(math.log(1.0 * MB), math.log(10.0 * MB))),
            (File(f"f{number}", max(1_000, int(size(rng)))),),
        )
        for number, at_s in enumerate(sorted(rng.uniform(0.0, span_s) for _ in range(count)))
    )
    return Workload(name, seed, visitors, 25.0 * MB)


def _flash(seed: int) -> Workload:
    """600 clients within 2 s."""
    return _crowd("flash", 600, 2.0, lambda rng: 0.7 * MB * math.exp(rng.gauss(0.0, 1.0)), seed)


def _heavy(seed: int) -> Workload:
    """Pareto sizes from 1 MB to 2 GB: few downloads have most of the bytes."""
    return _crowd(
        "heavy", 300, 120.0, lambda rng: bounded_pareto(rng.random(), 1.1, MB, 2_000.0 * MB), seed
    )


def _day(seed: int) -> Workload:
    return release_artefacts(seed, shape=_SHORT)


def _body_counters(seed: int) -> Workload:
    day = _crowd("body", 200, 20.0, lambda rng: rng.uniform(3.0, 30.0) * MB, seed)
    # Half of curl's default time to judge a speed limit, so that a wait of half a minute counts.
    impatient = tuple(replace(one, patience_s=15.0, counts_body=True) for one in day.visitors)
    return replace(day, visitors=impatient)


def _browsers_and_curls(seed: int) -> Workload:
    """120 clients for one file of 8 MB: every other a browser, the rest like curl."""
    crowd = _crowd("one file", 120, 60.0, lambda _: 8.0 * MB, seed)
    visitors = (
        replace(one, polls=number % 2 == 0, counts_body=number % 2 == 1)
        for number, one in enumerate(crowd.visitors)
    )
    return replace(crowd, visitors=tuple(visitors))


#: 45 visitors: a day with an attacker takes longer to play.
_PEOPLE = partial(
    one_address, people=0, shape=replace(RELEASE_DAY, rush_s=15.0, rush_load=2.5, calm_s=15.0)
)

CELLS: Mapping[str, LawCell] = {
    "Experiment 2, 50 %": LawCell(partial(make_workload, "exp2"), (700,), {"bandwidth": 0.5}),
    "the same, polled": LawCell(
        partial(make_workload, "exp2"), (700,), {"bandwidth": 0.5, "hold": False}
    ),
    "Experiment 1, 75 %": LawCell(partial(make_workload, "exp1"), (700,), {"bandwidth": 0.75}),
    "artefacts, 2/3": LawCell(_day, (700, 701, 702), {"bandwidth": 0.67}),
    "heavy tail": LawCell(_heavy, (700, 701)),
    "flash crowd, polled": LawCell(_flash, (700,), {"hold": False}),
    "line falls": LawCell(_day, (700, 701), {"line": ((30.0, 0.3), (90.0, 1.0))}),
    "unknown line": LawCell(_day, (700, 701), {"tells_bandwidth": False}),
    "100 behind one address": LawCell(partial(one_address, people=100, shape=_SHORT), (700,)),
    "short downloads of one network": LawCell(_PEOPLE, (1,), attack=_SHORT_FILES),
    "the same of ten": LawCell(_PEOPLE, (1,), attack=_SHORT_FILES, attacker=TEN_ADDRESSES),
    "the live day, a /48 with 0.9 MB and 2 GB": LawCell(
        lambda _: live.virtual_day(),
        (1,),
        attack=Conduct(sizes=(900_000, 2_000_000_000), keeps_names=True),
        attacker=live.ATTACKERS["one /48"],
    ),
    "idle readers of one network": LawCell(_PEOPLE, (1,), attack=CONDUCTS["idle"]),
    "16 that always download": LawCell(_PEOPLE, (1,), attack=CONDUCTS["real"], attacker=SHARE),
    "browsers and curls, one file": LawCell(_browsers_and_curls, (700,), {"bandwidth": 0.2}),
    "body counters": LawCell(_body_counters, (700,)),
}


@lru_cache(maxsize=64)
def _population(name: str, seed: int) -> tuple[Workload, Sequence[float]]:
    """A population, and its session times under processor sharing (without the attacker)."""
    cell = CELLS[name]
    workload = cell.workload(seed)
    patient = tuple(replace(one, patience_s=math.inf) for one in workload.visitors)
    calm = replace(workload, visitors=patient)
    sharing = Scenario("ps", reserve_small=6, **cell.scenario).simulate(calm, seed)
    return workload, session_times(sharing, len(patient))


def prepare(names: Sequence[str]) -> None:
    """Play what does not depend on Fair."""
    for name in names:
        for seed in CELLS[name].seeds:
            _population(name, seed)


def figures(name: str, policy: str = "fair", seeds: Sequence[int] = ()) -> CellFigures:
    """The cell under Fair as it is now, or under another policy, over these seeds or its own."""
    runs = [_one(name, seed, policy) for seed in seeds or CELLS[name].seeds]
    return CellFigures(
        mean([run.mean_s for run in runs]),
        mean([run.later for run in runs]),
        mean([run.within for run in runs if not math.isnan(run.within)]),
        mean([run.gave_up for run in runs]),
        mean([run.end_within for run in runs if not math.isnan(run.end_within)]),
        mean([run.end_error for run in runs if not math.isnan(run.end_error)]),
    )


def _one(name: str, seed: int, rules: str) -> CellFigures:
    cell = CELLS[name]
    workload, sharing = _population(name, seed)
    scenario = Scenario(rules, reserve_small=6, **cell.scenario)
    policy = scenario.make_policy(workload, seed)
    # A run that has not ended then leaves some clients waiting for ever.
    conditions = replace(scenario.conditions(workload), limit_s=20_000.0)
    if cell.attack is not None:
        # The attacker asks until the last of the others is done.
        day = replace(conditions, limit_s=300.0)
        engine = Attacked(
            workload, policy, day, seed, cell.attacker, cell.attack, most_events=30_000
        )
        waits, _ = sessions_s(play(engine))
        told = measure(workload, conditions, engine.tally)
        ends = told["end_within_p90"], told["end_median_error"]
        return CellFigures(float(waits.mean()), math.nan, told["eta_within_p90"], math.nan, *ends)
    tally = Engine(workload, policy, conditions, seed).run()
    times = session_times(tally, len(workload.visitors))
    told = measure(workload, conditions, tally)
    gave_up = columns(tally.downloads, DOWNLOAD_FIELDS)["gave_up"]
    return CellFigures(
        mean([time for time in times if not math.isnan(time)]),
        later(times, sharing),
        told["eta_within_p90"],
        mean(gave_up),
        told["end_within_p90"],
        told["end_median_error"],
    )
