"""What a bug in the server could reach: it cannot write the tree, whatever user it runs as."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import pwd
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.attacks.test_user import NOBODY, children_of, reachable
from tests.installed import PYTHON
from tests.running import make_release, serving, wait_for
from tidegate.server.app.confinement import confine, database_ports, needs_of
from tidegate.server.app.settings import ServerConfig
from tidegate.server.app.system_calls import DENIED, JUDGED, PROCESSORS, close_system_calls
from tidegate.server.multicast.settings import MulticastSettings

pytestmark = pytest.mark.e2e

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "tidegate.service"
ROOT = Path(__file__).parents[2]

#: The text of `tests.attacks.intruder` before the server's own `main`.
INTRUDED = f"{(ROOT / 'tests' / 'attacks' / 'intruder.py').read_text()}\nwait_for_signal()\n" + (
    "import tidegate\ntidegate.main()\n"
)
#: The columns of the table in docs/security.md: the user, the flags, and who is intruded.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "a user": (NOBODY, ()),
    "`--user NAME`": ("root", ("--user", NOBODY)),
    "`--user root`": ("root", ("--user", "root")),
    "a node of `--workers`": (NOBODY, ("--workers", "2")),
}


def table_of_the_manual() -> dict[str, dict[str, str]]:
    """By column and row what docs/security.md says of code that runs in the server."""
    lines = (ROOT / "docs" / "security.md").read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("| code in the server tries"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    rows = list(itertools.takewhile(lambda row: len(row) > 1, rows))
    heads = rows[0][1:]
    return {head: {row[0]: row[at] for row in rows[2:]} for at, head in enumerate(heads, 1)}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, which pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextlib.contextmanager
def targets(folder: Path, uid: int) -> Iterator[dict[str, object]]:
    """What an intruder aims at. The release and the other process are the serving user's."""
    make_release(folder / "release", a_txt=10)
    other = folder / "other"
    other.mkdir()
    other.chmod(0o777)
    for path in (folder / "release", folder / "release" / "a.txt"):
        path.chmod(0o755)
        os.chown(path, uid, uid)
    abstract = f"tidegate-test-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(socket.socket(socket.AF_UNIX))
        one.bind(str(other / "socket"))
        (other / "socket").chmod(0o666)
        two = stack.enter_context(socket.socket(socket.AF_UNIX))
        two.bind("\0" + abstract)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for listener in (one, two):
            listener.listen()
        with socket.create_server(("127.0.0.1", 0)) as free:
            free_port = free.getsockname()[1]
        process = subprocess.Popen(["sleep", "600"], user=uid, group=uid, extra_groups=[])
        stack.callback(process.wait)
        stack.callback(process.kill)
        yield {
            "tree": str(folder / "release"),
            "state": str(folder / "state"),
            "other": str(other),
            "abstract": abstract,
            "tcp": tcp.getsockname()[1],
            "free": free_port,
            "pid": process.pid,
        }


def serving_process(started: int, state: Path) -> int:
    """The process that parses what strangers send: the one that was started, or a node of it."""
    leader = int((state / "lock").read_text())
    return started if leader == started else next(x for x in children_of(started) if x != leader)


def found_inside(
    folder: Path, user: str, *flags: str, **environ: str
) -> tuple[dict[str, list[str]], int]:
    """What became of each try in a server that `user` starts, and how it answers afterwards."""
    serves = pwd.getpwnam(flags[1] if flags[:1] == ("--user",) else user)
    become = ["setpriv", f"--reuid={user}", f"--regid={serves.pw_gid}", "--clear-groups"]
    command = [*(become if user != "root" else []), "env", "-u", "TIDEGATE_USER"]
    command += [PYTHON, "-c", INTRUDED]
    (folder / "state").mkdir(mode=0o700)
    os.chown(folder / "state", serves.pw_uid, serves.pw_gid)
    with targets(folder, serves.pw_uid) as aims:
        flags = (*flags, "--admin", "127.0.0.1:0")
        environ = {**environ, "INTRUDER": json.dumps(aims), "PYTHONDONTWRITEBYTECODE": "1"}
        program = reachable(command, folder / "aside")
        with serving(
            folder / "release", folder / "state", *flags, program=program, **environ
        ) as server:
            os.kill(serving_process(server.process.pid, folder / "state"), signal.SIGUSR2)
            answer = folder / "state" / "found.json"
            wait_for(answer.exists, 60)
            found: dict[str, list[str]] = json.loads(answer.read_text())
            return found, requests.get(f"{server.url}/a.txt", timeout=60).status_code


def as_one(outcomes: list[str]) -> str:
    assert len(set(outcomes)) == 1, outcomes
    return outcomes[0]


@pytest.mark.e2e
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("kind", KINDS)
def test_code_in_the_server_can_do_what_the_manual_says(kind: str, open_folder: Path) -> None:
    user, flags = KINDS[kind]
    found, status = found_inside(open_folder, user, *flags)
    assert status == 200
    assert {row: as_one(outcomes) for row, outcomes in found.items()} == table_of_the_manual()[kind]


@pytest.mark.e2e
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_each_try_works_where_nothing_is_confined(open_folder: Path) -> None:
    """A try that fails by itself would prove nothing."""
    found, _ = found_inside(open_folder, "root", "--user", "root", TIDEGATE_CONFINE="false")
    assert found.keys() == table_of_the_manual()["a user"].keys()
    assert {outcome for outcomes in found.values() for outcome in outcomes} == {"done"}


