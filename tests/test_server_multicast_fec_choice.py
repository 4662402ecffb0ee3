"""The best code that all members have, and parity for those who cannot ask."""

from __future__ import annotations

import random

import pytest

from tidegate.protocol.fec import BlockLayout, FecParameters
from tidegate.server.multicast.sessions import choose, fixed_parity

LAYOUT = BlockLayout(10_000_000, 1424, 736)


def test_the_first_code_that_all_members_have_is_chosen():
    assert choose(["raptorq", "xor", "none"], LAYOUT) == FecParameters("raptorq", 1424, 736)
    assert choose(["xor", "none"], LAYOUT) == FecParameters("xor", 1424, 736, 16, 46)
    assert choose(["none"], LAYOUT) == FecParameters("none", 1424, 736)
    assert choose([], LAYOUT) == FecParameters("none", 1424, 736)


def test_without_a_return_channel_parity_is_fixed_ahead():
    choice = choose(["raptorq", "xor"], LAYOUT, return_channel=False)
    assert choice == FecParameters("raptorq", 1424, 736, 0, fixed_parity(0.01, 736) + 2)
    assert fixed_parity(0.01, 64) < fixed_parity(0.1, 64) < fixed_parity(0.3, 64)


@pytest.mark.parametrize("loss", [0.05, 0.3, 0.6])
def test_fixed_parity_covers_the_losses_of_a_whole_block(loss):
    """It ended at 128 symbols, which a block of 736 needs at a loss of 14 %."""
    parity = fixed_parity(loss, 736)
    rng = random.Random(1)
    lost = [sum(rng.random() < loss for _ in range(736 + parity)) for _ in range(300)]
    assert max(lost) <= parity
