"""Rudeness does not pay, as the simulator sees it: a short form of `bench.manners`."""

from __future__ import annotations

import statistics

import pytest

from bench.manners import PAUSES, run


@pytest.mark.parametrize("time_scale", [1.0, 10.0])
def test_polite_clients_hardly_notice_attackers(time_scale: float) -> None:
    lost = []
    for seed in (31, 32):
        calm = run("ticket", seed, time_scale, rude=False, attackers=())
        found = run("ticket", seed, time_scale, rude=True, attackers=tuple(PAUSES))
        lost.append(found.polite_s / calm.polite_s - 1.0)
    assert statistics.fmean(lost) < 0.05
