"""A crowd that gives each other pieces: who takes part is sooner done, and nobody else later."""

from __future__ import annotations

import math
from random import Random

import pytest

from tidegate.loadtest.sim.outcome import SESSION_FIELDS, RunRecord, SimClient
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.sim.swarm import PeerCrowds
from tidegate.loadtest.workloads import File, Visitor, Workload

MB = 1_000_000
SIZE = 175 * MB


def release_day(clients: int, seed: int = 3) -> Workload:
    """A quarter of an hour of a release day of 5 000 clients at 1 Gbit/s, with fewer clients and
    less line: all want `SIZE` within a time in which the line serves an eighth of them."""
    rng = Random(seed)
    size = SIZE
    bandwidth = clients / 5000 * 125.0 * MB
    span_s = 900.0
    file = (File("release.iso", size),)
    arrivals = sorted(rng.random() * span_s for _ in range(clients))
    visitors = tuple(
        Visitor(f"client-{number}", at, rng.choice([25, 50, 100, 250]) * MB / 8, file)
        for number, at in enumerate(arrivals)
    )
    return Workload("release-day", seed, visitors, bandwidth)


def sessions(tally: RunRecord) -> dict[int, float]:
    """How long each client's session was, in seconds."""
    width = len(SESSION_FIELDS)
    rows = [tally.sessions[at : at + width] for at in range(0, len(tally.sessions), width)]
    return {int(row[0]): row[2] - row[1] for row in rows if not row[4]}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def taking_part(day: Workload, share: float) -> set[int]:
    swarm = PeerCrowds(share, f"peers/{day.seed}/0", lambda client: 0.0, lambda client, gain: None)
    clients = (SimClient(number, visitor) for number, visitor in enumerate(day.visitors))
    return {client.number for client in clients if swarm.takes_part(client)}


def test_with_a_fifth_of_the_clients_giving_a_tenth_the_mean_falls_and_nobody_is_later() -> None:
    day = release_day(60)
    without = sessions(Scenario("ps", tick_s=2.0).simulate(day))
    among = sessions(Scenario("ps", tick_s=2.0, peers=0.2).simulate(day))
    assert len(without) == len(among) == 60
    assert mean(list(among.values())) <= 0.8 * mean(list(without.values()))
    part = taking_part(day, 0.2)
    assert 5 <= len(part) <= 20
    assert all(among[number] <= without[number] + 1 for number in among if number not in part)


@pytest.mark.parametrize("policy", ["fair", "ticket"])
def test_behind_a_queue_those_without_peers_wait_no_longer_on_the_average(policy: str) -> None:
    day = release_day(40)
    without = sessions(Scenario(policy, tick_s=2.0).simulate(day))
    among = sessions(Scenario(policy, tick_s=2.0, peers=0.2).simulate(day))
    rest = set(among) - taking_part(day, 0.2)
    assert mean(list(among.values())) < mean(list(without.values()))
    assert mean([among[n] for n in rest]) <= 1.01 * mean([without[n] for n in rest])
    # Fair's order among equals changes with each that is gone, so who is later must be compared
    # with what is promised: none is later than where all share the line.
    before = sessions(Scenario("ps", tick_s=2.0).simulate(day)) if policy == "fair" else without
    assert all(among[number] <= before[number] + 5 for number in rest)


def test_all_bytes_come_from_somewhere() -> None:
    """What the server sends and what peers give is what everybody wanted, and nothing twice."""
    day = release_day(40)
    scenario = Scenario("fair", tick_s=2.0, peers=1.0)
    tally = scenario.simulate(day)
    done = sessions(tally)
    assert len(done) == 40
    assert all(math.isfinite(seconds) and seconds > 0 for seconds in done.values())
    # At least one copy must leave the server; nobody needs more than one.
    assert SIZE <= tally.delivered_bytes <= 40 * SIZE


def test_without_peers_nothing_changes() -> None:
    day = release_day(20)
    plain = Scenario("fair", tick_s=2.0).simulate(day)
    assert Scenario("fair", tick_s=2.0, peers=0.0).simulate(day).sessions == plain.sessions
