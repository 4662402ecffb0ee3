"""What is built is what runs: the wheel alone, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from policies.contract import TicketState
from policies.registry import POLICIES
from tests.policy_twin import PolicyTwin
from tests.test_policies_plugins import installed  # noqa: F401 - a fixture
from tidegate import COMMANDS

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def built(folder: Path, **more: str) -> tuple[Path, str]:
    """The wheel of the working folder, and what was said about it."""
    source = folder / "source"
    archive = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in archive.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(
        [*PIP, "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", folder, source],
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert not list(source.rglob("*.so")), "nothing compiled is left in the tree"
    assert not list((source / "build").iterdir())
    (wheel,) = folder.glob("*.whl")
    return wheel, done.stdout


@pytest.fixture(scope="module")
def tidegate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script of a fresh environment that holds the wheel; dependencies are lent."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel, told = built(folder)
    assert "not compiled" not in told, "nothing kept it from compiling"
    home = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = str(home / "bin" / "python")
    install = ("--python", python, "install", "-q", "--no-deps", str(wheel))
    subprocess.run([PIP[0], *PIP[1:], *install], check=True, capture_output=True)
    (site,) = home.glob("lib/python*/site-packages")
    # A plain path line: editable installations over there do not count here.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "tidegate"


def run(tidegate: Path, *words: str | Path, **more: str) -> str:
    """What its Python prints; the folder holds no sources that it could find instead."""
    done = subprocess.run(
        [tidegate.parent / "python", *words],
        cwd=tidegate.parent,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_without_a_compiler_the_wheel_is_for_any_machine_and_says_so(tmp_path: Path) -> None:
    wheel, told = built(tmp_path, CC="false")
    assert "tidegate: there is no C compiler" in told
    assert wheel.name.endswith("-none-any.whl")


def test_policies_are_compiled_and_keep_their_laws(tidegate: Path) -> None:
    assert "(policies compiled)" in run(tidegate, "-m", "tidegate", "--version")
    laws = """
import sys
from policies.testing import check_laws
for name in ("fcfs", "reserve", "ticket", "fair", "adaptive"):
    check_laws(name, switches=name == "fair", examples=15)
