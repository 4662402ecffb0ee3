"""A plan: who the crowd is taken to be, and what it takes to serve it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from loadtest.sim.plan import (
    MOST_CLIENTS,
    Crowd,
    files_below,
    make_crowd,
    make_plan,
    rows,
    verdict,
    workload_of,
)
from loadtest.workloads import File

ISO, IMG, SUMS = File("a.iso", 5_000_000), File("sub/b.img", 2_000_000), File("SHA256SUMS", 300)


def test_hidden_files_are_not_offered(tmp_path: Path) -> None:
    for name in ("a.iso", "sub/b", ".hidden", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert [file.name for file in files_below(tmp_path)] == ["a.iso", "sub/b"]


def test_each_takes_a_large_file_and_a_small_one_beside_it() -> None:
    crowd = make_crowd([ISO, IMG, SUMS], 10, 60.0, [("*.iso", 3.0)])
    assert crowd.large == ((ISO, 3.0), (IMG, 1.0))
    assert crowd.small == (SUMS,)
    assert crowd.wanted_bytes == pytest.approx(10 * (4_250_000 + 300))
    workload, each = workload_of(crowd)
    assert each == 1.0
    assert all(visitor.files[0] == SUMS for visitor in workload.visitors)


def test_small_files_alone_are_what_people_come_for() -> None:
    crowd = make_crowd([SUMS], 10, 60.0)
    assert (crowd.large, crowd.small) == (((SUMS, 1.0),), ())
    with pytest.raises(ValueError, match="no file that anybody"):
        make_crowd([File("empty", 0)], 10, 60.0)
    with pytest.raises(ValueError, match="no file has a name"):
        make_crowd([SUMS], 10, 60.0, [("*.iso", 1.0)])


def test_a_large_crowd_is_played_by_few_on_a_thinner_line() -> None:
    workload, each = workload_of(make_crowd([ISO], 10 * MOST_CLIENTS, 60.0))
    assert (len(workload.visitors), each) == (MOST_CLIENTS, 10.0)


def crowd() -> Crowd:
    return make_crowd([ISO, SUMS], 40, 60.0)


def test_the_line_that_is_named_keeps_the_wish_and_a_thinner_one_does_not() -> None:
    told: list[float] = []
    plan = make_plan(crowd(), 1_000_000.0, "fair", 5.0, told.append)
    assert plan.ours.lost_s > 5.0
    assert plan.needed is not None
    assert plan.needed.lost_s <= 5.0
    assert plan.needed.bandwidth_bytes_s > 1_000_000.0
    assert plan.plain.lost_s >= plan.ours.lost_s
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert "below 5 s it takes" in verdict(plan)
    assert len(rows(plan)[0]) == 4


def test_a_line_that_is_wide_enough_is_said_to_be() -> None:
    plan = make_plan(crowd(), 500_000_000.0, "fair", 10.0)
    assert "would be enough to stay below 10 s" in verdict(plan)
    assert not math.isnan(plan.ours.mean_s)
