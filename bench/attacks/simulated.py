"""Attackers beside an honest crowd, in virtual time on the server's own policies.

An attacker is a stream of visitors under the names and addresses that it has. Only honest visitors
are measured. `Conduct` is the attacker's behaviour. The table of docs/security.md has three of them
(`CONDUCTS`); `adversary` searches for others.
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
from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.settings import PolicySettings
from tidegate.server.admission.client_keys import client_key
from tidegate.server.http.proxies import block_of, prefixes_of

_Played = TypeVar("_Played", bound=Engine)
FloatVector = NDArray[np.float64]
Manner = Literal["ghost", "idle", "real"]


@dataclass(frozen=True, slots=True)
class SimulatedAttack:
    """What attackers are like on a day in virtual time."""

    #: More than the server's least rate (100 bytes a second), and far less than a client's share.
    idle_bytes_s: float = 250.0
    #: A ghost leaves before its admitted transfer starts (0.4 s to request, 0.1 s to start).
    ghost_patience_s: float = 0.45
    #: The number of largest files, which attackers want.
    prey: int = 4
    #: The range of an attacker's next file: rarely the same twice.
    wishes: int = 1_000_000
    #: The address of many honest people.
    one_address: str = "198.51.100.1"
    #: The end of a day. Visitors who are not done count with the time until then.
    longest_s: float = 1800.0


TUNING = SimulatedAttack()

_STARVED = Suppressed("days that ended before all visitors were done", Starved)


def one_address(seed: int, people: int = 500, shape: ReleaseDay = RELEASE_DAY) -> Workload:
    """A release day on which every other visitor, up to `people`, has one address and a cookie.

    The others come from /16s of their own, as far as there are enough.
    """
    workload = release_artefacts(seed, shape=shape)
    visitors = []
    for number, visitor in enumerate(workload.visitors):
        address = f"{20 + number % 200}.{number // 200}.7.1"
        if number % 2 and number // 2 < people:
            address = TUNING.one_address
        key = client_key(block_of(address), f"v{number}")
        visitors.append(replace(visitor, key=key, network=prefixes_of(address)))
    return replace(workload, visitors=tuple(visitors))


@dataclass(frozen=True, slots=True)
class Attacker:
    """An attacker with `names` names; `address` returns the address of its n-th one.

    It makes `per_s` requests a second until all names are in use, and holds `most` connections.
    `known`: its names have proofs, so they count as themselves and not with their networks.
    """

    title: str
    address: Callable[[int], str]
    names: int
    per_s: float
    most: int
    known: bool = False

    def identity(self, number: int) -> tuple[str, tuple[str, ...]]:
        """The client key and the prefixes of its n-th name."""
        address = self.address(number % self.names)
        key = client_key(block_of(address), f"a{number % self.names}")
        return key, () if self.known else prefixes_of(address)


@dataclass(frozen=True, slots=True)
class Conduct:
    """The behaviour of an attacker.

    - `sizes`: of its files, each a different one; empty: the largest files of honest visitors.
    - `rate_bytes_s`: how fast it reads, at most as the fastest honest visitor.
    - `patience_s`: how long it waits for a first byte.
    - `rude`: it polls every second.
    - `keeps_names`: it fetches one file after the other under each name.
    - `start_s`, `on_s`, `off_s`: it starts then, and is active for `on_s` of every `on_s + off_s`.
    """

    sizes: tuple[int, ...] = ()
    rate_bytes_s: float = math.inf
    patience_s: float = math.inf
    rude: bool = False
    keeps_names: bool = False
    start_s: float = 0.0
    on_s: float = math.inf
    off_s: float = 0.0

    def until_work_s(self, now: float) -> float:
        """The time until it is active again; 0 if it is."""
        since_s = now - self.start_s
        if since_s < 0.0:
            return -since_s
        phase_s = since_s % (self.on_s + self.off_s)
        return 0.0 if phase_s < self.on_s else self.on_s + self.off_s - phase_s


#: A ghost requests the largest files, and disconnects at any answer. An idle reader waits for its
#: turn, and then reads just enough to keep its connection.
CONDUCTS: Mapping[Manner, Conduct] = {
    "ghost": Conduct(patience_s=TUNING.ghost_patience_s, rude=True),
    "idle": Conduct(rate_bytes_s=TUNING.idle_bytes_s),
    "real": Conduct(keeps_names=True),
}
#: Some 460 people; the rush has 2.5 times the load of the line. A longer day shows the same and
#: takes hours, because the attacker is active until the last visitor is done.
_DAY = ReleaseDay(rush_s=150.0, rush_load=2.5, calm_s=150.0)
#: The shares of a network of new clients (`network_shares`): `SHARE` has as many known people, and
#: as many downloads as one IPv4. No network may cost more.
_SHARES = PolicySettings().network_shares
SHARE = Attacker(
    f"{_SHARES} people who always download", lambda n: f"10.{n}.0.1", _SHARES, 5.0, 100, known=True
)
TEN_ADDRESSES = Attacker("ten addresses", lambda n: f"10.{n % 10}.0.1", 10_000, 20.0, 300)
ATTACKERS = (
    Attacker("one IPv4", lambda n: "203.0.113.7", 1_000, 5.0, 100),
    Attacker("one /64", lambda n: "2001:db8:bad::1", 1_000, 5.0, 100),
    Attacker("one /48", lambda n: f"2001:db8:bad:{n:x}::1", 65_536, 20.0, 300),
    TEN_ADDRESSES,
    Attacker("a botnet of 1 000", lambda n: f"10.{n % 250}.{n // 250 % 4}.1", 10**6, 50.0, 1000),
)


class Attacked(Engine):
    """The simulator with one attacker. The run ends with the last honest visitor."""

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
        #: The attacker's requests that reached the server, and its downloads that started.
        self.attacker_requests = self.attacker_starts = 0
        self._active = 0
        self._chance = random.Random(f"attack/{seed}")
        files = {file for visitor in workload.visitors for file in visitor.files}
        self._prey = sorted(files, key=lambda file: (-file.size_bytes, file.name))[: TUNING.prey]
        self._fastest = max(visitor.rate_bytes_s for visitor in workload.visitors)
        self._clock = SimClient(-1, workload.visitors[0])
        self._at(0.0, self._strike, self._clock)
        #: The attacker: the server looks at its downloads before the first visitor comes.
        self._present = 1
        self._to_come = len(workload.visitors)

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
            self._to_come -= 1
            self._present -= self._to_come == 0
            return
        client.gone = True
        if self._conduct.keeps_names:
            begin = partial(self._begin, -1 - client.number, self._chance.randrange(TUNING.wishes))
            self._at(self.now + self._conduct.until_work_s(self.now), begin, self._clock)
        else:
            self._active -= 1

    def _record(self, client: SimClient, *, gave_up: bool) -> None:
        if client.number >= 0:
            super()._record(client, gave_up=gave_up)


def world(
    policy: str, seed: int, workload: Workload, **settings: Any
) -> tuple[Workload, AdmissionPolicy, Conditions, int]:
    """The arguments of an engine."""
    scenario = Scenario(policy, slots=30, reserve_small=6, settings=settings)
    conditions = replace(scenario.conditions(workload), limit_s=TUNING.longest_s)
    return workload, scenario.make_policy(workload, seed), conditions, seed


def play(engine: _Played) -> _Played:
    """Play one day, until all honest visitors are done or the day ends."""
    with _STARVED:
        engine.run()
    return engine


def sessions_s(engine: Engine) -> tuple[FloatVector, float]:
    """The session times of honest visitors by number, and the share of them not done."""
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
    """An attacker's cost for honest visitors.

    `mean` is the relative increase of their mean session time, `error` its standard error over the
    seeds. `taken` is the attacker's share of the bytes. `undone` is the share of honest visitors
    not done at the end of the day; `mean` is a lower bound then.
    """

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
    """Raise NothingMeasured unless the attack took place. A ghost leaves before its start."""
    require(engine.attacker_requests, f"{title}, {manner}: the attacker made no request.")
    if manner != "ghost":
        require(engine.attacker_starts, f"{title}, {manner}: no download of the attacker started.")
    if manner == "real":
        require(engine.attacker_bytes, f"{title}, {manner}: the attacker downloaded no file.")


class AttackBench:
    """Plays attacks under one policy over some seeds. Calm days are played once."""

    def __init__(self, policy: str, seeds: int) -> None:
        self._policy = policy
        self._seeds = range(1, seeds + 1)
        self._calm = {
            seed: self._sessions_s(seed, one_address(seed, 0, _DAY)) for seed in self._seeds
        }

    def _sessions_s(self, seed: int, workload: Workload) -> FloatVector:
        return sessions_s(play(Engine(*world(self._policy, seed, workload))))[0]

    def attack(self, attacker: Attacker, manner: Manner) -> Cost:
        """The cost of this attacker for honest visitors."""
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
        """The cost of one address for the people behind it, and for the others."""
        inside, outside = [], []
        for seed in self._seeds:
            crowd = one_address(seed, people)
            found = self._sessions_s(seed, crowd)
            calm = self._sessions_s(seed, one_address(seed, 0))
            nat = np.array(
                [visitor.network == prefixes_of(TUNING.one_address) for visitor in crowd.visitors]
            )
            inside.append(float(found[nat].mean() / calm[nat].mean()))
            outside.append(float(found[~nat].mean() / calm[~nat].mean()))
        return _cost(inside), _cost(outside)
