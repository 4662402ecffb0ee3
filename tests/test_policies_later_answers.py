"""Later answers weigh the first one and a new forecast by how sure they are."""

from __future__ import annotations

import pytest

from tidegate.policies.contract import Estimate
from tidegate.policies.estimate.later_answers import later_answer

FIRST = Estimate(20.0, 50.0)


def test_the_same_forecast_in_the_same_moment_changes_nothing() -> None:
    later = later_answer(FIRST, 0.0, FIRST)
    assert (later.expected_s, later.p90_s) == pytest.approx((20.0, 50.0), rel=1e-3)


def test_a_forecast_that_is_less_sure_moves_no_end_beyond_its_bound() -> None:
    assert 10.0 + later_answer(FIRST, 10.0, Estimate(60.0, 150.0)).expected_s < 50.0


def test_a_sure_forecast_is_believed() -> None:
    """Its download runs, and its client is slower than others."""
    later = later_answer(FIRST, 10.0, Estimate(60.0, 63.0))
    assert later.expected_s == pytest.approx(60.0, rel=0.02)
    assert later.p90_s == pytest.approx(later.expected_s + 3.0)


def test_the_longer_it_takes_the_later_the_first_answer_puts_it() -> None:
    """However late it is, it is not told to be over, nor later than both have as their bound."""
    unsure = Estimate(30.0, 300.0)
    ends = [passed_s + later_answer(FIRST, passed_s, unsure).expected_s for passed_s in (1, 19, 45)]
    assert ends == sorted(ends)
    assert ends[-1] > 46.0
    late = later_answer(FIRST, 1e6, unsure)
    assert 0.0 <= late.expected_s <= late.p90_s <= 300.0


def test_without_a_first_answer_the_forecast_is_told() -> None:
    assert later_answer(Estimate(0.0, 0.0), 5.0, FIRST) == FIRST
