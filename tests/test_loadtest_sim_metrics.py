from __future__ import annotations

import math

import pytest

from tidegate.loadtest.sim.conditions import Conditions
from tidegate.loadtest.sim.metrics import later, measure, rude_gain
from tidegate.loadtest.sim.outcome import DOWNLOAD_FIELDS, RunRecord
from tidegate.loadtest.workloads import File, Visitor, Workload


def population(*rude: bool) -> Workload:
    visitors = tuple(Visitor(str(n), 0.0, 1e6, (), rude=one) for n, one in enumerate(rude))
    return Workload("two", 0, visitors, 1e6)


def test_rudeness_is_judged_against_the_same_clients_when_polite() -> None:
    crowd = population(True, True, False, False)
    calm = [10.0, 30.0, 100.0, 300.0]
    assert rude_gain(crowd, calm, calm) == 0.0, "small wishes are no gain of rudeness"
    sooner = [5.0, 15.0, 100.0, 300.0]
    assert rude_gain(crowd, sooner, calm) == pytest.approx(0.5)
    at_the_cost_of_others = [10.0, 30.0, 125.0, 375.0]
    assert rude_gain(crowd, at_the_cost_of_others, calm) == pytest.approx(0.2)


def test_who_gave_up_is_left_out_and_nobody_to_compare_is_no_number() -> None:
    calm = [10.0, math.nan, 100.0]
    times = [20.0, 1.0, 100.0]
    assert rude_gain(population(True, True, False), times, calm) == pytest.approx(-1.0)
    assert math.isnan(rude_gain(population(False, False, False), times, calm))
    assert math.isnan(rude_gain(population(True, True, True), times, calm))


def measured(**download: float) -> dict[str, float]:
    """The figures of a run with one download."""
    tally = RunRecord()
    tally.downloads.extend(download.get(name, math.nan) for name in DOWNLOAD_FIELDS)
    visitor = Visitor("a", 0.0, 1e6, (File("f", 100),))
    return measure(Workload("one", 0, (visitor,), 1e6, 100), Conditions(1e6), tally)


@pytest.mark.parametrize(("size_bytes", "small"), [(99, True), (100, False)])
def test_a_file_of_the_bound_is_no_small_one(size_bytes: int, small: bool) -> None:
    figures = measured(size_bytes=size_bytes, asked_s=1.0, first_byte_s=4.0, gave_up=0.0)
    waits = {"wait_small_s": 3.0, "wait_large_s": math.nan}
    if not small:
        waits = {"wait_small_s": math.nan, "wait_large_s": 3.0}
    assert {name: figures[name] for name in waits} == pytest.approx(waits, nan_ok=True)


@pytest.mark.parametrize(("left_s", "told"), [(9.0, 0.0), (11.0, 1.0)])
def test_a_client_that_left_before_its_bound_proves_nothing(left_s: float, told: float) -> None:
    promise = {"promised_at_s": 0.0, "promised_s": 5.0, "promised_p90_s": 10.0}
    figures = measured(size_bytes=100, ended_s=left_s, gave_up=1.0, **promise)
    assert figures["eta_told"] == told
    assert figures["eta_within_p90"] == (0.0 if told else pytest.approx(math.nan, nan_ok=True))


def test_later_is_by_more_than_five_seconds_and_five_percent() -> None:
    assert later([14.0, 16.0, 208.0, 211.0], [10.0, 10.0, 200.0, 200.0]) == 0.5
