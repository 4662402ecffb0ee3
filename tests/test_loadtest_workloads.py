"""Populations are the paper's, repeatable, and survive being written as a trace."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tidegate.loadtest.trace import from_trace, to_trace
from tidegate.loadtest.workloads import (
    RELEASE_DAY,
    WORKLOADS,
    Visitor,
    bounded_pareto,
    bounded_pareto_mean,
    exp1,
    exp2,
    make_workload,
    release_pareto,
    required_bandwidth,
    with_rude,
)


def share_with(workloads: list[tuple[Visitor, ...]], size: int) -> float:
    everybody = [visitor for visitors in workloads for visitor in visitors]
    with_it = [v for v in everybody if any(file.size_bytes == size for file in v.files)]
    return len(with_it) / len(everybody)


def test_the_megabyte_is_wanted_by_as_many_as_in_the_paper() -> None:
    assert share_with([exp1(s).visitors for s in range(20)], 1_000_000) == pytest.approx(
        0.625, abs=0.02
    )
    assert share_with([exp2(s).visitors for s in range(20)], 1_000_000) == pytest.approx(
        0.286, abs=0.02
    )


@pytest.mark.parametrize(("make", "clients"), [(exp1, 200), (exp2, 400)])
def test_experiments_have_the_papers_clients(make: object, clients: int) -> None:
    assert callable(make)
    visitors = make(7).visitors
    assert len(visitors) == clients
    assert all(0 <= v.arrival_s <= 600 and 1_600 <= v.rate_bytes_s <= 35_000 for v in visitors)
    assert [v.arrival_s for v in visitors] == sorted(v.arrival_s for v in visitors)
    assert all(len(set(v.files)) == len(v.files) for v in visitors)


def test_required_bandwidth_counts_only_what_a_client_can_still_take() -> None:
    whole = exp1(0).visitors[0]
    late = replace(whole, arrival_s=590.0, rate_bytes_s=100.0)
    assert required_bandwidth([late], 600.0) == pytest.approx(
        min(late.total_bytes, 1_000.0) / 600.0
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_name_and_a_seed_say_everything(name: str) -> None:
    assert make_workload(name, 5) == make_workload(name, 5)
    assert make_workload(name, 5).name == name
    assert make_workload(name, 5).visitors != make_workload(name, 6).visitors


def test_a_release_day_asks_for_half_as_much_again_as_the_link_has() -> None:
    asked = [
        sum(v.total_bytes for v in release_pareto(seed).visitors if v.arrival_s < 600.0)
        for seed in range(30)
    ]
    assert sum(asked) / len(asked) / 600.0 == pytest.approx(
        1.5 * RELEASE_DAY.bandwidth_bytes_s, rel=0.1
    )


def test_bounded_pareto_stays_within_its_bounds_and_has_its_mean() -> None:
    draws = [bounded_pareto((i + 0.5) / 200_000, 0.35, 1e3, 1e9) for i in range(200_000)]
    assert min(draws) >= 1e3
    assert max(draws) <= 1e9
    assert sum(draws) / len(draws) == pytest.approx(bounded_pareto_mean(0.35, 1e3, 1e9), rel=1e-3)


def test_abandoning_clients_have_a_patience_and_the_others_do_not() -> None:
    assert all(math.isinf(v.patience_s) for v in release_pareto(0).visitors)
    assert all(v.patience_s < 10_000 for v in release_pareto(0, abandon=True).visitors)


def test_rude_clients_are_a_fraction_and_always_the_same_ones() -> None:
    rude = with_rude(exp2(0), 0.1)
    assert rude == with_rude(exp2(0), 0.1)
    assert 0.05 < sum(v.rude for v in rude.visitors) / 400 < 0.15


def test_a_trace_brings_back_what_was_written() -> None:
    workload = release_pareto(0, abandon=True)
    again = from_trace(to_trace(workload), bandwidth_bytes_s=workload.bandwidth_bytes_s)
    start = workload.visitors[0].arrival_s
    assert [v.files for v in again.visitors] == [v.files for v in workload.visitors]
    assert [v.patience_s for v in again.visitors] == [v.patience_s for v in workload.visitors]
    assert again.visitors[9].arrival_s == workload.visitors[9].arrival_s - start


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        '{"t_s": 1, "client": "a", "file": "f"}',
        '{"t_s": 1, "client": "a", "file": "f", "size_bytes": -1}',
        '{"t_s": 1, "client": "a", "file": "f", "size_bytes": 1, "rate_bytes_s": 0}',
        '{"t_s": NaN, "client": "a", "file": "f", "size_bytes": 1}',
    ],
)
def test_a_bad_trace_line_is_named(line: str) -> None:
    good = '{"t_s": 0, "client": "a", "file": "f", "size_bytes": 1}'
    with pytest.raises(ValueError, match="line 3"):
        from_trace([good, "", line], bandwidth_bytes_s=1.0)
