"""The cap holds, is shared max-min, and slow takers leave the rest to the others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock

from server.pacer import Pacer


class Taker:
    """Takes up to `rate_bytes_s`; a full one asks for turns again when it has room."""

    def __init__(self, pacer: Pacer, clock: Clock, rate_bytes_s: float) -> None:
        self.pacer = pacer
        self.clock = clock
        self.rate_bytes_s = rate_bytes_s
        self.sent = 0
        self.waiting = False
        self.lifted = False

    def room(self) -> int:
        return int(self.rate_bytes_s * self.clock.seconds()) - self.sent

    def push(self, most_bytes: int) -> int:
        count = max(0, min(most_bytes, self.room()))
        self.sent += count
        self.waiting = count < most_bytes
        return count

    def uncapped(self) -> None:
        self.lifted = True

    def poll(self) -> None:
        if self.waiting and self.room() >= 2048:
            self.waiting = False
            self.pacer.ready(self)


def run(clock: Clock, takers: list[Taker], seconds: float) -> None:
    for _ in range(int(seconds * 100)):
        clock.advance(0.01)
        for taker in takers:
            taker.poll()


@given(
    st.lists(st.sampled_from([20_000.0, 100_000.0, 10_000_000.0]), min_size=1, max_size=5),
    st.sampled_from([50_000.0, 400_000.0, 3_000_000.0]),
)
@settings(max_examples=25)
def test_rates_are_max_min_fair_under_the_cap(rates: list[float], cap: float) -> None:
    clock = Clock()
    pacer = Pacer(clock, cap)
    takers = [Taker(pacer, clock, rate) for rate in rates]
    for taker in takers:
        pacer.ready(taker)
    run(clock, takers, 8)
    left, fair = cap, {}
    for position, index in enumerate(sorted(range(len(rates)), key=lambda i: rates[i])):
        fair[index] = min(rates[index], left / (len(rates) - position))
        left -= fair[index]
    total = sum(taker.sent for taker in takers)
    assert total <= cap * 8 + cap * 0.06 + 2 * 16384
    for index, taker in enumerate(takers):
        assert taker.sent == pytest.approx(fair[index] * 8, rel=0.12, abs=40_000)


def test_bytes_that_left_without_asking_are_paid_for_later() -> None:
    clock = Clock()
    pacer = Pacer(clock, 100_000)
    taker = Taker(pacer, clock, 1e9)
    pacer.ready(taker)
    pacer.charge(50_000)
    run(clock, [taker], 1)
    assert taker.sent < 70_000
    assert pacer.link_busy


def test_lifting_the_cap_frees_those_who_stood_in_line() -> None:
    clock = Clock()
    pacer = Pacer(clock, 1000)
    taker = Taker(pacer, clock, 1e9)
    pacer.ready(taker)
    assert pacer.capped
    pacer.set_bandwidth(None)
    assert taker.lifted
    assert not pacer.link_busy
    assert not pacer.capped


def test_goodput_is_what_left_lately() -> None:
    clock = Clock()
    pacer = Pacer(clock)
    for _ in range(30):
        pacer.charge(10_000)
        clock.advance(0.1)
        goodput = pacer.goodput_bytes_s()
    assert goodput == pytest.approx(100_000, rel=0.1)
    for _ in range(30):
        clock.advance(0.1)
        goodput = pacer.goodput_bytes_s()
    assert goodput == 0.0
