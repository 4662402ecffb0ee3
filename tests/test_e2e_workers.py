"""Several processes, one queue: real workers behind one port, killed and stopped at will."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import random
import signal
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.running import RunningServer, make_release, serving, wait_for

pytestmark = pytest.mark.e2e

WORKERS = ("--workers", "3")
ENVIRON = {
    "TIDEGATE_CLIENTS_PER_ADDRESS": "65536",
    "TIDEGATE_TICKET_TTL_S": "600",
    "TIDEGATE_EARLY_PENALTY_S": "0",
    "TIDEGATE_LEASE_IDLE_S": "1",
    "TIDEGATE_DRAIN_S": "1",
}


def children(server: RunningServer) -> list[int]:
    """The processes of a server."""
    pid = server.process.pid
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return sorted(map(int, found))


def leader_of(state: Path) -> int:
    """The process that has the queue: it holds the state folder."""
    return int((state / "lock").read_text("ascii"))


def nodes(server: RunningServer, state: Path) -> list[int]:
    """The processes that serve."""
    return [pid for pid in children(server) if pid != leader_of(state)]


class Asking:
    """A client that reads its answer's header, and its body when told to."""

    def __init__(self, url: str, client: str, file: str = "/big.iso", token: str = "") -> None:
        parts = urlsplit(url)
        self.connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        headers = {"Tidegate-Wait": "ticket", "Tidegate-Client": client}
        if token:
            headers["Tidegate-Ticket"] = token
        self.connection.request("GET", file, headers=headers)
        self.answer = self.connection.getresponse()
        self.status = self.answer.status

    @property
    def place(self) -> int:
        return int(self.answer.headers["Tidegate-Place"])

    @property
    def token(self) -> str:
        return self.answer.headers["Tidegate-Ticket"]

    def body(self) -> bytes:
        return self.answer.read()

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


