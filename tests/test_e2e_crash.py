"""A real server killed at any moment: no acknowledged ticket loses its place, no slot leaks."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import selectors
import signal
import socket
import sqlite3
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.faulty_disk import faulty_disk
from tests.running import RunningServer, journal, make_release, serving, wait_for

pytestmark = pytest.mark.e2e

ARGS = ("--slots", "2", "--reserve-small", "0", "--bandwidth", "1MB", "--policy", "ticket")
ENVIRON = {
    "TIDEGATE_CLIENTS_PER_ADDRESS": "65536",
    "TIDEGATE_TICKET_TTL_S": "600",
    "TIDEGATE_EARLY_PENALTY_S": "0",
    "TIDEGATE_LEASE_IDLE_S": "1",
}


#: Lives of the server, and clients that ask at the same time in each life.
KILLS = 15
CLIENTS = 30
#: Keeps the number of places that are asked for at the end small.
TICKETS_PER_LIFE = 3


def ask(
    url: str, client: str, token: str | None = None, file: str = "/big.iso"
) -> tuple[int, http.client.HTTPMessage | None, http.client.HTTPConnection]:
    """Ask without reading the body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    headers = {"Tidegate-Wait": "ticket", "Tidegate-Client": client}
    if token is not None:
        headers["Tidegate-Ticket"] = token
    connection.request("GET", file, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, connection


def status_of(url: str, client: str, file: str = "/big.iso") -> int:
    """Only the status; 0 when there is no server any more."""
    try:
        status, _, connection = ask(url, client, file=file)
    except (OSError, http.client.HTTPException):
        return 0
    connection.close()
    return status


def test_no_acknowledged_ticket_loses_its_place_however_often_the_server_is_killed(
    tmp_path: Path,
) -> None:
    rng = random.Random(11)
    make_release(tmp_path / "release", big_iso=50_000_000)
    state = tmp_path / "state"
    acknowledged: list[tuple[int, int, str, str]] = []
    for life in range(KILLS):
        server = RunningServer(tmp_path / "release", state, *ARGS, **ENVIRON)
        holders = [ask(server.url, f"holder-{n}") for n in range(2)]
        stop = threading.Event()

        def rush(life: int, thread: int, url: str, stop: threading.Event) -> None:
            number = 0
            while not stop.is_set() and number < TICKETS_PER_LIFE:
                client = f"client-{life}-{thread}-{number}"
                try:
                    status, headers, connection = ask(url, client)
                except (OSError, http.client.HTTPException):
                    return
                connection.close()
                if status == 503 and headers is not None:
                    place = int(headers["Tidegate-Place"])
                    acknowledged.append((life, place, client, headers["Tidegate-Ticket"]))
                number += 1

        threads = [
            threading.Thread(target=rush, args=(life, number, server.url, stop))
            for number in range(CLIENTS)
        ]
        before = len(acknowledged)
        for thread in threads:
            thread.start()
        wait_for(lambda: len(acknowledged) > before + CLIENTS)  # noqa: B023
        time.sleep(rng.random() * 0.2)
        if life % 5 < 4:
            server.kill()
        stop.set()
        for thread in threads:
            thread.join()
        for _, _, connection in holders:
            connection.close()
        # The others are orderly stops. They write what a kill leaves to the journal.
        assert server.stop() == (0 if life % 5 == 4 else -signal.SIGKILL)
    assert len(acknowledged) > KILLS * CLIENTS
    acknowledged.sort()
    with serving(tmp_path / "release", state, *ARGS, **ENVIRON) as server:
        holders = [ask(server.url, f"holder-{n}") for n in range(2)]
        assert [status for status, _, _ in holders] == [200, 200]
        live = {number: state for number, state in journal(state).items() if state != "done"}
        assert len(live) >= len(acknowledged)
        places = []
        for index, (_, _, client, token) in enumerate(acknowledged):
            # Half of them have lost their ticket: the same client finds its place by its name.
            status, headers, connection = ask(server.url, client, token if index % 2 else None)
            connection.close()
            assert status == 503
            assert headers is not None
            places.append(int(headers["Tidegate-Place"]))
        assert places == sorted(places)
        assert len(set(places)) == len(places)
        for _, _, connection in holders:
            connection.close()


def test_a_start_that_is_lost_on_the_way_costs_nobody_its_place(tmp_path: Path) -> None:
    """The client is gone before the first byte, and comes back once its lease has idled out."""
    make_release(tmp_path / "release", big_iso=8_000_000)
    state = tmp_path / "state"
    args = ("--slots", "1", "--reserve-small", "0", "--bandwidth", "1MB", "--policy", "ticket")
    environ = {**ENVIRON, "TIDEGATE_LEASE_IDLE_S": "16"}
    with serving(tmp_path / "release", state, *args, **environ) as server:
        _, _, holder = ask(server.url, "holder")
        status, headers, connection = ask(server.url, "unlucky")
        assert status == 503
        assert headers is not None
        token = headers["Tidegate-Ticket"]
        holder.close()

        def told(token: str) -> Any:
            question = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)
            question.request("GET", "/-/queue/big.iso", headers={"Tidegate-Ticket": token})
            answer = json.loads(question.getresponse().read())
            question.close()
            return answer

        wait_for(lambda: told(token).get("free"))
        number = max(journal(state))
        connection.close()
        parts = urlsplit(server.url)
        line = socket.create_connection((parts.hostname, parts.port))
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.sendall(
            b"GET /big.iso HTTP/1.1\r\nHost: localhost\r\nTidegate-Client: unlucky\r\n"
            b"Tidegate-Wait: ticket\r\nTidegate-Ticket: " + token.encode() + b"\r\n\r\n"
        )
        line.close()
        wait_for(lambda: journal(state)[number] == "started")
        assert journal(state)[number] == "started", "the request arrived, its answer did not"
        status, headers, newcomer = ask(server.url, "newcomer")
        newcomer.close()
        assert status == 503
        assert headers is not None
        wait_for(lambda: journal(state)[number] != "started")
        assert journal(state)[number] == "ready"
        assert told(headers["Tidegate-Ticket"])["place"] == 2
        status, _, connection = ask(server.url, "unlucky", token)
        assert status == 200
        connection.close()


