from __future__ import annotations

import math

import pytest

from tidegate.loadtest.sim.metrics import rude_gain
from tidegate.loadtest.workloads import Visitor, Workload


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
