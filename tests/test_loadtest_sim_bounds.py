"""Lower bounds: exact where the answer is known, and never above any run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.loadtest.sim.bounds import alone_s, lower_bounds
from tidegate.loadtest.sim.metrics import session_times
from tidegate.loadtest.sim.outcome import mean
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.workloads import File, Visitor, Workload, exp1, exp2


def population(*rows: tuple[float, float, int]) -> Workload:
    return Workload(
        "hand",
        0,
        tuple(
            Visitor(f"c{number}", at, rate, (File(f"f{number}", size),))
            for number, (at, rate, size) in enumerate(sorted(rows))
        ),
        1_000.0,
    )


def test_one_client_is_bound_by_itself_exactly() -> None:
    bounds = lower_bounds(population((5.0, 100.0, 1_000)), 1_000.0)
    assert bounds.cap_s == pytest.approx(10.5)
    assert bounds.best_s == pytest.approx(10.5)
    assert bounds.srpt_s == pytest.approx(1.5)


def test_unlimited_clients_are_bound_by_shortest_remaining_first() -> None:
    # 1 s and 3 s of the link at once: 1 and 4; plus half a second of connecting each.
    bounds = lower_bounds(population((0.0, 1e9, 1_000), (0.0, 1e9, 3_000)), 1_000.0)
    assert bounds.srpt_s == pytest.approx((1.5 + 4.5) / 2)
    assert bounds.best_s == pytest.approx(3.0)


def test_both_limits_together_bind_tighter_than_each() -> None:
    # Two clients at 600 B/s on a link of 1000: alone 1.67 s, together 2000 bytes need 2 s.
    workload = population((0.0, 600.0, 1_000), (0.0, 600.0, 1_000))
    bounds = lower_bounds(workload, 1_000.0)
    best = 0.5 + (1_000 / 600 + 2.0) / 2
    assert bounds.combined_s > max(bounds.cap_s, bounds.srpt_s)
    assert bounds.best_s <= best + 1e-9


def test_nobody_has_no_bound() -> None:
    assert lower_bounds(population(), 1_000.0).best_s == 0.0


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 60), st.integers(50, 2_000), st.integers(0, 20_000)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["ps", "http", "reserve", "ticket-hold"]),
)
def test_no_run_is_ever_faster(rows: list[tuple[float, int, int]], policy: str) -> None:
    workload = population(*rows)
    times = session_times(Scenario(policy, slots=4).simulate(workload), len(rows))
    assert lower_bounds(workload, 1_000.0).best_s <= mean(times) * (1 + 1e-6) + 1e-6
    for alone, time in zip(alone_s(workload, 1_000.0), times, strict=True):
        assert alone <= time * (1 + 1e-6) + 1e-6


@pytest.mark.parametrize("make", [exp1, exp2])
def test_under_overload_the_combined_bound_is_the_tightest(make: object) -> None:
    assert callable(make)
    workload = make(0)
    bounds = lower_bounds(workload, 0.5 * workload.bandwidth_bytes_s)
    assert bounds.best_s == bounds.combined_s > bounds.cap_s