def test_a_used_ticket_is_not_honoured_again_however_soon_the_server_is_killed(
    tmp_path: Path,
) -> None:
    """Killed the moment the last bytes are there: the tickets are on record as used by then.

    The disk takes 2 ms for a write, so that a record that comes too late is found to be so.
    """
    size = 3_000_000
    make_release(tmp_path / "release", big_iso=size, huge_iso=100_000_000)
    args = ("--slots", "16", "--reserve-small", "0", "--policy", "ticket")
    used: dict[str, str] = {}
    disk = faulty_disk()
    disk.set(f"write delay 2 {tmp_path / 'state'}/")
    environ = {**ENVIRON, **disk.environ}
    for life in range(2):
        server = RunningServer(tmp_path / "release", tmp_path / "state", *args, **environ)
        address = urlsplit(server.url)
        selector = selectors.DefaultSelector()
        # While nobody waits no ticket is given.
        held = [ask(server.url, f"holder-{life}-{n}", file="/huge.iso") for n in range(16)]
        tokens: dict[str, str] = {}
        for number in range(16):
            client = f"client-{life}-{number}"
            status, headers, connection = ask(server.url, client)
            connection.close()
            assert status == 503
            assert headers is not None
            tokens[client] = headers["Tidegate-Ticket"]
        for _, _, connection in held:
            connection.close()
        for client, token in tokens.items():
            sock = socket.create_connection((address.hostname, address.port))
            shown = f"Tidegate-Client: {client}\r\nTidegate-Ticket: {token}"
            sock.sendall(f"GET /big.iso HTTP/1.1\r\nHost: x\r\n{shown}\r\n\r\n".encode())
            selector.register(sock, selectors.EVENT_READ, (client, bytearray()))
        while selector.get_map():
            for key, _ in selector.select(20):
                client, got = key.data
                got += key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                head, _, body = got.partition(b"\r\n\r\n")
                if len(body) == size:
                    used[client] = re.findall(rb"Tidegate-Ticket: (\S+)", head)[0].decode()
                    selector.unregister(key.fileobj).fileobj.close()  # type: ignore[union-attr]
        server.kill()
        selector.close()
    assert len(used) == 32
    with serving(tmp_path / "release", tmp_path / "state", *args, **ENVIRON) as server:
        statuses = []
        for client, token in used.items():
            status, _, connection = ask(server.url, client, token)
            connection.close()
            statuses.append(status)
        assert statuses == [403] * 32
    disk.heal()


