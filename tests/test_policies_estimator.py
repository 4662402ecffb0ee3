from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.loadtest.sim.metrics import measure, session_times
from tidegate.loadtest.sim.outcome import mean
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.workloads import MB, File, Visitor, Workload
from tidegate.policies.contract import Estimate
from tidegate.policies.estimate.estimator import Estimator
from tidegate.policies.estimate.paces import Paces


def lay_out(estimator: Estimator, tickets: int, line_bytes_s: float = math.inf) -> None:
    """So many ready tickets of 1 MB each on ten slots, nobody else in the queue."""
    ahead = [(1e6, 1.0)] * tickets
    estimator.lay_out(0.0, 10, (), ahead, tickets, None, 1.0, line_bytes_s=line_bytes_s)


def test_ready_tickets_beyond_those_laid_out_take_as_long_as_the_others() -> None:
    estimator = Estimator()
    lay_out(estimator, 1_000)
    assert estimator.raw_s(1_000, 0.0) == pytest.approx(4.0 * estimator.raw_s(251, 0.0), rel=0.05)


def test_no_more_start_than_the_line_carries_while_nothing_else_is_known() -> None:
    estimator = Estimator()
    lay_out(estimator, 1_000, line_bytes_s=1e6)
    assert estimator.raw_s(1_000, 0.0) == pytest.approx(1_000.0, rel=0.02)


def test_the_first_of_a_crowd_that_start_say_nothing_of_the_others() -> None:
    """Sixty are told a minute, and ten of them start at once: others were told a second then."""
    estimator, told = Estimator(), Estimate(60.0, 80.0)
    for number in range(10):
        estimator.started(60.0, 0.0, told, 1.0, 1.0, 0.5 * number)
    assert estimator.estimate(60.0).expected_s > 50.0
    assert estimator.estimate(60.0).p90_s > 70.0
    for number in range(50):
        estimator.started(60.0, 0.0, told, 60.0, 60.0, 60.0 + number)
    assert 50.0 < estimator.estimate(60.0).expected_s < 70.0


def test_a_line_that_became_faster_corrects_no_later_told_time() -> None:
    """They were told by its new speed, and half as much again: 65 of 100 starts were kept."""
    estimator, told = Estimator(), Estimate(100.0, 130.0)
    estimator.served.run_to(0.0, 1e6, of_line=True)
    estimator.served.run_to(100.0, 2e6, of_line=True)
    for number in range(20):
        # A quarter of a minute of the slow line, and the rest of the fast one.
        estimator.started(100.0, 0.0, told, 62.5, 62.5, 137.5 + 5.0 * number)
    for number in range(20):
        estimator.started(100.0, 0.0, told, 100.0, 100.0, 300.0 + 5.0 * number)
    assert estimator.estimate(100.0).expected_s == pytest.approx(100.0, rel=0.1)


def test_a_ticket_that_waits_beyond_its_bound_widens_those_of_others() -> None:
    estimator = Estimator()
    before = estimator.estimate(60.0)
    for number in range(5):
        estimator.watch(number, 70.0 + number)
    assert not list(estimator.overdue(60.0))
    assert list(estimator.overdue(72.5)) == [0, 1, 2]
    for number in range(10):
        estimator.late(0.0, 60.0, 180.0, 80.0 + 5.0 * number)
    after = estimator.estimate(60.0)
    assert after.expected_s == before.expected_s
    assert after.p90_s > 1.3 * before.p90_s


def test_a_queue_that_has_grown_is_laid_out_anew() -> None:
    estimator = Estimator()
    lay_out(estimator, 100)
    assert not estimator.stale(0.1, 2.0, 110)
    assert estimator.stale(0.1, 2.0, 200)
    assert estimator.stale(3.0, 2.0, 100)
    estimator.skip(3.0, 100)
    assert not estimator.laid_out
    assert not estimator.stale(3.1, 2.0, 110)
    assert estimator.stale(3.1, 2.0, 200)
    lay_out(estimator, 100)
    assert estimator.laid_out


