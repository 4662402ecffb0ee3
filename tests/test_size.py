"""Rooms stay as small as they are: see `tests.size`."""

from __future__ import annotations

import pytest

from tests.size import BUDGETS, measured

SIZES = measured()


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_to_its_budget(room: str) -> None:
    most = BUDGETS[room]
    assert SIZES[room].lines <= most.lines, (
        f"{room} has more lines than its budget in tests/size.py"
    )
    assert SIZES[room].constants <= most.constants, f"{room} has more constants than its budget"
