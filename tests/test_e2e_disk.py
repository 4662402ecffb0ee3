"""A disk that reads short, fails or answers late, under a real server: tree and state."""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import socket
import sqlite3
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from tests.admin_browser import AdminVisit
from tests.faulty_disk import FaultyDisk, faulty_disk
from tests.running import RunningServer, journal, make_release, serving, sha256, wait_for

pytestmark = pytest.mark.e2e

#: Where what operators set up is kept.
TABLES = ("operator_state", "admin_users", "revisions")
#: More of each than a server has threads for its disk.
KINDS = {"iso": 1_000_000, "txt": 9_000}
#: One slot for large files, and so slow a line that everybody else waits.
ONE_SLOT = ("--policy", "ticket", "--slots", "2", "--reserve-small", "1", "--bandwidth", "4Mbit")


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    yield faulty_disk()
    faulty_disk().heal()


def fetch(url: str) -> tuple[int, bytes]:
    """Status and as much of the body as came."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            try:
                return answer.status, answer.read()
            except http.client.IncompleteRead as cut:
                return answer.status, cut.partial
            except ConnectionResetError:
                return answer.status, b""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def ask(server: RunningServer, client: str) -> int:
    """A newcomer that takes a ticket rather than wait."""
    headers = {"Tidegate-Client": client, "Tidegate-Wait": "ticket"}
    request = urllib.request.Request(f"{server.url}/big.iso", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def no_traceback(server: RunningServer) -> None:
    assert not [line for line in server.errors if "Traceback" in line], server.errors


def test_a_bad_sector_cuts_the_downloads_that_need_it_and_no_other(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    release = tmp_path / "release"
    digests = make_release(release, bad_iso=8_000_000, good_iso=3_000_000, bad_txt=9_000)
    with serving(release, tmp_path / "state", **disk.environ) as server:
        disk.set(f"read eio 3000000 {release}/bad.iso", f"read eio 0 {release}/bad.txt")
        whole = (release / "bad.iso").read_bytes()
        for _ in range(3):
            status, got = fetch(f"{server.url}/bad.iso")
            assert status == 200
            assert len(got) < len(whole)
            assert whole.startswith(got)
        assert fetch(f"{server.url}/bad.txt")[0] == 503
        status, got = fetch(f"{server.url}/good.iso")
        assert (status, len(got)) == (200, 3_000_000)
        wait_for(lambda: any("bad.txt" in line for line in server.errors))
        told = [line for line in server.errors if "bad.iso cannot be read" in line]
        assert len(told) == 1, server.errors
        assert "Input/output error" in told[0]
        disk.heal()
        for name, digest in digests.items():
            status, got = fetch(f"{server.url}/{name}")
            (tmp_path / name).write_bytes(got)
            assert (status, sha256(tmp_path / name)) == (200, digest)
        no_traceback(server)


def test_short_reads_cost_nobody_a_byte(tmp_path: Path, disk: FaultyDisk) -> None:
    release = tmp_path / "release"
    digests = make_release(release, big_iso=3_000_000, small_txt=9_000)
    with serving(release, tmp_path / "state", **disk.environ) as server:
        disk.set(f"read short 777 {release}/")
        for name, digest in digests.items():
            status, got = fetch(f"{server.url}/{name}")
            (tmp_path / name).write_bytes(got)
            assert (status, sha256(tmp_path / name)) == (200, digest)
        answers: list[tuple[int, bytes]] = []

        def answered() -> bool:
            answers.append(fetch(f"{server.url}/SHA256SUMS"))
            return answers[-1][0] != 503

        # 503 as long as a file is being hashed, 777 bytes at a time.
        wait_for(answered, 60)
        status, sums = answers[-1]
        assert status == 200
        assert all(digest in sums.decode() for digest in digests.values())
        no_traceback(server)


def test_a_disk_that_hangs_holds_up_only_who_asks_for_what_lies_on_it(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    release = tmp_path / "release"
    cold = {f"cold{number}_{kind}": size for number in range(12) for kind, size in KINDS.items()}
    make_release(release, here_iso=3_000_000, here_txt=9_000, **cold)
    disk.set(f"read delay 3000000 {release}/cold")
    with serving(release, tmp_path / "state", **disk.environ) as server, ExitStack() as hung:
        place = server.url.removeprefix("http://")
        asked = []
        for name in cold:
            asking = hung.enter_context(contextlib.closing(http.client.HTTPConnection(place)))
            asking.request("GET", f"/{name.replace('_', '.')}")
            asked.append(asking.sock)
        for _ in range(20):
            for name in ("here.iso", "here.txt", ""):
                assert fetch(f"{server.url}/{name}")[0] == 200
        for sock in select.select(asked, [], [], 0)[0]:
            assert len(sock.recv(KINDS["txt"], socket.MSG_PEEK)) < KINDS["txt"]
        hung.close()
        no_traceback(server)
        # Threads of requests and of the walk over the tree still wait.
        assert server.stop() == 0


@pytest.mark.parametrize("fault", ["write enospc", "write eio"])
def test_a_state_disk_that_fails_stops_no_download_and_loses_no_place(
    tmp_path: Path, disk: FaultyDisk, fault: str
) -> None:
    release, state = tmp_path / "release", tmp_path / "state"
    make_release(release, big_iso=1)
    os.truncate(release / "big.iso", 100_000_000)
    to = tmp_path / "got"
    with serving(release, state, *ONE_SLOT, **disk.environ) as server:
        # It reads all the time: a download that takes nothing would lose its slot.
        running = subprocess.Popen(["curl", "-sS", "-o", to, f"{server.url}/big.iso"])
        try:
            wait_for(to.exists)
            assert ask(server, "early") == 503
            wait_for(lambda: len(journal(state)) == 2)
            assert len(journal(state)) == 2, "its ticket is stored"
            disk.set(f"{fault} 0 {state}/tidegate.db")
            assert ask(server, "late") == 503
            wait_for(lambda: b"takes no writes" in fetch(f"{server.url}/-/ready")[1], 60)
            assert b"takes no writes" in fetch(f"{server.url}/-/ready")[1]
            had = to.stat().st_size
            wait_for(lambda: to.stat().st_size >= had + 100_000)
            assert to.stat().st_size >= had + 100_000
            disk.heal()
            wait_for(lambda: fetch(f"{server.url}/-/ready")[1] == b"ready\n", 60)
            assert fetch(f"{server.url}/-/ready")[1] == b"ready\n"
            wait_for(lambda: len(journal(state)) == 3)
            assert len(journal(state)) == 3
        finally:
            running.kill()
            running.wait()
        no_traceback(server)
    with contextlib.closing(sqlite3.connect(state / "tidegate.db")) as found:
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_state_disk_that_hangs_holds_up_no_answer_for_good(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    release, state = tmp_path / "release", tmp_path / "state"
    make_release(release, big_iso=1)
    os.truncate(release / "big.iso", 100_000_000)
    with (
        serving(release, state, *ONE_SLOT, **disk.environ) as server,
        urllib.request.urlopen(f"{server.url}/big.iso", timeout=60) as running,
    ):
        # Longer than this test may last: an answer that waited for the disk would never come.
        disk.set(f"sync delay 3000000 {state}/", f"write delay 3000000 {state}/")
        for number in range(5):
            assert ask(server, f"client {number}") == 503
        assert len(running.read(100_000)) == 100_000
        wait_for(lambda: b"takes no writes" in fetch(f"{server.url}/-/ready")[1], 60)
        assert b"takes no writes" in fetch(f"{server.url}/-/ready")[1]
        wait_for(lambda: any("no answer in 20 s" in line for line in server.errors))
        assert any("no answer in 20 s" in line for line in server.errors)
        no_traceback(server)
        server.kill()


def test_an_operators_change_is_stored_when_it_is_answered(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    release, state = tmp_path / "release", tmp_path / "state"
    make_release(release, big_iso=1)
    os.truncate(release / "big.iso", 100_000_000)
    admin = ("--admin", "127.0.0.1:0")
    with (
        serving(release, state, *admin, *ONE_SLOT, **disk.environ) as server,
        urllib.request.urlopen(f"{server.url}/big.iso", timeout=60),
    ):
        assert [ask(server, name) for name in ("first", "second")] == [503, 503]
        visit = AdminVisit(server)
        header = {"Authorization": f"Bearer {visit.api_token()}"}
        header["If-Match"] = visit.get("/api/v1/settings").headers["etag"]

        def change(method: str, path: str, **body: object) -> requests.Response:
            url = f"{visit.url}/api/v1{path}"
            return requests.request(method, url, json=body, headers=header, timeout=20)

        disk.set(f"write delay 30 {state}/tidegate.db", f"sync delay 30 {state}/tidegate.db")
        expired, promoted = [t["number"] for t in visit.get("/api/v1/tickets").json()["tickets"]]
        assert change("DELETE", f"/tickets/{expired}").ok
        assert change("POST", "/users", name="second", password="none of the usual").ok
        assert change("PATCH", "/settings", settings={"slots": 77}).ok
        assert change("PUT", "/doors", closed=True, text="moving house").ok
        assert change("POST", "/blocks", network="192.0.2.1").ok
        disk.set(f"write enospc 0 {state}/tidegate.db")
        for refused in (
            change("POST", "/blocks", network="198.51.100.0/24"),
            change("POST", f"/tickets/{promoted}/promote"),
            change("DELETE", f"/tickets/{promoted}"),
        ):
            assert refused.status_code == 503
            assert "not stored yet" in refused.json()["detail"]
        server.kill()
        no_traceback(server)
    disk.heal()
    assert journal(state)[expired] == "withdrawn"
    with contextlib.closing(sqlite3.connect(state / "tidegate.db")) as found:
        kept = str([found.execute(f"SELECT * FROM {name}").fetchall() for name in TABLES])
    for word in ("second", '"slots": 77', "moving house", "192.0.2.1"):
        assert word in kept, word


def test_a_full_disk_at_the_first_start_is_one_sentence(tmp_path: Path, disk: FaultyDisk) -> None:
    release, state = tmp_path / "release", tmp_path / "state"
    make_release(release, big_iso=1_000)
    for part in ("lock", "tidegate.db"):
        disk.set(f"write enospc 0 {state}/{part}")
        with pytest.raises(AssertionError, match="did not start") as told:
            RunningServer(release, state, **disk.environ)
        assert "Traceback" not in str(told.value)
        assert "make room" in str(told.value).lower()


def test_a_state_that_cannot_be_read_stops_the_start_in_one_sentence(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    release, state = tmp_path / "release", tmp_path / "state"
    make_release(release, big_iso=1_000)
    with serving(release, state):
        pass
    for fault in ("read eio 0", "open eio 0"):
        for name in ("tidegate.db", "keys.json"):
            disk.set(f"{fault} {state}/{name}")
            with pytest.raises(AssertionError, match="did not start") as told:
                RunningServer(release, state, **disk.environ)
            assert "Traceback" not in str(told.value)
            assert name in str(told.value)
    disk.heal()
    with serving(release, state, **disk.environ) as server:
        assert fetch(f"{server.url}/big.iso")[0] == 200
