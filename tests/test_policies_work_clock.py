"""What was served, in seconds at the speed of a moment."""

from __future__ import annotations

import pytest

from tidegate.policies.estimate.work_clock import WorkClock


def test_what_a_faster_line_carries_takes_longer_at_the_speed_of_before() -> None:
    clock = WorkClock()
    clock.run_to(10.0, 1e6, of_line=True)
    clock.run_to(20.0, 3e6, of_line=True)
    assert clock.as_told_s(12.0, 18.0) == pytest.approx(6.0)
    assert clock.as_told_s(15.0, 25.0) == pytest.approx(20.0)
    assert clock.as_told_s(22.0, 25.0) == pytest.approx(3.0)


def test_before_a_speed_was_known_seconds_count_as_they_are() -> None:
    clock = WorkClock()
    assert clock.as_told_s(1.0, 9.0) == 8.0
    clock.run_to(5.0, 1e6, of_line=True)
    assert clock.as_told_s(1.0, 9.0) == 8.0


def test_a_slot_and_the_line_are_not_compared() -> None:
    clock = WorkClock()
    clock.run_to(0.0, 1e5, of_line=False)
    clock.run_to(10.0, 1e6, of_line=True)
    assert clock.as_told_s(5.0, 15.0) == 10.0


def test_memory_is_bounded() -> None:
    clock = WorkClock()
    for number in range(5_000):
        clock.run_to(float(number), 1.0 + number % 2, of_line=True)
    assert len(clock._changes) == 1_000
    assert clock.as_told_s(4_990.0, 5_000.0) == pytest.approx(15.0)
