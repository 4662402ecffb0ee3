"""The server on real sockets: sendfile, slow and vanishing peers, TLS, unix sockets, memory."""

from __future__ import annotations

import hashlib
import http.client
import os
import resource
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.http_bench import Answer
from tests.socket_server import LONG, Running, running

pytestmark = pytest.mark.e2e

BIG_BYTES = 24 * 1024 * 1024
FAST = {
    "header_timeout_s": 1.5,
    "idle_timeout_s": 3,
    "linger_timeout_s": 2,
    "min_rate_window_s": 3,
    "min_rate_bytes_s": 1000,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    (root / "small").write_bytes(b"small" * 100)
    (root / "big").write_bytes(os.urandom(1 << 20) * (BIG_BYTES >> 20))
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Generator[Running, None, None]:
    with running(root, limits=FAST) as made:
        yield made


OPEN: list[socket.socket] = []


@pytest.fixture(autouse=True)
def _close_sockets() -> Generator[None, None, None]:
    yield
    while OPEN:
        OPEN.pop().close()


def opened(sock: socket.socket) -> socket.socket:
    """Remember a socket, to be closed when the test is over."""
    OPEN.append(sock)
    return sock


def connect(port: int, receive_buffer: int | None = None) -> socket.socket:
    sock = opened(socket.socket())
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(30)
    sock.connect(("127.0.0.1", port))
    return sock


def ask(target: str, *fields: str) -> bytes:
    return "\r\n".join([f"GET {target} HTTP/1.1", "Host: h", *fields, "", ""]).encode()


def read_to_end(sock: socket.socket) -> bytes:
    pieces = []
    while piece := sock.recv(1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def sockets_of(pid: int) -> int:
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            count += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
        except OSError:
            continue
    return count


def test_many_large_bodies_and_small_ones_share_one_connection(server: Running, root: Path) -> None:
    big = (root / "big").read_bytes()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    for _ in range(3):
        connection.request("GET", "/big")
        assert connection.getresponse().read() == big
        connection.request("GET", "/small")
        assert connection.getresponse().read() == b"small" * 100
        connection.request("GET", "/big", headers={"Range": "bytes=100-20000099"})
        assert connection.getresponse().read() == big[100:20000100]
    connection.close()


def test_pipelined_large_bodies_come_in_order_to_a_slow_reader(server: Running, root: Path) -> None:
    sock = connect(server.port, receive_buffer=8192)
    ranges = [(0, 3_000_000), (1_000_000, 4_000_000), (0, 10)]
    sock.sendall(
        b"".join(ask("/big", f"Range: bytes={a}-{b - 1}") for a, b in ranges)
        + ask("/small", "Connection: close")
    )
    data = read_to_end(sock)
    big = (root / "big").read_bytes()
    for start, end in ranges:
        answer = Answer(data)
        assert answer.body == big[start:end]
        data = answer.rest
    assert Answer(data).body == b"small" * 100


def test_a_header_that_drips_is_answered_408(server: Running) -> None:
    sock = connect(server.port)
    raw = ask("/small")
    answer = b""
    sock.settimeout(0.2)
    for byte in raw[:30]:
        sock.sendall(bytes((byte,)))
        try:
            answer = sock.recv(4096)
            break
        except TimeoutError:
            continue
    assert Answer(answer).status == 408


def test_an_error_answer_survives_a_client_that_is_still_sending(server: Running) -> None:
    sock = connect(server.port)
    sock.sendall(b"POST /small HTTP/1.1\r\nHost: h\r\nContent-Length: 5000000\r\n\r\n")
    time.sleep(0.2)
    for _ in range(50):
        sock.sendall(b"x" * 100_000)
    sock.shutdown(socket.SHUT_WR)
    assert Answer(read_to_end(sock)).status == 413


def test_a_client_that_half_closes_gets_its_file(server: Running, root: Path) -> None:
    for target in ("/small", "/big"):
        sock = connect(server.port)
        sock.sendall(ask(target))
        sock.shutdown(socket.SHUT_WR)
        assert Answer(read_to_end(sock)).body == (root / target[1:]).read_bytes()


def test_a_client_that_takes_nothing_is_cut(server: Running) -> None:
    before = sockets_of(server.pid)
    sock = connect(server.port, receive_buffer=4096)
    sock.sendall(ask("/big"))
    wait_until(lambda: sockets_of(server.pid) > before)
    wait_until(lambda: sockets_of(server.pid) <= before)
    with pytest.raises(ConnectionResetError):
        read_to_end(sock)


def test_a_client_that_vanishes_leaves_nothing_behind(server: Running) -> None:
    wait_until(lambda: sockets_of(server.pid) <= 3)
    before = sockets_of(server.pid)
    files = len(os.listdir(f"/proc/{server.pid}/fd"))
    for how in (b"", b"\x01\x00\x00\x00\x00\x00\x00\x00"):
        for _ in range(20):
            sock = connect(server.port, receive_buffer=4096)
            sock.sendall(ask("/big"))
            sock.recv(1000)
            if how:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)
            sock.close()
    wait_until(lambda: sockets_of(server.pid) <= before)
    assert len(os.listdir(f"/proc/{server.pid}/fd")) <= files


def test_a_replaced_file_is_never_mixed(server: Running, root: Path) -> None:
    old, new = os.urandom(16 << 20), os.urandom(16 << 20)
    (root / "moving").write_bytes(old)
    sock = connect(server.port, receive_buffer=8192)
    sock.sendall(ask("/moving", "Connection: close"))
    first = sock.recv(50_000)
    (root / "moving.new").write_bytes(new)
    os.rename(root / "moving.new", root / "moving")
    assert Answer(first + read_to_end(sock)).body == old
    sock = connect(server.port)
    sock.sendall(ask("/moving", "Connection: close"))
    assert Answer(read_to_end(sock)).body == new


def test_a_file_overwritten_in_place_ends_in_a_reset_not_in_a_mixture(
    server: Running, root: Path
) -> None:
    path = root / "overwritten"
    path.write_bytes(b"a" * (24 << 20))
    sock = connect(server.port, receive_buffer=8192)
    sock.sendall(ask("/overwritten", "Connection: close"))
    sock.recv(50_000)
    with open(path, "r+b") as stream:
        stream.seek(12 << 20)
        stream.write(b"b" * (12 << 20))
    with pytest.raises(ConnectionResetError):
        read_to_end(sock)


def test_a_truncated_file_ends_in_a_reset(server: Running, root: Path) -> None:
    path = root / "truncated"
    path.write_bytes(b"a" * (24 << 20))
    sock = connect(server.port, receive_buffer=8192)
    sock.sendall(ask("/truncated"))
    sock.recv(50_000)
    os.truncate(path, 5 << 20)
    with pytest.raises(ConnectionResetError):
        read_to_end(sock)


def test_the_bandwidth_cap_holds_on_real_sockets(root: Path) -> None:
    with running(root, bandwidth_bytes_s=8_000_000) as capped:
        start = time.monotonic()
        socks = [connect(capped.port) for _ in range(4)]
        for sock in socks:
            sock.sendall(ask("/big", "Range: bytes=0-3999999", "Connection: close"))
        assert all(len(Answer(read_to_end(sock)).body) == 4_000_000 for sock in socks)
        # A lower bound only: a slow machine may take longer, never less.
        assert time.monotonic() - start > 16_000_000 / 8_000_000 * 0.9


def test_tls_serves_the_same_bytes(root: Path, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [*command.split(), "-keyout", str(key), "-out", str(certificate), *names],
        check=True,
        capture_output=True,
    )
    with running(root, tls=[str(certificate), str(key)], bandwidth_bytes_s=None) as server:
        context = ssl.create_default_context(cafile=str(certificate))
        for size in (0, 5_000_000):
            raw = socket.create_connection(("127.0.0.1", server.tls_port), timeout=30)
            sock = context.wrap_socket(raw, server_hostname="localhost")
            sock.sendall(ask("/big", f"Range: bytes=0-{size}") + ask("/small"))
            sock.sendall(ask("/-/long") + ask("/big") + ask("/-/long", "Connection: close"))
            data = read_to_end(sock)
            first = Answer(data)
            second = Answer(first.rest)
            long = Answer(second.rest)
            third = Answer(long.rest)
            assert long.body == Answer(third.rest).body == LONG
            assert len(first.body) == size + 1
            assert second.body == b"small" * 100
            whole = hashlib.sha256((root / "big").read_bytes()).digest()
            assert hashlib.sha256(third.body).digest() == whole
            sock.close()


def test_a_unix_socket_serves_the_same_bytes(root: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with running(root, unix=path):
        sock = opened(socket.socket(socket.AF_UNIX))
        sock.connect(path)
        sock.sendall(ask("/small") + ask("/big", "Connection: close"))
        first = Answer(read_to_end(sock))
        assert first.body == b"small" * 100
        assert Answer(first.rest).body == (root / "big").read_bytes()


def test_a_stalled_download_costs_six_kib_at_most(root: Path) -> None:
    count = 600
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        with running(root) as server:

            def resident_bytes() -> int:
                status = Path(f"/proc/{server.pid}/status").read_text()
                return int(status.partition("VmRSS:")[2].split()[0]) * 1024

            warm = [stalled(server.port) for _ in range(50)]
            before = resident_bytes()
            socks = [stalled(server.port) for _ in range(count)]
            each = (resident_bytes() - before) / count
            for sock in warm + socks:
                sock.close()
        assert each <= 6 * 1024, f"{each:.0f} bytes for each stalled download"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_bytes_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def test_a_long_answer_from_memory_costs_a_slow_reader_a_piece_and_not_a_copy(root: Path) -> None:
    with running(root) as server:
        slow = connect(server.port, receive_buffer=4096)
        slow.sendall(ask("/-/long") + ask("/small") + ask("/-/long", "Connection: close"))
        before = resident_bytes_of(server.pid)
        unread = [connect(server.port, receive_buffer=4096) for _ in range(50)]
        for sock in unread:
            sock.sendall(ask("/-/long"))
        for sock in unread:
            assert sock.recv(12) == b"HTTP/1.1 200"
        each = (resident_bytes_of(server.pid) - before) / len(unread)
        assert each < 512 * 1024, f"{each:.0f} bytes for each, of {len(LONG)}"
        first = Answer(read_to_end(slow))
        second = Answer(first.rest)
        third = Answer(second.rest)
        assert first.body == third.body == LONG
        assert second.body == b"small" * 100
        assert third.rest == b""


def stalled(port: int) -> socket.socket:
    """A download that has begun and is not read on."""
    sock = connect(port, receive_buffer=4096)
    sock.sendall(ask("/big"))
    assert sock.recv(12) == b"HTTP/1.1 200"
    return sock
