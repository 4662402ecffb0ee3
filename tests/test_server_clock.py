"""Durations run on the process clock: neither a set clock nor a stop moves them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogEvent, globalLogPublisher

from tests.fakes import House
from tidegate.policies.contract import TicketState
from tidegate.server.admin.turns import LoopTurns
from tidegate.server.app.clock import LOOK_S, STOPPED_S, LoopLag, ProcessClock, ProcessClockReactor
from tidegate.server.http.clock import Repeat


class Machine:
    """A machine whose clocks a test sets."""

    def __init__(self) -> None:
        self.monotonic_s = 50.0
        self.wall_s = 1_000_000.0

    def passes(self, seconds: float) -> None:
        self.monotonic_s += seconds
        self.wall_s += seconds


@given(st.lists(st.tuples(st.floats(0, 0.99 * STOPPED_S), st.floats(-1e6, 1e6)), max_size=30))
def test_a_wall_clock_that_is_set_moves_nothing(steps: list[tuple[float, float]]) -> None:
    machine = Machine()
    clock = ProcessClock(lambda: machine.monotonic_s, lambda: machine.wall_s)
    assert clock() == 1_000_000.0
    expected = clock()
    for passed, stepped in steps:
        machine.passes(passed)
        machine.wall_s += stepped
        expected += passed
        assert abs(clock() - expected) < 1e-6


@given(st.lists(st.floats(0, 1e5), max_size=30))
def test_it_never_runs_backwards_and_stands_still_through_a_stop(gaps: list[float]) -> None:
    machine = Machine()
    clock = ProcessClock(lambda: machine.monotonic_s, lambda: machine.wall_s)
    latest = clock()
    for gap in gaps:
        machine.passes(gap)
        now = clock()
        assert latest - 1e-6 <= now <= latest + STOPPED_S + 1e-6
        latest = now


class LoopClock(Clock):
    """Runs in one turn what was to come when the turn began, as a reactor does."""

    def turn(self) -> None:
        now, self.calls = self.calls, []
        for call in now:
            call.called = 1
            call.func(*call.args, **call.kw)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_in_one_turn_one_piece_of_work_goes_on(pieces: list[int]) -> None:
    clock, took = LoopClock(), []
    turns = LoopTurns(clock)

    async def work(name: int, count: int) -> list[int]:
        def steps() -> Iterator[int]:
            for step in range(count):
                took.append(name)
                clock.rightNow += 0.003
                yield step

        await turns.turn()
        return await turns.all_of(steps())

    ends = [Deferred.fromCoroutine(work(name, count)) for name, count in enumerate(pieces)]
    assert took == []
    while any(not end.called for end in ends):
        before = len(took)
        clock.turn()
        assert len(took) <= before + 1
    assert sorted(took) == sorted(name for name, count in enumerate(pieces) for _ in range(count))
    assert took[: len(pieces)] == list(range(len(pieces))), "in the order in which they came"
    assert [end.result for end in ends] == [list(range(count)) for count in pieces]
    assert not clock.getDelayedCalls()


class SetClock:
    """A wall clock that runs with a house's own until somebody sets it."""

    def __init__(self, house: House) -> None:
        self._clock: Clock = house.clock
        self.ahead_s = 0.0
        house.gate.parts.wall = self

    def __call__(self) -> float:
        return self._clock.seconds() + self.ahead_s


def test_a_ticket_and_its_journal_row_have_wall_time_and_the_policy_has_not() -> None:
    house = House()
    wall = SetClock(house)
    house.ask("192.0.2.1").transfer.send(5_000_000)
    early = house.ask("192.0.2.2")
    wall.ahead_s = -3600.0
    late = house.ask("192.0.2.3")
    rows = {row.client: row for row in house.gate.policy.tickets()}
    assert max(row.issued_s for row in rows.values()) == house.clock.seconds()
    journal = house.journal.rows[max(house.journal.rows)]
    assert journal.issued_s == wall()
    read = house.keys.read_ticket(late.token, "192.0.2.3", "/big.iso", wall())
    assert read.issued_s == wall()
    # Both keep their places with tokens of either time.
    house.wait(5)
    for address, asked in (("192.0.2.2", early), ("192.0.2.3", late)):
        again = house.ask(address, token=asked.token)
        assert again.connection.fields["tidegate-status"] in ("waiting", "ready")


