"""Fair where nothing can be paused, as behind a gate: order and guard at the start alone."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest

from bench.policies.lab import mixed, small_and_huge
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.metrics import measure
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.contract import Admit, Job, Wait
from tidegate.policies.fair import FAIR
from tidegate.policies.registry import make_policy
from tidegate.policies.settings import PolicySettings

LINE = 4_000_000.0
#: What a mover is told.
RATE = LINE / FAIR.unpaused_shares
#: A line of 33.5 Mbit/s, as `bench.policies.lab` has it.
LAB_LINE = 33.5e6 / 8


class Gate:
    """A gate's policy with downloads that run at the rate of their mover."""

    def __init__(self, name: str = "fair") -> None:
        settings = PolicySettings(bandwidth_bytes_s=LINE, slots=36)
        self.policy: AdmissionPolicy = make_policy(
            name, settings, random.Random(1), can_pause=False
        )
        self.now = 0.0
        self.running: dict[int, float] = {}
        self.called: list[int] = []

    def ask(self, client: str, size: float) -> Admit | Wait:
        job = Job(client, "/f", int(size), int(size), present=True)
        decision = self.policy.offer(job, self.now)
        if isinstance(decision, Admit):
            self.running[decision.lease] = size
        assert isinstance(decision, Admit | Wait)
        self.pass_time(0.0)
        return decision

    def pass_time(self, seconds: float, rate: float = RATE) -> None:
        """Let all that run be sent at their rate."""
        for _ in range(max(1, round(seconds / 0.25))):
            step_s = 0.25 if seconds else 0.0
            self.now += step_s
            sent = rate * len(self.running)
            for lease, left in tuple(self.running.items()):
                self.running[lease] = left - rate * step_s
                if self.running[lease] <= 0.0:
                    del self.running[lease]
                    self.policy.release(lease, self.now, True)
                elif step_s:
                    self.policy.progress(lease, self.now, int(left), rate, sent >= LINE, 0.0)
            if step_s:
                self.policy.observe(sent, sent >= LINE, self.now, LINE)
            advance = self.policy.advance(self.now)
            assert not advance.pause
            self.called += advance.call


def test_newcomers_fill_the_line_by_the_rate_that_they_may_have() -> None:
    gate = Gate()
    for number in range(FAIR.unpaused_shares):
        assert isinstance(gate.ask(f"client {number}", 1e9), Admit)
    # Of each it is only known what it may take, and it could not be stopped.
    assert isinstance(gate.ask("last", 1e9), Wait)
    # They are slow: the line has use for others.
    gate.pass_time(3.0, rate=RATE / 10)
    assert gate.called
    assert isinstance(gate.ask("last", 1e9), Admit)


def test_no_more_start_at_one_moment_than_fill_the_line() -> None:
    gate = Gate()
    gate.pass_time(0.25)
    jobs = [Job(f"client {number}", "/f", 10**9, 10**9, present=True) for number in range(12)]
    started = [isinstance(gate.policy.offer(job, gate.now), Admit) for job in jobs]
    assert started.count(True) == FAIR.unpaused_shares


def test_what_runs_goes_on_and_the_shortest_that_waits_is_next() -> None:
    gate = Gate()
    gate.pass_time(0.25)
    for number in range(FAIR.unpaused_shares):
        assert isinstance(gate.ask(f"client {number}", 10e6), Admit)
    gate.pass_time(1.0)
    long, short = gate.ask("long", 8e6), gate.ask("short", 1e6)
    assert isinstance(long, Wait)
    assert isinstance(short, Wait)
    # Both are shorter than what runs, and neither starts before there is room.
    gate.pass_time(2.0)
    assert not gate.called
    gate.pass_time(8.0)
    assert gate.called[:1] == [short.ticket]


def test_nothing_is_paused_for_a_slot_that_is_not_used() -> None:
    settings = PolicySettings(slots=2, reserve_small=0)
    policies = [
        make_policy("ticket", settings, random.Random(1), can_pause=can) for can in (True, False)
    ]
    paused = []
    for policy in policies:
        now, pauses = 0.0, 0
        slow, _ = (policy.offer(Job(name, "/f", 10**9, 10**9), now) for name in ("slow", "fast"))
        assert isinstance(slow, Admit)
        policy.offer(Job("waits", "/f", 10**9, 10**9, present=True), now)
        for step in range(400):
            now += 0.25
            # It takes nothing for long, then as much as any.
            rates = {1: 0.0 if step < 200 else 1e6, 2: 1e6}
            for lease, rate in rates.items():
                policy.progress(lease, now, 10**9 - int(rate * now), rate, False, 0.0)
            policy.observe(2e6, False, now)
            advance = policy.advance(now)
            pauses += len(advance.pause)
            for ticket in advance.call:
                policy.offer(Job("waits", "/f", 10**9, 10**9, present=True), now, ticket)
        paused.append(pauses)
    assert paused[0] > 0
    assert paused[1] == 0


@pytest.mark.parametrize("crowd", [mixed, small_and_huge])
def test_a_mixed_crowd_is_done_sooner_than_by_tickets_and_told_ends_are_kept(
    crowd: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[int] = []
    pause = Engine.pause
    monkeypatch.setattr(
        Engine,
        "pause",
        lambda self, lease, now: (paused.append(lease), pause(self, lease, now)),
    )

    def played(policy: str, **more: object) -> list[dict[str, float]]:
        found = []
        for seed in (1, 2, 3):
            workload = crowd(seed)  # type: ignore[operator]
            scenario = Scenario(
                policy,
                reserve_small=6,
                hold=True,
                can_pause=policy == "ps",
                bandwidth_bytes_s=LAB_LINE,
                **more,  # type: ignore[arg-type]
            )
            tally = scenario.simulate(workload, seed)
            found.append(measure(workload, scenario.conditions(workload), tally))
        return found

    def average(runs: list[dict[str, float]], name: str) -> float:
        return fmean(run[name] for run in runs)

    fair = played("fair")
    assert not paused
    tickets = played("ticket")
    # As many slots as let each have as much of the line.
    few = played("ticket", slots=8)
    plain = played("ps")
    mean_s = average(fair, "mean_session_s")
    assert mean_s < 0.5 * average(tickets, "mean_session_s")
    assert mean_s < 0.8 * average(few, "mean_session_s")
    assert mean_s < 0.95 * average(plain, "mean_session_s")
    assert average(fair, "end_within_p90") >= 0.9


def test_a_line_that_is_told_a_tenth_too_wide_costs_little_and_one_by_a_quarter_the_order() -> None:
    def mean_s(told: float, policy: str = "fair") -> float:
        found = []
        for seed in (1, 2, 3):
            workload, settings = mixed(seed), {"bandwidth_bytes_s": told * LAB_LINE}
            scenario = Scenario(
                policy,
                reserve_small=6,
                can_pause=policy == "ps",
                bandwidth_bytes_s=LAB_LINE,
                settings=settings,
            )
            conditions = replace(
                scenario.conditions(workload), ceiling_bytes_s=settings["bandwidth_bytes_s"]
            )
            tally = Engine(workload, scenario.make_policy(workload, seed), conditions, seed).run()
            found.append(measure(workload, conditions, tally)["mean_session_s"])
        return fmean(found)

    right, plain = mean_s(1.0), mean_s(1.0, "ps")
    assert right < mean_s(1.1) < 1.1 * right
    assert 0.97 * plain < mean_s(1.25) < 1.03 * plain
    assert mean_s(0.9) < 1.15 * right
    assert mean_s(0.5) > plain
