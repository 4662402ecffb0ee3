"""systemd opens the sockets: no right to do so is needed, and a restart refuses nobody."""

from __future__ import annotations

import os
import socket
import subprocess
from itertools import takewhile
from pathlib import Path

import pytest
import requests

from tests.installed import PYTHON, TIDEGATE
from tests.running import ROOT, make_release

pytestmark = pytest.mark.e2e

UNITS = ROOT / "deploy" / "systemd"
#: Becomes the server with descriptor 3 on, as systemd starts it: sd_listen_fds(3).
LAUNCHER = """
import os, sys
given = sys.argv[1].split(",")
for number, pair in enumerate(given):
    os.dup2(int(pair.partition("=")[0]), 100 + number)
for number in range(len(given)):
    os.dup2(100 + number, 3 + number)
    os.close(100 + number)
names = ":".join(pair.partition("=")[2] or "tidegate.socket" for pair in given)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(given)), LISTEN_FDNAMES=names)
os.execvp("tidegate", ["tidegate", "serve", *sys.argv[2:]])
"""


def command(tmp_path: Path, *more: str) -> list[str]:
    admin = [] if "--admin" in more else ["--admin", "off"]
    state = ["--state", str(tmp_path / "state"), *admin, *more]
    return [str(tmp_path / "release"), "--listen", "systemd:", *state]


def environment() -> dict[str, str]:
    return {**os.environ}


def run(tmp_path: Path, sock: socket.socket, *more: str) -> subprocess.Popen[str]:
    start = [PYTHON, "-c", LAUNCHER, str(sock.fileno())]
    return subprocess.Popen(
        [*start, *command(tmp_path, *more)],
        pass_fds=[sock.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=60)
    finally:
        process.kill()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_serves_at_the_socket_and_a_restart_refuses_nobody(tmp_path: Path, workers: str) -> None:
    make_release(tmp_path / "release", a_txt=10)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        for _ in range(2):
            # While nobody runs, connections wait in the socket.
            with socket.create_connection(sock.getsockname(), 60) as waiting:
                waiting.sendall(b"GET /a.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                process = run(tmp_path, sock, "--workers", workers)
                try:
                    assert waiting.recv(12) == b"HTTP/1.1 200"
                    assert requests.get(f"{url}/a.txt", timeout=60).status_code == 200
                    assert process.stdout is not None
                    assert f"Files     {url}/\n" in takewhile(
                        bool, iter(process.stdout.readline, None)
                    )
                finally:
                    stop(process)


def test_a_unix_socket_stays_where_systemd_put_it(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=10)
    place = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(place))
        sock.listen()
        process = run(tmp_path, sock)
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(60)
                client.connect(str(place))
                client.sendall(b"GET /a.txt HTTP/1.1\r\nHost: x\r\n\r\n")
                assert client.recv(12) == b"HTTP/1.1 200"
        finally:
            stop(process)
    assert place.is_socket()


def test_without_a_socket_it_says_what_to_do(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=10)
    ended = subprocess.run(
        [TIDEGATE, "serve", *command(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
        check=False,
    )
    assert ended.returncode == 1
    assert "start tidegate.socket, or name an address" in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


def test_a_socket_that_does_not_listen_is_refused(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=10)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        process = run(tmp_path, sock)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "no listening stream socket" in errors
    assert "Traceback" not in errors


def test_the_socket_unit_is_good() -> None:
    unit = (UNITS / "tidegate.socket").read_text()
    assert "ListenStream=80\n" in unit
    assert "Accept=" not in unit


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_admin_page_has_a_socket_of_its_own(tmp_path: Path, workers: str) -> None:
    make_release(tmp_path / "release", a_txt=10)
    with (
        socket.create_server(("127.0.0.1", 0)) as files,
        socket.create_server(("127.0.0.1", 0)) as admin,
    ):
        given = f"{admin.fileno()}=admin,{files.fileno()}"
        start = [PYTHON, "-c", LAUNCHER, given]
        process = subprocess.Popen(
            [*start, *command(tmp_path, "--admin", "systemd:", "--workers", workers)],
            pass_fds=[files.fileno(), admin.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(),
        )
        try:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{admin.getsockname()[1]}"
            output = iter(process.stdout.readline, "")
            lines = list(takewhile(lambda line: not line.startswith("ready "), output))
            assert f"Admin     {url}/\n" in lines
            page = requests.get(f"{url}/", timeout=60)
            assert "password" in page.text
            port = files.getsockname()[1]
            assert requests.get(f"http://127.0.0.1:{port}/a.txt", timeout=60).status_code == 200
        finally:
            stop(process)


def test_the_admin_page_needs_a_socket_of_its_name(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=10)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        process = run(tmp_path, sock, "--admin", "systemd:")
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "FileDescriptorName=admin" in errors
    unit = (UNITS / "tidegate-admin.socket").read_text()
    assert "FileDescriptorName=admin\nService=tidegate.service\n" in unit
