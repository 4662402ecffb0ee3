"""The tally adds up exactly, whatever way it is split, and its percentiles are close."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.loadtest.tally import OBSERVED, Histogram, Tally, is_figure

values = st.lists(st.floats(0, 1e5), min_size=1, max_size=80)


@given(values)
def test_percentiles_are_within_two_percent_of_the_sorted_list(sample: list[float]) -> None:
    histogram = Histogram()
    for value in sample:
        histogram.add(value)
    for fraction in (0.01, 0.5, 0.95, 0.99, 1.0):
        exact = sorted(sample)[max(1, math.ceil(fraction * len(sample))) - 1]
        found = histogram.percentile(fraction)
        assert found == pytest.approx(exact, rel=0.02, abs=2e-4)
        assert found is not None
        assert found <= max(sample), "no wait is told that nobody had"
    assert histogram.mean() == pytest.approx(sum(sample) / len(sample))
    assert histogram.largest == max(sample)


def test_each_percentile_has_its_own_name() -> None:
    tally = Tally()
    for number in range(1, 1001):
        tally.observe("session", float(number))
    figures = tally.figures()
    for name, exact in (("p50", 500), ("p95", 950), ("p99", 990), ("max", 1000), ("mean", 500.5)):
        assert figures[f"{name}_session"] == pytest.approx(exact, rel=0.02), name


@given(values, values)
def test_two_workers_report_what_one_process_would_have_seen(
    ours: list[float], theirs: list[float]
) -> None:
    alone, one, two = Tally(), Tally(), Tally()
    for part, sample in ((one, ours), (two, theirs)):
        for value in sample:
            for tally in (part, alone):
                tally.observe("wait_small", value)
                tally.count("finished")
    merged = Tally()
    for part in (one, two):
        merged.merge(Tally.from_json(json.loads(json.dumps(part.drain()))))
        assert part.figures().get("mean_wait_small") is None
    assert merged.figures() == pytest.approx(alone.figures())


def test_figures_name_only_what_was_measured() -> None:
    tally = Tally()
    assert "eta_within_p90" not in tally.figures()
    assert tally.figures()["finished"] == 0.0
    tally.count("promises", 4)
    tally.count("promises_kept", 3)
    tally.count("finished", 9)
    tally.count("gave_up")
    assert tally.figures()["eta_within_p90"] == 0.75
    assert tally.figures()["give_up_fraction"] == 0.1


def test_the_gain_of_rudeness_is_negative_when_rude_clients_wait_longer() -> None:
    tally = Tally()
    tally.observe("wait_large_polite", 10.0)
    tally.observe("wait_large_rude", 12.0)
    assert tally.figures()["rude_gain"] == pytest.approx(-0.2)


def test_every_figure_of_a_run_is_known_beforehand() -> None:
    tally = Tally()
    for name in OBSERVED:
        tally.observe(name, 1.0)
    for name in ("finished", "promises"):
        tally.count(name)
    figures = tally.figures()
    assert len(figures) > 50
    assert all(is_figure(name) for name in figures)
    for name in ("p95_wait_smal", "p96_session", "mean_", "session", ""):
        assert not is_figure(name), name
