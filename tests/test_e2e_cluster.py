"""Several machines, one queue: real servers on one PostgreSQL, each with its own state folder."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.installed import PYTHON
from tests.postgres import postgres_running
from tests.running import RunningServer, make_release, wait_for
from tests.test_e2e_workers import Asking, children
from tidegate.server.cluster.identity import make_identity
from tidegate.server.store.cluster import (
    Seat,
    Secret,
    read_nodes,
    read_seat,
    read_secrets,
    write_secrets,
)
from tidegate.server.store.database import Database

pytestmark = pytest.mark.e2e

ENVIRON = {
    "TIDEGATE_CLIENTS_PER_ADDRESS": "65536",
    "TIDEGATE_TICKET_TTL_S": "600",
    "TIDEGATE_EARLY_PENALTY_S": "0",
    "TIDEGATE_LEASE_IDLE_S": "1",
    "TIDEGATE_DRAIN_S": "20",
    # Nobody leads anew because a busy machine let the leader wait.
    "TIDEGATE_CLUSTER_LEASE_S": "4",
}
ARGS = ("--slots", "2", "--reserve-small", "0", "--policy", "ticket", "--bandwidth", "2MB")


class Machines:
    """The servers of a test, by name; `leader` is the one that leads by what the database says."""

    def __init__(self, folder: Path, url: str, *args: str) -> None:
        self.folder = folder
        self.url = url
        self.args = args
        self.running: dict[str, RunningServer] = {}
        self.database = Database(url)
        self.digests = make_release(folder / "release", big_iso=3_000_000, small_txt=100)

    def start(self, name: str, **environ: str) -> RunningServer:
        state, own = self.folder / name, self.folder / f"{name}-release"
        if not own.exists():
            # Every machine has files of its own, as `rsync -a` brought them.
            shutil.copytree(self.folder / "release", own)
        args = ("--cluster", self.url, *self.args)
        server = RunningServer(own, state, *args, **ENVIRON, **environ)
        self.running[name] = server
        return server

    def seat(self) -> Seat:
        with self.database.begin() as session:
            return read_seat(session)

    def connected(self) -> set[str]:
        with self.database.begin() as session:
            return set(read_nodes(session).values())

    def id_of(self, name: str) -> str:
        return (self.folder / name / "machine").read_text("ascii").strip()

    @property
    def leader(self) -> str:
        holder = self.seat().holder
        return next((name for name in self.running if self.id_of(name) == holder), "")

    def leader_pid(self) -> int:
        return int((self.folder / self.leader / "lock").read_text("ascii"))

    def gathered(self) -> bool:
        return self.connected() == {self.id_of(name) for name in self.running}

    def lose(self, name: str) -> None:
        """Kill all processes of a machine."""
        server = self.running.pop(name)
        for pid in (server.process.pid, *children(server)):
            os.kill(pid, signal.SIGKILL)
        server.kill()

    def stop(self, name: str) -> int:
        return self.running.pop(name).stop()

    def close(self) -> None:
        for server in self.running.values():
            server.signal(signal.SIGTERM)
        for server in self.running.values():
            server.stop()
        with self.database.engine.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        self.database.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres_running() as found:
        yield found


@pytest.fixture
def machines(tmp_path: Path, url: str) -> Iterator[Machines]:
    found = Machines(tmp_path, url, *ARGS)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def asking() -> Iterator[Callable[..., Asking]]:
    made: list[Asking] = []

    def make(*args: str, **more: str) -> Asking:
        made.append(Asking(*args, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


Ask = Callable[..., Asking]


def test_three_machines_have_one_queue(tmp_path: Path, url: str, asking: Ask) -> None:
    # So slow that no slot is free again before the end.
    machines = Machines(tmp_path, url, *ARGS, "--bandwidth", "50KB")
    try:
        _have_one_queue(machines, asking)
    finally:
        machines.close()


def _have_one_queue(machines: Machines, asking: Ask) -> None:
    urls = [machines.start(name).url for name in ("one", "two", "three")]
    wait_for(machines.gathered, 60)
    # Two slots are each machine's own.
    holders = [asking(urls[n % 2], f"holder-{n}") for n in range(6)]
    assert [one.status for one in holders] == 6 * [200]
    waiting = [asking(urls[n % 3], f"client-{n}") for n in range(30)]
    assert [(one.status, one.place) for one in waiting] == [(503, n + 1) for n in range(30)]
    for n in (3, 17, 28):
        for token in (waiting[n].token, ""):
            again = asking(urls[(n + 1) % 3], f"client-{n}", token=token)
            assert (again.status, again.place) == (503, n + 1)
    for url in urls:
        with urllib.request.urlopen(f"{url}/small.txt", timeout=20) as answer:
            assert len(answer.read()) == 100


def _part(url: str, file: str, span: str, tag: str) -> tuple[int, str, bytes]:
    fields = {"Range": f"bytes={span}", "If-Range": tag, "Tidegate-Client": "parts"}
    request = urllib.request.Request(f"{url}/{file}", headers=fields)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status, answer.headers["ETag"], answer.read()


def test_a_download_goes_on_at_another_machine_and_is_never_a_mixture(
    tmp_path: Path, url: str
) -> None:
    machines = Machines(tmp_path, url, *ARGS, "--bandwidth", "50MB")
    try:
        urls = [machines.start(name).url for name in ("one", "two")]
        wait_for(machines.gathered, 60)
        whole = (tmp_path / "release" / "big.iso").read_bytes()
        with urllib.request.urlopen(f"{urls[0]}/big.iso", timeout=60) as answer:
            tag = answer.headers["ETag"]
            assert answer.read() == whole
        cuts = [*range(0, len(whole), 700_000), len(whole)]
        got = b""
        for turn, (begin, end) in enumerate(itertools.pairwise(cuts)):
            status, seen, part = _part(urls[turn % 2], "big.iso", f"{begin}-{end - 1}", tag)
            assert (status, seen) == (206, tag)
            got += part
        assert hashlib.sha256(got).hexdigest() == machines.digests["big.iso"]
        # The second machine has another build of the same size and time by now.
        file = tmp_path / "two-release" / "big.iso"
        times = os.stat(file)
        other = bytes(255 - byte for byte in whole)
        file.write_bytes(other)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        status, seen, part = _part(urls[1], "big.iso", "700000-", tag)
        assert (status, part) == (200, other)
        assert seen != tag
        status, seen, part = _part(urls[0], "big.iso", "700000-", tag)
        assert (status, seen, part) == (206, tag, whole[700_000:])
    finally:
        machines.close()


def test_a_leader_that_is_killed_is_followed_by_another_and_no_place_is_lost(
    machines: Machines, asking: Ask
) -> None:
    urls = {name: machines.start(name).url for name in ("one", "two", "three")}
    wait_for(machines.gathered, 60)
    others = [url for name, url in urls.items() if name != machines.leader]
    running = [asking(others[n], f"holder-{n}") for n in range(2)]
    bodies: list[str] = []
    readers = [
        threading.Thread(
            target=lambda one=one: bodies.append(hashlib.sha256(one.body()).hexdigest())
        )
        for one in running
    ]
    for reader in readers:
        reader.start()
    waiting = [asking(others[n % 2], f"client-{n}") for n in range(12)]
    before = machines.seat()
    # The machine is gone, with all its processes.
    machines.lose(machines.leader)
    late = asking(others[0], "late")
    assert late.status in (200, 503)
    wait_for(lambda: machines.seat().epoch > before.epoch and machines.leader, 60)
    assert machines.seat().holder != before.holder
    places = []
    for n, one in [(n, one) for n, one in enumerate(waiting) if one.status == 503]:
        for _ in range(100):
            again = asking(others[(n + 1) % 2], f"client-{n}", token=one.token)
            if again.answer.headers.get("Tidegate-Place") or again.status == 200:
                break
            time.sleep(0.1)
        assert again.status in (200, 503)
        if again.status == 503:
            places.append(again.place)
    assert places == sorted(places)
    assert len(set(places)) == len(places)
    for reader in readers:
        reader.join(60)
    assert bodies == [machines.digests["big.iso"]] * 2


def test_a_leader_that_was_stopped_finds_another_in_its_place_and_follows(
    machines: Machines, asking: Ask
) -> None:
    for name in ("one", "two"):
        machines.start(name)
    wait_for(machines.gathered, 60)
    before, lost = machines.seat(), machines.leader
    other = machines.running["two" if lost == "one" else "one"]
    waiting = [asking(other.url, f"client-{n}") for n in range(6)]
    pid = machines.leader_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: machines.seat().epoch > before.epoch, 60)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert machines.leader not in ("", lost)
    follower = machines.running[lost]
    wait_for(lambda: "leads no more" in "".join(follower.errors), 60)
    assert "leads no more" in "".join(follower.errors)
    wait_for(machines.gathered, 60)
    assert machines.gathered()
    # Its nodes serve on, and ask the new leader.
    queued = [(n, one) for n, one in enumerate(waiting) if one.status == 503]
    for n, one in queued:
        again = asking(follower.url, f"client-{n}", token=one.token)
        assert again.status in (200, 503)
        assert again.status == 200 or again.place <= one.place


def _renew_keys(machines: Machines) -> None:
    """A new certificate and a new key for tickets, which all machines use as soon as they read."""
    long_ago = time.time() - 7200.0
    fresh = {
        "links": Secret("fresh", make_identity(long_ago).pem, long_ago),
        "tickets": Secret("fresh", secrets.token_hex(32), long_ago),
    }
    with machines.database.begin() as session:
        for kind, secret in fresh.items():
            write_secrets(session, kind, [secret, *read_secrets(session, kind)])


def test_keys_are_renewed_and_then_a_machine_is_drained_and_removed_while_its_downloads_end(
    machines: Machines, asking: Ask
) -> None:
    for name in ("one", "two"):
        machines.start(name)
    wait_for(machines.gathered, 60)
    name = machines.leader
    other = "two" if name == "one" else "one"
    leaving, staying = machines.running[name], machines.running[other]
    running = asking(leaving.url, "holder")
    waiting = [asking(leaving.url, f"client-{n}") for n in range(5)]
    _renew_keys(machines)
    for server in (leaving, staying):
        server.signal(signal.SIGHUP)
    # Its node comes back, by the new certificate; whose ticket was signed with the old key stays.
    node = f"{machines.id_of(other)}/node-0"
    wait_for(lambda: len(_trusted(machines.folder / other)) == 2, 60)
    [pid] = [pid for pid in children(staying) if pid != int(_lock(machines.folder / other))]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: f"Node {node} (process {pid}) has left" in "".join(leaving.errors), 60)
    wait_for(lambda: "".join(leaving.errors).count(f"Node {node} ") == 3, 60)
    assert "".join(leaving.errors).count(f"Node {node} ") == 3
    newcomer = asking(staying.url, "newcomer")
    assert newcomer.token.split(".")[1] != waiting[-1].token.split(".")[1]
    waiting.append(newcomer)
    leaving.signal(signal.SIGTERM)
    wait_for(lambda: machines.leader == other, 60)
    assert machines.leader == other
    assert hashlib.sha256(running.body()).hexdigest() == machines.digests["big.iso"]
    leaving.process.wait(60)
    assert leaving.process.returncode == 0
    assert machines.stop(name) == 0
    places = []
    for n, one in enumerate(waiting):
        if one.status == 503:
            again = asking(staying.url, f"client-{n}", token=one.token)
            assert again.status in (200, 503)
            places += [again.place] if again.status == 503 else []
    assert places == sorted(places)


def test_without_the_database_nobody_leads_and_newcomers_start_in_their_order_when_it_is_back(
    machines: Machines, asking: Ask
) -> None:
    server = machines.start("one")
    wait_for(machines.gathered, 60)
    epoch = machines.seat().epoch
    machines.database.engine.dispose()
    stopped = _processes(machines.url)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: "leads no more" in "".join(server.errors), 60)
        # The first waits inside its request until the node expects no leader any more.
        tickets = [asking(server.url, f"client-{n}") for n in range(4)]
        assert [one.status for one in tickets] == [503] * 4
        assert not any(one.answer.headers.get("Tidegate-Place") for one in tickets)
        assert asking(server.url, "small", "/small.txt").status == 200
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    wait_for(lambda: machines.seat().epoch > epoch and machines.gathered(), 60)
    # Two slots: places are by the time of the tickets, and not by who asks first.
    again: dict[int, Asking] = {}

    def told(n: int) -> bool:
        again[n] = asking(server.url, f"client-{n}", token=tickets[n].token)
        return again[n].status == 200 or bool(again[n].answer.headers.get("Tidegate-Place"))

    for n in (0, 1, 3, 2):
        wait_for(lambda n=n: told(n), 60)
    assert [(again[n].status, again[n].place) for n in (2, 3)] == [(503, 1), (503, 2)]
    assert [again[n].status for n in (0, 1)] == [200, 200]


def _trusted(state: Path) -> list[object]:
    """The certificates that a machine's nodes accept."""
    found: list[object] = json.loads((state / "cluster.json").read_text("ascii"))["identities"]
    return found


