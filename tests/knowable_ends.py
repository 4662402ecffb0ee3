"""`python -m tests.knowable_ends`: how well the ends of random days could be told at all.

A told end is judged beside an ideal one. For this its day is played again, up to that moment as it
was, with other futures of the same kind: who comes later, for what, and how fast those are that
nothing was sent to yet. The median of these ends is the ideal one. It knows what kind of day it is
and what the policy does, and neither the future nor a speed that nobody has seen.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from tidegate.loadtest.sim.conditions import Conditions
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.outcome import Promise, SimClient
from tidegate.loadtest.workloads import Visitor, Workload
from tidegate.policies.admission import AdmissionPolicy

from .random_days import Day, draw_day
from .told_times import LONG_S, TellingEngine, Told


@dataclass(frozen=True, slots=True)
class Moment:
    """When a download was told its end, and what could be known then."""

    told: Told
    client: int
    file_number: int
    #: Clients that something was sent to.
    seen: frozenset[int]
    #: The file that each present client fetches.
    file_numbers: Mapping[int, int]


class RememberingEngine(TellingEngine):
    """Keeps the moment of each told end."""

    def __init__(self, day: Day) -> None:
        super().__init__(*_parts(day, day.workload))
        self.moments: list[Moment] = []
        self._seen: set[int] = set()

    def _carry(self, client: SimClient) -> None:
        self._seen.add(client.number)
        super()._carry(client)

    def _offer(
        self, client: SimClient, ticket: int | None, *, present: bool, may_hold: bool = True
    ) -> None:
        before = self._present_clients[client]
        super()._offer(client, ticket, present=present, may_hold=may_hold)
        told = self._present_clients[client]
        if before is None and told is not None:
            numbers = {one.number: one.file_number for one in self._present_clients}
            seen = frozenset(self._seen)
            self.moments.append(Moment(told, client.number, client.file_number, seen, numbers))


class _Ended(Exception):
    """The download that is waited for has ended."""


class AwaitingEngine(Engine):
    """Runs until one download is over."""

    def __init__(self, day: Day, workload: Workload, moment: Moment) -> None:
        super().__init__(*_parts(day, workload))
        self._download = moment.client, moment.file_number
        self._at_s = moment.told.promise[0]
        #: What it was told.
        self.promise: Promise | None = None

    def ended_s(self) -> float:
        """How long after its end was told."""
        try:
            self.run()
        except _Ended:
            return self.now - self._at_s
        raise AssertionError("the download never ended")

    def _record(self, client: SimClient, *, gave_up: bool) -> None:
        super()._record(client, gave_up=gave_up)
        if (client.number, client.file_number) == self._download:
            self.promise = client.promise
            raise _Ended


def _parts(day: Day, workload: Workload) -> tuple[Workload, AdmissionPolicy, Conditions, int]:
    policy = day.scenario.make_policy(workload, day.seed)
    return workload, policy, day.scenario.conditions(workload), day.seed


def other_future(day: Day, moment: Moment, rng: random.Random) -> Workload:
    """The day up to the moment as it was, then another one of its kind."""
    at_s, kind = moment.told.promise[0], day.kind
    visitors: list[Visitor] = []
    for number, one in enumerate(day.workload.visitors):
        arrival_s, rate_bytes_s, known = one.arrival_s, one.rate_bytes_s, 0
        if arrival_s > at_s:
            # Hardly any of some kinds comes later.
            times = (kind.arrival_s(rng) for _ in range(1_000))
            arrival_s = next((time_s for time_s in times if time_s > at_s), arrival_s)
        else:
            known = moment.file_numbers.get(number, len(one.files)) + 1
        if number not in moment.seen:
            rate_bytes_s = kind.speed_bytes_s(rng)
        files = kind.files([file.name for file in one.files], rng)
        files = one.files[:known] + files[known:]
        visitors.append(replace(one, arrival_s=arrival_s, rate_bytes_s=rate_bytes_s, files=files))
    visitors.sort(key=lambda one: one.arrival_s)
    return replace(day.workload, visitors=tuple(visitors))


def ideal_errors(seed: int, ends: int, futures: int) -> list[tuple[float, float]]:
    """Of some told ends of a day: how far off they were, and how far the ideal ones, as parts."""
    day = draw_day(seed)
    engine = RememberingEngine(day)
    engine.told()
    long = [one for one in engine.moments if one.told.ended_s > LONG_S]
    rng, errors = random.Random(f"ends/{seed}"), []
    for moment in rng.sample(long, min(ends, len(long))):
        played = []
        for _ in range(futures):
            again = AwaitingEngine(day, other_future(day, moment, rng), moment)
            played.append(again.ended_s())
        told_s, took_s = moment.told.promise[3], moment.told.ended_s
        errors.append((abs(told_s - took_s) / took_s, abs(median(played) - took_s) / took_s))
    return errors


def main() -> int:
    """The command."""
    words = argparse.ArgumentParser(prog="python -m tests.knowable_ends", description=__doc__)
    words.add_argument("--first", type=int, default=50_000, help="the first seed")
    words.add_argument("--days", type=int, default=20)
    words.add_argument("--ends", type=int, default=2, help="of each day")
    words.add_argument("--futures", type=int, default=5, help="of each end")
    asked = words.parse_args()
    seeds = range(asked.first, asked.first + asked.days)
    errors = [one for seed in seeds for one in ideal_errors(seed, asked.ends, asked.futures)]
    told, ideal = (median(one[at] for one in errors) for at in (0, 1))
    sys.stdout.write(
        f"{len(errors)} ends of {asked.days} days:"
        f" told {told:.1%} off in the median, ideal {ideal:.1%}\n"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
