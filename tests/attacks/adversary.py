"""Searches for the attacker that costs honest clients most, and the crowd that loses most.

    python -m tests.attacks.adversary [--minutes 60] [--policy fair] [--seed N] [--results FILE]
        [--rush 30]

An attacker is a vector (`Attack`), and so is a crowd (`HonestCrowd`). An evolutionary search on a
short release day in virtual time makes children of the worst vectors of each kind of network. Two
tables show the ten worst of each, played on further days, and how the worst grew. With `--results`
the next run continues from the vectors that this one played.

The bound of a network is the cost of people who always download the largest files, as many as a
network has shares. Exit code 1 when one network costs more.

Files below `small_below` are left out, because a day of them has too many events; see
`bench.attacks.live`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from bench.attacks.simulated import (
    CONDUCTS,
    SHARE,
    Attacked,
    Attacker,
    Conduct,
    FloatVector,
    one_address,
    play,
    require_landed,
    sessions_s,
    world,
)
from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.subject import NothingMeasured
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.outcome import SimClient
from tidegate.loadtest.workloads import File, ReleaseDay, Visitor, Workload
from tidegate.server.admission.client_keys import client_key
from tidegate.server.http.proxies import block_of, prefixes_of

#: About 90 people; the rush has 2.5 times the load of the line.
DAY = ReleaseDay(rush_s=30.0, rush_load=2.5, calm_s=30.0)
#: A day of the search ends after this many events, about 4 CPU seconds. A whole day costs more:
#: with 15 000 events +24 % instead of +125 %.
_MOST_EVENTS = 30_000
#: The days on which the ten worst are judged: about 12 CPU seconds.
_JUDGED_EVENTS = 90_000
#: Seeds of days. The search plays the first; the ten worst are judged by the mean over all. On none
#: of them a visitor wants the 940 MB image, which makes a day three times as long.
DAYS = (2, 4, 8)
#: The parents of which a child has two. Not sensitive: a few keep the search off a local maximum.
_PARENTS = 5
#: The share of vectors that are drawn at random.
_DRAWN = 0.15
#: The mean number of a child's values that are moved along their grids.
_MOVED = 2.0
#: The share of time for attackers; the rest is for crowds.
_FOR_ATTACKS = 0.7
#: Rows of a table.
_SHOWN = 10
#: File sizes; 0 stands for the largest files that honest clients want.
_SIZES = (0, *(int(20e3 * 2**step) for step in range(14)))
#: In seconds, or in bytes a second: no limit on any day.
_ENDLESS = 1e9
#: The kinds of vectors from one network.
ONE_NETWORK = ("/24", "/48")


@dataclass(frozen=True, slots=True)
class Vector:
    """A point of the search: one value of a grid for each field. `where` is its niche."""

    GRID: ClassVar[Mapping[str, Sequence[Any]]] = {}

    where: str

    @classmethod
    def drawn(cls, where: str, chance: random.Random) -> Self:
        """A random vector of this niche."""
        drawn = {name: chance.choice(values) for name, values in cls.GRID.items()}
        return cls(**drawn | {"where": where})

    def child(self, other: Vector, chance: random.Random) -> Self:
        """A child: each value is one of the parents', and some of them are moved."""
        values = {name: getattr(chance.choice((self, other)), name) for name in self.GRID}
        for name, grid in self.GRID.items():
            if name != "where" and chance.random() < _MOVED / len(self.GRID):
                place = grid.index(values[name]) + chance.choice((-2, -1, 1, 2))
                values[name] = grid[max(0, min(len(grid) - 1, place))]
        return type(self)(**values)


@dataclass(frozen=True, slots=True)
class Attack(Vector):
    """An attacker, and its `Conduct`.

    `width` addresses of a /24 (or /64s of a /48, /24s of a /16, /48s of a /32, /16s) have `names`
    each. It opens `per_s` connections a second up to `most`.
    """

    GRID: ClassVar[Mapping[str, Sequence[Any]]] = {
        "where": (*ONE_NETWORK, "/16", "/32", "networks"),
        "width": (1, 2, 10, 50, 250),
        "names": (1, 10, 100, 1000),
        "most": (1, 4, 16, 50, 100, 300),
        "per_s": (1.0, 5.0, 20.0, 100.0),
        "size_bytes": _SIZES,
        "other_bytes": _SIZES,
        "rate_bytes_s": (250.0, 2.5e3, 25e3, 250e3, 2.5e6, _ENDLESS),
        "patience_s": (0.45, 2.0, 10.0, 60.0, _ENDLESS),
        "rude": (False, True),
        "keeps_names": (False, True),
        "start_s": (0.0, 5.0, 15.0, 30.0),
        "on_s": (1.0, 5.0, 20.0, _ENDLESS),
        "off_s": (0.0, 2.0, 10.0, 30.0),
    }

    width: int
    names: int
    most: int
    per_s: float
    size_bytes: int
    other_bytes: int
    rate_bytes_s: float
    patience_s: float
    rude: bool
    keeps_names: bool
    start_s: float
    on_s: float
    off_s: float

    def attacker(self) -> Attacker:
        """The attacker with these addresses and names."""
        names = self.width * self.names
        return Attacker(f"{self.where} x {self.width}", self._address, names, self.per_s, self.most)

    def _address(self, number: int) -> str:
        place = number % self.width
        return {
            "/24": f"203.0.113.{place}",
            "/48": f"2001:db8:bad:{place:x}::1",
            "/16": f"203.0.{place}.1",
            "/32": f"2001:db8:{place:x}::1",
            "networks": f"10.{place}.0.1",
        }[self.where]

    def conduct(self) -> Conduct:
        """Its behaviour."""
        sizes = tuple(size for size in (self.size_bytes, self.other_bytes) if size)
        named = {one.name for one in fields(Conduct)} & set(self.GRID)
        return Conduct(sizes, **{name: getattr(self, name) for name in named})