def _lock(state: Path) -> str:
    """The process that leads, or would, at a machine."""
    return (state / "lock").read_text("ascii")


def _processes(url: str) -> list[int]:
    """PostgreSQL and its children."""
    data = Path(url.rpartition("host=")[2]) / "data"
    [pid, *_] = (data / "postmaster.pid").read_text("ascii").split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    return [int(pid), *map(int, children.split())]


def test_servers_with_and_without_cluster_refuse_each_other(machines: Machines) -> None:
    machines.start("one")
    folder = machines.folder
    with pytest.raises(AssertionError, match="another Tidegate server uses it"):
        RunningServer(folder / "release", folder / "other", TIDEGATE_DATABASE=machines.url)


def test_any_machines_admin_page_is_the_leaders(tmp_path: Path, url: str) -> None:
    machines = Machines(tmp_path, url, *ARGS, "--admin", "127.0.0.1:0")
    try:
        for name in ("one", "two"):
            machines.start(name)
        wait_for(machines.gathered, 60)
        assert machines.gathered()
        pages = [line for line in machines.running["one"].lines if line.startswith("Admin ")]
        followers = [line for line in machines.running["two"].lines if line.startswith("Admin ")]
        for line in (*pages, *followers):
            with urllib.request.urlopen(f"{line.split()[1]}metrics", timeout=20) as answer:
                found = answer.read().decode()
            assert "tidegate_leader_epoch 1.0" in found
            assert "tidegate_nodes 2.0" in found
            assert f'tidegate_node_connections{{node="{machines.id_of("two")}/node-0"}}' in found
        assert len(pages) == len(followers) == 1
        page = followers[0].split()[1] if machines.leader == "one" else pages[0].split()[1]
        pid = machines.leader_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            # A machine that has no leader says so: at once, or after a moment.
            with urllib.request.urlopen(f"{page}metrics", timeout=20) as answer:
                assert "tidegate_fleet_up 0.0" in answer.read().decode()
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(page, timeout=20)
            assert refused.value.code == 503
            assert "has said nothing" in refused.value.read().decode()
            refused.value.close()
        finally:
            os.kill(pid, signal.SIGCONT)
    finally:
        machines.close()


@pytest.mark.timeout(600)
def test_faults_at_random_break_no_promise() -> None:
    """`make cluster-faults` goes on for longer."""
    pytest.importorskip("psycopg")
    command = [PYTHON, "-m", "tests.machine_faults", "--seconds", "8"]
    done = subprocess.run(
        [*command, "--clients", "12"], capture_output=True, text=True, check=False
    )
    if "PostgreSQL is not installed" in done.stderr:
        pytest.skip("PostgreSQL is not installed")
    assert done.returncode == 0, done.stdout + done.stderr
