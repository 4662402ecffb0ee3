"""The engine on cases small enough to work out by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import truediv
from statistics import fmean

import pytest

from bench.policies.lab import (
    LINE_BYTES_S,
    RATE_MBIT,
    mixed,
    scaled,
    simulated,
    slow_clients,
    small_and_huge,
)
from tidegate.loadtest.sim.conditions import PUNCTUAL, Conditions, Starved
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.metrics import columns
from tidegate.loadtest.sim.outcome import DOWNLOAD_FIELDS, SESSION_FIELDS, RunRecord
from tidegate.loadtest.sim.scenario import POLICIES, Scenario
from tidegate.loadtest.workloads import (
    File,
    ReleaseDay,
    Visitor,
    Workload,
    exp2,
    release_artefacts,
)
from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.bottleneck import Bottleneck, LineOrders, Sample
from tidegate.policies.contract import Decision, Job, Wait
from tidegate.policies.fcfs import FcfsPolicy
from tidegate.policies.keep_alive import kept_alive_bytes_s
from tidegate.policies.state import AdmissionState


def population(*visitors: Visitor) -> Workload:
    return Workload("hand", 0, visitors, 1_000.0, small_below_bytes=100)


def visitor(key: str, at: float, rate: float, *sizes: int, patience: float = math.inf) -> Visitor:
    files = tuple(File(f"{key}-{number}", size) for number, size in enumerate(sizes))
    return Visitor(key, at, rate, files, patience)


def play(workload: Workload, scenario: Scenario) -> RunRecord:
    """By hand: nothing leaves in one go, and no socket holds the last of it."""
    scenario = replace(scenario, manners="punctual")
    conditions = replace(scenario.conditions(workload), brief_bytes=0, socket_bytes=0)
    return Engine(workload, scenario.make_policy(workload, 0), conditions).run()


def _sharing(kind: type[AdmissionPolicy], workload: Workload) -> AdmissionPolicy:
    """A variant of processor sharing."""
    settings = Scenario("ps").policy_settings(workload)
    return kind(FcfsPolicy, settings, random.Random(0), AdmissionState())


def ends(tally: RunRecord) -> dict[int, float]:
    rows = columns(tally.sessions, SESSION_FIELDS)
    return {int(c): round(e, 6) for c, e in zip(rows["client"], rows["ended_s"], strict=True)}


def test_a_client_alone_pays_half_a_second_a_file_and_its_own_speed() -> None:
    tally = play(population(visitor("a", 3.0, 100.0, 200, 50)), Scenario("ps"))
    assert ends(tally) == {0: 3.0 + 0.5 + 2.0 + 0.5 + 0.5}


def test_one_connection_for_all_files_pays_once() -> None:
    tally = play(population(visitor("a", 0.0, 100.0, 200, 50)), Scenario("ftp"))
    assert ends(tally) == {0: 0.5 + 2.5}


def test_two_clients_share_one_link_max_min() -> None:
    # Each could take 800 of 1000: 500 each until one has its 500 bytes, then 800 alone.
    both = population(visitor("a", 0.0, 800.0, 500), visitor("b", 0.0, 800.0, 1300))
    assert ends(play(both, Scenario("ps"))) == {0: 1.5, 1: 2.5}


def test_what_a_kernel_takes_ahead_of_its_reader_shortens_nobodys_session() -> None:
    """A slow reader takes some of the line before it has use for it; the other is later."""
    slow, fast = visitor("a", 0.0, 100_000.0, 500_000), visitor("b", 0.0, math.inf, 900_000)
    workload = population(slow, fast)
    found = {}
    for reader_bytes in (0, 200_000):
        conditions = Conditions(1_000_000.0, reader_bytes=reader_bytes, paced=False)
        policy = Scenario("ps", bandwidth_bytes_s=1_000_000.0).make_policy(workload, 0)
        found[reader_bytes] = ends(Engine(workload, policy, conditions).run())
    assert found[0] == pytest.approx({0: 5.5, 1: 1.5}, abs=0.01)
    assert found[200_000] == pytest.approx({0: 5.5, 1: 1.7}, abs=0.05)


def test_a_busy_server_is_asked_again_after_fifteen_seconds() -> None:
    both = population(visitor("a", 0.0, 100.0, 1_000), visitor("b", 1.0, 100.0, 1_000))
    tally = play(both, Scenario("http", slots=1))
    # a: 0.5 + 10 s. b is turned away at 1.4, asks at 16.4, is let in at 16.8, flows from 16.9.
    assert ends(tally) == {0: 10.5, 1: 26.9}
    rows = columns(tally.downloads, DOWNLOAD_FIELDS)
    assert rows["attempts"].tolist() == [1.0, 2.0]


def test_a_held_client_starts_the_instant_the_slot_is_free() -> None:
    both = population(visitor("a", 0.0, 100.0, 1_000), visitor("b", 1.0, 100.0, 1_000))
    # The link has room for a thousand such clients: one would lose its slot to the next.
    keeps = {"slot_use_fraction": 0.0}
    tally = play(both, Scenario("ticket-hold", slots=1, settings=keeps))
    assert ends(tally) == {0: 10.5, 1: 10.5 + 0.1 + 10.0}
    assert columns(tally.downloads, DOWNLOAD_FIELDS)["attempts"].tolist() == [1.0, 1.0]


def test_a_reserved_slot_lets_a_small_file_pass_a_large_one() -> None:
    both = population(visitor("a", 0.0, 100.0, 1_000), visitor("b", 1.0, 100.0, 50))
    assert ends(play(both, Scenario("reserve", slots=1, reserve_small=1)))[1] == 1.0 + 0.5 + 0.5


def test_who_loses_patience_leaves_and_is_counted() -> None:
    both = population(
        visitor("a", 0.0, 100.0, 10_000), visitor("b", 1.0, 100.0, 1_000, patience=20.0)
    )
    keeps = {"slot_use_fraction": 0.0}
    held = Scenario("ticket-hold", slots=1, settings=keeps)
    for scenario in (Scenario("http", slots=1), held):
        tally = play(both, scenario)
        rows = columns(tally.sessions, SESSION_FIELDS)
        assert dict(zip(rows["client"], rows["gave_up"], strict=True)) == {0.0: 0.0, 1.0: 1.0}
        assert ends(tally)[1] == 21.0


def test_a_paused_lease_trickles_and_goes_on_where_it_was() -> None:
    class Pausing(AdmissionPolicy):
        """Pauses lease 1 from 2 s to 5 s."""

        def advance(self, now: float):  # type: ignore[no-untyped-def]
            advance = super().advance(now)
            if now < 2.0:
                return replace(advance, wake_at=2.0)
            if now < 5.0:
                return replace(advance, pause=(1,), wake_at=5.0)
            return replace(advance, resume=(1,))

    workload = population(visitor("a", 0.0, 1_000.0, 10_000))
    conditions = Conditions(1_000.0, manners=PUNCTUAL, socket_bytes=0, brief_bytes=0)
    engine = Engine(workload, _sharing(Pausing, workload), conditions)
    kept_s = 3.0 * kept_alive_bytes_s(1_000.0, 1) / 1_000.0
    assert ends(engine.run()) == {0: pytest.approx(0.5 + 10.0 + 3.0 - kept_s)}


def test_what_is_sent_in_one_go_holds_no_slot_and_waits_for_no_turn() -> None:
    slow = [visitor(key, at, 10_000.0, 100_000) for key, at in (("a", 0.0), ("b", 0.2))]
    fast = [visitor(f"c{number}", 20.0, math.inf, 1_000_000) for number in range(9)]
    last = visitor("d", 22.0, math.inf, 100_000)
    workload = replace(population(*slow, *fast, last), bandwidth_bytes_s=1_000_000.0)
    for policy, slots in (("http", 1), ("http", 10), ("fair", 10)):
        scenario = Scenario(policy, slots=slots, manners="punctual")
        tally = scenario.simulate(workload)
        # The first is in its socket before the second asks, whose slot it was.
        assert ends(tally)[0] == 10.5
        assert ends(tally)[1] == 10.7
        if slots == 10:
            # Nine others fill the line, and pay for it with their next turns.
            assert 22.6 <= ends(tally)[11] <= 22.7


def test_a_full_socket_that_has_all_that_is_left_frees_its_slot() -> None:
    slow, other = visitor("a", 0.0, 100_000.0, 1_000_000), visitor("b", 9.5, math.inf, 300_000)
    workload = replace(population(slow, other), bandwidth_bytes_s=1_000_000.0)
    scenario = Scenario("http", slots=1, manners="punctual")
    asked_again = {}
    for socket_bytes in (0, 150_000):
        conditions = replace(scenario.conditions(workload), socket_bytes=socket_bytes)
        tally = Engine(workload, scenario.make_policy(workload, 0), conditions).run()
        assert ends(tally)[0] == 10.5
        asked_again[socket_bytes] = max(columns(tally.downloads, DOWNLOAD_FIELDS)["attempts"])
    # The last 150 kB of the first are in its socket at 9.0; the second asks at 9.9.
    assert asked_again == {0: 2.0, 150_000: 1.0}


def test_who_waits_inside_without_a_ticket_is_looked_for_every_two_seconds() -> None:
    both = population(visitor("a", 0.0, 100.0, 1_000), visitor("b", 1.0, 100.0, 1_000))
    tally = play(both, Scenario("http", slots=1, hold=True))
    # It asked at 1.4, and again by itself until there was a slot; each look takes no time.
    assert ends(tally) == {0: 10.5, 1: 11.4 + 0.1 + 10.0}
    assert columns(tally.downloads, DOWNLOAD_FIELDS)["attempts"].tolist() == [1.0, 1.0]


def test_a_policy_that_starves_somebody_is_named() -> None:
    class Never(AdmissionPolicy):
        def offer(self, job: Job, now: float, ticket: int | None = None) -> Decision:
            return Wait(10.0)

    workload = population(visitor("a", 0.0, 100.0, 1_000))
    engine = Engine(
        workload, _sharing(Never, workload), Conditions(1_000.0, limit_s=1_000.0, brief_bytes=0)
    )
    with pytest.raises(Starved, match=r"1 clients still wait after 1000 s .* under fcfs"):
        engine.run()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_run_to_the_bit(policy: str) -> None:
    # Thirty clients draw as often as four hundred; half of them are turned away.
    scenario = Scenario(policy, slots=6, reserve_small=2, bandwidth=0.5, rude=0.1)
    workload = exp2(3)
    workload = replace(workload, visitors=workload.visitors[:30])
    one, two = scenario.simulate(workload, 3), scenario.simulate(workload, 3)
    assert one.downloads.tobytes() == two.downloads.tobytes()
    assert one.sessions.tobytes() == two.sessions.tobytes()


@pytest.mark.parametrize("policy", POLICIES)
def test_every_byte_arrives_once_and_everybody_leaves(policy: str) -> None:
    workload = release_artefacts(0, shape=ReleaseDay(rush_s=30.0, rush_load=2.5, calm_s=30.0))
    assert len(workload.visitors) > 60
    tally = Scenario(policy, slots=6, reserve_small=2).simulate(workload)
    wanted = sum(visitor.total_bytes for visitor in workload.visitors)
    assert tally.delivered_bytes == pytest.approx(wanted, rel=1e-6)
    assert len(tally.sessions) == len(SESSION_FIELDS) * len(workload.visitors)
    rows = columns(tally.downloads, DOWNLOAD_FIELDS)
    for asked_s, admitted_s, first_byte_s, ended_s in zip(
        rows["asked_s"], rows["admitted_s"], rows["first_byte_s"], rows["ended_s"], strict=True
    ):
        assert admitted_s >= asked_s + 0.4 - 1e-9
        assert ended_s >= first_byte_s >= admitted_s + 0.1 - 1e-9


def test_answers_take_their_bytes_from_the_link() -> None:
    both = population(visitor("a", 0.0, 1e9, 100_000), visitor("b", 1.0, 1e9, 1_000))
    scenario = Scenario("http", slots=1, manners="punctual")

    def end_of_first(answer_bytes: int) -> float:
        conditions = replace(scenario.conditions(both), answer_bytes=answer_bytes, brief_bytes=0)
        return ends(Engine(both, scenario.make_policy(both, 0), conditions).run())[0]

    # b is turned away at 1.4 and every 15.4 s from then on, seven times within 100 s.
    assert end_of_first(0) == 100.5
    assert end_of_first(700) == pytest.approx(100.5 + 7 * 0.7)


def test_a_rude_client_asks_every_second() -> None:
    both = population(
        visitor("a", 0.0, 100.0, 1_000), replace(visitor("b", 1.0, 100.0, 1_000), rude=True)
    )
    tally = play(both, Scenario("http", slots=1))
    # Turned away at 1.4, then every 1.4 s (a second of waiting, 0.4 s of asking) until 10.5.
    assert columns(tally.downloads, DOWNLOAD_FIELDS)["attempts"].tolist() == [1.0, 8.0]
    assert ends(tally)[1] == pytest.approx(1.0 + 7 * 1.4 + 0.5 + 10.0)


def test_two_clients_of_one_key_that_are_held_with_one_ticket_are_both_served() -> None:
    first = visitor("a", 0.0, 1_000.0, 5_000)
    shared = (File("same", 1_000),)
    held = [Visitor("b", at, 1_000.0, shared) for at in (1.0, 1.5, 2.0)]
    scenario = Scenario("ticket", slots=1, hold=True)
    tally = play(population(first, *held), scenario)
    rows = columns(tally.sessions, SESSION_FIELDS)
    assert rows["gave_up"].tolist() == [0.0] * 4
    assert len(rows["client"]) == 4


@pytest.mark.parametrize("trace", [mixed, small_and_huge, slow_clients])
def test_a_bound_above_the_line_costs_no_more_than_none(trace: Callable[[int], Workload]) -> None:
    # In one population three hundredths either way are chance, so the mean of some counts.
    crowds = [trace(seed) for seed in (1, 2, 3)]
    none_s = [simulated("fair", crowd, None) for crowd in crowds]
    for times in (1.06, 4.0):
        bound_s = [simulated("fair", crowd, times * LINE_BYTES_S) for crowd in crowds]
        assert fmean(map(truediv, bound_s, none_s)) <= 1.03
    assert none_s[0] <= 1.15 * simulated("fair", crowds[0], 0.98 * LINE_BYTES_S)


@pytest.mark.parametrize("rate_mbit", [5.0, 33.5])
def test_a_line_that_nobody_told_costs_little(rate_mbit: float) -> None:
    """A share of a line that is probed is no speed: as many large ones ran as fill it alone."""
    # Means over 8 populations differ by a hundredth, which is chance.
    crowds = [scaled(mixed(seed), rate_mbit / RATE_MBIT) for seed in range(1, 25)]
    none_s = fmean(simulated("fair", crowd, None) for crowd in crowds)
    right_s = fmean(simulated("fair", crowd, 0.98 * crowd.bandwidth_bytes_s) for crowd in crowds)
    assert none_s <= 1.045 * right_s


def test_what_is_sent_beyond_the_line_stands_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As live: what a probe sent too much goes on arriving while the cap lets less go."""
    seen: list[tuple[float, int, int, float]] = []

    class Recorder(Bottleneck):
        def observe(
            self, now: float, acked: int, flying: int, held: bool, samples: Sequence[Sample]
        ) -> LineOrders:
            orders = super().observe(now, acked, flying, held, samples)
            seen.append((now, acked, flying, orders.cap_bytes_s or math.inf))
            return orders

    monkeypatch.setattr("tidegate.loadtest.sim.sight.Bottleneck", Recorder)
    line, most = 1e6, 64 * 1024
    crowd = tuple(visitor(f"c{number}", 0.01 * number, 4e5, 10**7) for number in range(12))
    workload = Workload("crowd", 0, crowd, line, small_below_bytes=100)
    Scenario("fair", tells_bandwidth=False, hold=True).simulate(workload, 0)
    drained = 0
    for (then, before, stood, cap), (now, acked, stands, _) in pairwise(seen):
        assert 0 <= stands <= 12 * most
        if 0 < stands < stood and cap < line and acked > before:
            drained += 1
            assert acked - before == pytest.approx(line * (now - then), rel=0.01)
            # Who is paused meanwhile takes along what its own socket has.
            assert stood - stands >= 0.99 * (line - cap) * (now - then) - 2
    assert drained >= 5


def test_readers_whose_kernels_are_full_make_no_fallen_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel takes 256 KiB for a slow reader as fast as the line brings it; then all stop."""
    caps: list[float] = []

    class Recorder(Bottleneck):
        def observe(
            self, now: float, acked: int, flying: int, held: bool, samples: Sequence[Sample]
        ) -> LineOrders:
            orders = super().observe(now, acked, flying, held, samples)
            caps.append(orders.cap_bytes_s or math.inf)
            return orders

    monkeypatch.setattr("tidegate.loadtest.sim.sight.Bottleneck", Recorder)
    line, own = 2.4e6, 6e4
    readers = [visitor(f"r{number}", 0.05 * number, own, int(25 * own)) for number in range(30)]
    workload = replace(population(*readers), bandwidth_bytes_s=line)
    scenario = Scenario("fair", tells_bandwidth=False, hold=True)
    conditions = replace(
        scenario.conditions(workload), reader_bytes=256 * 1024, attempt_s=0.0, accept_s=0.0
    )
    Engine(workload, scenario.make_policy(workload, 1), conditions, 1).run()
    # What stood before the line drains at 60 % of it; a quarter of it was left to all before.
    assert min(caps) >= 0.55 * line
