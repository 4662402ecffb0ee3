"""What a bug in the server could reach: it cannot write the tree, whatever user it runs as."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import requests

from tests.installed import PYTHON
from tests.running import make_release, serving
from tidegate.server.app.confinement import confine

pytestmark = pytest.mark.e2e

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "tidegate.service"
ROOT = Path(__file__).parents[2]

#: Does what an attacker would who runs code in the server, and says what worked.
INTRUDER = """
import json, os, sys
from pathlib import Path
from tidegate.server.app.confinement import confine, prepare, writable
from tidegate.server.app.settings import ServerConfig
tree, state, log = map(Path, sys.argv[1:])
config = ServerConfig(directory=tree, state=state, access_log=str(log))
prepare(config)
confined = confine(writable(config))
def works(act):
    try:
        act()
    except PermissionError:
        return False
    return True
print(json.dumps({
    "confined": confined,
    "change": works(lambda: (tree / "a.txt").open("r+b")),
    "truncate": works(lambda: os.truncate(tree / "a.txt", 1)),
    "new": works(lambda: (tree / "new").write_text("x")),
    "remove": works(lambda: (tree / "a.txt").unlink()),
    "link": works(lambda: (tree / "link").symlink_to("a.txt")),
    "rename": works(lambda: (tree / "a.txt").rename(state / "a.txt")),
    "elsewhere": works(lambda: (tree.parent / "x").write_text("x")),
    "read": works(lambda: (tree / "a.txt").read_bytes()),
    "state": works(lambda: (state / "own").write_text("x")),
    "state folder": works(lambda: (state / "sub").mkdir()),
    "replace": works(lambda: (state / "own").rename(state / "sub" / "own")),
    "log": works(lambda: log.open("a").write("x")),
}))
"""


def test_nothing_but_state_and_log_can_be_written(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=10)
    arguments = [str(tmp_path / name) for name in ("release", "state", "access.log")]
    run = subprocess.run(
        [PYTHON, "-c", INTRUDER, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
    )
    found = json.loads(run.stdout)
    allowed = {"confined", "read", "state", "state folder", "replace", "log"}
    assert {name for name, works in found.items() if works} == allowed


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
    assert not confine([])


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
