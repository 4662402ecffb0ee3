"""How a long body leaves by a socket that takes little at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import succeed
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent

from tidegate.server.files.openfile import OpenFile, key_of
from tidegate.server.files.pacer import Pacer
from tidegate.server.files.sender import BodySender
from tidegate.server.files.transfer import Representation

SIZE = 3_000_000


class Peer:
    """A client that reads what it is sent, and the connection on our side."""

    def __init__(self, pair: tuple[socket.socket, socket.socket] | None = None) -> None:
        self.socket, self._far = pair or socket.socketpair()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        for end in (self.socket, self._far):
            end.setblocking(False)
        self.is_tls = False
        self.bodies_bytes = 0
        self.monitor: Any = None
        self.factory = SimpleNamespace(limits=None)
        self.got = bytearray()
        self.turns = 0
        self._room: Callable[[], None] | None = None

    def release_buffers(self) -> None:
        """It has none."""

    def when_flushed(self, callback: Callable[[], None]) -> None:
        callback()

    def await_room(self, callback: Callable[[], None] | None) -> None:
        self._room = callback

    def read(self, count: int) -> None:
        """Read so much of what lies there, and have more sent."""
        self.got += self._far.recv(count)
        if self._room is not None:
            self._room()

    def read_all(self) -> None:
        """Read until nothing more comes; the socket has room after each look."""
        while True:
            try:
                self.got += self._far.recv(1 << 20)
            except BlockingIOError:
                if self._room is None:
                    return
                self.turns += 1
                self._room()

    def close(self) -> None:
        self.socket.close()
        self._far.close()


def opened(path: Path) -> OpenFile:
    """A new file of `SIZE` bytes by chance."""
    path.write_bytes(os.urandom(SIZE))
    rep = Representation(b"a.iso", "/a.iso", SIZE, 0.0, '"a"', key_of(path.stat()))
    return OpenFile(os.open(path, os.O_RDONLY), rep)


def test_the_page_cache_is_asked_once_for_what_leaves_in_many_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.iso"
    path.write_bytes(os.urandom(SIZE))
    key = key_of(path.stat())
    rep = Representation(b"a.iso", "/a.iso", SIZE, 0.0, '"a"', key)
    file = OpenFile(os.open(path, os.O_RDONLY), rep)
    probed: list[tuple[int, int]] = []
    real = OpenFile.at_hand

    def probe(file: OpenFile, start: int, stop: int) -> bool:
        probed.append((start, stop))
        return real(file, start, stop)

    monkeypatch.setattr(OpenFile, "at_hand", probe)
    asked: list[tuple[int, int]] = []
    send = os.sendfile

    def sendfile(out: int, fd: int, offset: int, count: int) -> int:
        asked.append((offset, count))
        return send(out, fd, offset, count)

    monkeypatch.setattr(os, "sendfile", sendfile)
    ended: list[bool] = []
    moved: list[int] = []
    listener: Any = SimpleNamespace(
        share=None,
        may_end=lambda go_on: True,
        moves=lambda: moved.append(peer.turns),
        transfer_done=lambda transfer, complete: ended.append(complete),
    )
    peer = Peer()
    request: Any = SimpleNamespace(
        connection=peer, bytes_out=0, on_gone=lambda call: None, finish=lambda: None
    )
    nobody: Any = None
    pacer = Pacer(Clock(), None)
    same = succeed(True)
    sender = BodySender(request, file, [(0, SIZE)], SIZE, listener, pacer, lambda _: same, nobody)
    sender.start()
    peer.read_all()
    peer.close()
    assert ended == [True]
    assert bytes(peer.got) == path.read_bytes()
    assert moved == list(range(1, peer.turns + 1))
    assert peer.turns > 10
    # A window of a megabyte or two each, and the last bytes, which leave by a copy.
    assert len(probed) <= 5
    # What was found bounds no turn but by what it may send.
    assert all(count == min(2 << 20, SIZE - 1024 - offset) for offset, count in asked[1:])


def test_in_a_jam_a_socket_holds_no_more_than_its_peer_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several sockets are full: the next one is not filled at once with what leaves in no order."""
    asked: list[tuple[int, int]] = []
    send = os.sendfile

    def sendfile(out: int, fd: int, offset: int, count: int) -> int:
        asked.append((offset, count))
        return send(out, fd, offset, count)

    listener: Any = SimpleNamespace(
        share=None, may_end=lambda go_on: True, moves=lambda: None, transfer_done=lambda *_: None
    )
    nobody: Any = None
    clock = Clock()
    pacer = Pacer(clock, None)
    peers = []

    def start(number: int) -> Peer:
        peers.append(Peer())
        request: Any = SimpleNamespace(
            connection=peers[-1], bytes_out=0, on_gone=lambda call: None, finish=lambda: None
        )
        file = opened(tmp_path / f"{number}.iso")
        parts = [(0, SIZE)]
        still = succeed(True)
        BodySender(request, file, parts, SIZE, listener, pacer, lambda _: still, nobody).start()
        return peers[-1]

    for number in range(8):
        start(number)
    assert not pacer.jammed
    clock.advance(0.06)
    assert pacer.jammed
    monkeypatch.setattr(os, "sendfile", sendfile)
    start(8).read_all()
    for offset, count in asked:
        assert min(SIZE - 1024 - offset, offset // 4) <= count <= max(16 << 10, offset)
    assert pacer.misplaced() == 0
    pacer.set_bandwidth(1e6)
    assert not pacer.jammed
    for peer in peers:
        peer.close()


def test_what_is_on_its_way_on_one_connection_counts_once_for_all_its_bodies(
    tmp_path: Path,
) -> None:
    file = opened(tmp_path / "a.iso")
    far = socket.socket()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    with socket.create_server(("127.0.0.1", 0)) as door:
        far.connect(door.getsockname())
        peer = Peer((door.accept()[0], far))
    bodies: list[BodySender] = []
    ended: list[BodySender] = []
    listener: Any = SimpleNamespace(
        share=None,
        may_end=lambda go_on: True,
        moves=lambda: None,
        transfer_done=lambda transfer, complete: ended.append(transfer),
    )
    request: Any = SimpleNamespace(
        connection=peer, bytes_out=0, on_gone=lambda call: None, finish=lambda: None
    )
    pacer, nobody = Pacer(Clock(), None), cast(Any, None)

    def read_until(stop: Callable[[], bool]) -> None:
        for _ in range(100_000):
            if stop():
                return
            with contextlib.suppress(BlockingIOError):
                peer.read(20_000)
        pytest.fail("it stands still")

    for _ in range(3):
        sender = BodySender(
            request, file, [(0, SIZE)], SIZE, listener, pacer, lambda _: succeed(True), nobody
        )
        bodies.append(sender)
        sender.start()
        if len(bodies) < 3:
            read_until(lambda: len(ended) == len(bodies))
            assert sender.flying_bytes() > 0
    queued = struct.unpack("i", fcntl.ioctl(peer.socket, termios.TIOCOUTQ, b"\0\0\0\0"))[0]
    assert sum(body.flying_bytes() for body in bodies) <= queued
    read_until(lambda: bodies[2].sent_bytes > SIZE // 2)
    assert [body.flying_bytes() for body in bodies[:2]] == [0, 0]
    assert bodies[2].flying_bytes() > 0
    peer.close()


def test_a_fault_in_one_body_ends_it_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a cap, where one timer serves all."""
    path = tmp_path / "a.iso"
    path.write_bytes(os.urandom(SIZE))
    rep = Representation(b"a.iso", "/a.iso", SIZE, 0.0, '"a"', key_of(path.stat()))
    clock, nobody = Clock(), cast(Any, None)
    pacer = Pacer(clock, 50e6)
    ends: dict[str, bool] = {}
    peers: dict[str, Peer] = {}

    def send(name: str) -> BodySender:
        def over(transfer: BodySender, complete: bool) -> None:
            ends[name] = complete
            if name == "broken":
                raise RuntimeError("and its end fails as well")

        listener: Any = SimpleNamespace(
            share=None, may_end=lambda go_on: True, moves=lambda: None, transfer_done=over
        )
        peers[name] = peer = Peer()
        request: Any = SimpleNamespace(
            connection=peer,
            bytes_out=0,
            on_gone=lambda call: None,
            finish=lambda: None,
            abort=peer.close,
            target=f"/{name}?tidegate-pass=SECRET".encode(),
        )
        file = OpenFile(os.open(path, os.O_RDONLY), rep)
        whole = [(0, SIZE)]
        same = succeed(True)
        sender = BodySender(request, file, whole, SIZE, listener, pacer, lambda _: same, nobody)
        sender.start()
        return sender

    broken = send("broken")
    send("whole")
    real = BodySender._send_piece

    def piece(sender: BodySender, *words: Any) -> tuple[int, int]:
        if sender is broken and sender.sent_bytes > 100_000:
            raise RuntimeError("boom")
        return real(sender, *words)

    monkeypatch.setattr(BodySender, "_send_piece", piece)
    with capturedLogs() as logged:
        for _ in range(200):
            clock.advance(0.01)
            for peer in peers.values():
                if peer.socket.fileno() >= 0:
                    peer.read_all()
    assert ends == {"broken": False, "whole": True}
    assert bytes(peers["whole"].got) == path.read_bytes()
    peers["whole"].close()
    counted = [event for event in logged if event["log_level"] is LogLevel.critical]
    assert len(counted) == 2
    assert "/broken?tidegate-pass=" in formatEvent(counted[0])
    assert "SECRET" not in formatEvent(counted[0])


@pytest.mark.parametrize("capped", [True, False])
def test_who_was_paused_with_a_full_socket_is_limited_by_itself_no_more(
    tmp_path: Path, capped: bool
) -> None:
    """Else it passes for slow for as long as the cap holds it back."""
    file = opened(tmp_path / "a.iso")
    listener: Any = SimpleNamespace(share=None, may_end=lambda go_on: True)
    peer = Peer()
    request: Any = SimpleNamespace(connection=peer, bytes_out=0, on_gone=lambda call: None)
    clock, nobody = Clock(), cast(Any, None)
    pacer = Pacer(clock, None)
    same = succeed(True)
    sender = BodySender(request, file, [(0, SIZE)], SIZE, listener, pacer, lambda _: same, nobody)
    sender.start()
    assert sender.blocked
    sender.pause()
    with contextlib.suppress(BlockingIOError):
        while True:
            peer.read(1 << 20)
    if capped:
        pacer.set_bandwidth(100_000.0)
    sender.resume()
    assert sender.blocked == (not capped), "it takes what it gets, or has filled its socket again"
    if capped:
        clock.pump([0.01] * 100)
        assert sender.sent_bytes > 0
        assert not sender.blocked, "the cap is what limits it"
    peer.close()
