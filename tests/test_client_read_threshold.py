"""How many bytes gather before they are read: the rule alone, and on a real connection."""

from __future__ import annotations

import asyncio
import socket
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.client.net.network import Endpoint, Transport
from tidegate.client.net.sockets import TUNING, AsyncioNetwork, ReadThreshold, run_blocking

MBIT_BYTES_S = 125_000
SURE = 1 << 30
SWEEP_MS = round(TUNING.sweep_s * 1000)


def steady(rate_bytes_s: float, seconds: float) -> ReadThreshold:
    threshold = ReadThreshold()
    for step in range(int(seconds * 1000)):
        threshold.took(int(rate_bytes_s / 1000), step / 1000)
    return threshold


def test_bytes_gather_for_some_milliseconds_at_the_rate_of_late() -> None:
    assert 19_000 < steady(20 * MBIT_BYTES_S, 0.2).threshold_bytes(SURE) <= 20_480
    assert steady(1000 * MBIT_BYTES_S, 0.2).threshold_bytes(SURE) == 48 << 10


def test_a_slow_line_and_a_new_one_are_read_at_once() -> None:
    assert steady(MBIT_BYTES_S, 1.0).threshold_bytes(SURE) == 1
    assert steady(100 * MBIT_BYTES_S, 0.03).threshold_bytes(SURE) == 1


def test_what_has_become_slower_is_read_at_once_and_measured_anew() -> None:
    threshold = steady(20 * MBIT_BYTES_S, 0.2)
    assert not threshold.calm()
    assert threshold.calm()
    assert threshold.threshold_bytes(SURE) == 1
    threshold.took(1 << 20, 3.0)
    assert threshold.threshold_bytes(SURE) == 1


@given(
    reads=st.lists(st.tuples(st.integers(1, 1 << 18), st.floats(0, 0.1)), max_size=60),
    sure_bytes=st.integers(-(1 << 15), 1 << 20),
)
def test_never_more_is_waited_for_than_will_come(
    reads: list[tuple[int, float]], sure_bytes: int
) -> None:
    threshold = ReadThreshold()
    now = 0.0
    for count, pause_s in reads:
        now += pause_s
        threshold.took(count, now)
    assert 1 <= threshold.threshold_bytes(sure_bytes) <= max(1, sure_bytes)


class _Counting:
    """A receiver that expects far more than will ever come."""

    def __init__(self) -> None:
        self.count = 0
        self.transport: Transport | None = None
        self.lost_text: str | None = None

    def connected(self, transport: Transport) -> None:
        self.transport = transport

    def secured(self) -> None:
        raise AssertionError("there is no TLS here")

    def received(self, data: memoryview) -> None:
        assert self.transport is not None
        self.count += len(data)
        self.transport.expect(SURE)

    def lost(self, text: str, permanent: bool) -> None:
        self.lost_text = text


def test_a_few_bytes_after_many_are_not_left_lying() -> None:
    async def talk() -> None:
        loop = asyncio.get_running_loop()
        network, receiver = AsyncioNetwork(), _Counting()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            host, port = listener.getsockname()
            network.connect(Endpoint(host, port), receiver, 10.0)
            peer, _ = await loop.sock_accept(listener)
        with peer:
            peer.setblocking(False)

            async def until_received(total: int) -> None:
                while receiver.count < total:
                    await asyncio.sleep(0.001)

            sent = most = 0
            async with asyncio.timeout(30.0):
                while most <= 1 and sent < 64 << 20:
                    await loop.sock_sendall(peer, bytes(16 << 10))
                    sent += 16 << 10
                    await until_received(sent)
                    sock = receiver.transport._transport.get_extra_info("socket")  # type: ignore[union-attr]
                    most = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
                if sys.platform == "linux":
                    assert most > 1
                await loop.sock_sendall(peer, b"few")
                await until_received(sent + 3)
        async with asyncio.timeout(30.0):
            while receiver.lost_text is None:
                await asyncio.sleep(0.001)
        await network.close()

    run_blocking(talk)


@settings(max_examples=100)
@given(
    rate_mbit=st.sampled_from([3, 20, 200, 1000]),
    arrivals=st.lists(
        st.tuples(st.integers(0, 200), st.integers(1, 100_000)), min_size=1, max_size=40
    ),
    expected=st.one_of(st.just(SURE), st.integers(-20_000, 100_000)),
)
def test_whatever_comes_and_stops_nothing_lies_unread_for_more_than_two_sweeps(
    rate_mbit: int, arrivals: list[tuple[int, int]], expected: int
) -> None:
    """After 0.2 s at a steady rate bytes come as they like (ms of pause, count), and then no more:
    the last of an answer, half a TLS record, a sender that waits for us. `expected` is wrong, as
    it is where the sender breaks off."""
    coming = [(ms, rate_mbit * 125) for ms in range(200)]
    end_ms = 200
    for pause_ms, count in arrivals:
        end_ms += pause_ms
        coming.append((end_ms, count))
    by_ms: dict[int, int] = {}
    for at_ms, count in coming:
        by_ms[at_ms] = by_ms.get(at_ms, 0) + count
    rule, low_water, unread, since_ms = ReadThreshold(), 1, 0, 0
    for ms in range(end_ms + 3 * SWEEP_MS):
        if ms in by_ms:
            since_ms = since_ms if unread else ms
            unread += by_ms[ms]
        if ms % SWEEP_MS == 0 and low_water > 1 and rule.calm():
            low_water = 1
        if unread >= low_water:
            rule.took(unread, ms / 1000)
            low_water, unread = rule.threshold_bytes(expected), 0
        assert not unread or ms - since_ms < 2 * SWEEP_MS
    assert unread == 0
