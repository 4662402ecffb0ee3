"""Rudeness does not pay, as the simulator sees it: a short form of `bench.manners`."""

from __future__ import annotations

import statistics

import pytest

from bench.manners import PAUSES, main, run


@pytest.mark.parametrize("time_scale", [1.0, 10.0])
def test_polite_clients_hardly_notice_attackers(time_scale: float) -> None:
    lost = []
    for seed in (31, 32):
        calm = run("ticket", seed, time_scale, rude=False, attackers=())
        found = run("ticket", seed, time_scale, rude=True, attackers=tuple(PAUSES))
        lost.append(found.polite_s / calm.polite_s - 1.0)
    assert statistics.fmean(lost) < 0.05


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--policy", "ticket"]) in (0, 1)
    assert "| all of them |" in capsys.readouterr().out
