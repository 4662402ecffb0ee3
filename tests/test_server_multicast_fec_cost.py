"""The choice of code follows the numbers, not thresholds."""

from __future__ import annotations

import random

import pytest

from tidegate.server.multicast.fec_cost import (
    best_xor_group,
    choose,
    cost_of_counting,
    cost_of_none,
    cost_of_xor,
    fixed_parity,
)

ALL = ("raptorq", "xor", "none")


@pytest.mark.parametrize(
    ("loss", "none", "counting"), [(0.01, 1.078, 1.016), (0.05, 1.357, 1.065), (0.10, 1.656, 1.130)]
)
def test_costs_agree_with_exact_theory_for_eight_receivers(loss, none, counting):
    assert cost_of_none([loss] * 8) == pytest.approx(none, abs=0.003)
    assert cost_of_counting([loss] * 8, 749) == pytest.approx(counting, abs=0.008)


@pytest.mark.parametrize(
    ("loss", "group", "cost"), [(0.01, 32, 1.043), (0.05, 16, 1.197), (0.10, 8, 1.412)]
)
def test_xor_costs_what_the_formula_says(loss, group, cost):
    assert cost_of_xor([loss] * 8, group) == pytest.approx(cost, abs=0.012)
    assert cost_of_xor([loss] * 8, best_xor_group([loss] * 8)) <= cost_of_xor([loss] * 8, group)


def test_raptorq_is_chosen_where_everybody_has_it():
    for loss in (0.01, 0.05, 0.3):
        assert choose([loss] * 8, ALL, 736).scheme == "raptorq"


def test_without_raptorq_the_numbers_decide_between_xor_and_none():
    assert choose([0.01] * 8, ("xor", "none"), 736).scheme == "xor"
    assert choose([0.4] * 20, ("xor", "none"), 736).scheme == "none"


def test_without_loss_nothing_is_added():
    choice = choose([0.0, 0.0], ALL, 736)
    assert choice.cost == 1.0
    assert choice.parity == 0


def test_without_a_return_channel_parity_is_fixed_ahead():
    choice = choose([0.05], ALL, 736, return_channel=False)
    assert (choice.scheme, choice.group) == ("raptorq", 0)
    assert choice.parity == fixed_parity(0.05, 736) + 2
    assert fixed_parity(0.01, 64) < fixed_parity(0.1, 64) < fixed_parity(0.3, 64)


@pytest.mark.parametrize("loss", [0.05, 0.3, 0.6])
def test_fixed_parity_covers_the_losses_of_a_whole_block(loss):
    """It ended at 128 symbols, which a block of 736 needs at a loss of 14 %."""
    parity = fixed_parity(loss, 736)
    rng = random.Random(1)
    lost = [sum(rng.random() < loss for _ in range(736 + parity)) for _ in range(300)]
    assert max(lost) <= parity


def test_one_receiver_nobody_can_reach_does_not_break_the_sums():
    assert choose([1.0, 0.0], ALL, 736).cost < 100
