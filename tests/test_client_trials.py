from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.client.schedule.trials import Add, Drop, Reading, Trials

MOST = 4
Rates = Callable[[Mapping[int, int], float], Mapping[int, float]]


def play(
    rates: Rates, mirrors: int, seconds: float = 30.0, left: float = 1e12
) -> tuple[dict[int, int], Trials, list[tuple[float, Add | Drop]]]:
    """Mirrors whose rates depend on how many connections they have; the connections at the end."""
    trials = Trials()
    lanes = dict.fromkeys(range(mirrors), 1)
    got = dict.fromkeys(range(mirrors), 0.0)
    steps: list[tuple[float, Add | Drop]] = []
    now = 0.0
    while now < seconds:
        now += 0.1
        for mirror, rate in rates(lanes, now).items():
            got[mirror] += rate * 0.1
            left -= rate * 0.1
        readings = {n: Reading(int(got[n]), lanes[n], MOST) for n in lanes}
        for step in trials.tick(now, readings, int(left)):
            steps.append((now, step))
            lanes[step.mirror] += step.count if isinstance(step, Add) else -step.count
        assert all(1 <= count <= MOST for count in lanes.values())
    return lanes, trials, steps


def test_a_server_that_limits_each_connection_gets_more_of_them() -> None:
    lanes, trials, steps = play(lambda lanes, now: {n: 1e6 * c for n, c in lanes.items()}, 1)
    assert lanes == {0: 4}
    assert trials.kept == 3
    assert not any(isinstance(step, Drop) for _, step in steps)
    # One, two, four: within a few seconds.
    assert steps[-1][0] < 4.0


def test_only_the_mirror_that_gains_keeps_them() -> None:
    lanes, _, _ = play(lambda lanes, now: {0: 3e6, 1: 1e6 * lanes[1], 2: 2e6}, 3)
    assert lanes == {0: 1, 1: 4, 2: 1}


def test_a_line_that_is_full_gets_no_more_and_is_tried_ever_more_rarely() -> None:
    lanes, trials, steps = play(lambda lanes, now: dict.fromkeys(lanes, 1e6), 2, 200.0)
    assert lanes == {0: 1, 1: 1}
    assert trials.kept == 0
    assert len([step for _, step in steps if isinstance(step, Add)]) <= 8


def test_what_one_mirror_takes_from_another_is_no_gain() -> None:
    """The client's own line is full: connections only share it anew."""

    def shared(lanes: Mapping[int, int], now: float) -> Mapping[int, float]:
        total = sum(lanes.values())
        return {n: 4e6 * count / total for n, count in lanes.items()}

    lanes, trials, _ = play(shared, 2)
    assert lanes == {0: 1, 1: 1}
    assert trials.kept == 0


def test_a_download_that_is_soon_through_tries_nothing() -> None:
    _, _, steps = play(lambda lanes, now: {0: 1e6 * lanes[0]}, 1, 4.0, left=4e6)
    assert steps == []


def test_windows_that_still_open_are_no_reason_for_more_connections() -> None:
    # A round trip of 200 ms: the first second says little of the next.
    _, _, steps = play(lambda _, now: {0: min(5e6, 70e3 * 2 ** (now / 0.2))}, 1, 6.0, 24 << 20)
    assert steps == []


def test_a_slow_mirror_is_left_alone() -> None:
    lanes, _, steps = play(lambda lanes, now: {0: 10e6, 1: 0.5e6 * lanes[1]}, 2)
    assert lanes[1] == 1
    assert all(step.mirror == 0 for _, step in steps)


def test_a_connection_that_never_comes_bars_the_mirror() -> None:
    trials = Trials()
    now, got = 0.0, 0.0
    adds = 0
    while now < 9.0:
        now += 0.1
        got += 1e5
        for step in trials.tick(now, {0: Reading(int(got), 1, MOST)}, 10**12):
            adds += isinstance(step, Add)
    assert adds == 1
    assert trials.trying == set()


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 3), st.integers(1, 4), max_size=4),
            st.integers(0, 10**7),
            st.floats(0, 3),
        ),
        max_size=60,
    )
)
def test_whatever_happens_no_more_is_asked_for_than_is_allowed(
    turns: list[tuple[dict[int, int], int, float]],
) -> None:
    trials = Trials()
    now = 0.0
    got = dict.fromkeys(range(4), 0)
    for lanes, count, pause_s in turns:
        now += pause_s
        for mirror in lanes:
            got[mirror] += count
        readings = {n: Reading(got[n], c, MOST) for n, c in lanes.items()}
        for step in trials.tick(now, readings, 10**9):
            if isinstance(step, Add):
                assert 1 <= step.count <= MOST - lanes[step.mirror]
            else:
                assert 1 <= step.count < lanes[step.mirror]


@pytest.mark.parametrize("seconds", [5.0, 20.0])
def test_a_gain_is_found_again_when_the_mirror_changes(seconds: float) -> None:
    """Full at first; later its server limits each connection."""

    def later(lanes: Mapping[int, int], now: float) -> Mapping[int, float]:
        return {0: 2e6 if now < seconds else 5e5 * lanes[0]}

    lanes, _, _ = play(later, 1, 120.0)
    assert lanes == {0: 4}