@dataclass(frozen=True, slots=True)
class HonestCrowd(Vector):
    """Honest people in one network: each visitor is one of them with the probability `part`.

    They have `width` addresses. `named`: each has an id of its own. `changes`: each file is
    requested from another address. They want `files` of `size_bytes` (0: their own files).
    """

    GRID: ClassVar[Mapping[str, Sequence[Any]]] = {
        "where": ("/24", "/16", "/48", "/32"),
        "width": (1, 4, 20, 100, 250),
        "part": (0.03, 0.1, 0.2, 0.3, 0.5),
        "named": (False, True),
        "changes": (False, True),
        "files": (1, 3, 10, 30),
        "size_bytes": _SIZES,
    }

    width: int
    part: float
    named: bool
    changes: bool
    files: int
    size_bytes: int

    def address(self, number: int) -> str:
        """The address of the n-th request."""
        place = number % self.width
        return {
            "/24": f"203.0.113.{place}",
            "/16": f"203.0.{place}.1",
            "/48": f"2001:db8:bad:{place:x}::1",
            "/32": f"2001:db8:{place:x}::1",
        }[self.where]

    def join(self, visitor: Visitor, number: int, file: int) -> Visitor:
        """This visitor as a member of the crowd, at its `file`-th request."""
        address = self.address(number + file * self.changes)
        key = client_key(block_of(address), f"c{number}" if self.named else "")
        return replace(visitor, key=key, network=prefixes_of(address))

    def wishes(self, visitor: Visitor) -> tuple[File, ...]:
        """The files that a member wants."""
        if not self.size_bytes:
            return visitor.files * self.files
        return tuple(File(f"part{number}", self.size_bytes) for number in range(self.files))


class _Crowded(Engine):
    """A day on which some visitors are members of a crowd."""

    def __init__(self, members: Mapping[int, HonestCrowd], *world: Any) -> None:
        super().__init__(*world)
        self._members = members

    def _next_file(self, client: SimClient) -> None:
        crowd = self._members.get(client.number)
        if crowd is not None:
            client.visitor = crowd.join(client.visitor, client.number, client.file_number + 1)
        super()._next_file(client)


_V = TypeVar("_V", bound=Vector)


@dataclass(frozen=True)
class Find(Generic[_V]):
    """A vector, its cost, and the share of honest visitors not done when the day was cut off."""

    vector: _V
    cost: float
    undone: float


@cache
def _workload(seed: int, day: ReleaseDay) -> Workload:
    return one_address(seed, 0, day)


@cache
def _calm_s(policy: str, seed: int, day: ReleaseDay) -> FloatVector:
    return sessions_s(play(Engine(*world(policy, seed, _workload(seed, day)))))[0]


def attack_cost(
    policy: str,
    vector: Attack,
    seed: int = DAYS[0],
    day: ReleaseDay = DAY,
    most_events: float = _MOST_EVENTS,
) -> tuple[float, float]:
    """The honest visitors' loss, and the share of them not done when the day was cut off."""
    return _cost(policy, seed, day, vector.attacker(), vector.conduct(), most_events)


@cache
def bound(
    policy: str, seed: int = DAYS[0], day: ReleaseDay = DAY, sizes: tuple[int, ...] = ()
) -> float:
    """The cost of people who always download, as many as a network has shares."""
    return _cost(policy, seed, day, SHARE, replace(CONDUCTS["real"], sizes=sizes))[0]