assert sys.modules["policies.admission"].__file__.endswith(".so")
"""
    run(tidegate, "-c", laws)


def test_a_policy_of_others_runs_on_compiled_ones(
    tidegate: Path,
    installed: dict[str, str],  # noqa: F811 - the fixture
) -> None:
    path = {"PYTHONPATH": installed["PYTHONPATH"]}
    run(
        tidegate,
        "-c",
        'from policies.testing import check_laws; check_laws("shortest", examples=5)',
        **path,
    )
    words = ("-m", "tidegate", "simulate", "run", "--policy", "shortest", "--json", "--hold")
    shown = run(
        tidegate, *words, "--workload", "exp2", "--bandwidth", "0.5", "--seeds", "1", **path
    )
    assert json.loads(shown)["eta_told"] > 10


def test_a_policy_that_breaks_the_promise_of_a_hook_gets_an_exception(tidegate: Path) -> None:
    shown = run(tidegate, TESTS / "foreign_policies.py")
    assert shown.endswith("whole\n")
    assert "rank 'text' -> TypeError" in shown


class Twins(RuleBasedStateMachine):
    """Two of one policy, compiled and in Python: each call has the same answer and effect."""

    other: ClassVar[subprocess.Popen[str]]

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.twin = PolicyTwin()

    def tell(self, what: str, *words: Any) -> None:
        assert self.other.stdin is not None
        assert self.other.stdout is not None
        here = self.twin.tell(self.now, what, *words)
        self.other.stdin.write(json.dumps([self.now, what, *words]) + "\n")
        self.other.stdin.flush()
        assert json.loads(self.other.stdout.readline()) == here

    def pass_time(self) -> None:
        self.tell("advance", self.now)

    @initialize(name=st.sampled_from(sorted(POLICIES)))
    def start(self, name: str) -> None:
        self.tell("start", name)

    @rule(name=st.sampled_from(sorted(POLICIES)))
    def switch(self, name: str) -> None:
        self.tell("switch", name)
        self.pass_time()

    @rule(
        client=st.integers(0, 9),
        size=st.sampled_from([500, 255_999, 256_000, 5_000_000, 900_000_000]),
        part=st.floats(0.0, 1.0),
        weight=st.sampled_from([1.0, 4.0]),
        rate=st.sampled_from([1e4, 1e6, float("inf")]),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
        line=st.sampled_from(["", "a", "b"]),
        ticket=st.none() | st.integers(1, 30),
    )
    def offer(
        self,
        client: int,
        size: int,
        part: float,
        weight: float,
        rate: float,
        flags: tuple[bool, bool, bool],
        line: str,
        ticket: int | None,
    ) -> None:
        job = {
            "client": f"c{client}",
            "file": f"f{size}",
            "size_bytes": size,
            "remaining_bytes": int(size * part),
            "weight": weight,
            "rate_bytes_s": rate,
            "present": flags[0],
            "known": flags[1],
            "counts_body": flags[2],
            "network": ["192.0.2.1", "192.0.2.0/24"] if client < 6 else [],
            "line": line,
        }
        self.tell("offer", job, ticket)
        self.pass_time()

    @rule(passed=st.floats(0.0, 30.0))
    def wait(self, passed: float) -> None:
        self.now += passed
        self.pass_time()

    @precondition(lambda self: self.twin.policy.leases())
    @rule(
        pick=st.integers(0, 99),
        part=st.floats(0.0, 1.0),
        rate=st.floats(0.0, 1e7),
        how=st.sampled_from(["progress", "detach", "done", "cut"]),
    )
    def lease(self, pick: int, part: float, rate: float, how: str) -> None:
        leases = self.twin.policy.leases()
        view = leases[pick % len(leases)]
        left = int(view.remaining_bytes * part)
        if how == "progress":
            self.tell("progress", view.lease, self.now, left, rate, None, rate)
        elif how == "detach" and view.connections:
            self.tell("detach", view.lease, self.now, left)
        else:
            self.tell("release", view.lease, self.now, how == "done")
        self.pass_time()

    @precondition(lambda self: self.twin.policy.anybody_waits())
    @rule(
        pick=st.integers(0, 99), how=st.sampled_from(["withdraw", "present", "absent", "promote"])
    )
    def steer(self, pick: int, how: str) -> None:
        rows = [row for row in self.twin.policy.tickets() if row.state is not TicketState.STARTED]
        self.tell(how, rows[pick % len(rows)].number, self.now)
        self.pass_time()

    @rule(goodput=st.floats(0.0, 2e6), busy=st.booleans(), line=st.none() | st.floats(1e3, 2e6))
    def observe(self, goodput: float, busy: bool, line: float | None) -> None:
        self.tell("observe", goodput, busy, self.now, line)
        self.pass_time()

    @rule(carried=st.floats(1e3, 2e6), goodput=st.floats(0.0, 2e6), busy=st.booleans())
    def observe_lines(self, carried: float, goodput: float, busy: bool) -> None:
        self.tell("lines", {"a": [carried, goodput, busy], "b": [2e6 - goodput, goodput, True]})
        self.pass_time()


@pytest.fixture
def compiled_twin(tidegate: Path) -> Iterator[subprocess.Popen[str]]:
    """A compiled policy that answers line by line."""
    with subprocess.Popen(
        [tidegate.parent / "python", TESTS / "policy_twin.py"],
        cwd=tidegate.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        yield other
        assert other.stdin is not None
        other.stdin.close()


def test_compiled_policies_decide_as_those_in_python(
    compiled_twin: subprocess.Popen[str],
) -> None:
    class Case(Twins):
        other = compiled_twin

    case = Case.TestCase
    case.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
    case().runTest()


def test_every_command_is_in_the_wheel(tidegate: Path, tmp_path: Path) -> None:
    for words in COMMANDS:
        done = subprocess.run(
            [tidegate, *words.split(), "--help"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        assert done.stdout.startswith("Usage: tidegate"), words


def test_a_release_is_served_and_fetched_from_the_wheel(tidegate: Path, tmp_path: Path) -> None:
    release = tmp_path / "release"
    release.mkdir()
    (release / "tool-1.0.tar.gz").write_bytes(b"content" * 10_000)
    command = [tidegate, "serve", release, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--state", tmp_path / "state"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            lines = []
            for line in server.stdout:
                lines.append(line)
                if line.startswith("ready http"):
                    break
            url = lines[-1].split()[1].rstrip("/")
            with urllib.request.urlopen(url + "/", timeout=10) as page:
                assert "tool-1.0.tar.gz" in page.read().decode()
            admin = next(line.split()[1] for line in lines if line.startswith("Admin"))
            with urllib.request.urlopen(admin, timeout=10) as page:
                assert "password" in page.read().decode().lower()
            out = tmp_path / "got"
            get = [tidegate, "get", url + "/tool-1.0.tar.gz", "-o", out, "--quiet"]
            done = subprocess.run(get, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert out.read_bytes() == b"content" * 10_000
        finally:
            server.terminate()
