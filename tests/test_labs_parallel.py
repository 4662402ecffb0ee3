from __future__ import annotations

import pytest

from bench.parallel.lab import SCENARIOS, TOOLS, LabRun, optimum_s, row


def ran(ratio: float, *, right: bool = True, status: int = 0) -> list[LabRun]:
    return [LabRun(ratio, 1.0, 0.001, right, status)]


def test_the_table_has_the_peers_and_what_was_missed() -> None:
    runs = {
        "tidegate": ran(1.06),
        "aria2-meta": ran(1.2),
        "axel": ran(0.9, right=False),
        "curl": ran(120.0, right=False, status=124),
    }
    cells = ["**1.06** (1.060)", "0.1 %", "1.20", "wrong file", "not done in 120 s"]
    assert row(SCENARIOS[0], runs) == ["static", *cells, "1.05 (missed)"]
    assert row(SCENARIOS[0], {"tidegate": ran(1.02)})[-1] == "1.05"


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [("static", 2.0), ("stall", 3.0), ("503", 4.0), ("busy", 2.5), ("bottleneck", 5.0)],
)
def test_the_optimum_knows_what_happens(kind: str, seconds: float) -> None:
    """Ten bytes and ten bytes a second, forty in all; the second mirror's fate after a second."""
    assert optimum_s(kind, [10.0, 10.0], 1, 1.0, 40, 8.0) == seconds


def test_every_scenario_names_tools_that_there_are() -> None:
    assert {tool for scenario in SCENARIOS for tool in scenario.tools} <= set(TOOLS)
