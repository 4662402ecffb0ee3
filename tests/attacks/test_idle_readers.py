"""Readers that take hardly anything cost the others hardly anything."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from bench.attacks.simulated import ATTACKERS, AttackBench
from tests.attacks.server import one_slot
from tests.running import wait_for
from tidegate.policies.capacity import Capacity
from tidegate.policies.contract import Admit, Job
from tidegate.policies.leases import Lease
from tidegate.protocol.intervals import Span
from tidegate.server.admission.downloads import LeasedDownload
from tidegate.server.admission.line import LineKeeper
from tidegate.server.files.pacer import Pacer, Share, TransferState
from tidegate.server.files.transfer import TcpState


@pytest.mark.timeout(600)
def test_ten_readers_that_stand_still_do_not_make_a_line_look_full() -> None:
    """They used to: the cap fell below the line, and the honest were 9 % longer about it."""
    few = replace(ATTACKERS[0], most=10)
    assert AttackBench("fair", 1).attack(few, "idle").mean <= 0.05


class Reader:
    """A sender and its transfer: `holds` bytes lie in its socket, what is beyond arrives."""

    def __init__(self, pacer: Pacer, holds: int, takes: bool) -> None:
        self.share = Share()
        self.sent_at_s = 0.0
        self.sent_bytes = self.seen_bytes = 0
        self.blocked = False
        self.transfer, self.tcp = self, TcpState()
        self._holds, self._takes = holds, takes
        self._pacer = pacer
        self.state, self.state_since_s = TransferState.HELD_UP, 0.0
        self.stands_in: Share | None = None
        self.pause_number, self.burst_at_s = 0, 0.0
        pacer.add(self)
        pacer.move(self, TransferState.RING)

    def push(self, most_bytes: int) -> int:
        room = most_bytes if self._takes else max(0, self._holds - self.sent_bytes)
        count = min(most_bytes, room)
        self.blocked = count < most_bytes
        self.sent_bytes += count
        if self.blocked:
            self._pacer.move(self, TransferState.SOCKET)
        return count

    def watch_socket(self, *, watches: bool) -> None:
        """It never has room again."""

    def trickle(self, most_bytes: int) -> int:
        return 0

    def uncapped(self) -> None:
        self.blocked = False

    def spans(self, count: int) -> Iterator[Span]:
        yield 0, count

    def delivered_bytes(self) -> int:
        return self.sent_bytes - min(self._holds, self.sent_bytes)

    def look(self, transfer: object) -> int:
        fresh, self.seen_bytes = self.delivered_bytes() - self.seen_bytes, self.delivered_bytes()
        return fresh


def test_what_lies_in_the_sockets_of_idle_readers_is_no_part_of_the_line() -> None:
    """It used to be paid for as if it had left: a third less did, and the line looked so full."""
    clock, cap = Clock(), 2_800_000.0
    pacer = Pacer(clock, cap)
    keeper = LineKeeper(pacer, cap)
    downloads: list[LeasedDownload] = []

    def begins(holds: int, *, takes: bool) -> Reader:
        number = len(downloads) + 1
        reader = Reader(pacer, holds, takes)
        job = Job(f"client{number}", "/big.iso", 2_000_000_000, 2_000_000_000)
        download = LeasedDownload(Admit(number, None), job, None, clock.seconds())
        download.deliveries[reader] = None  # type: ignore[arg-type]
        downloads.append(download)
        return reader

    honest, before = [], 0
    for tick in range(40):
        if tick % 4 == 0:
            honest.append(begins(8_000, takes=True))
        for _ in range(15):
            begins(20_000, takes=False)
        for _ in range(25):
            clock.advance(0.01)
        for download in downloads:
            download.look()
        keeper.looked(clock.seconds(), downloads)
        keeper.tick(clock.seconds(), downloads, 0)
        if tick == 19:
            before = sum(reader.sent_bytes for reader in honest)
    took = sum(reader.sent_bytes for reader in honest) - before
    assert took >= 0.9 * 5.0 * cap
    assert keeper.line_bytes_s >= 0.9 * cap


@pytest.mark.parametrize("held_back", [None, False])
def test_a_reader_that_takes_hardly_anything_is_not_believed_to_be_fast(
    held_back: bool | None,
) -> None:
    """It used to be paused as if it were, in one of the few places for others to begin."""
    capacity = Capacity()
    lease = Lease(1, Job("idle", "/big.iso", 2_000_000_000, 2_000_000_000), 0.0, None, True)
    for rate in (9_000.0, 4_000.0, 0.0, 0.0):
        capacity.observe(
            2_000_000.0, link_busy=True, more_wanted=True, line_bytes_s=2e6, downloads=40
        )
        capacity.measured(lease, rate, held_back)
    assert capacity.speed(lease) <= 4_000.0
    # It reads on, and is believed at once.
    capacity.measured(lease, 300_000.0, held_back=False)
    assert capacity.speed(lease) == 300_000.0


@pytest.mark.parametrize("rates", [(0.0,), (9_000.0, 0.0)], ids=["ghosts", "idlers"])
def test_who_took_hardly_anything_tells_nothing_of_those_to_come(rates: tuple[float, ...]) -> None:
    """Ghosts made everybody look slow when they left, so that all newcomers ran at once."""
    capacity = Capacity()

    def downloads(number: int, *rates: float, held_back: bool | None) -> None:
        job = Job(f"client{number}", "/big.iso", 2_000_000_000, 2_000_000_000)
        lease = Lease(number, job, 0.0, None, True)
        for rate in rates:
            capacity.observe(2e6, link_busy=True, more_wanted=True, line_bytes_s=2e6, downloads=40)
            capacity.measured(lease, rate, held_back)
        capacity.learn(lease)

    for number in range(3):
        downloads(number, 400_000.0, held_back=False)
    assert capacity.typical_client_bytes_s == pytest.approx(400_000.0)
    for number in range(3, 100):
        downloads(number, *rates, held_back=None)
    assert capacity.typical_client_bytes_s == pytest.approx(400_000.0)
    assert capacity.recall("client99") == math.inf


def ask(port: int, address: str) -> socket.socket:
    """A request through the trusted proxy, of one that reads no more than it is made to."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", port))
    head = f"Host: x\r\nUser-Agent: curl/8\r\nX-Forwarded-For: {address}\r\n\r\n"
    sock.sendall(b"GET /big.iso HTTP/1.1\r\n" + head.encode())
    sock.setblocking(False)
    return sock