@pytest.mark.parametrize("command", [["curl", "-sS", "-o"], ["wget", "-q", "-t", "1", "-O"]])
def test_a_program_that_waits_hears_that_its_server_died(
    tmp_path: Path, command: list[str]
) -> None:
    """curl and wget take a header that just ends for a whole answer, and a script goes on."""
    make_release(tmp_path / "release", big_iso=5_000_000)
    config = tmp_path / "tidegate.toml"
    config.write_text(
        'policy = "ticket"\nbandwidth = "1MB"\n[admission]\nslots = 1\nreserve_small = 0\n'
        '[[holding.tools]]\nagent = "curl|wget"\nmanner = "hold"\nsilent_s = 0.1\ndrip_s = 0.1\n'
    )
    with serving(tmp_path / "release", tmp_path / "state", "--config", str(config)) as server:
        _, _, first = ask(server.url, "first")
        waiting = subprocess.Popen([*command, tmp_path / "saved", f"{server.url}/big.iso"])
        wait_for(lambda: len(journal(tmp_path / "state")) == 2)
        parts = urlsplit(server.url)
        with socket.create_connection((parts.hostname, parts.port), timeout=20) as behind:
            behind.sendall(b"GET /big.iso HTTP/1.1\r\nHost: x\r\nUser-Agent: curl/8\r\n\r\n")
            heard = b""
            while b"Tidegate-Held" not in heard:
                heard += behind.recv(1000)
            assert waiting.poll() is None
            server.kill()
            with pytest.raises(ConnectionResetError):
                behind.makefile("rb").read()
        assert waiting.wait(20) != 0
        first.close()


def test_no_slot_stays_taken_after_a_crash(tmp_path: Path) -> None:
    make_release(tmp_path / "release", big_iso=400_000)
    state = tmp_path / "state"
    for _ in range(2):
        server = RunningServer(tmp_path / "release", state, *ARGS, **ENVIRON)
        running = [ask(server.url, f"holder-{n}") for n in range(2)]
        server.kill()
        for _, _, connection in running:
            connection.close()
    environ = {**ENVIRON, "TIDEGATE_TICKET_TTL_S": "1"}
    with serving(tmp_path / "release", state, *ARGS, **environ) as server:
        for number in range(3):
            wait_for(lambda: status_of(server.url, f"fresh-{number}") == 200, 30)  # noqa: B023
            assert status_of(server.url, f"fresh-{number}") == 200
            time.sleep(1.2)


def test_sigterm_drains_and_tickets_survive(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=1_500_000)
    assert digests
    state = tmp_path / "state"
    args = ("--slots", "1", "--reserve-small", "0", "--bandwidth", "1MB", "--policy", "ticket")
    server = RunningServer(tmp_path / "release", state, *args, **ENVIRON)
    status, _, running = ask(server.url, "one")
    assert status == 200
    status, headers, connection = ask(server.url, "two")
    connection.close()
    assert status == 503
    assert headers is not None
    token = headers["Tidegate-Ticket"]
    stream = running.sock.makefile("rb")
    server.signal(signal.SIGTERM)
    wait_for(lambda: status_of(server.url, "x", "/-/ready") == 503, 5)
    assert status_of(server.url, "x", "/-/ready") == 503
    assert status_of(server.url, "three") == 503
    while stream.read(65536):
        pass
    assert server.process.wait(30) == 0
    server.stop()
    stream.close()
    running.close()
    with serving(tmp_path / "release", state, *args, **ENVIRON) as again:
        status, _, connection = ask(again.url, "two", token)
        connection.close()
        assert status == 200


@pytest.mark.parametrize("again", [False, True], ids=["drain_s", "second-sigterm"])
def test_no_client_holds_up_the_stop_beyond_its_bound(tmp_path: Path, again: bool) -> None:
    """One that takes nothing, one whose request is incomplete, one that waits in its request."""
    make_release(tmp_path / "release", big_iso=20_000_000)
    config = tmp_path / "tidegate.toml"
    config.write_text(f"drain_s = {3600 if again else 1}\n")
    args = ("--slots", "1", "--reserve-small", "0", "--policy", "ticket", "--config", str(config))
    server = RunningServer(tmp_path / "release", tmp_path / "state", *args, **ENVIRON)
    parts = urlsplit(server.url)
    request = b"GET /big.iso HTTP/1.1\r\nHost: h\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n"
    with contextlib.ExitStack() as clients:
        for number, sent in enumerate((request, request[:30], request)):
            client = socket.socket()
            clients.enter_context(client)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.bind((f"127.0.{number}.9", 0))
            client.connect((parts.hostname, parts.port))
            client.sendall(sent)
            if number == 0:
                assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        server.signal(signal.SIGTERM)
        if again:
            wait_for(lambda: status_of(server.url, "x", "/-/ready") == 503, 5)
            server.signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    server.stop()
    told = "".join(server.errors)
    assert "The server waits for 1 download, at most" in told
    assert ("drain_s is over: 1 download cut off." in told) is not again


