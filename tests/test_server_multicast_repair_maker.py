"""The process that makes repair symbols, and senders without it."""

from __future__ import annotations

import random
import sys

import pytest
from twisted.internet.selectreactor import SelectReactor

from tidegate.protocol.fec_raptorq import RaptorQEncoder
from tidegate.server.multicast import repair_maker
from tidegate.server.multicast.repair_maker import RepairMaker
from tidegate.server.multicast.repair_process import MEMORY

K, SIZE = 100, 1024
BLOCKS = [random.Random(number).randbytes(K * SIZE) for number in range(MEMORY.slots)]


class House:
    """A reactor of its own, run until something is true."""

    def __init__(self) -> None:
        self.reactor = SelectReactor()
        self.maker = RepairMaker(self.reactor)
        self.found: dict[int, list[bytes] | None] = {}

    def make(self, number: int, count: int = 20) -> bool:
        def done(symbols: list[bytes] | None) -> None:
            self.found[number] = symbols

        return self.maker.make("raptorq", BLOCKS[number % MEMORY.slots], K, SIZE, count, done)

    def run(self, until) -> None:
        deadline = self.reactor.seconds() + 60
        while not until():
            assert self.reactor.seconds() < deadline
            self.reactor.iterate(0.05)

    def end(self) -> None:
        self.maker.close()
        process = self.maker._process
        if process is not None:
            while process.pid is not None:
                process.reapProcess()
                self.reactor.iterate(0.02)


@pytest.fixture
def house():
    house = House()
    yield house
    house.end()


@pytest.mark.e2e
def test_what_the_process_makes_is_what_the_code_says(house):
    assert not house.make(0)
    house.maker.start()
    assert all(house.make(number, 20 + number) for number in range(MEMORY.slots))
    assert not house.make(99)
    house.run(lambda: len(house.found) == MEMORY.slots)
    for number, block in enumerate(BLOCKS):
        assert house.found[number] == list(RaptorQEncoder(block, K, SIZE).repair(0, 20 + number))
    assert house.make(0)
    house.run(lambda: house.found[0] is not None)


@pytest.mark.e2e
def test_an_order_that_cannot_be_met_is_refused_and_the_next_is_answered(house):
    house.maker.start()
    assert not house.make(0, 1 << 20)
    assert not house.maker.make("xor", BLOCKS[0], K, SIZE, 5, print)
    # Symbols of an odd size: the process says that it failed, and lives.
    found = []
    assert house.maker.make("raptorq", bytes(7 * 9), 7, 9, 5, found.append)
    house.run(lambda: bool(found))
    assert found == [None]
    assert house.make(1)
    house.run(lambda: bool(house.found[1]) if house.found else False)


@pytest.mark.e2e
def test_when_the_process_dies_those_that_wait_are_told(house):
    house.maker.start()
    process = house.maker._process
    assert house.make(0, 2000)
    process.signalProcess("KILL")

    def told() -> bool:
        process.reapProcess()
        return bool(house.found)

    house.run(told)
    house.run(lambda: house.maker._memory is None or process.reapProcess())
    assert not house.make(1)


def test_without_a_process_senders_do_it_themselves(house, monkeypatch):
    monkeypatch.setattr(repair_maker, "_memory_folder", lambda: "/no/such/place")
    house.maker.start()
    assert not house.make(0)
    assert sys.modules["tidegate.server.multicast.repair_process"]
