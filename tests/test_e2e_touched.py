"""touch, chown and rsync under running downloads: the same bytes go on, never with others."""

from __future__ import annotations

import http.client
import os
import random
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.running import RunningServer, journal, make_release, serving, sha256, wait_for

pytestmark = pytest.mark.e2e

SIZE = 8_000_000
#: So slow that a download is under way for minutes, until the server may hurry.
SLOW, FAST = "500kbit", "400Mbit"


def configure(folder: Path, bandwidth: str) -> Path:
    config = folder / "tidegate.toml"
    slots = "slots = 2\nreserve_small = 1\n"
    config.write_text(f'policy = "ticket"\nbandwidth = "{bandwidth}"\n[admission]\n{slots}')
    return config


def hurry(server: RunningServer, folder: Path) -> None:
    configure(folder, FAST)
    server.signal(signal.SIGHUP)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    make_release(tmp_path / "release", big_iso=SIZE)
    config = str(configure(tmp_path, SLOW))
    with serving(tmp_path / "release", tmp_path / "state", "--config", config) as server:
        # What is known of a content is what it can be compared with.
        with urllib.request.urlopen(f"{server.url}/SHA256SUMS", timeout=60) as sums:
            assert b"big.iso" in sums.read()
        yield server


@contextmanager
def curl(server: RunningServer, to: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = ["curl", "-sSf", "-A", f"curl/{to.name}", "-o", str(to), f"{server.url}/big.iso"]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


def under_way(to: Path) -> bool:
    wait_for(lambda: to.exists() and to.stat().st_size > 20_000, 60)
    return 20_000 < to.stat().st_size < SIZE


def touched(path: Path) -> None:
    os.utime(path)


def given_away(path: Path) -> None:
    os.chmod(path, 0o600)
    if os.getuid() == 0:
        os.chown(path, 12345, 12345)


def synchronised(path: Path) -> None:
    """What a build does whose files have other times: rsync sets them and nothing else."""
    source = path.parent.parent / "build"
    source.mkdir(exist_ok=True)
    shutil.copyfile(path, source / path.name)
    os.utime(source / path.name, (1_000_000_000, 1_000_000_000))
    subprocess.run(["rsync", "-a", "--checksum", f"{source}/", f"{path.parent}/"], check=True)


@pytest.mark.parametrize("how", [touched, given_away, synchronised])
def test_the_same_bytes_under_other_times_go_on(
    server: RunningServer, tmp_path: Path, how: object
) -> None:
    assert callable(how)
    path = tmp_path / "release" / "big.iso"
    whole = sha256(path)
    first, second = tmp_path / "first", tmp_path / "second"
    with curl(server, first) as running:
        assert under_way(first)
        with curl(server, second) as waiting:
            # Asked for after the first touch it would be of a content that nobody has hashed yet.
            wait_for(lambda: len(journal(tmp_path / "state")) == 2)
            for _ in range(3):
                how(path)
                time.sleep(0.2)
            hurry(server, tmp_path)
            assert (running.wait(120), sha256(first)) == (0, whole)
            assert (waiting.wait(120), sha256(second)) == (0, whole)


def test_a_resume_after_a_touch_goes_on_under_the_tag_that_the_client_knows(
    server: RunningServer, tmp_path: Path
) -> None:
    path = tmp_path / "release" / "big.iso"
    with urllib.request.urlopen(f"{server.url}/big.iso", timeout=60) as answer:
        tag = answer.headers["ETag"]
        start = answer.read(200_000)
    os.utime(path)
    hurry(server, tmp_path)
    headers = {"Range": "bytes=200000-", "If-Range": tag}
    request = urllib.request.Request(f"{server.url}/big.iso", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as rest:
        assert rest.status == 206
        assert rest.headers["ETag"] == tag
        assert start + rest.read() == path.read_bytes()
    body = bytearray(path.read_bytes())
    body[SIZE // 2] ^= 1
    path.write_bytes(body)
    with urllib.request.urlopen(request, timeout=60) as anew:
        assert anew.status == 200
        assert anew.headers["ETag"] != tag


def test_other_bytes_of_the_same_size_are_never_mixed_in(
    server: RunningServer, tmp_path: Path
) -> None:
    path = tmp_path / "release" / "big.iso"
    was = path.read_bytes()
    to = tmp_path / "got"
    with curl(server, to) as running:
        assert under_way(to)
        with path.open("r+b") as file:
            file.write(random.Random(3).randbytes(SIZE))
        hurry(server, tmp_path)
        assert running.wait(120) != 0
    got = to.read_bytes()
    assert len(got) < SIZE
    assert was.startswith(got)
    try:
        with urllib.request.urlopen(f"{server.url}/big.iso", timeout=60) as answer:
            assert answer.read() == path.read_bytes()
    except (http.client.IncompleteRead, urllib.error.HTTPError) as error:
        pytest.fail(f"the new content is not served: {error}")


def test_a_client_that_waited_has_the_file_as_it_is_when_its_turn_comes(
    server: RunningServer, tmp_path: Path
) -> None:
    path = tmp_path / "release" / "big.iso"
    first, second = tmp_path / "first", tmp_path / "second"
    with curl(server, first) as running:
        assert under_way(first)
        with curl(server, second) as waiting:
            wait_for(lambda: len(journal(tmp_path / "state")) == 2)
            with path.open("r+b") as file:
                file.write(random.Random(3).randbytes(SIZE // 2))
                file.truncate()
            hurry(server, tmp_path)
            assert running.wait(120) != 0
            assert (waiting.wait(120), sha256(second)) == (0, sha256(path))
