"""Who starts when does not depend on how many nodes there are."""

from __future__ import annotations

import os
import random

import pytest

from tests.cluster_house import FleetHouse
from tests.fakes import House

#: 2 000 take minutes: CLUSTER_CLIENTS=2000 runs them.
CLIENTS = int(os.environ.get("CLUSTER_CLIENTS", "400"))
MB = 1_000_000


def starts(house: House, seed: int) -> list[int]:
    """In which order clients start that came in a random order and wait in their requests."""
    rng = random.Random(seed)
    waiting = {}
    for index in range(CLIENTS):
        waiting[index] = house.ask(
            f"10.{rng.randrange(200)}.{index // 250}.{index % 250}",
            file=f"/{index}.iso",
            size_bytes=rng.choice((2, 5, 9, 30, 200)) * MB,
            agent="curl/8.0",
        )
        if index % 40 == 0:
            house.clock.advance(0.3)
    order = []
    for _ in range(20 * CLIENTS):
        # What a message takes is no time; what happens within it is the policy's doing.
        for _ in range(4):
            house.clock.advance(0)
        begun = [index for index, asked in waiting.items() if asked.started]
        order += begun
        for index in begun:
            waiting.pop(index).transfer.finish()
        if not waiting:
            return order
        if not begun:
            house.clock.advance(0.3)
    raise AssertionError(f"{len(waiting)} never started")


@pytest.mark.parametrize("policy", ["ticket", "fair", "adaptive"])
def test_three_nodes_start_everybody_in_the_order_of_one(policy: str) -> None:
    alone = starts(House(policy, slots=1, holds_most=5_000, early_penalty_s=0), 3)
    fleet = starts(FleetHouse(policy, slots=1, holds_most=5_000, early_penalty_s=0, count=3), 3)
    assert sorted(fleet) == list(range(CLIENTS))
    assert fleet == alone