@pytest.mark.parametrize(
    ("url", "ports", "unix_socket"),
    [
        ("sqlite:////var/lib/x.db", set(), False),
        ("postgresql://tidegate@db.example/tidegate", {5432, 53}, False),
        ("postgresql+psycopg://u:p%40@db:6543/x?sslmode=verify-full", {6543, 53}, False),
        ("postgresql:///tidegate", None, True),
        ("postgresql://u@/x?host=/run/postgresql", None, True),
        ("postgresql://u@one,two/x", None, True),
    ],
)
def test_a_server_connects_to_its_database_alone(
    url: str, ports: set[int] | None, unix_socket: bool
) -> None:
    expected = (None if ports is None else frozenset(ports), unix_socket)
    assert database_ports(url) == expected
    config = ServerConfig(
        database=url,
        listen=("127.0.0.1:8080", "unix:/run/x"),
        admin="off",
        multicast=MulticastSettings(enabled=True),
    )
    needs = needs_of(config, several=False)
    assert needs is not None
    assert (needs.connects, needs.unix_sockets) == expected
    assert not needs.listens
    assert not needs.programs
    node = needs_of(config, several=True, asks=True)
    assert node is not None
    assert node.connects == frozenset()


def test_a_machine_of_a_cluster_connects_to_the_others() -> None:
    config = ServerConfig(cluster="postgresql://u@db/x", cluster_address="192.0.2.1:7000")
    for asks in (False, True):
        needs = needs_of(config, several=True, asks=asks)
        assert needs is not None
        assert needs.connects is None
        assert {0, 7000} <= needs.listens
        assert needs.modes is not asks
        assert needs.programs is not asks


def test_numbers_of_system_calls_are_those_of_the_processor() -> None:
    library = ctypes.CDLL("libseccomp.so.2")
    number = library.seccomp_syscall_resolve_name_arch
    number.argtypes = (ctypes.c_uint32, ctypes.c_char_p)
    for processor in PROCESSORS.values():
        for name, numbers in {**DENIED, **JUDGED}.items():
            known = number(processor.audit, name.encode())
            assert numbers[processor.column] == (known if known >= 0 else None), name


def test_a_processor_that_the_filter_does_not_know_is_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = os.uname_result(("Linux", "x", "6.1", "x", "riscv64"))
    monkeypatch.setattr(os, "uname", lambda: unknown)
    assert not close_system_calls(frozenset(), False)


def test_a_confined_server_serves_keeps_its_queue_and_reloads(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=10)
    log = tmp_path / "access.log"
    for _ in range(2):
        with serving(tmp_path / "release", tmp_path / "state", "--access-log", str(log)) as server:
            assert requests.get(f"{server.url}/a.txt", timeout=20).status_code == 200
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            assert "NoNewPrivs:\t1" in status
        assert not server.errors
    assert log.read_text().count("/a.txt") == 2


def test_what_a_confined_server_loads_is_compiled_once(tmp_path: Path) -> None:
    """Python keeps what it compiles, so all is loaded before the right to write is given up."""
    make_release(tmp_path / "release", a_txt=10)
    kept = {"PYTHONPYCACHEPREFIX": str(tmp_path / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
    with serving(tmp_path / "release", tmp_path / "state", **kept):
        pass
    names = {path.name.partition(".")[0] for path in (tmp_path / "compiled").rglob("*.pyc")}
    assert {"run", "service", "gate", "sender", "journal"} <= names


def test_a_kernel_without_landlock_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def syscall(self, *arguments: object) -> int:
            return -1

    monkeypatch.setattr("ctypes.CDLL", lambda *a, **k: Old())
    needs = needs_of(ServerConfig(), several=False)
    assert needs is not None
    assert not confine([], needs)


def test_the_unit_lets_the_server_confine_itself() -> None:
    """Groups of system calls of older versions of systemd leave these out."""
    allowed = re.findall(r"(?m)^SystemCallFilter=([^~].*)$", UNIT.read_text())
    wanted = {"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp"}
    assert wanted <= {name for line in allowed for name in line.split()}


def test_the_unit_is_hardened() -> None:
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNIT)],
        capture_output=True,
        text=True,
        check=True,
    )
    [line] = [line for line in judged.stdout.splitlines() if "Overall exposure" in line]
    assert float(line.split(":")[1].split()[0]) <= 2.0


def test_the_server_runs_under_what_the_unit_forbids(tmp_path: Path) -> None:
    """No capability, no way to new ones, no memory both writable and executable."""
    make_release(tmp_path / "release", a_txt=10)
    launcher = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(65, 1, 0, 0, 0); "
        "os.execvp('tidegate', ['tidegate', *sys.argv[1:]])"
    )
    command = [PYTHON, "-c", launcher, "serve", str(tmp_path / "release")]
    command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    command += ["--state", str(tmp_path / "state")]
    if os.geteuid() == 0:
        bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        command = [*bare, *command]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        urls: list[str] = []
        for line in process.stdout:
            if line.startswith("ready "):
                urls.append(line.split()[1])
                break
        try:
            assert urls, process.stderr.read()
            assert requests.get(f"{urls[0]}/a.txt", timeout=20).status_code == 200
        finally:
            process.terminate()
