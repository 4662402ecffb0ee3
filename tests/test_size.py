"""Rooms keep to their budgets, and the list of slow tests has no stranger."""

from __future__ import annotations

import ast

import pytest

from tests.conftest import SLOW
from tests.size import BUDGETS, measured

SIZES = measured()


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_to_its_budget(room: str) -> None:
    most = BUDGETS[room]
    assert SIZES[room].lines <= most.lines, (
        f"{room} has more lines than its budget in tests/size.py"
    )
    assert SIZES[room].constants <= most.constants, f"{room} has more constants than its budget"


def test_each_slow_test_is_one_of_the_suite() -> None:
    for line in SLOW.read_text("utf-8").split():
        file, _, name = line.partition("::")
        tree = ast.parse((SLOW.parent / file).read_text("utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, line
