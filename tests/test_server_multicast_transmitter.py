"""The token bucket keeps its rate whatever the socket and the clock do."""

from __future__ import annotations

import errno
from typing import Any

from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs

from tests.multicast_link import MARKS, open_packet
from tidegate.protocol.fec import BlockLayout, FecParameters, scheme_for
from tidegate.protocol.packet import HEADER, PAYLOAD_OFFSET, WIRE_OVERHEAD_BYTES, PacketFlag
from tidegate.server.multicast.carousel import Carousel
from tidegate.server.multicast.schedule_steps import CarouselSettings
from tidegate.server.multicast.symbols import ObjectChanged, SymbolSource
from tidegate.server.multicast.transmitter import Framer, Transmitter

SYMBOL = 1000
WIRE = SYMBOL + PAYLOAD_OFFSET + WIRE_OVERHEAD_BYTES


class Socket:
    """Takes so many datagrams a call."""

    def __init__(self) -> None:
        self.room = 1000
        self.datagrams = 0
        self.closed = False
        self.fault: OSError | None = None
        self.most_bytes = 65_507
        self.marks: list[bytes] = []
        self.headers: list[bytes] = []
        self.waiting = 0.0

    def waiting_bytes(self) -> float:
        return self.waiting

    def send_one(self, datagram: bytes) -> bool:
        if self.fault is not None:
            raise self.fault
        self.datagrams += 1
        self.marks.append(datagram)
        return True

    def send_equal(self, pieces: list[Any], parts: int, size: int) -> int:
        if self.fault is not None:
            raise self.fault
        if size > self.most_bytes:
            raise OSError(errno.EMSGSIZE, "Message too long")
        took = min(self.room, len(pieces) // parts)
        self.headers += [bytes(header) for header in pieces[: took * parts : parts]]
        self.datagrams += took
        return took

    def close(self) -> None:
        self.closed = True


class House:
    def __init__(self, rate: float, blocks: int = 100, read: Any = None) -> None:
        self.clock = Clock()
        layout = BlockLayout(SYMBOL * 100 * blocks, SYMBOL, 100)
        scheme = scheme_for(FecParameters("none", SYMBOL, 100))
        settings = CarouselSettings(lead_s=0.0, repair=False)
        carousel = Carousel(layout, scheme, settings, 0.0)
        self.socket = Socket()
        self.reasons: list[str] = []
        self.charged = 0
        source = SymbolSource(layout, scheme, read or (lambda at, n: bytes(n)))
        self.transmitter = Transmitter(
            self.clock,
            carousel,
            source,
            Framer(1, b"k" * 16, MARKS),
            self.socket,
            SYMBOL + PAYLOAD_OFFSET,
            rate,
            self.reasons.append,
            charge=self.charge,
        )
        self.transmitter.start()

    def charge(self, size: int) -> None:
        self.charged += size

    def run(self, seconds: float, step_s: float = 0.001) -> int:
        before = self.socket.datagrams
        for _ in range(round(seconds / step_s)):
            self.clock.advance(step_s)
        return self.socket.datagrams - before


def test_the_rate_counts_what_the_wire_carries() -> None:
    for rate in (1e5, 1e6, 1e7):
        house = House(rate, blocks=1000)
        house.run(1.0)
        assert abs(house.charged / rate - 1) < 0.05
        marks = sum(WIRE - SYMBOL - PAYLOAD_OFFSET + len(mark) for mark in house.socket.marks)
        symbols = (house.socket.datagrams - len(house.socket.marks)) * WIRE
        assert house.charged == house.transmitter.sent_bytes == symbols + marks
        assert 5 < len(house.socket.marks) < 10


def test_what_waits_in_this_host_is_no_queue_on_the_way() -> None:
    """A burst after a late timer stood before a full line, and looked like congestion there."""
    house = House(1e6)
    house.socket.waiting = 20_000.0 * (SYMBOL + PAYLOAD_OFFSET) / WIRE
    house.run(0.01)
    leaves = [HEADER.unpack(header)[-1] / 1e6 for header in house.socket.headers]
    assert leaves
    assert all(0.02 - 1e-6 <= second <= 0.03 + 1e-6 for second in leaves)
    # The line is no slower when the session is.
    house.socket.headers.clear()
    house.transmitter.rate_bytes_s /= 10
    house.clock.advance(0.1)
    later = [HEADER.unpack(header)[-1] / 1e6 for header in house.socket.headers]
    assert later
    assert all(second <= house.clock.seconds() + 0.02 + 1e-6 for second in later)


def test_a_late_timer_does_not_become_a_burst() -> None:
    house = House(1e7)
    house.run(0.1)
    before = house.socket.datagrams
    house.clock.advance(1.0)
    house.run(0.01)
    assert (house.socket.datagrams - before) * WIRE < 1e7 * 0.055


def test_what_a_full_socket_did_not_take_goes_first_later() -> None:
    house = House(1e7, blocks=3)
    house.socket.room = 3
    house.run(0.1)
    house.socket.room = 1000
    house.run(0.3)
    assert house.reasons == ["finished"]
    # All symbols once, and the marks.
    assert house.socket.datagrams == 300 + len(house.socket.marks)
    assert closing(house)[-3:] == [True] * 3
    assert house.socket.closed


def test_the_rate_can_change_while_it_runs() -> None:
    house = House(1e6, blocks=1000)
    house.run(0.2)
    house.transmitter.rate_bytes_s = 4e6
    assert abs(house.run(0.5) * WIRE / 2e6 - 1) < 0.1


def test_a_file_that_changed_and_a_network_that_is_gone_end_it_once() -> None:
    def changed(at: int, length: int) -> bytes:
        raise ObjectChanged("the file was written to")

    house = House(1e6, read=changed)
    house.run(0.1)
    assert house.reasons == ["the file was written to"]
    assert closing(house)[-3:] == [True] * 3
    other = House(1e6)
    other.socket.fault = OSError(101, "Network is unreachable")
    other.run(0.1)
    assert other.reasons == ["the network refused: Network is unreachable"]
    other.transmitter.stop("again")
    other.transmitter.start()
    other.run(0.1)
    assert len(other.reasons) == 1
    assert other.socket.datagrams == 0


def test_a_fault_in_the_sender_ends_its_session_and_is_counted() -> None:
    def boom(at: int, length: int) -> bytes:
        raise RuntimeError("boom")

    house = House(1e6, read=boom)
    with capturedLogs() as logged:
        house.run(0.1)
    assert house.reasons == ["the sender failed"]
    assert closing(house)[-1:] == [True], "receivers need not wait for silence"
    assert [event["log_level"] for event in logged] == [LogLevel.critical]


def closing(house: House) -> list[bool]:
    """Of each mark that was sent, whether it says that the session is over."""
    headers = [open_packet(b"k" * 16, mark)[0] for mark in house.socket.marks]
    return [bool(header.flags & PacketFlag.CLOSE_SESSION) for header in headers]


def test_an_mtu_that_shrinks_ends_it_and_the_members_are_told() -> None:
    house = House(1e6)
    house.run(0.1)
    assert house.socket.datagrams > 10
    assert house.reasons == []
    house.socket.most_bytes = SYMBOL
    sent = house.socket.datagrams
    house.run(0.1)
    size = SYMBOL + PAYLOAD_OFFSET
    assert house.reasons == [f"datagrams of {size} bytes do not fit the interface's MTU any more"]
    assert house.socket.datagrams == sent + 3
    assert closing(house)[-4:] == [False, True, True, True]
    assert house.socket.closed


def test_an_mtu_that_takes_not_even_a_mark_ends_it_too() -> None:
    house = House(1e6)
    house.socket.fault = OSError(errno.EMSGSIZE, "Message too long")
    house.run(0.1)
    assert house.reasons == ["the network refused: Message too long"]


def test_who_ends_it_from_outside_still_tells_the_members() -> None:
    house = House(1e6)
    house.run(0.1)
    house.transmitter.stop("the server stops")
    house.transmitter.stop("again")
    assert house.reasons == ["the server stops"]
    assert closing(house)[-2:] == [False, True]
