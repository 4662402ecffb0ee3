"""Readers that take hardly anything cost the others hardly anything."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from bench.attacks.simulated import ATTACKERS, AttackBench
from tests.attacks.server import one_slot
from tests.running import wait_for


@pytest.mark.timeout(600)
def test_ten_readers_that_stand_still_do_not_make_a_line_look_full() -> None:
    """They used to: the cap fell below the line, and the honest were 9 % longer about it."""
    few = replace(ATTACKERS[0], most=10)
    assert AttackBench("fair", 1).attack(few, "idle").mean <= 0.05


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


def readable(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