@pytest.mark.e2e
def test_a_network_of_idle_readers_has_its_slots_for_seconds(tmp_path: Path) -> None:
    """Their slots used to be theirs for 10 to 20 s."""
    args = ("--trusted-proxy", "127.0.0.1", "--slots", "4")
    with one_slot(tmp_path, *args) as server, ExitStack() as sockets:
        port = int(server.url.rpartition(":")[2])
        idle = [
            sockets.enter_context(ask(port, f"2001:db8:bad:{number}::1")) for number in range(9)
        ]
        wait_for(lambda: all(map(readable, idle[:4])))
        honest = sockets.enter_context(ask(port, "198.51.100.7"))
        seen = bytearray()

        def started() -> bool:
            if readable(honest):
                seen.extend(honest.recv(1024))
            return b"\r\n\r\n" in seen

        wait_for(started, 9.0)
        assert seen.startswith(b"HTTP/1.1 200 ")
        assert b"\r\n\r\n" in seen, "it still waits for slots that nobody uses"
        # What their sockets swallow was paid for as if it had left: 60 kB each, it used to be.
        assert sum(map(swallowed, idle[:4])) <= 4 * 16 * 1024


def swallowed(sock: socket.socket) -> int:
    """What the server's side of a connection holds for its reader."""
    ends = [f"{end[1]:04X}" for end in (sock.getpeername(), sock.getsockname())]
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, _, queues = row.split()[:5]
        if [here[-4:], there[-4:]] == ends:
            return int(queues.partition(":")[0], 16)
    raise AssertionError("the connection is over")


def readable(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
