"""Readers that take hardly anything cost the others hardly anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.attacks.simulated import ATTACKERS, AttackBench


@pytest.mark.timeout(600)
def test_ten_readers_that_stand_still_do_not_make_a_line_look_full() -> None:
    """They used to: the cap fell below the line, and the honest were 9 % longer about it."""
    few = replace(ATTACKERS[0], most=10)
    assert AttackBench("fair", 1).attack(few, "idle").mean <= 0.05
