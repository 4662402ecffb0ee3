from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.policies.estimate.shorter_load import ShorterLoad

LINE = 1e6


def steady(seconds: int) -> ShorterLoad:
    """Half of the line asked for in small pieces, for so long."""
    load = ShorterLoad()
    for second in range(seconds):
        load.note(500_000, 500_000, float(second))
    return load


def test_only_shorter_downloads_overtake() -> None:
    load = steady(100)
    assert load.wait_s(5e6, 400_000, LINE, 100.0)[0] == 5.0
    assert load.wait_s(5e6, 10_000_000, LINE, 100.0)[0] > 8.0


def test_small_downloads_overtake_all() -> None:
    """What a crowd of them takes for a moment says little of a long wait."""
    load = ShorterLoad()
    for second in range(4):
        load.note(0, 500_000, float(second))
    assert load.wait_s(1e6, 400_000, LINE, 4.0)[0] > 1.4
    assert 100.0 < load.wait_s(100e6, 400_000, LINE, 4.0)[0] < 103.0


def test_a_steady_load_stretches_a_wait_by_its_part() -> None:
    wait, soonest = steady(5_000).wait_s(20e6, 10_000_000, LINE, 5_000.0)
    assert wait == pytest.approx(40.0, rel=0.05)
    assert soonest == pytest.approx(40.0, rel=0.05)


def test_a_crowd_of_a_moment_is_not_taken_to_go_on_for_minutes() -> None:
    """It was told twice what it had to wait, and the line idled as those who poll stayed away."""
    load = steady(10)
    wait, soonest = load.wait_s(100e6, 10_000_000, LINE, 10.0)
    assert 100.0 < wait < 115.0
    assert soonest < 102.0
    assert load.wait_s(5e6, 10_000_000, LINE, 10.0)[0] > 7.0


def test_an_old_load_counts_no_more() -> None:
    assert steady(10).wait_s(10e6, 10_000_000, LINE, 10_000.0)[0] == pytest.approx(10.0, rel=0.01)


@given(st.lists(st.tuples(st.integers(1, 1 << 40), st.floats(0.0, 20.0)), min_size=1, max_size=30))
def test_what_came_counts_as_if_it_had_decayed_all_the_time(came: list[tuple[int, float]]) -> None:
    """Loads are decayed once in a while: noted often or seldom, the same waits are told."""
    often, seldom, now = ShorterLoad(), ShorterLoad(), 0.0
    for size, after in came:
        for part in range(1, 9):
            often.note(0, 0, now + after * part / 8)
        now += after
        for load in (often, seldom):
            load.note(size, size, now)
    for probe in (1 << 10, 1 << 30, 1 << 50):
        told = seldom.wait_s(5e6, probe, LINE, now + 1.0)
        assert often.wait_s(5e6, probe, LINE, now + 1.0) == pytest.approx(told, rel=1e-6)


@given(
    st.lists(st.tuples(st.integers(0, 1 << 60), st.floats(0.0, 100.0)), max_size=50),
    st.integers(0, 1 << 60),
    st.floats(0.0, 1e12),
)
def test_no_wait_is_shorter_than_what_is_before_it_or_without_end(
    came: list[tuple[int, float]], probe: int, before: float
) -> None:
    load, now = ShorterLoad(), 0.0
    for size, after in came:
        now += after
        load.note(size, size, now)
    alone = before / LINE
    for wait in load.wait_s(before, probe, LINE, now):
        assert alone <= wait <= 10.0 * alone + 1e-9


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1 << 40)), max_size=40))
def test_what_is_summed_up_for_many_is_what_one_would_be_told(
    steps: list[tuple[bool, int]],
) -> None:
    asked_often = ShorterLoad()
    noted: list[tuple[int, int, float]] = []
    for second, (comes, size) in enumerate(steps):
        now = float(second)
        if comes:
            noted.append((size, size, now))
            asked_often.note(size, size, now)
        asked_once = ShorterLoad()
        for one in noted:
            asked_once.note(*one)
        assert asked_often.wait_s(1e6, size, LINE, now) == asked_once.wait_s(1e6, size, LINE, now)