@pytest.fixture
def asking() -> Iterator[Callable[..., Asking]]:
    """Makes clients, and closes what they leave open."""
    made: list[Asking] = []

    def make(*args: str, **more: str) -> Asking:
        made.append(Asking(*args, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


Ask = Callable[..., Asking]


def test_one_queue_in_the_order_of_coming_at_every_worker(tmp_path: Path, asking: Ask) -> None:
    make_release(tmp_path / "release", big_iso=20_000_000, small_txt=100)
    args = ("--slots", "2", "--reserve-small", "1", "--bandwidth", "200KB", "--policy", "ticket")
    with serving(tmp_path / "release", tmp_path / "state", *WORKERS, *args, **ENVIRON) as server:
        holder = asking(server.url, "holder")
        assert holder.status == 200
        waiting = [asking(server.url, f"client-{n}") for n in range(40)]
        assert [one.status for one in waiting] == [503] * 40
        assert [one.place for one in waiting] == list(range(1, 41))
        # The same ticket is good at every worker, and a retry without it finds its place.
        for n in (3, 17, 30):
            for token in (waiting[n].token, ""):
                again = asking(server.url, f"client-{n}", token=token)
                assert (again.status, again.place) == (503, n + 1)
        for _ in range(12):
            with urllib.request.urlopen(f"{server.url}/small.txt", timeout=10) as answer:
                assert len(answer.read()) == 100
        with urllib.request.urlopen(f"{server.url}/-/ready", timeout=10) as answer:
            assert answer.headers["Tidegate-Free"] == "no"
        assert len(children(server)) == 4


def test_parked_programs_start_in_turn_and_get_the_right_bytes(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=1_500_000)
    args = ("--slots", "2", "--reserve-small", "0", "--policy", "ticket", "--bandwidth", "3MB")
    with serving(tmp_path / "release", tmp_path / "state", *WORKERS, *args, **ENVIRON) as server:
        curls = [
            subprocess.Popen(
                ["curl", "-sS", "-A", f"curl/8.{n}", f"{server.url}/big.iso"],
                stdout=subprocess.PIPE,
            )
            for n in range(8)
        ]
        for curl in curls:
            body, _ = curl.communicate(timeout=60)
            assert curl.returncode == 0
            assert hashlib.sha256(body).hexdigest() == digests["big.iso"]


def connections(pid: int, url: str) -> int:
    """How many connections to this server a process has open."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
    port = f":{int(url.rstrip('/').rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(port) and row[3] == "01" and row[9] in inodes for row in rows)


def test_a_killed_worker_costs_its_own_clients_only(tmp_path: Path, asking: Ask) -> None:
    digests = make_release(tmp_path / "release", big_iso=1_500_000)
    args = ("--slots", "12", "--reserve-small", "0", "--policy", "ticket", "--bandwidth", "3MB")
    with serving(tmp_path / "release", tmp_path / "state", *WORKERS, *args, **ENVIRON) as server:
        running = [asking(server.url, f"c{n}") for n in range(12)]
        workers = nodes(server, tmp_path / "state")
        # The kernel spreads connections by chance: one of those that have any is killed.
        victim = next(pid for pid in workers if connections(pid, server.url))
        waiting = [asking(server.url, f"w{n}") for n in range(10)]
        places = [one.place for one in waiting]
        os.kill(victim, signal.SIGKILL)
        whole = 0
        for one in running:
            try:
                body = one.body()
            except (http.client.IncompleteRead, ConnectionError):
                continue
            whole += 1
            assert hashlib.sha256(body).hexdigest() == digests["big.iso"]
        wait_for(lambda: len(children(server)) == 4 and victim not in children(server))
        assert 1 <= whole < len(running)
        after = [asking(server.url, f"w{n}", token=one.token) for n, one in enumerate(waiting)]
        for before, one in zip(places, after, strict=True):
            assert one.status == 200 or one.place <= before


def test_the_leader_may_be_killed_again_and_again(tmp_path: Path, asking: Ask) -> None:
    """Running bodies do not notice; tickets keep the order of their numbers; nobody is refused.

    The bodies last longer than all three kills take on a busy machine: nobody starts meanwhile.
    """
    rng = random.Random(5)
    digests = make_release(tmp_path / "release", big_iso=16_000_000, other_iso=3_000_000)
    args = ("--slots", "2", "--reserve-small", "0", "--policy", "ticket", "--bandwidth", "2MB")
    with serving(tmp_path / "release", tmp_path / "state", *WORKERS, *args, **ENVIRON) as server:
        running = [asking(server.url, f"r{n}") for n in range(2)]
        bodies: dict[int, str] = {}

        def read(index: int) -> None:
            bodies[index] = hashlib.sha256(running[index].body()).hexdigest()

        readers = [threading.Thread(target=read, args=(index,)) for index in range(2)]
        for reader in readers:
            reader.start()
        parked = subprocess.Popen(
            ["curl", "-sS", f"{server.url}/other.iso"], stdout=subprocess.PIPE
        )
        waiting = [asking(server.url, f"w{n}") for n in range(20)]
        order = [one.place for one in waiting]
        assert order == sorted(order)
        for _ in range(3):
            leader = leader_of(tmp_path / "state")
            time.sleep(rng.uniform(0.0, 0.3))
            os.kill(leader, signal.SIGKILL)
            late = asking(server.url, f"late-{leader}")
            assert late.status == 503
            assert "Tidegate-Ticket" in late.answer.headers
            again = [asking(server.url, f"w{n}", token=w.token) for n, w in enumerate(waiting)]
            places = [one.place for one in again if one.status == 503]
            assert places == sorted(places)
            assert len(places) >= 18
        for reader in readers:
            reader.join(60)
        assert list(bodies.values()) == [digests["big.iso"]] * 2
        body, _ = parked.communicate(timeout=60)
        assert hashlib.sha256(body).hexdigest() == digests["other.iso"]


def test_a_stopped_server_lets_downloads_finish_and_is_gone(tmp_path: Path, asking: Ask) -> None:
    digests = make_release(tmp_path / "release", big_iso=1_000_000)
    args = ("--bandwidth", "500KB")
    patient = {**ENVIRON, "TIDEGATE_DRAIN_S": "30"}
    with serving(tmp_path / "release", tmp_path / "state", *WORKERS, *args, **patient) as server:
        one = asking(server.url, "c")
        pids = children(server)
        server.signal(signal.SIGTERM)
        assert hashlib.sha256(one.body()).hexdigest() == digests["big.iso"]
        server.process.wait(30)
        assert server.process.returncode == 0
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_children_do_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    make_release(tmp_path / "release", big_iso=1_000)
    with serving(tmp_path / "release", tmp_path / "state", *WORKERS, **ENVIRON) as server:
        pids = children(server)
        server.kill()
        wait_for(lambda: not any(_runs(pid) for pid in pids))
        assert not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_second_server_on_the_port_or_the_state_is_refused_in_a_sentence(tmp_path: Path) -> None:
    make_release(tmp_path / "release", big_iso=1_000)
    with serving(tmp_path / "release", tmp_path / "state", *WORKERS) as server:
        port = server.url.rpartition(":")[2]
        with pytest.raises(AssertionError, match="Address already in use"):
            RunningServer(
                tmp_path / "release",
                tmp_path / "other",
                *WORKERS,
                "--listen",
                f"127.0.0.1:{port}",
            )
        with pytest.raises(AssertionError, match="is in use by process"):
            RunningServer(tmp_path / "release", tmp_path / "state", *WORKERS)


def test_workers_speak_tls_and_unix_sockets(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=2_000_000)
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2"),
            *("-subj", "/CN=localhost"),
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    (tmp_path / "key.pem").chmod(0o600)
    path = tmp_path / "web.sock"
    args = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    unix = ("--listen", f"unix:{path}")
    state = tmp_path / "state"
    environ = {**ENVIRON, "TIDEGATE_TLS_HSTS_S": "60"}
    with serving(tmp_path / "release", state, *WORKERS, *args, *unix, **environ) as server:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        for _ in range(4):
            with urllib.request.urlopen(
                f"{server.url}/big.iso", context=context, timeout=20
            ) as answer:
                assert hashlib.sha256(answer.read()).hexdigest() == digests["big.iso"]
                assert answer.headers["Strict-Transport-Security"] == "max-age=60"
        found = subprocess.run(
            ["curl", "-sS", "--unix-socket", str(path), "http://localhost/big.iso"],
            capture_output=True,
            check=True,
            timeout=30,
        )
        assert hashlib.sha256(found.stdout).hexdigest() == digests["big.iso"]


def test_the_bound_on_connections_per_address_is_the_machines(tmp_path: Path) -> None:
    """It was each worker's own, so an address had three times as many at three of them."""
    (tmp_path / "site").mkdir()
    make_release(tmp_path / "site", small_txt=100)
    environ = {"TIDEGATE_LIMITS__MAX_CONNECTIONS_PER_ADDRESS": "12"}
    with serving(tmp_path / "site", tmp_path / "state", *WORKERS, **environ) as server:
        parts = urlsplit(server.url)
        opened, refused = [], 0
        for _ in range(40):
            one = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
            one.request("GET", "/small.txt")
            answer = one.getresponse()
            answer.read()
            opened.append(one)
            refused += answer.status == 503
        assert refused == 28
        # A client that closes some may open as many, at whichever worker.
        for one in opened:
            one.close()

        def taken() -> bool:
            try:
                with urllib.request.urlopen(f"{server.url}/small.txt", timeout=30) as again:
                    return int(again.status) == 200
            except urllib.error.HTTPError as error:
                error.close()
                return False

        wait_for(taken, 30)
        assert taken()


def test_newcomers_get_tickets_while_nobody_leads_for_long(tmp_path: Path, asking: Ask) -> None:
    digests = make_release(tmp_path / "release", big_iso=3_000_000, small_txt=100)
    args = ("--slots", "6", "--reserve-small", "0", "--bandwidth", "20MB", "--policy", "ticket")
    with serving(tmp_path / "release", tmp_path / "state", *WORKERS, *args, **ENVIRON) as server:
        running = asking(server.url, "before")
        assert running.status == 200
        leader = leader_of(tmp_path / "state")
        os.kill(leader, signal.SIGSTOP)
        try:

            def said() -> bytes:
                try:
                    with urllib.request.urlopen(f"{server.url}/-/ready", timeout=30) as answer:
                        return bytes(answer.read())
                except urllib.error.HTTPError as error:
                    # It was asked in the moment before the node missed its leader.
                    return error.read()

            wait_for(lambda: b"new large downloads get a ticket" in said(), 60)
            newcomer = asking(server.url, "newcomer")
            assert (newcomer.status, newcomer.answer.headers["Tidegate-Place"]) == (503, None)
            assert newcomer.token
            assert hashlib.sha256(running.body()).hexdigest() == digests["big.iso"]
            with urllib.request.urlopen(f"{server.url}/small.txt", timeout=30) as small:
                assert len(small.read()) == 100
        finally:
            os.kill(leader, signal.SIGCONT)

        # Each node finds its leader again at a moment of its own: a client asks until one has. The
        # leader knows the ticket that a node issued.
        after: list[Asking] = []

        def started() -> bool:
            after.append(asking(server.url, "newcomer", token=newcomer.token))
            return after[-1].status == 200

        wait_for(started, 30)
        assert hashlib.sha256(after[-1].body()).hexdigest() == digests["big.iso"]
