"""What a program reads, from a peer whose window is shut, and what is believed of it."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import FakeTransfer
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.workloads import File, Visitor, Workload
from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.capacity import Capacity
from tidegate.policies.contract import Admit, Job
from tidegate.policies.leases import Lease
from tidegate.policies.reading import ReadingPace, RunningRate
from tidegate.server.admission.downloads import Delivery, LeasedDownload
from tidegate.server.files.sender import tcp_state
from tidegate.server.files.transfer import BodyPlan, TcpState


@given(
    st.lists(st.tuples(st.floats(0.25, 0.6), st.booleans(), st.integers(0, 10**6)), max_size=40),
    st.integers(1_000, 10**6),
)
def test_what_arrives_while_the_window_is_shut_is_what_is_read(
    looks: list[tuple[float, bool, int]], reads_bytes_s: int
) -> None:
    """Whatever came while it was open does not count."""
    pace = ReadingPace()
    now, arrived, shut_before = 0.0, 0, False
    for passed_s, shut, burst in looks:
        now += passed_s
        arrived += round(passed_s * reads_bytes_s) if shut else burst
        told = pace.look(now, arrived, shut)
        if shut and shut_before:
            assert abs(told - reads_bytes_s) <= 0.01 * reads_bytes_s + 10
        else:
            assert told == 0.0
        shut_before = shut


def test_a_reader_that_slows_down_is_seen_within_seconds() -> None:
    """No more than some seconds count."""
    pace, arrived, told = ReadingPace(), 0, 0.0
    for tick in range(240):
        arrived += 25_000 if tick < 200 else 2_500
        told = pace.look(0.25 * tick, arrived, True)
    assert 9_000 <= told <= 30_000
    pace.forget()
    assert pace.look(60.0, arrived, True) == 0.0


def test_what_is_read_is_believed_at_once_and_what_a_kernel_takes_is_not() -> None:
    """After a pause a kernel takes as much as it has room for, at the speed of the line."""
    capacity = Capacity()
    lease = Lease(1, Job("c", "f", 10**8, 10**8), 0.0, None, True)
    capacity.measured(lease, 2e6, False, 0.0)
    assert lease.cap_bytes_s == 2e6
    capacity.measured(lease, 1e6, False, 100_000.0)
    assert lease.cap_bytes_s == 100_000.0
    for held_back in (False, None, True):
        capacity.measured(lease, 2e6, held_back, 0.0)
    assert lease.cap_bytes_s < 700_000.0
    for _ in range(40):
        capacity.measured(lease, 2e6, False, 0.0)
    assert lease.cap_bytes_s > 1.9e6


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30), st.floats(0.25, 0.6))
def test_a_kernel_takes_ahead_what_it_has_room_for_and_again_after_each_pause(
    arrived: list[int], look_s: float
) -> None:
    """All that came later was read by the program."""
    rate = RunningRate()
    for _ in range(2):
        rate.resume()
        rate.look(10_000, look_s)
        assert rate.client_bytes_s(None) < rate.bytes_s
        for fresh in arrived:
            rate.look(fresh, look_s)
            assert rate.client_bytes_s(True) == rate.client_bytes_s(False) == rate.bytes_s
            assert 0.0 <= rate.client_bytes_s(None) <= rate.bytes_s
        for _ in range(100):
            rate.look(50_000, look_s)
        assert rate.client_bytes_s(None) == pytest.approx(50_000 / look_s, rel=0.01)


def test_the_kernel_tells_for_how_long_a_window_was_shut() -> None:
    """Linux counts it while bytes wait for a peer that does not read, and not for one that does."""
    with socket.socket() as door, socket.socket() as peer:
        door.bind(("127.0.0.1", 0))
        door.listen()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        peer.connect(door.getsockname())
        sock, _ = door.accept()
        with sock:
            sock.setblocking(False)
            assert tcp_state(sock).shut_s == 0.0
            try:
                while True:
                    sock.send(bytes(65_536))
            except BlockingIOError:
                pass
            before = tcp_state(sock).shut_s
            time.sleep(0.2)
            state = tcp_state(sock)
            assert state.shut_s - before >= 0.15
            assert not state.has_lost
    one, other = socket.socketpair()
    with one, other:
        assert tcp_state(one) == TcpState()


def kernel_says(*words: tuple[int, int], known_bytes: int = 184) -> Any:
    """A socket of which the kernel says these 32-bit words, each at its offset."""
    told = bytearray(184)
    for offset, word in words:
        struct.pack_into("I", told, offset, word)
    return SimpleNamespace(getsockopt=lambda *asked: bytes(told[:known_bytes]))


def test_what_arrived_behind_a_gap_counts_as_arrived() -> None:
    """One lost packet held back what was known of hundreds: the line looked a tenth too narrow."""
    for known_bytes in (184, 104):
        state = tcp_state(kernel_says((16, 1448), (28, 10), (32, 1), known_bytes=known_bytes))
        assert state.beyond_gaps_bytes == 14_480
        assert state.has_lost
    job = Job("192.0.2.1#x", "/f", 50_000, 50_000)
    download = LeasedDownload(Admit(1), job, None, 0.0)
    plan = BodyPlan(200, (), ((0, 50_000),), 50_000)
    body = Delivery(download, plan, lambda one, go_on: go_on(), lambda one: None)
    sent: Any = FakeTransfer(body, 50_000)
    sent.sent_bytes, sent.flying = 20_000, 15_000
    for beyond, arrived in ((0, 5_000), (14_480, 19_480), (20_000, 19_999)):
        sent.tcp_state = lambda beyond=beyond: TcpState(beyond_gaps_bytes=beyond)
        body.look(sent)
        assert body.seen_bytes == arrived


def test_the_shortest_round_trip_is_what_the_kernel_measured() -> None:
    for told_us, known_bytes, seconds in (
        (23_000, 184, 0.023),
        (0xFFFFFFFF, 184, 0.0),
        (9, 104, 0),
    ):
        state = tcp_state(kernel_says((148, told_us), known_bytes=known_bytes))
        assert state.round_trip_s == seconds


def test_a_window_that_grows_and_is_used_up_is_in_slow_start() -> None:
    """At a round trip of 100 ms newcomers looked idle, and too many ran at once."""
    for flying, until, window, slow in (
        (10, 0x7FFFFFFF, 10, True),
        (6, 40, 10, True),
        # Its client takes no more, or the window has found its size.
        (5, 40, 10, False),
        (40, 40, 40, False),
    ):
        state = tcp_state(kernel_says((24, flying), (76, until), (80, window)))
        assert state.in_slow_start is slow


def test_a_download_tells_what_is_read_of_it_while_all_its_windows_are_shut() -> None:
    """One connection that has room says that the program is not what limits it."""
    size = 10**8
    download = LeasedDownload(Admit(1), Job("192.0.2.1#x", "/f", size, size), None, 0.0)
    bodies = []
    for half in ((0, size // 2), (size // 2, size)):
        plan = BodyPlan(206, (), (half,), size // 2)
        one = Delivery(download, plan, lambda one, go_on: go_on(), lambda one: None)
        one.transfer = body = FakeTransfer(one, size // 2)
        body.blocked = True
        download.join(one)
        bodies.append(body)
    now = 0.0

    def looks(count: int, *shut: float) -> float:
        nonlocal now
        for _ in range(count):
            now += 0.25
            for body, part in zip(bodies, shut, strict=True):
                body.send(10_000)
                body.shut += 0.25 * part
            download.measure(now)
        return download.reads_bytes_s

    assert looks(4, 1.0, 0.5) == 0.0
    assert looks(4, 1.0, 0.98) == 80_000.0
    bodies[0].blocked = False
    assert looks(1, 1.0, 1.0) == 0.0
    bodies[0].blocked = True
    assert looks(4, 1.0, 1.0) == 80_000.0
    download.pause()
    download.resume(now)
    assert download.reads_bytes_s == 0.0


def test_the_simulator_tells_what_is_read_as_a_live_server_sees_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once the client's kernel is full, and never where its line is what makes it slow."""
    told: list[float] = []

    def progress(*given: float) -> None:
        told.append(given[-1])

    monkeypatch.setattr(AdmissionPolicy, "progress", progress)
    visitors = (Visitor("slow", 0.0, 100_000.0, (File("f", 2_000_000),)),)
    workload = Workload("reader", 1, visitors, 5e6)
    scenario = Scenario("ps", bandwidth_bytes_s=5e6)
    for reader_bytes, reads in ((262_144, {0.0, 100_000.0}), (0, {0.0})):
        told.clear()
        conditions = replace(scenario.conditions(workload), reader_bytes=reader_bytes)
        Engine(workload, scenario.make_policy(workload, 1), conditions, 1).run()
        assert {float(round(one, -3)) for one in told} == reads
