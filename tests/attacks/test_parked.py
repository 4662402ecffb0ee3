"""Requests that are kept open are nobody's to hoard."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.attacks.server import occupy, one_slot
from tests.running import wait_for

pytestmark = pytest.mark.e2e

MOST = 50


def park(port: int, source: str, number: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 10, (source, 0))
    sock.sendall(b"GET /big.iso HTTP/1.1\r\nHost: x\r\nUser-Agent: curl/%d\r\n\r\n" % number)
    sock.setblocking(False)
    return sock


def answered(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4096)
    except BlockingIOError:
        return b""


def test_a_fresh_curl_waits_although_ten_addresses_hold_every_place_to_wait(
    tmp_path: Path,
) -> None:
    config = tmp_path / "tidegate.toml"
    # On a busy machine the reader that holds the slot may take too little to keep it.
    config.write_text(f"[policy]\nslot_use_fraction = 0.0\n[holding]\nmost = {MOST}\n")
    with (
        one_slot(tmp_path, "--config", str(config)) as server,
        occupy(server),
        ExitStack() as sockets,
    ):
        port = int(server.url.rpartition(":")[2])
        greedy = [
            sockets.enter_context(park(port, f"127.{number % 10}.0.1", number))
            for number in range(MOST)
        ]
        # One more of these finds no room: then all places to wait are taken.
        last = sockets.enter_context(park(port, "127.0.0.1", MOST))
        refusals: list[bytes] = []
        wait_for(lambda: refusals.append(answered(last)) or refusals[-1])
        assert refusals[-1].startswith(b"HTTP/1.1 503")
        assert not any(answered(sock) for sock in greedy)

        honest = sockets.enter_context(park(port, "127.99.0.1", 0))
        seen: list[bytes] = []
        wait_for(lambda: seen.extend(filter(None, map(answered, greedy))) or seen)
        [told] = seen
        assert told.startswith(b"HTTP/1.1 503")
        assert b"\r\nTidegate-Ticket: " in told
        assert b"\r\nTidegate-Place: " in told
        assert answered(honest) == b""