def _cost(policy: str, seed: int, day: ReleaseDay, *attack: Any) -> tuple[float, float]:
    engine = play(Attacked(*world(policy, seed, _workload(seed, day)), *attack))
    require_landed(engine, attack[0].title, "ghost")
    found_s, undone = sessions_s(engine)
    calm_s = _calm_s(policy, seed, day)
    if undone:
        # If the day was cut off, the calm day is cut off at the same time.
        arrived_s = np.array([visitor.arrival_s for visitor in engine.workload.visitors])
        calm_s = np.minimum(calm_s, np.maximum(0.0, engine.tally.ended_s - arrived_s))
    return float(found_s.mean() / calm_s.mean()) - 1.0, undone


#: Settings with and without shares of networks.
_DEFENCES: tuple[dict[str, int], ...] = ({}, {"network_shares": 0})


def crowd_cost(
    policy: str, crowd: HonestCrowd, seed: int = DAYS[0], day: ReleaseDay = DAY
) -> tuple[float, float]:
    """What the crowd loses by the shares of networks, and what the others lose."""
    chance = random.Random(f"crowd/{seed}")
    plain = _workload(seed, day)
    numbers = [number for number in range(len(plain.visitors)) if chance.random() < crowd.part]
    visitors = list(plain.visitors)
    for number in numbers:
        visitors[number] = replace(visitors[number], files=crowd.wishes(visitors[number]))
    workload = replace(plain, visitors=tuple(visitors))
    members = dict.fromkeys(numbers, crowd)
    if not members:
        raise NothingMeasured(f"{crowd}: the crowd has no member")
    inside = np.isin(np.arange(len(visitors)), numbers)
    with_s, without_s = (
        sessions_s(play(_Crowded(members, *world(policy, seed, workload, **shares))))[0]
        for shares in _DEFENCES
    )
    means = (
        float(with_s[part].mean() / without_s[part].mean()) - 1.0 for part in (inside, ~inside)
    )
    return next(means), next(means)


class Search(Generic[_V]):
    """A (mu + lambda) evolution strategy by niche: all vectors stay, the worst have children."""

    def __init__(
        self,
        niches: Sequence[str],
        kind: type[_V],
        cost: Callable[[_V], tuple[float, float]],
        chance: random.Random,
        results: Results | None = None,
    ) -> None:
        self._niches = niches
        self._kind = kind
        self._cost = cost
        self._chance = chance
        self._results = results
        self.finds: dict[_V, Find[_V]] = {}
        for values, *found in results.played(kind.__name__) if results else ():
            self.keep(Find(kind(**values), *found))

    def run(self, seconds: float) -> None:
        """Play vectors for this time, at least one."""
        until_s = time.monotonic() + seconds
        while True:
            self._step()
            if time.monotonic() >= until_s:
                return

    def worst(self, *niches: str) -> list[Find[_V]]:
        """The worst of these niches, or of all."""
        finds = (one for one in self.finds.values() if not niches or one.vector.where in niches)
        return sorted(finds, key=lambda find: -find.cost)

    def keep(self, find: Find[_V]) -> None:
        """Add a vector that was played."""
        self.finds[find.vector] = find

    def curve(self, *niches: str) -> str:
        """How the cost of the worst grew in these niches, as a sentence."""
        played = [one for one in self.finds.values() if not niches or one.vector.where in niches]
        steps, worst = [], -math.inf
        for count, find in enumerate(played, 1):
            if find.cost > worst:
                worst = find.cost
                steps.append(f"{_percent(worst)} after {count}")
        cut_off = sum(find.undone > 0.0 for find in played)
        return f"{len(played)} played, {cut_off} cut off. The worst: {', '.join(steps)}\n"

    def _step(self) -> None:
        chance = self._chance
        niche = chance.choice(self._niches)
        parents = [find.vector for find in self.worst(niche)[:_PARENTS]]
        if len(parents) < _PARENTS or chance.random() < _DRAWN:
            vector = self._kind.drawn(niche, chance)
        else:
            one, other = chance.sample(parents, 2)
            vector = one.child(other, chance)
        if vector in self.finds:
            return
        try:
            find = Find(vector, *self._cost(vector))
        except NothingMeasured:
            find = Find(vector, 0.0, 0.0)
        self.keep(find)
        if self._results:
            self._results.add(self._kind.__name__, find)


class Results:
    """The vectors played under one policy, in a file of JSON lines."""

    def __init__(self, path: Path, policy: str) -> None:
        self._path = path
        self._policy = policy

    def played(self, kind: str) -> Iterator[tuple[dict[str, Any], float, float]]:
        """The vectors of this kind, their costs, and the shares of honest visitors not done."""
        if not self._path.exists():
            return
        for text in self._path.read_text("utf-8").splitlines():
            name, policy, values, cost, undone = json.loads(text)
            if (name, policy) == (kind, self._policy):
                yield values, cost, undone

    def add(self, kind: str, find: Find[Any]) -> None:
        """Append a vector."""
        line = [kind, self._policy, asdict(find.vector), find.cost, find.undone]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as out:
            out.write(f"{json.dumps(line)}\n")


