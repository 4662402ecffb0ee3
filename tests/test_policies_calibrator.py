"""Calibration: the guess with the smallest median error, and a bound that holds as said."""

from __future__ import annotations

import math
import random
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.estimate.calibrator import PUNCTUAL, Calibrator


def test_before_anything_was_seen_the_expectation_is_taken_at_its_word() -> None:
    ratios = Calibrator()
    assert 0.9 < ratios.centre(30.0) < 1.1
    assert ratios.centre(30.0) < ratios.tell(30.0)[1] < 1.5
    assert Calibrator(PUNCTUAL).centre(30.0) > 1.0


def test_centre_goes_where_most_come_not_between_two_crowds() -> None:
    ratios = Calibrator()
    for number in range(200):
        ratios.learn(30.0, 30.0 * (1.05 if number % 5 < 3 else 2.0))
    assert 1.03 < ratios.centre(30.0) < 1.08
    assert ratios.tell(30.0)[1] > 1.7


def test_orders_of_magnitude_are_corrected_apart() -> None:
    ratios = Calibrator()
    for _ in range(200):
        ratios.learn(2.0, 4.0)
        ratios.learn(200.0, 100.0)
    assert ratios.centre(2.0) > 1.7
    assert ratios.centre(200.0) < 0.6


def test_what_came_of_short_waits_says_the_less_of_longer_ones_that_nobody_had_yet() -> None:
    ratios = Calibrator()
    for _ in range(100):
        ratios.learn(10.0, 40.0)
    orders = [ratios.centre(expected_s) for expected_s in (10.0, 40.0, 160.0, 640.0)]
    assert orders[0] > 3.5
    assert orders == sorted(orders, reverse=True)
    assert orders[1] < 2.1
    assert orders[3] < 1.5
    # What is kept back from the guess stays in the bound.
    assert ratios.tell(640.0)[1] > 3.0
    for _ in range(100):
        ratios.learn(640.0, 1_280.0)
    assert 1.8 < ratios.centre(640.0) < 2.4


def test_the_shortest_waits_say_nothing_of_others() -> None:
    ratios = Calibrator()
    for _ in range(100):
        ratios.learn(2.0, 20.0)
    assert ratios.centre(30.0) == pytest.approx(1.0, abs=0.1)


def test_old_ratios_are_forgotten() -> None:
    ratios = Calibrator()
    for actual_s in (90.0, 30.0):
        for _ in range(400):
            ratios.learn(30.0, actual_s)
    assert 0.95 < ratios.centre(30.0) < 1.05


def test_bound_holds_nine_times_in_ten_though_the_day_drifts() -> None:
    rng = random.Random(7)
    ratios = Calibrator()
    held, drift = 0, 0.0
    for number in range(4000):
        drift += rng.gauss(0.0, 0.02)
        drift = max(-1.0, min(1.0, drift))
        actual_s = 50.0 * 2.718281828 ** (drift + rng.gauss(0.0, 0.3))
        kept = actual_s <= 50.0 * ratios.tell(50.0)[1]
        held += kept
        ratios.held(kept, 50.0, 100.0 * number)
        ratios.learn(50.0, actual_s)
    assert 0.87 < held / 4000 < 0.93


@pytest.mark.parametrize("period_s", [1_500.0, 3_000.0, 9_000.0])
def test_bounds_of_long_waits_hold_though_they_are_judged_when_the_day_has_drifted(
    period_s: float,
) -> None:
    """What starts in one minute misses alike, and what is told now starts nine minutes later."""
    rng = random.Random(3)
    ratios = Calibrator()
    told: list[tuple[float, float, float, float]] = []
    kept = judged = 0
    for now in range(20_000):
        while told and told[0][0] <= now:
            _, actual_s, expected_s, bound_s = heappop(told)
            held = actual_s <= bound_s
            ratios.held(held, expected_s, now)
            ratios.missed(expected_s, actual_s, now)
            ratios.learn(500.0, actual_s)
            if now > 4_000:
                judged, kept = judged + 1, kept + held
        centre, bound = ratios.tell(500.0)
        drift = 0.15 * math.sin(2.0 * math.pi * now / period_s)
        actual_s = 500.0 * math.exp(drift + rng.gauss(0.0, 0.01))
        heappush(told, (now + actual_s, actual_s, 500.0 * centre, 500.0 * bound))
    assert 0.85 <= kept / judged <= 0.97


def test_wild_values_do_no_harm() -> None:
    ratios = Calibrator()
    for expected_s, actual_s in ((0.0, 0.0), (1e9, 0.0), (0.0, 1e9), (1.0, 1.0)) * 50:
        ratios.learn(expected_s, actual_s)
        ratios.missed(expected_s, actual_s, 0.0)
        ratios.held(False, expected_s, 0.0)
    for expected_s in (0.0, 1.0, 1e12):
        assert 0.0 < ratios.centre(expected_s) <= ratios.tell(expected_s)[1] < 1e9


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 500.0), st.floats(0.3, 3.0)), min_size=1, max_size=60),
    st.integers(0, 60),
)
def test_no_bound_beyond_reason(seen: list[tuple[float, float]], broken: int) -> None:
    """Broken bounds widen those to come, but not beyond four times, nor what was really seen."""
    ratios = Calibrator()
    for number, (expected_s, ratio) in enumerate(seen):
        ratios.learn(expected_s, expected_s * ratio)
        ratios.missed(expected_s, expected_s * ratio, 1_000.0 * number)
    for number in range(broken):
        ratios.held(False, 1.0, 1e6 + number)
    for expected_s in (0.5, 10.0, 50.0, 200.0, 1000.0):
        centre, bound = ratios.tell(expected_s)
        assert centre < bound <= max(4.0001 * centre, 3.5)


def test_a_few_easy_waits_make_no_narrow_bound() -> None:
    ratios = Calibrator()
    for number in range(8):
        ratios.learn(30.0, 30.0)
        ratios.held(True, 30.0, 30.0 * number)
    centre, bound = ratios.tell(30.0)
    assert bound > 1.2 * centre


def test_what_falsifies_a_moment_says_nothing_of_minutes() -> None:
    """The first of a crowd were told a quarter of a second and come back after two or three."""
    ratios = Calibrator()
    for _ in range(50):
        ratios.learn(0.3, 3.0)
    assert ratios.centre(0.3) > 5.0
    assert ratios.centre(100.0) < 1.2
