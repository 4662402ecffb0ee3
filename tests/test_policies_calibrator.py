"""Calibration: the guess with the smallest median error, and a bound that holds as said."""

from __future__ import annotations

import itertools
import math
import random
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.policies.contract import Job, Wait
from tidegate.policies.estimate.calibrator import (
    AWAY,
    HERE,
    PUNCTUAL,
    Calibrator,
    WaitBounds,
)
from tidegate.policies.registry import make_policy
from tidegate.policies.settings import PolicySettings

#: Seconds by which each wait counts.
LATER = itertools.count(0.0, 1_000.0)


def test_before_anything_was_seen_the_expectation_is_taken_at_its_word() -> None:
    ratios = Calibrator()
    assert 0.9 < ratios.centre(30.0) < 1.1
    assert 1.2 < WaitBounds().beyond(30.0) < 1.5
    assert Calibrator(PUNCTUAL).centre(30.0) > 1.0


def test_centre_goes_where_most_come_not_between_two_crowds() -> None:
    ratios = Calibrator()
    for number in range(200):
        ratios.learn(30.0, 30.0 * (1.05 if number % 5 < 3 else 2.0), next(LATER))
    assert 1.03 < ratios.centre(30.0) < 1.08


def test_those_that_start_in_one_moment_count_as_one() -> None:
    """Twenty that started at once, as speeds were not known, made a minute a second for all."""
    ratios = Calibrator()
    for number in range(20):
        ratios.learn(60.0, 0.5, 0.01 * number)
    assert ratios.centre(60.0) > 0.8
    for number in range(20):
        ratios.learn(60.0, 30.0, 3.0 * number)
    assert ratios.centre(60.0) < 0.7


def test_orders_of_magnitude_are_corrected_apart() -> None:
    ratios = Calibrator()
    for _ in range(200):
        ratios.learn(2.0, 4.0, next(LATER))
        ratios.learn(200.0, 100.0, next(LATER))
    assert ratios.centre(2.0) > 1.7
    assert ratios.centre(200.0) < 0.6


def test_what_came_of_short_waits_says_the_less_of_longer_ones_that_nobody_had_yet() -> None:
    ratios = Calibrator()
    for _ in range(100):
        ratios.learn(10.0, 40.0, next(LATER))
    orders = [ratios.centre(expected_s) for expected_s in (10.0, 40.0, 160.0, 640.0)]
    assert orders[0] > 3.5
    assert orders == sorted(orders, reverse=True)
    assert orders[1] < 2.1
    assert orders[3] < 1.5
    for _ in range(100):
        ratios.learn(640.0, 1_280.0, next(LATER))
    assert 1.8 < ratios.centre(640.0) < 2.4


def test_the_shortest_waits_say_nothing_of_others() -> None:
    ratios = Calibrator()
    for _ in range(100):
        ratios.learn(2.0, 20.0, next(LATER))
    assert ratios.centre(30.0) == pytest.approx(1.0, abs=0.1)


def test_old_ratios_are_forgotten() -> None:
    ratios = Calibrator()
    for actual_s in (90.0, 30.0):
        for _ in range(400):
            ratios.learn(30.0, actual_s, next(LATER))
    assert 0.95 < ratios.centre(30.0) < 1.05


def test_bound_holds_nine_times_in_ten_though_the_day_drifts() -> None:
    rng = random.Random(7)
    bounds = WaitBounds()
    held, drift = 0, 0.0
    for number in range(4000):
        drift += rng.gauss(0.0, 0.02)
        drift = max(-1.0, min(1.0, drift))
        actual_s = 50.0 * math.exp(drift + rng.gauss(0.0, 0.3))
        kept = actual_s <= 50.0 * bounds.beyond(50.0)
        held += kept
        bounds.held(kept, 50.0, 100.0 * number)
        bounds.learn(50.0, actual_s, 100.0 * number)
    assert 0.88 < held / 4000 < 0.95


@pytest.mark.parametrize("first", [HERE, AWAY])
@pytest.mark.parametrize("off", [0.05, 0.08, 0.3])
def test_bounds_are_as_near_as_waits_allow_whatever_was_believed_at_first(
    first: tuple[float, ...], off: float
) -> None:
    """Where told times are kept within 8 %, a bound a third above says too little."""
    rng = random.Random(1)
    bounds, held = WaitBounds(first), 0
    for number in range(800):
        actual_s = 50.0 * math.exp(rng.uniform(-off, off))
        kept = actual_s <= 50.0 * bounds.beyond(50.0)
        bounds.held(kept, 50.0, 10.0 * number)
        bounds.learn(50.0, actual_s, 10.0 * number)
        held += kept and number >= 200
    assert 0.88 < held / 600 < 0.98
    assert math.log(bounds.beyond(50.0)) < 1.2 * off


