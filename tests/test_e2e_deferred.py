"""Connections that the kernel keeps until they speak: none hangs, whatever comes when.

A proxy's preface counts as speaking, and a reload happens while the kernel still holds them.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.running import make_release, serving
from tests.test_server_proxies import preface

pytestmark = pytest.mark.e2e

V2 = preface("203.0.113.9")
V1 = b"PROXY TCP4 203.0.113.9 203.0.113.10 1234 80\r\n"
GET = b"GET /a.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
#: Longer than the kernel keeps a silent connection to itself, and so is what a header may take.
LATE_S, HEADER_S = 1.4, 2.0
PROXY, PLAIN = "127.0.0.1", "127.0.0.2"

#: Where it comes from, what it sends after how long, and how the answer begins.
CASES: tuple[tuple[str, tuple[tuple[float, bytes], ...], bytes], ...] = (
    (PROXY, ((0.0, V2 + GET),), b"HTTP/1.1 200"),
    (PROXY, ((0.0, V2), (LATE_S, GET)), b"HTTP/1.1 200"),
    (PROXY, ((LATE_S, V2 + GET),), b"HTTP/1.1 200"),
    (PROXY, ((0.0, V2[:9]), (LATE_S, V2[9:] + GET)), b"HTTP/1.1 200"),
    (PROXY, ((0.0, V2),), b""),
    (PROXY, ((0.0, V2[:9]),), b""),
    (PROXY, (), b""),
    (PROXY, ((0.0, V1 + GET),), b"HTTP/1.1 400"),
    (PROXY, ((0.0, V1),), b"HTTP/1.1 400"),
    (PLAIN, ((0.0, GET),), b"HTTP/1.1 200"),
    (PLAIN, ((LATE_S, GET),), b"HTTP/1.1 200"),
    (PLAIN, ((0.0, GET[:20]), (LATE_S, GET[20:])), b"HTTP/1.1 200"),
    (PLAIN, (), b""),
)


def answer(port: int, source: str, parts: tuple[tuple[float, bytes], ...]) -> bytes:
    """All that comes until the server closes; raises TimeoutError when it does not."""
    with socket.create_connection(("127.0.0.1", port), 20, (source, 0)) as sock:
        for after_s, data in parts:
            time.sleep(after_s)
            sock.sendall(data)
        received = b""
        while piece := sock.recv(1 << 16):
            received += piece
        return received


def test_what_is_deferred_is_answered_or_closed_also_over_a_reload(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=1000)
    config = tmp_path / "tidegate.toml"
    config.write_text(
        f'trusted_proxies = ["{PROXY}"]\nproxy_protocol = true\n'
        f"[limits]\nheader_timeout_s = {HEADER_S}\n"
    )
    with (
        serving(tmp_path / "release", tmp_path / "state", "--config", str(config)) as server,
        ThreadPoolExecutor(2 * len(CASES)) as pool,
    ):
        port = int(server.url.rpartition(":")[2])

        def ask_all() -> list[Callable[[], bytes]]:
            return [pool.submit(answer, port, source, parts).result for source, parts, _ in CASES]

        first = ask_all()
        server.signal(signal.SIGHUP)
        for results in (first, ask_all()):
            for (source, parts, begins), result in zip(CASES, results, strict=True):
                received = result()
                assert received.startswith(begins), (source, parts, received)
                assert begins or not received.startswith(b"HTTP/1.1 2"), (source, parts)
                if begins.endswith(b"200"):
                    assert len(received.partition(b"\r\n\r\n")[2]) == 1000
