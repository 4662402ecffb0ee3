"""`python -m tests.random_days`: days that nobody planned, under Fair beside a plain server.

A day is a line, a crowd with its sizes, speeds and manners, and a path. It is judged by the first
promise: nobody is done later than from a plain server, and most are done sooner. The days where it
holds least are printed, the worst one first; each is played again by its seed. Told starts and ends
are judged over all days (`tests/told_times.py`).
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from tidegate.loadtest.sim.conditions import NetworkPath
from tidegate.loadtest.sim.metrics import later, measure, session_times
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.workloads import MB, File, Visitor, Workload, bounded_pareto

from .told_times import TellingEngine, Told, table

#: No day is longer, and no download takes longer alone, seconds: the simulator's time is bounded.
LONGEST_S = 600.0

SIZES: dict[str, Callable[[random.Random, float], float]] = {
    "one size": lambda rng, base: base,
    "log-normal": lambda rng, base: base * math.exp(rng.gauss(0.0, 1.2)),
    "heavy tail": lambda rng, base: bounded_pareto(rng.random(), 1.1, base / 4, base * 300),
    "nine to one": lambda rng, base: base * (1 if rng.random() < 0.9 else 30),
    "a release": lambda rng, base: base * rng.choice([0.0001, 0.001, 0.01, 0.5, 1, 1.4, 3, 40]),
}
#: Speeds as parts of the line.
SPEEDS: dict[str, Callable[[random.Random], float]] = {
    "fast": lambda rng: 0.5 * 8 ** rng.random(),
    "mixed": lambda rng: 0.02 * 100 ** rng.random(),
    "slow": lambda rng: 0.005 * 20 ** rng.random(),
    "seven in ten slow": lambda rng: 1.0 if rng.random() < 0.3 else 0.01,
}
#: Arrivals as parts of the time in which the line carries what they want.
ARRIVALS: dict[str, Callable[[random.Random], float]] = {
    "even": lambda rng: rng.random(),
    "at once": lambda rng: 0.02 * rng.random(),
    "two waves": lambda rng: rng.choice([0.0, 1.0]) + 0.2 * rng.random(),
    "falling": lambda rng: rng.expovariate(3.0),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a day is drawn from."""

    line_bytes_s: float
    base_bytes: float
    span_s: float
    sizes: str
    speeds: str
    arrivals: str

    def files(self, names: Sequence[str], rng: random.Random) -> tuple[File, ...]:
        """All that one client wants."""
        return tuple(
            File(name, 1_000 + int(SIZES[self.sizes](rng, self.base_bytes) / len(names)))
            for name in names
        )

    def speed_bytes_s(self, rng: random.Random) -> float:
        """Of one client."""
        return self.line_bytes_s * SPEEDS[self.speeds](rng)

    def arrival_s(self, rng: random.Random) -> float:
        """Of one client."""
        return self.span_s * ARRIVALS[self.arrivals](rng)


