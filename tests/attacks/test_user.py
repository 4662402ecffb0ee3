"""Started as root with `--user`: an intruder in the server is that user, and nothing more."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import requests

from tests.installed import PYTHON, TIDEGATE
from tests.running import make_release, serving
from tidegate.server.app.config import CannotStart
from tidegate.server.app.confinement import become, make_folders, user_to_become
from tidegate.server.app.settings import ServerConfig

NOBODY = "nobody"
#: Where only root may listen.
LOW = "127.77.16.1:716"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, which pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


#: Makes the folder $1 passable and all but $2 in it invisible, for what runs here; $3 is empty.
PASSABLE = """
set -e
umask 022
mount --bind "$2" "$3"
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir -p "$2"
mount --bind "$3" "$2"
shift 3
exec "$@"
"""


def reachable(command: list[str], aside: Path) -> list[str]:
    """The command, in a mount namespace where every user can reach this Python if need be."""
    python = Path(sys.base_prefix).resolve()
    way = [*reversed(python.parents), python]
    for folder, inside in pairwise(way):
        if not folder.stat().st_mode & 0o001:
            aside.mkdir()
            places = [str(folder), str(inside), str(aside)]
            return ["unshare", "--mount", "sh", "-c", PASSABLE, "sh", *places, *command]
    return command


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


@pytest.mark.e2e
@pytest.mark.root
@pytest.mark.parametrize("workers", ["1", "2"])
def test_nothing_of_root_is_left(open_folder: Path, workers: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    entry = pwd.getpwnam(NOBODY)
    make_release(open_folder / "release", a_txt=10)
    (open_folder / "release").chmod(0o755)
    (open_folder / "release" / "a.txt").chmod(0o644)
    state = open_folder / "state"
    command = [TIDEGATE, "serve", str(open_folder / "release")]
    command += ["--listen", "127.0.0.1:0", "--admin", LOW, "--state", str(state)]
    command += ["--listen", f"unix:{open_folder}/run/server.sock"]
    command += ["--user", NOBODY, "--workers", workers]
    with subprocess.Popen(
        reachable(command, open_folder / "aside"),
        stdout=subprocess.PIPE,
        cwd=open_folder,
        text=True,
        env={**os.environ},
    ) as process:
        try:
            assert process.stdout is not None
            ready: list[str] = []
            for line in process.stdout:
                if line.startswith("ready "):
                    ready.append(line.split()[1])
                    break
            assert ready, "the server did not start"
            assert requests.get(f"{ready[0]}/a.txt", timeout=60).status_code == 200
            assert requests.get(f"http://{LOW}/", timeout=60).status_code == 200
            for one in (process.pid, *children_of(process.pid)):
                lines = Path(f"/proc/{one}/status").read_text().splitlines()
                status = {name: text.split() for name, _, text in (x.partition(":") for x in lines)}
                assert status["Uid"] == [str(entry.pw_uid)] * 4
                assert status["Gid"] == [str(entry.pw_gid)] * 4
                assert "0" not in status["Groups"]
                assert int(status["CapPrm"][0], 16) == int(status["CapEff"][0], 16) == 0
            assert {path.stat().st_uid for path in (state, *state.iterdir())} == {entry.pw_uid}
            assert state.stat().st_mode & 0o777 == 0o700
            # Also what its own sockets lie in, which other users reach.
            sockets = (open_folder / "run").stat()
            assert (sockets.st_uid, sockets.st_mode & 0o777) == (entry.pw_uid, 0o755)
        finally:
            process.terminate()


@pytest.mark.e2e
@pytest.mark.root
@pytest.mark.parametrize("workers", ["1", "2"])
def test_root_serves_only_where_it_was_named(tmp_path: Path, workers: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    make_release(tmp_path / "release", a_txt=10)
    state = tmp_path / "state"
    command = [TIDEGATE, "serve", str(tmp_path / "release"), "--state", str(state)]
    command += ["--listen", "127.0.0.1:0", "--admin", "off", "--workers", workers]
    unnamed = {name: value for name, value in os.environ.items() if name != "TIDEGATE_USER"}
    done = subprocess.run(command, env=unnamed, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("tidegate: This is root")
    assert "--user NAME" in line
    assert "--user root" in line
    assert not state.exists()
    with serving(tmp_path / "release", state, "--workers", workers, "--user", "root") as server:
        assert requests.get(f"{server.url}/a.txt", timeout=60).status_code == 200
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        assert "Uid:\t0\t0\t0\t0" in status


def test_an_ordinary_user_serves_without_being_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert user_to_become(None) is None
    assert user_to_become("root") == "root"
    with pytest.raises(CannotStart, match="Only root can become root"):
        become("root")


def test_a_user_that_cannot_be_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="There is no user no-such-user: create one"):
        make_folders("no-such-user", ServerConfig(state=tmp_path / "state"))
    assert not (tmp_path / "state").exists()


def test_a_user_that_cannot_read_the_program_is_told_so(open_folder: Path) -> None:
    """As with a Python of pyenv, uv or pipx below /root."""
    script = (
        "import sys\n"
        "from tidegate.server.app import confinement as rights\n"
        "from tidegate.server.app.config import CannotStart\n"
        "rights._program_paths = lambda: [sys.argv[1]]\n"
        "try: rights.become(sys.argv[2])\n"
        "except CannotStart as fault: print(fault)\n"
        "else: print('became')\n"
    )
    private = open_folder / "private"
    private.mkdir(mode=0o700)

    def told(program: Path) -> str:
        words = [PYTHON, "-c", script, str(program), NOBODY]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    assert told(open_folder) == "became"
    fault = told(private / "bin")
    assert fault.startswith(f"The user {NOBODY} cannot read the program at {private / 'bin'}: ")
    assert "/opt or /usr/local" in fault