def test_told_times_of_a_few_who_came_late_are_not_judged() -> None:
    estimator = Estimator()
    for count in range(1, 21):
        estimator.started(1.0, 0.0, Estimate(10.0, 20.0), 80.0, 80.0, 80.0)
        judged = estimator.judged.within_p90, estimator.judged.median_error
        assert judged == ((None, None) if count < 20 else (0.0, pytest.approx(0.875)))


def flash(seed: int) -> Workload:
    """600 clients for some 0.7 MB each within 3 s; the line needs 28 s for them."""
    rng = random.Random(f"flash/{seed}")
    visitors = tuple(
        Visitor(
            f"c{number}",
            at,
            rng.uniform(1.0, 10.0) * MB,
            (File(f"f{number}", int(0.7 * MB * math.exp(rng.gauss(0.0, 1.0)))),),
        )
        for number, at in enumerate(sorted(rng.uniform(0.0, 3.0) for _ in range(600)))
    )
    return Workload("flash", seed, visitors, 25.0 * MB)


def test_a_cold_flash_crowd_that_polls_keeps_the_line_busy_and_is_told_true_times() -> None:
    """Told times of the first moments once sent everybody away for five minutes."""
    ratios, within = [], []
    for seed in range(3):
        workload = flash(seed)
        scenario = Scenario("ticket", reserve_small=6, hold=False)
        tally = scenario.simulate(workload, seed)
        sharing = session_times(Scenario("ps").simulate(workload, seed), 600)
        ratios.append(mean(session_times(tally, 600)) / mean(sharing))
        within.append(measure(workload, scenario.conditions(workload), tally)["eta_within_p90"])
    assert max(ratios) < 1.3
    assert sum(within) / 3 > 0.75


def test_what_a_byte_costs_is_told_by_those_that_came_not_by_those_that_linger() -> None:
    """Of slow and fast ones alike, the slow hold nearly all slots and the fast carry nearly all."""
    paces = Paces()
    for number in range(50):
        paces.end(2 * number, 1e-8)
        paces.look([(slow, 8e-6) for slow in range(1, 2 * number + 2, 2)])
    assert paces.mean == pytest.approx(4e-6, rel=0.01)


def test_paces_of_the_past_follow_a_change_that_all_who_run_show() -> None:
    paces = Paces()
    for number in range(40):
        paces.end(number, 1e-6)
    paces.look([(number, 1e-6) for number in range(40, 60)])
    paces.look([(number, 3e-6) for number in range(40, 60)])
    assert paces.mean == pytest.approx(3e-6)


def test_downloads_that_took_no_longer_than_their_start_are_no_division_by_zero() -> None:
    paces = Paces()
    paces.end(1, 0.0)
    paces.end(2, 0.0)
    assert paces.mean == 0.0
    paces.look([(3, 1e-6)])
    assert paces.mean == pytest.approx(1e-6 / 3)


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(1e-9, 1.0), st.booleans())))
def test_a_lease_that_was_forgotten_is_not_taken_up_again(
    seen: list[tuple[int, float, bool]],
) -> None:
    paces = Paces()
    for lease, pace, over in seen:
        if over:
            paces.end(lease, pace)
        else:
            paces.look([(lease, pace)])
        paces.keep(1)
    if seen:
        assert min(pace for _, pace, _ in seen) <= paces.mean * (1.0 + 1e-9)
        assert paces.mean <= max(pace for _, pace, _ in seen) * (1.0 + 1e-9)


def test_small_files_before_large_ones_do_not_shorten_what_those_are_told() -> None:
    """With two slots large ones were told a thirtieth, as small ones had hardly waited."""
    rng = random.Random("two slots")
    visitors = tuple(
        Visitor(f"c{number}", 0.5 * number, 2.0 * MB, (File(f"f{number}", size),))
        for number, size in enumerate(rng.choice((20_000, 10_000_000)) for _ in range(240))
    )
    workload = Workload("two slots", 1, visitors, 25.0 * MB)
    scenario = Scenario("ticket", slots=2, reserve_small=1, hold=True)
    told = measure(workload, scenario.conditions(workload), scenario.simulate(workload, 1))
    assert told["eta_within_p90"] > 0.85
    assert told["eta_median_error"] < 0.15
