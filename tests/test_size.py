"""Rooms keep to their budgets, and the list of slow tests has no stranger."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.size import BUDGETS, ROOT, by_feature, measured


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_to_its_budget(room: str) -> None:
    most, size = BUDGETS[room], measured()[room]
    assert size.lines <= most.lines, f"{room} has more lines than its budget in tests/size.py"
    assert size.constants <= most.constants, f"{room} has more constants than its budget"


def test_the_document_says_what_each_feature_takes() -> None:
    text = (ROOT / "docs/decisions/packaging.md").read_text("utf-8")
    told = re.findall(r"(?m)^\| ([^|]+) \| ([0-9.]+) \| [^|]+ \|$", text)
    assert {name: float(thousands) for name, thousands in told} == pytest.approx(
        {name: lines / 1000 for name, lines in by_feature().items()}, rel=0.08, abs=0.06
    )
    stand = re.search(r"and ([0-9.]+) stand", text)
    total = sum(by_feature().values()) / 1000
    assert stand is not None
    assert float(stand[1]) == pytest.approx(total, rel=0.02)


def test_each_slow_test_is_one_of_the_suite() -> None:
    tests = Path(__file__).parent
    for line in (tests / "slow.txt").read_text("utf-8").split():
        file, _, name = line.partition("::")
        tree = ast.parse((tests / file).read_text("utf-8"))
        known = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        # A state machine of Hypothesis is a test by its `TestCase`.
        states = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
        known |= {f"{text.split()[0]}::runTest" for text in states if text.endswith(".TestCase")}
        assert name in known, line
