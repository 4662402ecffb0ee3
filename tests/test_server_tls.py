"""TLS on the loop: handshakes on real sockets, plain requests by mistake, new certificates."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.http_bench import Answer, Bench
from tidegate.server.http.tls import BadCertificate, TlsServer


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:P-256", "-subj", f"/CN={name}", "-days", "2"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.fixture
def bench(tmp_path: Path) -> Generator[Bench, None, None]:
    (tmp_path / "root").mkdir()
    made = Bench(tmp_path / "root")
    made.write("a.bin", b"hello" * 40_000)
    yield made
    for connection in tuple(made.factory.connections):
        connection.lost()


def shaken(bench: Bench, tls: TlsServer, protocols: list[str] | None = None) -> ssl.SSLSocket:
    """A client's side of a connection after the handshake; it believes any certificate."""
    ours, theirs = socket.socketpair()
    bench.front.adopt(theirs, "192.0.2.1", tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(protocols)
    ours.setblocking(False)
    client = context.wrap_socket(ours, do_handshake_on_connect=False, suppress_ragged_eofs=False)
    for _ in range(10):
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            bench.front.doRead()
    bench.front.doRead()
    return client


def test_a_body_larger_than_the_buffers_comes_whole(bench: Bench, tmp_path: Path) -> None:
    client = shaken(bench, TlsServer(*certificate(tmp_path, "one")))
    client.send(b"GET /a.bin HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    data = bytearray()
    for _ in range(10_000):
        bench.clock.advance(0)
        bench.front.doRead()
        try:
            piece = client.recv(1 << 16)
        except ssl.SSLWantReadError:
            continue
        if not piece:
            break
        data += piece
    # The last piece fills the socket. Without close_notify the client would raise an error.
    assert Answer(bytes(data)).body == b"hello" * 40_000
    client.close()


def test_who_reads_nothing_more_is_left_after_a_while_with_all_that_was_sent(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> socket.socket:
        raise ssl.SSLWantWriteError

    client = shaken(bench, TlsServer(*certificate(tmp_path, "one")))
    (connection,) = bench.factory.connections
    monkeypatch.setattr(connection.socket, "unwrap", full)
    client.send(b"GET /none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    bench.front.doRead()
    bench.tick(bench.factory.limits.linger_timeout_s - 1.0)
    assert connection.alive
    bench.tick(2.0)
    assert not connection.alive
    answer = Answer(client.recv(1 << 16))
    assert (answer.status, answer.whole) == (404, True)
    # SSLEOFError, or BrokenPipeError where OpenSSL answers such an end by an alert.
    with pytest.raises(OSError):
        client.recv(1)
    client.close()


def test_a_plain_request_is_told_that_this_port_speaks_tls(bench: Bench, tmp_path: Path) -> None:
    tls = TlsServer(*certificate(tmp_path, "one"))
    ours, theirs = socket.socketpair()
    bench.front.adopt(theirs, "192.0.2.1", tls)
    ours.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    bench.front.doRead()
    answer = Answer(ours.recv(65536))
    assert (answer.status, answer.whole, answer.rest) == (400, True, b"")
    assert b"https" in answer.body
    assert ours.recv(1) == b""
    assert not bench.factory.connections
    ours.close()


def test_a_handshake_that_does_not_come_is_cut(bench: Bench, tmp_path: Path) -> None:
    tls = TlsServer(*certificate(tmp_path, "one"))
    ours, theirs = socket.socketpair()
    bench.front.adopt(theirs, "192.0.2.1", tls)
    bench.tick(bench.factory.limits.header_timeout_s + 2)
    assert not bench.factory.connections
    ours.close()


def test_a_new_certificate_counts_from_now_on_and_a_bad_one_does_not(
    bench: Bench, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "one")
    tls = TlsServer(cert, key)

    def shown() -> bytes | None:
        client = shaken(bench, tls)
        found = client.getpeercert(binary_form=True)
        client.close()
        return found

    first = shown()
    other_cert, other_key = certificate(tmp_path, "two")
    cert.write_bytes(other_cert.read_bytes())
    with pytest.raises(BadCertificate, match="no certificate"):
        tls.reload()
    assert shown() == first
    key.write_bytes(other_key.read_bytes())
    tls.reload()
    assert shown() != first


def test_what_is_no_certificate_is_said_in_a_sentence(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "one")
    absent = tmp_path / "absent.pem"
    for pair, named in (
        ((absent, key), f"{absent}"),
        ((cert, absent), f"{absent}"),
        ((cert, tmp_path), f"{tmp_path}"),
        ((absent, tmp_path), f"{absent} and {tmp_path}"),
    ):
        with pytest.raises(BadCertificate, match=f"^{re.escape(named)} cannot be read: "):
            TlsServer(*pair)
    cert.write_text("nonsense")
    with pytest.raises(BadCertificate, match="no certificate"):
        TlsServer(cert, key)


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(["h2", "http/1.1"], "http/1.1"), (["http/1.1"], "http/1.1"), (["h2"], None), ([], None)],
)
def test_a_client_that_offers_h2_gets_http_1_1_by_alpn(
    bench: Bench, tmp_path: Path, offered: list[str], chosen: str | None
) -> None:
    """RFC 7301. Some clients end a handshake in which nothing was chosen."""
    client = shaken(bench, TlsServer(*certificate(tmp_path, "one")), offered)
    assert client.selected_alpn_protocol() == chosen
    client.close()
