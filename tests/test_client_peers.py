"""The exchange with other downloaders: real sessions on the loopback address."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

import libtorrent
import pytest
from faulty_mirrors import wait_for

from tidegate.client.peers.exchange import BadTorrent, Exchange
from tidegate.protocol.intervals import IntervalSet
from tidegate.server.torrent.making import make

SIZE = 3_000_001


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a file.iso"
    path.write_bytes(random.Random(5).randbytes(SIZE))
    return path


def document(path: Path) -> bytes:
    with path.open("rb") as opened:
        made = libtorrent.bdecode(make(opened.fileno(), path.name, path.stat().st_size))
    whole: bytes = libtorrent.bencode({b"info": made[b"info"], b"piece layers": made[b"layers"]})
    return whole


class Party:
    """One downloader with its own file in memory, as a writer would have it."""

    def __init__(self, folder: Path, torrent: bytes, content: bytes = b"") -> None:
        self.data = bytearray(content or bytes(SIZE))
        self.have = IntervalSet([(0, SIZE)] if content else [])
        self.exchange = Exchange(
            torrent,
            folder,
            SIZE,
            server="127.0.0.1",
            upload_bytes_s=1e9,
            listen=("127.0.0.1",),
            random=random.Random(len(content)),
        )
        self.exchange.start()

    def turn(self) -> None:
        for offset, data in self.exchange.poll():
            self.data[offset : offset + len(data)] = data
            self.have.add(offset, offset + len(data))
        self.exchange.share(self.have, lambda start, end: bytes(self.data[start:end]))


def until(condition: Callable[[], bool], *parties: Party) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s, "the exchange stands still"
        for party in parties:
            party.turn()
        time.sleep(0.02)


def test_what_the_server_sent_to_one_reaches_the_other(tmp_path: Path, file: Path) -> None:
    torrent, content = document(file), file.read_bytes()
    first = Party(tmp_path / "one", torrent, content)
    second = Party(tmp_path / "two", torrent)
    try:
        second.exchange.meet("127.0.0.1", first.exchange.port)
        until(lambda: second.have.total == SIZE, first, second)
        assert bytes(second.data) == content
        assert first.exchange.figures().sent_bytes >= SIZE
    finally:
        first.exchange.stop()
        second.exchange.stop()
    assert not (tmp_path / "one").exists()


def test_the_server_is_asked_for_what_no_peer_has(tmp_path: Path, file: Path) -> None:
    torrent, content = document(file), file.read_bytes()
    first = Party(tmp_path / "one", torrent)
    second = Party(tmp_path / "two", torrent)
    piece = first.exchange.piece_bytes
    try:
        # The first has all but the third piece.
        first.data[:] = content
        first.have = IntervalSet([(0, 2 * piece), (3 * piece, SIZE)])
        first.turn()
        second.exchange.meet("127.0.0.1", first.exchange.port)
        now = iter(range(10_000))
        free = IntervalSet([(0, SIZE)])
        until(
            lambda: second.exchange.from_origin(free, float(next(now))) == (2 * piece, 3 * piece),
            first,
        )
        # What was begun is ended before anything else.
        begun = IntervalSet([(0, 100), (2 * piece, SIZE)])
        assert second.exchange.from_origin(begun, float(next(now))) == (0, 100)
        assert second.exchange.from_origin(IntervalSet(), float(next(now))) is None
    finally:
        first.exchange.stop()
        second.exchange.stop()


def test_the_local_network_is_told_a_port_that_every_address_has(
    tmp_path: Path, file: Path
) -> None:
    """Each address had a port of its own, and all were announced with that of the loopback."""
    exchange = Exchange(
        document(file),
        tmp_path / "one",
        SIZE,
        server="127.0.0.1",
        upload_bytes_s=1.0,
        listen=("127.0.0.1", "127.0.0.2", "127.0.0.3"),
        random=random.Random(1),
    )
    exchange.start()
    try:
        for number in (1, 2, 3):
            socket.create_connection((f"127.0.0.{number}", exchange.port), 10).close()
    finally:
        exchange.stop()


def test_a_peer_that_tcp_does_not_reach_is_reached_by_utp(tmp_path: Path, file: Path) -> None:
    torrent, content = document(file), file.read_bytes()
    info = libtorrent.torrent_info(libtorrent.bdecode(torrent))
    other = libtorrent.session({"listen_interfaces": "127.0.0.1:0", "enable_incoming_tcp": False})
    given = libtorrent.add_torrent_params()
    given.ti, given.save_path = info, str(file.parent)
    seed = other.add_torrent(given)
    # One that still reads its file drops our attempt, and connects to us later: that counts as
    # a duplicate until our attempt times out, after fifteen seconds.
    wait_for(lambda: bool(seed.status().is_seeding), 60)
    asking = Party(tmp_path / "asking", torrent)
    try:
        asking.exchange.reach_further()
        asking.exchange.meet("127.0.0.1", other.listen_port())
        until(lambda: asking.have.total == SIZE, asking)
        assert bytes(asking.data) == content
    finally:
        asking.exchange.stop()


def test_bytes_that_are_wrong_here_are_given_to_nobody(tmp_path: Path, file: Path) -> None:
    torrent, content = document(file), file.read_bytes()
    wrong = Party(tmp_path / "wrong", torrent, bytes(SIZE - 1) + b"x")
    right = Party(tmp_path / "right", torrent, content)
    asking = Party(tmp_path / "asking", torrent)
    try:
        asking.exchange.meet("127.0.0.1", wrong.exchange.port)
        asking.exchange.meet("127.0.0.1", right.exchange.port)
        until(lambda: asking.have.total == SIZE, wrong, right, asking)
        assert bytes(asking.data) == content
    finally:
        for party in (wrong, right, asking):
            party.exchange.stop()


@pytest.mark.parametrize("raw", [b"", b"d4:infodee", b"<html>", b"i3e", b"d4:info3:abce"])
def test_what_is_no_torrent_is_refused(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(BadTorrent):
        Exchange(
            raw,
            tmp_path / "x",
            SIZE,
            server="127.0.0.1",
            upload_bytes_s=1.0,
            listen=("127.0.0.1",),
            random=random.Random(1),
        )


def test_a_torrent_of_another_size_is_refused(tmp_path: Path, file: Path) -> None:
    with pytest.raises(BadTorrent, match="another file"):
        Exchange(
            document(file),
            tmp_path / "x",
            SIZE + 1,
            server="127.0.0.1",
            upload_bytes_s=1.0,
            listen=("127.0.0.1",),
            random=random.Random(1),
        )


@pytest.mark.parametrize(
    ("server", "asked"),
    [
        ("example.org", ["udp://t.example:6969/announce", "http://example.org/-/announce"]),
        ("10.0.0.1", ["udp://t.example:6969/announce", "http://10.2.3.4/announce"]),
    ],
)
def test_a_torrent_leads_to_no_tracker_where_its_server_may_not_lead(
    tmp_path: Path, file: Path, server: str, asked: list[str]
) -> None:
    """Each service of this machine and of its network could be asked by GET and UDP."""
    near = ["http://127.0.0.1:631/announce", "udp://localhost:53/announce", "http://[::1]/announce"]
    near += ["http://169.254.169.254/announce", "wss://t.example/", "http://10.2.3.4/announce"]
    torrent = libtorrent.bdecode(document(file))
    torrent[b"announce-list"] = [[url.encode()] for url in (*near, *asked)]
    exchange = Exchange(
        libtorrent.bencode(torrent),
        tmp_path / "one",
        SIZE,
        server=server,
        upload_bytes_s=1.0,
        listen=(),
        random=random.Random(1),
    )
    exchange.start()
    try:
        assert {one["url"] for one in exchange._handle.trackers()} == {*asked}
    finally:
        exchange.stop()
