"""What the history remembers of arrivals."""

from __future__ import annotations

import gc
import sys

from tidegate.server.control.history import Arrivals
from tidegate.server.store.records import ArrivalRecord


def arrival(at_s: float, client: str) -> ArrivalRecord:
    return ArrivalRecord(at_s, client, "/big.iso", 1 << 30, f"program-{client}")


def test_who_asks_again_within_ten_minutes_is_one_arrival() -> None:
    arrivals = Arrivals()
    for at_s in (0.0, 300.0, 590.0, 900.0, 1300.0):
        arrivals.note(arrival(at_s, "a"))
    assert [one.at_s for one in arrivals.take()] == [0.0]
    assert arrivals.program_of("a", "/big.iso") == "program-a"
    assert arrivals.program_of("b", "/big.iso") == arrivals.program_of("a", "/x") == ""
    arrivals.note(arrival(1300.0 + 1300.0, "a"))
    arrivals.note(arrival(1300.0 + 1300.0, "b"))
    assert [one.client for one in arrivals.take()] == ["a", "b"]


def test_clients_that_never_come_again_are_forgotten() -> None:
    arrivals = Arrivals()

    def come(first: int) -> None:
        for number in range(first, first + 60_000):
            arrivals.note(arrival(0.01 * number, f"192.0.2.1#{number}"))
            if number % 100 == 0:
                arrivals.take()
        arrivals.take()

    come(0)
    gc.collect()
    before = sys.getallocatedblocks()
    come(60_000)
    gc.collect()
    assert sys.getallocatedblocks() - before < 20_000
    assert arrivals.program_of("192.0.2.1#119999", "/big.iso")
    assert not arrivals.program_of("192.0.2.1#60001", "/big.iso")