def _percent(*parts: float) -> str:
    return f"{100 * statistics.fmean(parts):+.0f} %"


def _described(vector: Vector) -> str:
    """The cell of a table with all values by name."""
    values = asdict(vector).items()
    return ", ".join(f"{name} {value:g}" if name != "where" else value for name, value in values)


def attack_rows(search: Search[Attack], policy: str, day: ReleaseDay) -> Iterator[str]:
    """The ten worst of one network, then the worst of each other kind, on all days."""
    limit = statistics.fmean(bound(policy, seed, day) for seed in DAYS)
    yield markdown.head("attacker", "cost", "searched day", "its people", "not done") + "\n"
    people = f"{SHARE.title}: the bound"
    yield markdown.row(people, _percent(limit), _percent(bound(policy, day=day)), "–", "–") + "\n"
    shown = search.worst(*ONE_NETWORK)[:_SHOWN]
    for niche in Attack.GRID["where"]:
        shown += search.worst(niche)[:2] if niche not in ONE_NETWORK else []
    for find in shown:
        yield (
            markdown.row(
                _described(find.vector),
                _percent(*costs_on_all_days(policy, find.vector, day)),
                _percent(find.cost),
                _percent(bound(policy, day=day, sizes=find.vector.conduct().sizes)),
                f"{100 * find.undone:.0f} %",
            )
            + "\n"
        )


@cache
def costs_on_all_days(policy: str, vector: Attack, day: ReleaseDay) -> tuple[float, ...]:
    """Its costs on each day; 0 where it did not take place."""

    def cost(seed: int) -> float:
        try:
            return attack_cost(policy, vector, seed, day, _JUDGED_EVENTS)[0]
        except NothingMeasured:
            return 0.0

    return tuple(map(cost, DAYS))


def crowd_rows(search: Search[HonestCrowd], policy: str, day: ReleaseDay) -> Iterator[str]:
    """The ten crowds that lose most, on all days."""
    yield markdown.head("crowd", "it loses", "searched day", "the others lose") + "\n"
    for find in search.worst()[:_SHOWN]:
        costs = [crowd_cost(policy, find.vector, seed, day) for seed in DAYS]
        inside, outside = zip(*costs, strict=True)
        cells = _percent(*inside), _percent(find.cost), _percent(*outside)
        yield markdown.row(_described(find.vector), *cells) + "\n"


def beyond_bound(search: Search[Attack], policy: str, day: ReleaseDay) -> list[Attack]:
    """The worst attackers of one network whose mean cost exceeds the bound."""
    limit = statistics.fmean(bound(policy, seed, day) for seed in DAYS)
    worst = [find.vector for find in search.worst(*ONE_NETWORK)[:_SHOWN]]
    return [one for one in worst if statistics.fmean(costs_on_all_days(policy, one, day)) > limit]


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--policy", default="fair", choices=("fair", "adaptive", "ticket", "reserve", "http")
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="Of the search alone.")
    parser.add_argument("--seed", type=int, help="Of the search; by default another one each time.")
    parser.add_argument("--results", type=Path, help="Keeps what was played, and goes on from it.")
    parser.add_argument("--rush", type=float, default=DAY.rush_s, help="Seconds of a day's rush.")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    sys.stdout.write(f"Seed {seed}\n")
    policy, day = given.policy, replace(DAY, rush_s=given.rush, calm_s=given.rush)
    results = Results(given.results, policy) if given.results else None
    attacks = Search(
        Attack.GRID["where"],
        Attack,
        partial(attack_cost, policy, day=day),
        random.Random(f"attacks/{seed}"),
        results,
    )
    crowds = Search(
        HonestCrowd.GRID["where"],
        HonestCrowd,
        lambda crowd: (crowd_cost(policy, crowd, day=day)[0], 0.0),
        random.Random(f"crowds/{seed}"),
        results,
    )
    attacks.run(60.0 * given.minutes * _FOR_ATTACKS)
    crowds.run(60.0 * given.minutes * (1.0 - _FOR_ATTACKS))
    sys.stdout.write(f"\n{''.join(attack_rows(attacks, policy, day))}\n")
    for niches in (
        ONE_NETWORK,
        *((one,) for one in Attack.GRID["where"] if one not in ONE_NETWORK),
    ):
        sys.stdout.write(f"{', '.join(niches)}: {attacks.curve(*niches)}")
    sys.stdout.write(f"\n{''.join(crowd_rows(crowds, policy, day))}\nCrowds: {crowds.curve()}")
    beyond = beyond_bound(attacks, policy, day)
    sys.stdout.write("".join(f"Beyond the bound: {vector}\n" for vector in beyond))
    return 1 if beyond else 0


if __name__ == "__main__":
    end_cleanly()
    sys.exit(main())
