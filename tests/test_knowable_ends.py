"""Other futures of random days, and the ends that could be told."""

from __future__ import annotations

import random

import pytest

from tests.knowable_ends import AwaitingEngine, RememberingEngine, ideal_errors, other_future
from tests.random_days import draw_day


def test_another_future_has_the_same_past() -> None:
    """What was known when an end was told stays, and the download is told the same end."""
    day = draw_day(50_025)
    engine = RememberingEngine(day)
    engine.told()
    moment = engine.moments[len(engine.moments) // 2]
    at_s = moment.told.promise[0]
    visitors = other_future(day, moment, random.Random(1)).visitors
    assert [one.arrival_s for one in visitors] == sorted(one.arrival_s for one in visitors)
    changed = 0
    for number, (one, before) in enumerate(zip(visitors, day.workload.visitors, strict=True)):
        if before.arrival_s <= at_s:
            assert (one.key, one.arrival_s) == (before.key, before.arrival_s)
            known = moment.file_numbers.get(number, len(one.files)) + 1
            assert one.files[:known] == before.files[:known]
            if number in moment.seen:
                assert one.rate_bytes_s == before.rate_bytes_s
        else:
            assert one.arrival_s > at_s
        changed += one != before
    assert changed > 10
    again = AwaitingEngine(day, other_future(day, moment, random.Random(1)), moment)
    again.ended_s()
    assert again.promise == pytest.approx(moment.told.promise)


def test_the_same_future_has_the_same_end() -> None:
    day = draw_day(50_025)
    engine = RememberingEngine(day)
    engine.told()
    moment = engine.moments[len(engine.moments) // 2]
    again = AwaitingEngine(day, day.workload, moment)
    assert again.ended_s() == pytest.approx(moment.told.ended_s)


def test_an_ideal_end_is_nearer_than_a_told_one_where_all_is_known() -> None:
    """All come at once, for one size of files, and their speeds fill the line."""
    errors = ideal_errors(50_061, ends=3, futures=3)
    assert len(errors) == 3
    assert all(ideal < 0.1 for _, ideal in errors)
    assert any(ideal < told for told, ideal in errors)
