"""TLS as it should be: a renewed certificate is taken up, old ciphers are not spoken."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest
from twisted.internet.task import Clock
from twisted.logger import LogEvent, formatEvent, globalLogPublisher

from tests.running import RunningServer, make_release, serving, wait_for
from tidegate.server.app.listeners import CertificateWatch
from tidegate.server.http.tls import BadCertificate, TlsServer

pytestmark = pytest.mark.e2e


def certify(folder: Path, name: str) -> None:
    """A new certificate in the place of the old one."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    files = ["-keyout", str(folder / "key.new"), "-out", str(folder / "cert.new")]
    subprocess.run(
        [*command.split(), "-subj", f"/CN={name}", *files], check=True, capture_output=True
    )
    os.replace(folder / "key.new", folder / "key.pem")
    os.replace(folder / "cert.new", folder / "cert.pem")


def connect(port: int, **wishes: object) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if "ciphers" in wishes:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(str(wishes["ciphers"]))
    if "newest" in wishes:
        context.maximum_version = wishes["newest"]  # type: ignore[assignment]
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), 20))


def digest(port: int) -> str:
    with connect(port) as sock:
        certificate = sock.getpeercert(binary_form=True)
    assert certificate is not None
    return hashlib.sha256(certificate).hexdigest()


def serve(folder: Path, *lines: str) -> RunningServer:
    make_release(folder / "release", big_iso=30_000_000)
    certify(folder, "one")
    (folder / "tidegate.toml").write_text("\n".join(lines) + "\n")
    arguments = ["--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem")]
    arguments += ["--config", str(folder / "tidegate.toml")]
    return RunningServer(folder / "release", folder / "state", *arguments)


def test_a_renewed_certificate_is_taken_up_without_dropping_a_download(tmp_path: Path) -> None:
    server = serve(tmp_path)
    try:
        port = int(server.url.rpartition(":")[2])
        before = digest(port)
        got = []
        with connect(port) as loader:
            loader.sendall(b"GET /big.iso HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            got.append(len(loader.recv(1000)))
            certify(tmp_path, "two")
            server.signal(signal.SIGHUP)
            wait_for(lambda: digest(port) != before)
            assert digest(port) != before

            def load() -> None:
                while piece := loader.recv(1 << 16):
                    got.append(len(piece))

            reader = threading.Thread(target=load)
            reader.start()
            reader.join(60)
        assert sum(got) > 30_000_000
    finally:
        server.stop()


def test_changed_files_are_read_by_themselves_and_faults_change_nothing(tmp_path: Path) -> None:
    certify(tmp_path, "one")
    tls = TlsServer(tmp_path / "cert.pem", tmp_path / "key.pem")
    clock = Clock()
    watch = CertificateWatch(clock, tls)
    watch.start()
    first = tls._context
    clock.advance(10)
    assert tls._context is first
    key = (tmp_path / "key.pem").read_bytes()
    certify(tmp_path, "two")
    good = (tmp_path / "key.pem").read_bytes()
    (tmp_path / "key.pem").write_bytes(key)
    clock.advance(10)
    assert tls._context is first
    (tmp_path / "key.pem").write_bytes(good)
    clock.advance(10)
    assert tls._context is not first
    watch.stop()
    assert not clock.getDelayedCalls()


def test_a_certificate_that_ends_soon_is_told_once_a_day(tmp_path: Path) -> None:
    """One that had expired served for weeks without a word, and every client refused it."""
    certify(tmp_path, "two days")
    tls = TlsServer(tmp_path / "cert.pem", tmp_path / "key.pem")
    clock, lines = Clock(), list[str]()
    watch = CertificateWatch(clock, tls, wall=lambda: time.time() + clock.seconds())

    def note(event: LogEvent) -> None:
        lines.append(formatEvent(event))

    globalLogPublisher.addObserver(note)
    try:
        watch.start()
        clock.pump([86_400.0] * 3)
    finally:
        globalLogPublisher.removeObserver(note)
        watch.stop()
    told = [line for line in lines if "expire" in line]
    assert told[:2] == [f"The certificate expires in {days}.0 days: renew it." for days in (2, 1)]
    assert told[-1] == "The certificate has expired, and clients refuse it: renew it."
    assert len(told) == 4


def test_only_ciphers_with_forward_secrecy_are_spoken(tmp_path: Path) -> None:
    server = serve(tmp_path, "tls_hsts_s = 1000")
    try:
        port = int(server.url.rpartition(":")[2])
        for weak in ("AES128-GCM-SHA256", "AES256-SHA", "ECDHE-ECDSA-AES128-SHA"):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                connect(port, ciphers=weak)
        for path in (b"/", b"/nothing", b"/big.iso", b"/SHA256SUMS"):
            with connect(port, ciphers="ECDHE-ECDSA-AES128-GCM-SHA256") as sock:
                sock.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
                assert b"Strict-Transport-Security: max-age=1000\r\n" in sock.recv(65536)
        with socket.create_connection(("127.0.0.1", port), 20) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert plain.recv(65536).startswith(b"HTTP/1.1 400 ")
    finally:
        server.stop()


def test_a_minimum_version_is_kept(tmp_path: Path) -> None:
    server = serve(tmp_path, 'tls_min_version = "1.3"')
    try:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connect(port, newest=ssl.TLSVersion.TLSv1_2)
        with connect(port) as sock:
            assert sock.version() == "TLSv1.3"
    finally:
        server.stop()


def test_plain_answers_are_not_told_of_https(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=10)
    (tmp_path / "tidegate.toml").write_text("tls_hsts_s = 1000\n")
    arguments = ["--config", str(tmp_path / "tidegate.toml")]
    with serving(tmp_path / "release", tmp_path / "state", *arguments) as server:
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 20) as sock:
            sock.sendall(b"GET /a.txt HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"Strict-Transport" not in sock.recv(65536)


def test_unknown_ciphers_are_named(tmp_path: Path) -> None:
    certify(tmp_path, "one")
    with pytest.raises(BadCertificate, match="names no cipher"):
        TlsServer(tmp_path / "cert.pem", tmp_path / "key.pem", ciphers="NONSENSE")