def test_starts_that_come_sooner_than_told_make_no_bound_wider() -> None:
    bounds = WaitBounds()
    for number in range(200):
        bounds.learn(50.0, 50.0 if number % 2 else 5.0, 10.0 * number)
    assert bounds.beyond(50.0) < 1.05


@pytest.mark.parametrize("period_s", [1_500.0, 3_000.0, 9_000.0])
def test_bounds_of_long_waits_hold_though_they_are_judged_when_the_day_has_drifted(
    period_s: float,
) -> None:
    """What starts in one minute misses alike, and what is told now starts nine minutes later."""
    rng = random.Random(3)
    ratios, bounds = Calibrator(), WaitBounds()
    told: list[tuple[float, float, float, float]] = []
    kept = judged = 0
    for now in range(20_000):
        while told and told[0][0] <= now:
            _, actual_s, expected_s, bound_s = heappop(told)
            held = actual_s <= bound_s
            bounds.held(held, expected_s, now)
            bounds.learn(expected_s, actual_s, now)
            ratios.learn(500.0, actual_s, now)
            if now > 4_000:
                judged, kept = judged + 1, kept + held
        told_s = 500.0 * ratios.centre(500.0)
        drift = 0.15 * math.sin(2.0 * math.pi * now / period_s)
        actual_s = 500.0 * math.exp(drift + rng.gauss(0.0, 0.01))
        heappush(told, (now + actual_s, actual_s, told_s, told_s * bounds.beyond(told_s)))
    assert 0.85 <= kept / judged <= 0.97


def test_wild_values_do_no_harm() -> None:
    ratios, bounds = Calibrator(), WaitBounds()
    for expected_s, actual_s in ((0.0, 0.0), (1e9, 0.0), (0.0, 1e9), (1.0, 1.0)) * 50:
        ratios.learn(expected_s, actual_s, next(LATER))
        bounds.learn(expected_s, actual_s, 0.0)
        bounds.held(False, expected_s, 0.0)
    for expected_s in (0.0, 1.0, 1e12):
        assert 0.0 < ratios.centre(expected_s) < 1e3
        assert 1.0 < bounds.beyond(expected_s) < 1e3


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([HERE, AWAY]),
    st.lists(st.tuples(st.floats(0.1, 500.0), st.floats(0.3, 3.0)), min_size=1, max_size=60),
    st.integers(0, 60),
)
def test_no_bound_beyond_reason(
    first: tuple[float, ...], seen: list[tuple[float, float]], broken: int
) -> None:
    """Broken bounds widen those to come, but not beyond four times, nor what was really seen."""
    bounds = WaitBounds(first)
    for number, (told_s, ratio) in enumerate(seen):
        bounds.learn(told_s, told_s * ratio, 1_000.0 * number)
    for number in range(broken):
        bounds.held(False, 1.0, 1e6 + number)
    for told_s in (0.5, 10.0, 50.0, 200.0, 1000.0):
        assert 1.0 < bounds.beyond(told_s) <= 4.0001


def test_a_few_easy_waits_make_no_narrow_bound() -> None:
    bounds = WaitBounds()
    for number in range(8):
        bounds.learn(30.0, 30.0, 30.0 * number)
        bounds.held(True, 30.0, 30.0 * number)
    assert bounds.beyond(30.0) > 1.15


def test_what_falsifies_a_moment_says_nothing_of_minutes() -> None:
    """The first of a crowd were told a quarter of a second and come back after two or three."""
    ratios = Calibrator()
    for _ in range(50):
        ratios.learn(0.3, 3.0, next(LATER))
    assert ratios.centre(0.3) > 5.0
    assert ratios.centre(100.0) < 1.2


@pytest.mark.parametrize("mixed", [False, True])
def test_the_first_bound_of_an_end_is_as_wide_as_it_may_miss(mixed: bool) -> None:
    """Before anything was learnt each was 2.2 to 2.7 times the told time, in a long queue, too."""
    settings = PolicySettings(bandwidth_bytes_s=1e6, small_below_bytes=1)
    fair = make_policy("fair", settings, random.Random(1))
    fair.observe(1e6, True, 0.0, 1e6)
    wide: list[float] = []
    for number in range(100):
        size = 10**7 + 10**5 * (99 - number if mixed else 0)
        told = fair.offer(Job(f"c{number}", f"/{number}", size, size), 0.1 * number)
        fair.advance(0.1 * number)
        if isinstance(told, Wait) and told.estimate is not None and told.estimate.done is not None:
            wide.append(told.estimate.done.p90_s / told.estimate.done.expected_s)
    assert len(wide) > 90
    assert max(wide) > 1.8
    if not mixed:
        assert wide == sorted(wide, reverse=True)
        assert wide[-1] < 1.4
