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


def balanced_mean_s(machines: int) -> float:
    """The mean time of 300 clients, whom a balancer sends to the machine with the fewest.

    The machines have equal lines of 40 MB/s together, and no client takes more than 3 MB/s.
    """
    slots, line_bytes_s = 150 // machines, LINE_BYTES_S / machines
    fleet = FleetHouse(
        "fair",
        slots=slots,
        count=machines,
        machines=True,
        holds_most=5_000,
        network_shares=0,
        bandwidth_bytes_s=line_bytes_s,
    )
    for link in fleet.links:
        link.drop()
    fleet.leader.stop()
    fleet.lead(bandwidth_bytes_s=line_bytes_s)
    rng = random.Random(1)
    asked: dict[int, Asked] = {}
    running: dict[int, FakeTransfer] = {}
    began_s: dict[int, float] = {}
    over_s: list[float] = []
    here: list[set[int]] = [set() for _ in range(machines)]
    for step in range(4_000):
        if step < 300:
            size_bytes = rng.choice((2, 5, 9, 30, 60)) * MB
            fewest = min(range(machines), key=lambda one: len(here[one]))
            address = f"10.{rng.randrange(200)}.{step // 250}.{step % 250}"
            asked[step] = fleet.ask_at(
                fewest, address, file=f"/{step}.iso", size_bytes=size_bytes, agent="curl/8.0"
            )
            began_s[step] = fleet.clock.seconds()
            here[fewest].add(step)
        for _ in range(4):
            fleet.clock.advance(0)
        for index in [index for index, one in asked.items() if one.started]:
            running[index] = asked.pop(index).transfer
        for those, outlet in zip(here, fleet.outlets, strict=True):
            sending = [i for i in those if i in running and not running[i].paused]
            share = min(3 * MB, line_bytes_s / max(1, len(sending)))
            outlet.goodput = share * len(sending)
            outlet.sent_bytes_total += int(outlet.goodput * STEP_S)
            outlet.link_busy = bool(sending) and share < 3 * MB
            for index in sending:
                one = running[index]
                one.send(min(one.total_bytes - one.sent_bytes, int(share * STEP_S)))
                if one.sent_bytes == one.total_bytes:
                    running.pop(index).finish()
                    those.remove(index)
                    over_s.append(fleet.clock.seconds() - began_s[index])
        fleet.clock.advance(STEP_S)
        if len(over_s) == 300:
            return sum(over_s) / 300
    raise AssertionError(f"{300 - len(over_s)} never ended")


def test_three_machines_behind_a_balancer_take_as_long_as_one_with_their_lines() -> None:
    """First bytes that waited for a full line once kept their turns from an idle one: +10 %."""
    assert balanced_mean_s(3) <= 1.05 * balanced_mean_s(1)
