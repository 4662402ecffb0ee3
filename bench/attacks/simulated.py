"""Attackers beside an honest crowd, in virtual time on the server's own policies.

An attacker is a stream of visitors under names and networks that it can have; what the server
makes of them is the policy's matter. Only the honest are counted. `Conduct` says what the visitors
do; the table of docs/security.md has three of them (`CONDUCTS`), `adversary` searches for others.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from bench.shared.subject import Suppressed, require
from tidegate.loadtest.sim.conditions import Conditions, Starved
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.metrics import columns
from tidegate.loadtest.sim.outcome import SESSION_FIELDS, SimClient
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.workloads import (
    RELEASE_DAY,
    File,
    ReleaseDay,
    Visitor,
    Workload,
    release_artefacts,
)
from tidegate.policies.contract import AdmissionPolicy
from tidegate.policies.settings import PolicySettings
from tidegate.server.admission.client_keys import client_key
from tidegate.server.http.proxies import block_of, prefixes_of

_Played = TypeVar("_Played", bound=Engine)
FloatVector = NDArray[np.float64]
Manner = Literal["ghost", "idle", "real"]
#: More than the server's least rate (100 bytes a second), and far less than anybody's share.
_IDLE_BYTES_S = 250.0
#: Leaves before an admitted transfer begins (0.4 s to ask, 0.1 s to begin).
_GHOST_PATIENCE_S = 0.45
#: The largest files, of which each name may want one at a time.
_PREY = 4
#: An attacker that keeps its names chooses its next file among so many: hardly ever the same again.
_WISHES = 1_000_000
#: Where many honest people come from.
_ONE_ADDRESS = "198.51.100.1"
_STARVED = Suppressed("days that ended before everybody was done", Starved)


def one_address(seed: int, people: int = 500, shape: ReleaseDay = RELEASE_DAY) -> Workload:
    """A release day. Every other visitor, up to `people`, comes from one address.

    A cookie tells these visitors apart. Each other visitor comes from a /16 of its own, as far as
    there are.
    """
    workload = release_artefacts(seed, shape=shape)
    visitors = []
    for number, visitor in enumerate(workload.visitors):
        address = f"{20 + number % 200}.{number // 200}.7.1"
        if number % 2 and number // 2 < people:
            address = _ONE_ADDRESS
        key = client_key(block_of(address), f"v{number}")
        visitors.append(replace(visitor, key=key, network=prefixes_of(address)))
    return replace(workload, visitors=tuple(visitors))


@dataclass(frozen=True, slots=True)
class Attacker:
    """Who attacks from where. `address` gives the address of its n-th name, `names` how many it
    has; it asks `per_s` times a second until all are in use, and holds `most` connections."""

    title: str
    address: Callable[[int], str]
    names: int
    per_s: float
    most: int

    def identity(self, number: int) -> tuple[str, tuple[str, ...]]:
        """The key and the prefixes that a server sees."""
        address = self.address(number % self.names)
        key = client_key(block_of(address), f"a{number % self.names}")
        return key, prefixes_of(address)


def _ipv6(number: int) -> str:
    """The n-th of the 65 536 /64s of one /48."""
    return f"2001:db8:bad:{number % 65_536:x}::1"


@dataclass(frozen=True, slots=True)
class Conduct:
    """What an attacker does under its names.

    `sizes`: of the files that it wants, each another one; empty: the largest of the honest.
    `rate_bytes_s`: how fast it reads, up to the fastest of the honest. `patience_s`: how long it
    waits for a first byte. `rude`: asks every second. `keeps_names`: fetches one file after the
    other under each name. `claims`: the part of a file that it says it lacks. It begins at
    `start_s`, and is at work for `on_s` of every `on_s + off_s`.
    """

    sizes: tuple[int, ...] = ()
    rate_bytes_s: float = math.inf
    patience_s: float = math.inf
    rude: bool = False
    keeps_names: bool = False
    claims: float = 1.0
    start_s: float = 0.0
    on_s: float = math.inf
    off_s: float = 0.0

    def until_work_s(self, now: float) -> float:
        """How long it rests from now on."""
        since_s = now - self.start_s
        if since_s < 0.0:
            return -since_s
        phase_s = since_s % (self.on_s + self.off_s)
        return 0.0 if phase_s < self.on_s else self.on_s + self.off_s - phase_s


#: A ghost asks for the largest files, and hangs up on whatever it is told or given. An idler waits
#: for its turn, and then takes hardly more than keeps the connection.
CONDUCTS: Mapping[Manner, Conduct] = {
    "ghost": Conduct(patience_s=_GHOST_PATIENCE_S, rude=True),
    "idle": Conduct(rate_bytes_s=_IDLE_BYTES_S),
    "real": Conduct(keeps_names=True),
}
#: What an attacker meets: some 460 people, at first with 2.5 times the load of the line. A longer
#: day shows the same and takes hours to play: an attacker asks until the last of them is done.
_DAY = ReleaseDay(rush_s=150.0, rush_load=2.5, calm_s=150.0)
#: The day is over then, seconds; one who is not done has waited until now, at least.
_LONGEST_S = 1800.0
#: Names one address may have (`clients_per_address`), and the /64s of a /48.
_NAMES, _BLOCKS = 1000, 65_536
#: What the policy gives a whole network of strangers (`network_shares`): so many people, each with
#: an address of its own, and as many downloads together as one IPv4 has. None may cost more.
_SHARES = PolicySettings().network_shares
SHARE = Attacker(
    f"{_SHARES} people who always download", lambda n: f"10.{n}.0.1", _SHARES, 5.0, 100
)
ATTACKERS = (
    Attacker("one IPv4", lambda n: "203.0.113.7", _NAMES, 5.0, 100),
    Attacker("one /64", lambda n: "2001:db8:bad::1", _NAMES, 5.0, 100),
    Attacker("one /48", _ipv6, _BLOCKS, 20.0, 300),
    Attacker("ten addresses", lambda n: f"10.{n % 10}.0.1", 10 * _NAMES, 20.0, 300),
    Attacker(
        "a botnet of 1 000", lambda n: f"10.{n % 250}.{n // 250 % 4}.1", 1000 * _NAMES, 50.0, 1000
    ),
)


class Attacked(Engine):
    """The simulator with one attacker. It is not present: the run ends with the last honest."""

    def __init__(
        self,
        workload: Workload,
        policy: AdmissionPolicy,
        conditions: Conditions,
        seed: int,
        attacker: Attacker,
        conduct: Conduct,
        most_events: float = math.inf,
    ) -> None:
        super().__init__(workload, policy, conditions, seed)
        self.attacker_bytes = 0.0
        self._attacker = attacker
        self._conduct = conduct
        self._most_events = most_events
        self._asked = 0
        #: Requests of the attacker that reached the server, and downloads that it let begin.
        self.attacker_requests = self.attacker_starts = 0
        self._active = 0
        self._chance = random.Random(f"attack/{seed}")
        files = {file for visitor in workload.visitors for file in visitor.files}
        self._prey = sorted(files, key=lambda file: (-file.size_bytes, file.name))[:_PREY]
        self._fastest = max(visitor.rate_bytes_s for visitor in workload.visitors)
        self._clock = SimClient(-1, workload.visitors[0])
        self._at(0.0, self._strike, self._clock)

    def _strike(self, clock: SimClient) -> None:
        if self.tally.events > self._most_events:
            self._sum_up()
            raise Starved(f"cut off after {self._most_events:.0f} events")
        rests_s = self._conduct.until_work_s(self.now)
        if rests_s > 0.0:
            self._at(self.now + rests_s, self._strike, clock)
            return
        if self._active < self._attacker.most:
            self._active += 1
            self._asked += 1
            self._begin(self._asked, self._asked // self._attacker.names, clock)
        pause_s = self._chance.expovariate(self._attacker.per_s)
        self._at(self.now + pause_s, self._strike, clock)

    def _begin(self, number: int, wish: int, clock: SimClient) -> None:
        sizes, conduct = self._conduct.sizes, self._conduct
        if sizes:
            file = File(f"prey{wish}", sizes[wish % len(sizes)])
        else:
            file = self._prey[wish % len(self._prey)]
        key, network = self._attacker.identity(number)
        visitor = Visitor(
            key,
            self.now,
            min(conduct.rate_bytes_s, self._fastest),
            (file,),
            conduct.patience_s,
            rude=conduct.rude,
            network=network,
        )
        self._next_file(SimClient(-1 - number, visitor))

    def _lacks_bytes(self, client: SimClient) -> int:
        size_bytes = super()._lacks_bytes(client)
        return size_bytes if client.number >= 0 else max(1, int(self._conduct.claims * size_bytes))

    def _answer(self, client: SimClient) -> None:
        self.attacker_requests += client.number < 0
        super()._answer(client)

    def _admit(self, client: SimClient) -> None:
        self.attacker_starts += client.number < 0
        super()._admit(client)

    def _body_ended(self, client: SimClient) -> None:
        if client.number < 0:
            self.attacker_bytes += client.visitor.total_bytes
        super()._body_ended(client)

    def _leave(self, client: SimClient, *, gave_up: bool) -> None:
        if client.number >= 0:
            super()._leave(client, gave_up=gave_up)
            return
        client.gone = True
        if self._conduct.keeps_names:
            begin = partial(self._begin, -1 - client.number, self._chance.randrange(_WISHES))
            self._at(self.now + self._conduct.until_work_s(self.now), begin, self._clock)
        else:
            self._active -= 1

    def _record(self, client: SimClient, *, gave_up: bool) -> None:
        if client.number >= 0:
            super()._record(client, gave_up=gave_up)


def world(
    policy: str, seed: int, workload: Workload, **settings: Any
) -> tuple[Workload, AdmissionPolicy, Conditions, int]:
    """What an engine is made of."""
    scenario = Scenario(policy, slots=30, reserve_small=6, settings=settings)
    conditions = replace(scenario.conditions(workload), limit_s=_LONGEST_S)
    return workload, scenario.make_policy(workload, seed), conditions, seed


def play(engine: _Played) -> _Played:
    """One day, to the end of the honest or to its own."""
    with _STARVED:
        engine.run()
    return engine


def sessions_s(engine: Engine) -> tuple[FloatVector, float]:
    """The session time of each honest visitor, by its number, and the part of them not done."""
    sessions = {
        name: np.asarray(column)
        for name, column in columns(engine.tally.sessions, SESSION_FIELDS).items()
    }
    arrived_s = np.array([visitor.arrival_s for visitor in engine.workload.visitors])
    ended_s = np.maximum(engine.tally.ended_s, arrived_s)
    ended_s[sessions["client"].astype(int)] = sessions["ended_s"]
    return ended_s - arrived_s, 1.0 - len(sessions["client"]) / len(arrived_s)


@dataclass(frozen=True, slots=True)
class Cost:
    """What something cost the honest: their mean session time against that without it, less one,
    with its standard error over the seeds; the attacker's part of the bytes; and the part of the
    honest who were not done by the end of the day, so that the first figure is the least."""

    mean: float
    error: float
    taken: float = 0.0
    undone: float = 0.0


def _cost(
    ratios: Sequence[float], taken: Sequence[float] = (0.0,), undone: Sequence[float] = (0.0,)
) -> Cost:
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
    means = (statistics.fmean(one) for one in (taken, undone))
    return Cost(statistics.fmean(ratios) - 1.0, error, *means)


def require_landed(engine: Attacked, title: str, manner: Manner) -> None:
    """Raise NothingMeasured unless the attack took place; a ghost leaves before it is let in."""
    require(engine.attacker_requests, f"{title}, {manner}: the attacker asked for nothing.")
    if manner != "ghost":
        require(engine.attacker_starts, f"{title}, {manner}: the attacker was never let in.")
    if manner == "real":
        require(engine.attacker_bytes, f"{title}, {manner}: the attacker took no file.")


class AttackBench:
    """Runs attacks under one policy over some seeds; the calm days are played once."""

    def __init__(self, policy: str, seeds: int) -> None:
        self._policy = policy
        self._seeds = range(1, seeds + 1)
        self._calm = {
            seed: self._sessions_s(seed, one_address(seed, 0, _DAY)) for seed in self._seeds
        }

    def _sessions_s(self, seed: int, workload: Workload) -> FloatVector:
        return sessions_s(play(Engine(*world(self._policy, seed, workload))))[0]

    def attack(self, attacker: Attacker, manner: Manner) -> Cost:
        """What the honest lose by this attacker."""
        ratios, taken, undone = [], [], []
        for seed in self._seeds:
            day = world(self._policy, seed, one_address(seed, 0, _DAY))
            engine = play(Attacked(*day, attacker, CONDUCTS[manner]))
            require_landed(engine, attacker.title, manner)
            found, missing = sessions_s(engine)
            ratios.append(float(found.mean() / self._calm[seed].mean()))
            undone.append(missing)
            taken.append(engine.attacker_bytes / engine.tally.delivered_bytes)
        return _cost(ratios, taken, undone)

    def nat(self, people: int) -> tuple[Cost, Cost]:
        """What people behind one address lose by it, and what the others lose."""
        inside, outside = [], []
        for seed in self._seeds:
            crowd = one_address(seed, people)
            found = self._sessions_s(seed, crowd)
            calm = self._sessions_s(seed, one_address(seed, 0))
            nat = np.array(
                [visitor.network == prefixes_of(_ONE_ADDRESS) for visitor in crowd.visitors]
            )
            inside.append(float(found[nat].mean() / calm[nat].mean()))
            outside.append(float(found[~nat].mean() / calm[~nat].mean()))
        return _cost(inside), _cost(outside)
