"""Requests that come a byte at a time hold a connection for a bounded time, and keep nobody out."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.attacks.test_tls import certify, connect
from tests.running import make_release, serving

pytestmark = pytest.mark.e2e

MOST = 30


def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    context, out = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    return out.read()


def test_who_drips_is_cut_in_time_and_keeps_nobody_out(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=10)
    certify(tmp_path, "one")
    config = tmp_path / "tidegate.toml"
    config.write_text(f"[limits]\nmax_connections = {MOST}\nheader_timeout_s = 1.0\n")
    files = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with (
        serving(
            tmp_path / "release", tmp_path / "state", "--config", str(config), *files
        ) as server,
        ExitStack() as sockets,
    ):
        port = int(server.url.rpartition(":")[2])
        kinds = [
            client_hello(),
            b"GET /a.txt HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100,
            b"POST /a.txt HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" + b"a" * 100,
        ]
        drips: list[tuple[socket.socket, bytes]] = []
        for number in range(2 * MOST):
            data = kinds[number % len(kinds)]
            if data is kinds[0]:
                sock = socket.create_connection(("127.0.0.1", port), 10)
            else:
                sock = connect(port)
                # All but what it drips comes at once.
                sock.sendall(data[:-100])
            sockets.enter_context(sock).setblocking(False)
            drips.append((sock, data[-100:]))
        over: set[socket.socket] = set()
        heads = {sock for number, (sock, _) in enumerate(drips) if number % len(kinds) < 2}
        began_s = time.monotonic()
        for at in range(50):
            for sock, data in drips:
                try:
                    sock.send(data[at : at + 1])
                    if not sock.recv(4096):
                        over.add(sock)
                except (BlockingIOError, ssl.SSLWantReadError):
                    pass
                except OSError:
                    over.add(sock)
            if at % 10 == 0:
                with connect(port) as honest:
                    honest.sendall(b"GET /a.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    assert honest.recv(12) == b"HTTP/1.1 200"
            # A body has 30 s; its connection is the first that is given up for a newcomer.
            if heads <= over or time.monotonic() - began_s > 20.0:
                break
            time.sleep(0.05)
        assert heads <= over, "some go on for ever"