def test_a_journal_from_the_future_is_taken_up() -> None:
    first = House()
    first.ask("192.0.2.1")
    token = first.ask("192.0.2.2").token
    rows = [
        row._replace(issued_s=row.issued_s + 86_400, changed_s=row.changed_s + 86_400)
        for row in first.journal.rows.values()
        if row.state in (TicketState.WAITING, TicketState.READY)
    ]
    second = House(restored=rows, next_number=100)
    assert [row.issued_s for row in second.gate.policy.tickets()] == [1_000_000.0]
    second.wait(1)
    assert second.ask("192.0.2.2", token=token).started


def test_a_reactor_that_has_nothing_to_do_for_long_does_not_seem_stopped() -> None:
    reactor = ProcessClockReactor()
    try:
        assert reactor.timeout() == LOOK_S < STOPPED_S
        reactor.callLater(60.0, lambda: None)
        assert reactor.timeout() == LOOK_S
        reactor.callLater(0.0, lambda: None)
        assert reactor.timeout() < LOOK_S
    finally:
        for call in reactor.getDelayedCalls():
            call.cancel()
        reactor.removeAll()
        reactor._poller.close()


def test_the_longest_turn_of_the_loop_is_remembered_for_a_while() -> None:
    lag = LoopLag()
    assert lag() == 0.0
    lag.add(1000.0, 0.002)
    lag.add(1001.0, 0.3)
    lag.add(1002.0, 0.001)
    assert lag() == 0.3
    lag.add(1061.0, 0.004)
    assert lag() == 0.3, "the window before counts"
    lag.add(1122.0, 0.001)
    assert lag() == 0.004
    lag.add(1123.0, 0.2)
    lag.add(1400.0, 0.001)
    assert lag() == 0.001, "nothing happened for more than a window"


def test_the_reactor_measures_its_turns_and_not_its_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = itertools.count(100.0, 0.5)
    reactor: Any = ProcessClockReactor()
    clock = SimpleNamespace(monotonic=lambda: next(moments))
    monkeypatch.setattr("tidegate.server.app.clock.time", clock)
    try:
        reactor.doIteration(0)
        assert reactor.loop_lag_s() == 0.0
        reactor.doIteration(0)
        assert reactor.loop_lag_s() == 0.5
        next(moments), next(moments)
        reactor.doIteration(0)
        assert reactor.loop_lag_s() == 1.5
    finally:
        reactor.removeAll()
        reactor._poller.close()


@pytest.mark.parametrize("logs_its_faults", [False, True])
def test_the_reactor_tells_readers_and_outlives_their_faults(
    logs_its_faults: bool,
) -> None:
    class Reader:
        def __init__(self, fd: int, faulty: bool) -> None:
            self.fd, self.faulty, self.calls = fd, faulty, 0
            self.logs_its_faults = logs_its_faults

        def fileno(self) -> int:
            return self.fd

        def logPrefix(self) -> str:
            return "reader"

        def doRead(self) -> None:
            self.calls += 1
            if self.faulty:
                raise ValueError("this one fails")

        def connectionLost(self, reason: object) -> None:
            pass

    reactor: Any = ProcessClockReactor()
    pipes = [os.pipe() for _ in range(2)]
    readers = [Reader(read, faulty) for (read, _), faulty in zip(pipes, (True, False), strict=True)]
    told: Any = globalLogPublisher
    faults: list[LogEvent] = []
    told.addObserver(faults.append)
    try:
        for (_, write), reader in zip(pipes, readers, strict=True):
            os.write(write, b"x")
            reactor.addReader(reader)
        reactor.doIteration(0)
        assert [reader.calls for reader in readers] == [1, 1]
        assert any("this one fails" in str(event) for event in faults)
    finally:
        told.removeObserver(faults.append)
        reactor.removeAll()
        reactor._poller.close()
        for pair in pipes:
            for fd in pair:
                os.close(fd)


def test_a_repeated_call_survives_its_own_fault_and_can_end_itself() -> None:
    clock = Clock()
    seen: list[float] = []

    def work() -> None:
        seen.append(clock.seconds())
        if len(seen) == 1:
            raise OSError("the first one fails")
        if len(seen) == 3:
            timer.stop()

    timer = Repeat(clock, 2.0, work)
    timer.start()
    with pytest.raises(OSError, match="first"):
        clock.advance(2)
    clock.pump([2] * 5)
    assert seen == [2, 4, 6]
    assert not clock.getDelayedCalls()
    timer.stop()
