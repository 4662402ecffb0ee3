"""Objectives: read strictly, missed loudly."""

from __future__ import annotations

import pytest

from tidegate.loadtest.tally import Objective, misses


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("p95_wait_small<2s", 2.0),
        ("p95_wait_small < 200ms", 0.2),
        ("failed_fraction<=0.1%", 0.001),
        ("verified_bytes>5MB", 5e6),
        ("attempts<=4", 4.0),
        ("p99_session<3min", 180.0),
    ],
)
def test_bounds_are_read_with_their_units(text: str, bound: float) -> None:
    assert Objective.parse(text).bound == pytest.approx(bound)


@pytest.mark.parametrize("text", ["", "fast", "p95<", "p95<two", "p95=2", "p95<2 parsecs", "<2s"])
def test_nonsense_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"objective|not a"):
        Objective.parse(text)


def test_a_bound_that_holds_is_no_miss() -> None:
    figures = {"finished": 3.0, "p95_wait_small": 1.9}
    assert misses([Objective.parse("p95_wait_small<2s")], figures) == []


def test_a_missed_bound_says_what_was_measured() -> None:
    figures = {"finished": 3.0, "p95_wait_small": 2.5}
    assert misses([Objective.parse("p95_wait_small<2s")], figures) == [
        "p95_wait_small<2s: measured 2.5"
    ]


def test_a_figure_that_was_never_measured_is_a_miss() -> None:
    (sentence,) = misses([Objective.parse("p95_wait_small<2s")], {"finished": 1.0})
    assert sentence.startswith("p95_wait_small<2s: this run has no such figure")


def test_small_files_are_untried_where_nobody_wanted_one() -> None:
    small = Objective.parse("p95_wait_small<2s")
    assert misses([small], {"arrived": 3.0, "finished": 3.0, "p95_wait_large": 1.0}) == []
    # The third may have been a small one.
    assert misses([small], {"arrived": 3.0, "finished": 2.0, "p95_wait_large": 1.0}) != []


def test_promises_are_untried_where_nobody_waited_and_missed_where_somebody_was_told_none() -> None:
    promised = Objective.parse("eta_within_p90>80%")
    assert misses([promised], {"finished": 3.0, "promises": 0.0, "queued": 0.0}) == []
    assert misses([promised], {"finished": 3.0, "promises": 0.0, "queued": 2.0}) != []


def test_a_run_in_which_nothing_finished_has_failed_whatever_was_asked() -> None:
    assert misses([], {"finished": 0.0}) == ["no download finished"]
    assert misses([], {}) == ["no download finished"]