def test_a_whole_answer_arrives_although_the_server_has_stopped(tmp_path: Path) -> None:
    """What the system still holds for a slow reader must not be taken back by a reset."""
    make_release(tmp_path / "release", big_iso=400_000)
    server = RunningServer(tmp_path / "release", tmp_path / "state", **ENVIRON)
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    connection.request("GET", "/big.iso")
    answer = connection.getresponse()
    assert answer.status == 200
    server.signal(signal.SIGTERM)
    got, end_s = 0, time.monotonic() + 30
    while server.process.poll() is None and time.monotonic() < end_s:
        # How much the system takes off the server's hands depends on the moment: make some room.
        time.sleep(0.5)
        got += len(answer.read(10_000)) if got < 300_000 else 0
    assert server.process.wait(30) == 0
    assert got + len(answer.read()) == 400_000
    connection.close()
    server.stop()


def test_sighup_reads_the_configuration_again_and_refuses_a_bad_one(tmp_path: Path) -> None:
    make_release(tmp_path / "release", big_iso=1_000_000)
    config = tmp_path / "tidegate.toml"
    config.write_text('[[rules]]\npath = "/big.iso"\nhidden_until = 2999-01-01T00:00:00Z\n')
    with serving(tmp_path / "release", tmp_path / "state", "--config", str(config)) as server:
        assert status_of(server.url, "a") == 404
        config.write_text("[admission]\nslots = 0\n")
        server.signal(signal.SIGHUP)
        wait_for(lambda: any("admission.slots" in line for line in server.errors))
        assert any("Not reloaded" in line for line in server.errors)
        assert status_of(server.url, "a") == 404
        config.write_text("")
        server.signal(signal.SIGHUP)
        wait_for(lambda: status_of(server.url, "a") == 200)
        assert status_of(server.url, "a") == 200


def test_a_unix_socket_serves_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    make_release(tmp_path / "release", notes_txt=100)
    path = tmp_path / "tide.sock"
    args = ("--listen", f"unix:{path}")
    for _ in range(2):
        server = RunningServer(tmp_path / "release", tmp_path / "state", *args)
        wait_for(lambda: len(server.urls) == 2)  # noqa: B023
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(path))
            peer.sendall(b"GET /notes.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert peer.recv(100).startswith(b"HTTP/1.1 200")
        server.kill()


def test_a_locked_database_stops_no_download_and_no_ticket(tmp_path: Path) -> None:
    make_release(tmp_path / "release", big_iso=30_000_000)
    state = tmp_path / "state"
    with serving(tmp_path / "release", state, *ARGS, **ENVIRON) as server:
        holders = [ask(server.url, f"holder-{n}") for n in range(2)]
        lock = sqlite3.connect(state / "tidegate.db", isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")
        try:
            tokens = []
            for number in range(5):
                begun_s = time.monotonic()
                status, headers, connection = ask(server.url, f"late-{number}")
                connection.close()
                assert status == 503
                assert headers is not None
                tokens.append(headers["Tidegate-Ticket"])
                assert time.monotonic() - begun_s < 15
            assert status_of(server.url, "x", "/-/ready") == 200
            wait_for(lambda: any("downloads go on" in line for line in server.errors))
            assert any("downloads go on" in line for line in server.errors)
        finally:
            lock.execute("ROLLBACK")
            lock.close()
        wait_for(lambda: len(journal(state)) == 7)
        assert sorted(journal(state)) == [1, 2, 3, 4, 5, 6, 7]
        for _, _, connection in holders:
            connection.close()


def test_a_lost_journal_gives_no_number_away_twice(tmp_path: Path) -> None:
    """As an operator does who moves a broken database away: the keys stay, so old tokens count."""
    # What a socket swallows is less, and a holder that stalls keeps its slot however long it takes.
    make_release(tmp_path / "release", big_iso=50_000_000)
    # Tokens of the first run are evidence from before the rush of the second. Without this their
    # clients would get the slot that is only lent to the network of the holders.
    shares = {"TIDEGATE_NETWORK_SHARES": "0"}
    environ = ENVIRON | {"TIDEGATE_SLOT_USE_FRACTION": "0"} | shares
    tokens: dict[str, str] = {}
    for run in range(2):
        with serving(tmp_path / "release", tmp_path / "state", *ARGS, **environ) as server:
            taken = [ask(server.url, f"holder-{run}-{n}") for n in range(2)]
            for n in range(6):
                status, headers, connection = ask(server.url, f"{run}-{n}")
                connection.close()
                assert (status, headers is not None) == (503, True)
                assert headers is not None
                tokens[f"{run}-{n}"] = headers["Tidegate-Ticket"]
            for name, token in tokens.items():
                status, _, connection = ask(server.url, name, token)
                connection.close()
                assert status == 503, "its place is its own"
            server.kill()
            for _, _, connection in taken:
                connection.close()
        for file in (tmp_path / "state").glob("tidegate.db*"):
            file.unlink()
