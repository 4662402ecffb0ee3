"""Half a TLS handshake costs hardly anything, and takes no room from clients of other networks."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from tests.attacks.test_drips import client_hello
from tests.attacks.test_tls import certify
from tests.running import make_release, serving
from tidegate.server.http.factory import HttpFactory
from tidegate.server.http.limits import HttpLimits
from tidegate.server.http.tls import awaited_bytes

HALVES = 400
HELLO = client_hello()
GET = b"GET /a.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@given(st.binary(min_size=1, max_size=300), st.binary(max_size=20), st.integers(1, 50))
def test_a_record_is_awaited_until_it_is_whole(body: bytes, more: bytes, step: int) -> None:
    record = b"\x16\x03\x01" + len(body).to_bytes(2, "big") + body
    for seen in range(0, len(record), step):
        assert seen < awaited_bytes(record[:seen]) <= len(record), (
            "it waits for what comes, no more"
        )
    assert awaited_bytes(record) == awaited_bytes(record + more) == 0


@given(st.binary(max_size=100) | st.binary(max_size=95).map(lambda rest: b"\x16\x03\x01" + rest))
def test_what_is_no_hello_is_left_to_tls_and_no_start_is_awaited_for_ever(start: bytes) -> None:
    awaited = awaited_bytes(start)
    assert awaited == 0 or len(start) < awaited <= 5 + (1 << 14)
    if len(start) >= 5 and start[0] != 22:
        assert awaited == 0


@dataclass(eq=False)
class Newcomer:
    """A connection that begins its handshake."""

    peer_address: str
    factory: HttpFactory
    is_lost: bool = field(default=False)

    def lost(self) -> None:
        self.is_lost = True
        self.factory.ended_handshake(cast(Any, self))


def test_a_network_that_fills_the_handshakes_makes_room_for_others() -> None:
    factory = HttpFactory(lambda _: None, cast(Any, Clock()), limits=HttpLimits(max_handshakes=20))

    def come(address: str) -> tuple[Newcomer, bool]:
        newcomer = Newcomer(address, factory)
        return newcomer, factory.begins_handshake(cast(Any, newcomer))

    attackers = [come(f"2001:db8:7:{number:x}::1") for number in range(30)]
    assert sum(taken for _, taken in attackers) == 20
    honest = [come(f"10.0.{number}.1") for number in range(10)]
    assert all(taken for _, taken in honest)
    assert [one.is_lost for one, _ in attackers[:20]] == [True] * 10 + [False] * 10
    assert not any(one.is_lost for one, _ in honest)
    factory.ended_handshake(cast(Any, honest[0][0]))
    assert come("2001:db8:7:ffff::1")[1]


def memory_bytes(pid: int) -> int:
    """What a process has in memory."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in x)
    return int(line.split()[1]) * 1024


@pytest.mark.e2e
def test_half_a_hello_costs_little_and_a_slow_or_split_one_gets_through(tmp_path: Path) -> None:
    """Five bytes cost 46 kB each."""
    make_release(tmp_path / "release", a_txt=10)
    certify(tmp_path, "one")
    files = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with serving(tmp_path / "release", tmp_path / "state", *files) as server, ExitStack() as open_:
        port = int(server.url.rpartition(":")[2])

        def connect() -> socket.socket:
            return open_.enter_context(socket.create_connection(("127.0.0.1", port), 20))

        def shake(sock: socket.socket, step: int = 10_000) -> bytes:
            """Fetch the file, the hello in pieces of so many bytes."""
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            theirs, ours = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(theirs, ours)
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
            hello = ours.read()
            for at in range(0, len(hello), step):
                sock.sendall(hello[at : at + step])
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    sock.sendall(ours.read())
                    theirs.write(sock.recv(16384))
            tls.write(GET)
            sock.sendall(ours.read())
            while True:
                try:
                    return tls.read(100)
                except ssl.SSLWantReadError:
                    theirs.write(sock.recv(16384))

        assert shake(connect()).startswith(b"HTTP/1.1 200")
        before = memory_bytes(server.process.pid)
        for number in range(HALVES):
            connect().sendall(HELLO[: 5 if number % 2 else -1])
        assert shake(connect(), step=1).startswith(b"HTTP/1.1 200")
        assert memory_bytes(server.process.pid) - before < HALVES * 12_000
        plain = connect()
        plain.sendall(GET)
        assert b"This port speaks TLS" in plain.recv(4096)
