from __future__ import annotations

import pytest

from bench.parallel.lab import SCENARIOS, TOOLS, optimum_s, table


def row(tool: str, median: float, **more: object) -> dict[str, object]:
    usual = {"scenario": "s", "tool": tool, "ratios": [median], "median": median, "waste": 0.001}
    return {**usual, "right": True, "statuses": [0], "bar": 1.05, **more}


def test_the_table_names_the_best_of_each_peer_and_what_was_missed() -> None:
    lines = list(
        table(
            [
                row("tidegate", 1.02),
                row("tidegate-sum", 1.06),
                row("aria2", 1.3),
                row("aria2-meta", 1.2),
                row("axel", 0.9, right=False),
                row("curl", 120.0, right=False, statuses=[124]),
            ]
        )
    )
    assert len(lines) == 4
    assert "| **1.02** (1.020) | 0.1 % | 1.20 | wrong file | not done in 120 s | 1.05 |" in lines[2]
    assert lines[3].endswith("| 1.05 (missed) |")


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [("static", 2.0), ("stall", 3.0), ("503", 4.0), ("busy", 2.5), ("bottleneck", 5.0)],
)
def test_the_optimum_knows_what_happens(kind: str, seconds: float) -> None:
    """Ten bytes and ten bytes a second, forty in all; the second mirror's fate after a second."""
    assert optimum_s(kind, [10.0, 10.0], 1, 1.0, 40, 8.0) == seconds


def test_every_scenario_names_tools_that_there_are() -> None:
    assert {tool for scenario in SCENARIOS for tool in scenario.tools} <= set(TOOLS)
