"""A cluster in virtual time: what one node does, several do; and the fluid agrees."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tidegate.loadtest.sim.cli import simulate
from tidegate.loadtest.sim.fleet import Failure, Fleet, SimFleetPlan
from tidegate.loadtest.sim.fluid import ceiling_per_s
from tidegate.loadtest.sim.fluid import simulate as flow

MB = 1e6


def plan(nodes: int, **more: object) -> SimFleetPlan:
    """Nodes that together carry 100 MB/s, under a crowd that asks for most of it."""
    given: dict[str, object] = {"policy": "ticket", "slots": 60 // nodes} | more
    return SimFleetPlan(nodes, 100 * MB / nodes, 400, 240.0, 50 * MB, 2 * MB, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["ticket", "fair"])
def test_sessions_at_three_nodes_are_as_long_as_at_one_with_the_same_line(policy: str) -> None:
    one, three = (Fleet(plan(nodes, policy=policy)).run() for nodes in (1, 3))
    assert three.mean_session_s == pytest.approx(one.mean_session_s, rel=0.02)


@pytest.mark.parametrize(("slots", "least", "most"), [(10, 1.03, 1.2), (100, 0.97, 1.02)])
def test_few_slots_leave_lines_idle_and_many_do_not(slots: int, least: float, most: float) -> None:
    """A slot goes to the next in order, whose line may be busy while another stands empty."""

    def mean_s(nodes: int) -> float:
        crowd = SimFleetPlan(
            nodes,
            24 * MB / nodes,
            1000,
            10.0,
            0.4 * MB,
            100 * MB,
            policy="ticket",
            slots=3 * slots // nodes,
            balancer="chance",
            decision_s=1e-4,
        )
        return Fleet(crowd).run().mean_session_s

    assert least < mean_s(3) / mean_s(1) < most


@pytest.mark.parametrize("speed", [1 * MB, 3 * MB, 10 * MB])
@pytest.mark.parametrize(("balancer", "most"), [("fewest", 1.08), ("chance", 1.3)])
def test_fair_fills_each_line_with_its_own(speed: float, balancer: str, most: float) -> None:
    """Filled as if they were one, two of three lines stood idle: clients fill theirs alone."""

    def mean_s(nodes: int) -> float:
        line, slots = 30 * MB / nodes, 90 // nodes
        crowd = SimFleetPlan(
            nodes, line, 600, 60.0, 4 * MB, speed, slots=slots, balancer=balancer, seed=3
        )
        return Fleet(crowd).run().mean_session_s

    assert mean_s(3) < most * mean_s(1)


def test_every_client_gets_its_file_whatever_fails() -> None:
    failures = (
        Failure(None, 30.0, 3.0),
        Failure(0, 60.0, 40.0),
        Failure(1, 80.0, 10.0),
        Failure(None, 120.0, 2.0),
    )
    calm, harmed = Fleet(plan(3)).run(), Fleet(plan(3, failures=failures)).run()
    assert len(harmed.sessions_s) == 400
    assert harmed.broken > 0
    assert harmed.leader_longest_s > 2.0
    assert harmed.mean_session_s > calm.mean_session_s


def test_a_slow_leader_and_long_ways_are_felt() -> None:
    near, far = Fleet(plan(3)).run(), Fleet(plan(3, delay_s=0.5, decision_s=0.1)).run()
    assert far.mean_wait_s > near.mean_wait_s + 1.0
    assert far.leader_peak > near.leader_peak


def test_who_polls_costs_decisions() -> None:
    crowd = {"slots": 5, "policy": "ticket"}
    held, polling = Fleet(plan(3, **crowd)).run(), Fleet(plan(3, **crowd, hold=False)).run()
    assert len(polling.sessions_s) == len(held.sessions_s) == 400
    assert polling.decisions > held.decisions


def test_the_fluid_agrees_with_the_clients_one_by_one() -> None:
    crowded = SimFleetPlan(4, 25 * MB, 600, 180.0, 50 * MB, 2 * MB, policy="ticket", slots=15)
    played, streamed = Fleet(crowded).run(), flow(crowded)
    assert streamed.mean_session_s == pytest.approx(played.mean_session_s, rel=0.10)


def test_ten_million_clients_at_two_hundred_nodes_show_the_ceiling_of_one_leader() -> None:
    fleet = SimFleetPlan(200, 1250 * MB, 10_000_000, 21_600.0, 500 * MB, 12.5 * MB)
    found = flow(fleet)
    assert found.leader_peak > 1.0
    assert found.partitions > 1
    assert ceiling_per_s(fleet) < 10_000_000 / 21_600
    # Each part has its own leader: all is well.
    n = found.partitions
    part = SimFleetPlan(200 // n, 1250 * MB, 10_000_000 // n, 21_600.0, 500 * MB, 12.5 * MB)
    assert flow(part).partitions == 1
    assert flow(part).mean_wait_s < 0.1 * found.mean_wait_s


def test_the_command_says_where_the_ceiling_is_and_what_then() -> None:
    run = CliRunner()
    small = run.invoke(simulate, ["cluster", "--clients", "20", "--within", "10s", "--json"])
    assert json.loads(small.output)["model"] == "each client"
    shown = run.invoke(
        simulate,
        [
            *("cluster", "--nodes", "200", "--line", "10Gbit", "--clients", "10000000"),
            *("--within", "6h", "--size", "500MB", "--speed", "100Mbit"),
        ],
    )
    assert "One leader does not suffice" in shown.output
    assert "Divide the release tree among" in shown.output
    for wrong in ("5@1s+1s", "leader@", "who@1s+1s", "1@x+1s"):
        found = run.invoke(simulate, ["cluster", "--fail", wrong])
        assert found.exit_code == 2