@dataclass(frozen=True, slots=True)
class Day:
    """A population and its scenario; `words` say what kind of day it is."""

    seed: int
    words: str
    kind: Kind
    workload: Workload
    scenario: Scenario


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a day went, beside the same day on a plain server. Parts of the clients or of a time."""

    day: Day
    mean_s: float
    #: The mean as a part of the plain server's.
    part: float
    #: Clients later by more than 5 % and 5 s.
    later: float
    #: Of those that were told one: starts and ends within their bounds.
    starts_kept: float
    ends_kept: float
    gave_up: float
    told: Sequence[Told]

    def __str__(self) -> str:
        return (
            f"{self.day.seed}: mean {self.mean_s:.1f} s, {self.part:.2f} of a plain server's; later"
            f" {self.later:.1%}; starts kept {self.starts_kept:.0%}, ends {self.ends_kept:.0%};"
            f" {self.day.words}"
        )


def draw_day(seed: int) -> Day:
    """The day of this seed, no longer than `LONGEST_S`."""
    rng = random.Random(f"day/{seed}")
    while (day := _draw(rng, seed)) is None:
        pass
    return day


def _draw(rng: random.Random, seed: int) -> Day | None:
    line_bytes_s = 0.3 * MB * 400 ** rng.random()
    load, count = 0.6 * 6 ** rng.random(), rng.choice([20, 60, 120])
    base = min(0.2 * MB * 300 ** rng.random(), 20 * line_bytes_s)
    sizes, speeds, arrivals = rng.choice([*SIZES]), rng.choice([*SPEEDS]), rng.choice([*ARRIVALS])
    kind = Kind(line_bytes_s, base, math.nan, sizes, speeds, arrivals)
    files = [rng.choice([1, 1, 1, 3]) for _ in range(count)]
    wishes = [
        kind.files([f"f{one}-{at}" for at in range(many)], rng) for one, many in enumerate(files)
    ]
    wanted = sum(file.size_bytes for wish in wishes for file in wish)
    span_s = wanted / line_bytes_s / load
    kind = replace(kind, span_s=span_s)
    polls, shared = rng.choice([0.0, 0.3, 1.0]), rng.choice([0.0, 0.0, 0.3])
    times = sorted(kind.arrival_s(rng) for _ in range(count))
    visitors = tuple(
        Visitor(
            f"c{number}",
            arrived_s,
            kind.speed_bytes_s(rng),
            wish,
            network=("203.0.113.7/32", "203.0.113.0/24") if rng.random() < shared else (),
            polls=rng.random() < polls,
        )
        for number, (arrived_s, wish) in enumerate(zip(times, wishes, strict=True))
    )
    alone_s = max(one.total_bytes / min(one.rate_bytes_s, line_bytes_s) for one in visitors)
    if max(span_s, wanted / line_bytes_s, alone_s) > LONGEST_S:
        return None
    rtt_s = rng.choice([None, (0.02,), (0.1,), (0.01, 0.1)])
    queue_bytes = rng.choice([0, int(0.1 * line_bytes_s)])
    network = None if rtt_s is None else NetworkPath(rtt_s, queue_bytes)
    told = rng.random() < 0.4
    words = (
        f"{count} clients, {sizes}, {speeds}, {arrivals}, load {load:.1f}, line"
        f" {8 * line_bytes_s / MB:.0f} Mbit/s {'told' if told else 'not told'}, {polls:.0%} poll,"
        f" {shared:.0%} behind one address, round trips {rtt_s}"
    )
    workload = Workload("day", seed, visitors, line_bytes_s, small_below_bytes=256_000)
    scenario = Scenario(
        "fair", bandwidth_bytes_s=line_bytes_s, network=network, tells_bandwidth=told
    )
    return Day(seed, words, kind, workload, scenario)


def judge(day: Day) -> Verdict:
    """Play the day under Fair, and without admission."""
    policy = day.scenario.make_policy(day.workload, day.seed)
    conditions = day.scenario.conditions(day.workload)
    engine = TellingEngine(day.workload, policy, conditions, day.seed)
    told, run = engine.told(), engine.tally
    plain = replace(day.scenario, policy="ps").simulate(day.workload, day.seed)
    times, sharing = (session_times(one, len(day.workload.visitors)) for one in (run, plain))
    figures = measure(day.workload, conditions, run)
    mean_s = mean(time for time in times if not math.isnan(time))
    part = mean_s / mean(time for time in sharing if not math.isnan(time))
    kept = figures["eta_within_p90"], figures["end_within_p90"]
    return Verdict(day, mean_s, part, later(times, sharing), *kept, figures["gave_up"], told)


def main() -> int:
    """The command."""
    words = argparse.ArgumentParser(prog="python -m tests.random_days", description=__doc__)
    words.add_argument("--first", type=int, help="the first seed; else a fresh one")
    words.add_argument("--days", type=int, default=20)
    words.add_argument("--worst", type=int, default=10, help="print so many")
    asked = words.parse_args()
    first = random.SystemRandom().randrange(10**9) if asked.first is None else asked.first
    verdicts = [judge(draw_day(seed)) for seed in range(first, first + asked.days)]
    verdicts.sort(key=lambda one: (-one.later, -one.part))
    lines = [str(one) for one in verdicts[: asked.worst]]
    part, late = mean(one.part for one in verdicts), mean(one.later for one in verdicts)
    lines.append(f"{len(verdicts)} days: mean {part:.2f} of a plain server's, later {late:.1%}")
    lines.append(table([told for one in verdicts for told in one.told]))
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
