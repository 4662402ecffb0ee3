"""Connections are nobody's to hoard: idle ones are given up when others need them."""

from __future__ import annotations

import http.client
import resource
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.running import make_release, serving

pytestmark = pytest.mark.e2e

MOST = 60


def test_three_addresses_that_hold_every_connection_keep_nobody_out(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=10)
    config = tmp_path / "tidegate.toml"
    config.write_text(f"[limits]\nmax_connections = {MOST}\n")
    with (
        serving(tmp_path / "release", tmp_path / "state", "--config", str(config)) as server,
        ExitStack() as sockets,
    ):
        port = int(server.url.rpartition(":")[2])

        def taken(source: str) -> socket.socket:
            return sockets.enter_context(
                socket.create_connection(("127.0.0.1", port), 10, (source, 0))
            )

        honest = http.client.HTTPConnection("127.0.0.1", port, 20, source_address=("127.9.0.1", 0))
        honest.request("GET", "/a.txt")
        assert honest.getresponse().read()
        for number in range(3 * MOST):
            greedy = taken(f"127.{number % 3 + 1}.0.1")
            if number % 2:
                greedy.sendall(b"GET / HT")
        for number in range(20):
            fresh = http.client.HTTPConnection(
                "127.0.0.1", port, 20, source_address=(f"127.{100 + number}.0.1", 0)
            )
            fresh.request("GET", "/a.txt")
            assert fresh.getresponse().status == 200
            fresh.close()
        # The one of a small network kept its connection all the while.
        kept = honest.sock
        honest.request("GET", "/a.txt")
        assert honest.getresponse().status == 200
        assert honest.sock is kept
        honest.close()


def test_a_download_is_not_given_up_for_a_newcomer(tmp_path: Path) -> None:
    make_release(tmp_path / "release", big_iso=40_000_000, a_txt=10)
    config = tmp_path / "tidegate.toml"
    config.write_text("[limits]\nmax_connections = 10\n")
    with (
        serving(tmp_path / "release", tmp_path / "state", "--config", str(config)) as server,
        ExitStack() as sockets,
    ):
        port = int(server.url.rpartition(":")[2])
        loader = sockets.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        loader.sendall(b"GET /big.iso HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        for _ in range(50):
            sockets.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        got = 0
        while piece := loader.recv(1 << 20):
            got += len(piece)
        assert got > 40_000_000


def test_who_asks_on_and_on_and_reads_nothing_has_nothing_kept_for_him(tmp_path: Path) -> None:
    """One connection had a server keep the answers to all that it asked: 320 MB in two seconds."""
    many, name = 3_000, "n" * 100
    for number in range(many):
        make_release(tmp_path / "release" / "many", **{f"{name}{number}": 0})
    ask = b"GET /many/?format=json HTTP/1.1\r\nHost: x\r\n\r\n"
    times = 300
    with serving(tmp_path / "release", tmp_path / "state") as server:
        port = int(server.url.rpartition(":")[2])

        def listed() -> bytes:
            with closing(http.client.HTTPConnection("127.0.0.1", port, 20)) as honest:
                honest.request("GET", "/many/?format=json")
                return honest.getresponse().read()

        def kept_bytes() -> int:
            status = Path(f"/proc/{server.process.pid}/statm").read_text("ascii")
            return int(status.split()[1]) * resource.getpagesize()

        page = listed()
        before = kept_bytes()
        with socket.create_connection(("127.0.0.1", port), 20) as greedy:
            greedy.sendall(ask * times)
            greedy.shutdown(socket.SHUT_WR)
            for _ in range(3):
                assert listed() == page
            assert kept_bytes() - before < times * len(page) / 4
            # Who reads after all gets every answer.
            with greedy.makefile("rb") as reader:
                for _ in range(times):
                    assert reader.readline().startswith(b"HTTP/1.1 200")
                    length = 0
                    while (line := reader.readline().lower()) != b"\r\n":
                        if line.startswith(b"content-length:"):
                            length = int(line.split(b":")[1])
                    assert reader.read(length) == page
                assert reader.read() == b""
