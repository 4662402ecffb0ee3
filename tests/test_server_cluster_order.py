"""Who starts when, and how long it takes, does not depend on how many nodes there are."""

from __future__ import annotations

import random

import pytest

from tests.cluster_house import FleetHouse
from tests.fakes import Asked, FakeTransfer, House

#: Four come at a time.
CLIENTS = 160
MB = 1_000_000

STEP_S, LINE_BYTES_S = 0.25, 40 * MB


def sessions(house: House, seed: int) -> tuple[list[int], float]:
    """The order of starts over a line that is full, and the mean time from coming to the end."""
    rng = random.Random(seed)
    asked: dict[int, Asked] = {}
    began_s: dict[int, float] = {}
    order: list[int] = []
    running: dict[int, FakeTransfer] = {}
    over_s: list[float] = []
    for step in range(200 * CLIENTS):
        for _ in range(4 if len(began_s) < CLIENTS and step % 2 == 0 else 0):
            index = len(began_s)
            began_s[index] = house.clock.seconds()
            asked[index] = house.ask(
                f"10.{rng.randrange(200)}.{index // 250}.{index % 250}",
                file=f"/{index}.iso",
                size_bytes=rng.choice((2, 5, 9, 30)) * MB,
                agent="curl/8.0",
            )
        for _ in range(4):
            house.clock.advance(0)
        for index in [index for index, one in asked.items() if one.started]:
            order.append(index)
            running[index] = asked.pop(index).transfer
        # Who sends shares the line evenly.
        sending = [index for index, one in running.items() if not one.paused]
        for index in sending:
            one = running[index]
            left = one.total_bytes - one.sent_bytes
            one.send(min(left, int(LINE_BYTES_S * STEP_S / len(sending))))
        # One at a time: of two in one moment nodes may tell the later first.
        for index in [i for i in sending if running[i].sent_bytes == running[i].total_bytes][:1]:
            running.pop(index).finish()
            over_s.append(house.clock.seconds() - began_s[index])
        house.clock.advance(STEP_S)
        if len(over_s) == CLIENTS:
            return order, sum(over_s) / CLIENTS
    raise AssertionError(f"{CLIENTS - len(over_s)} never ended")


@pytest.mark.parametrize("policy", ["ticket", "fair", "adaptive"])
def test_three_nodes_start_everybody_in_the_order_of_one_and_take_as_long(policy: str) -> None:
    order, alone_s = sessions(House(policy, slots=6, holds_most=5_000, early_penalty_s=0), 5)
    fleet = FleetHouse(policy, slots=6, holds_most=5_000, early_penalty_s=0, count=3)
    fleet_order, fleet_s = sessions(fleet, 5)
    assert sorted(fleet_order) == list(range(CLIENTS))
    assert fleet_order == order
    assert fleet_s == pytest.approx(alone_s, rel=0.02)
