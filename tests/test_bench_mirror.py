"""The mirroring bench: a program that never ends costs it no more than a limit."""

from __future__ import annotations

import pytest

from bench.mirror import NotDone, timed


def test_a_program_that_does_not_end_is_ended_and_said_to_be_late() -> None:
    with pytest.raises(NotDone, match=r"sh was not done in 0 s"):
        timed(["sh", "-c", "sleep 60 & sleep 60"], limit_s=0.2)
    assert timed(["sh", "-c", "echo done"], limit_s=60).output == "done\n"
    with pytest.raises(SystemExit, match="wrong"):
        timed(["sh", "-c", "echo wrong; exit 3"])
