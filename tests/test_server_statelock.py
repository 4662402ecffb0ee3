"""One server for one state folder."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from twisted.logger import capturedLogs

from tests.fakes import Clock
from tests.installed import PYTHON
from tests.running import make_release, serving, wait_for
from tidegate.server.app.config import CannotStart
from tidegate.server.app.state_lock import LockKeeper, lock_state


def test_a_second_server_is_told_who_has_the_folder(tmp_path: Path) -> None:
    first = lock_state(tmp_path / "a" / "state")
    with pytest.raises(CannotStart, match=f"in use by process {os.getpid()};.*--state"):
        lock_state(tmp_path / "a" / "state")
    os.close(first)
    os.close(lock_state(tmp_path / "a" / "state"))


def test_a_process_that_was_killed_leaves_the_folder_free(tmp_path: Path) -> None:
    code = (
        "import os, sys; from tidegate.server.app.state_lock import *; "
        "lock_state(Path(sys.argv[1])); os._exit(9)"
    )
    done = subprocess.run([PYTHON, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == 9
    os.close(lock_state(tmp_path))


def test_a_folder_that_cannot_be_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStart, match="give another --state"):
        lock_state(tmp_path / "file")


def test_a_folder_of_another_user_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CannotStart, match=f"chown -R {os.geteuid()} {tmp_path}, or give another"):
        lock_state(tmp_path)


def test_a_folder_that_was_open_to_others_is_closed_when_it_is_ours(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    (state / "tidegate.db").write_text("hashes")
    (state / "tidegate.db").chmod(0o644)
    os.close(lock_state(state))
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "tidegate.db").stat().st_mode) == 0o600


def test_a_state_folder_of_another_user_keeps_the_mode_that_its_owner_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o770)
    state.chmod(0o770)
    (state / "keys.json").write_text("{}")
    (state / "keys.json").chmod(0o660)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    os.close(lock_state(state))
    assert stat.S_IMODE(state.stat().st_mode) == 0o770
    assert stat.S_IMODE((state / "keys.json").stat().st_mode) == 0o660


def test_a_folder_of_others_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (shared / "somebody").write_text("else")
    os.close(lock_state(shared))
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755
    assert stat.S_IMODE((shared / "somebody").stat().st_mode) == 0o644
    assert stat.S_IMODE((shared / "lock").stat().st_mode) == 0o600


def test_a_lock_that_is_removed_is_taken_again_or_its_loss_is_told(tmp_path: Path) -> None:
    folder, clock, lost = tmp_path / "state", Clock(), list[str]()
    keeper = LockKeeper(clock, folder, lock_state(folder), lambda: lost.append("lost"))
    keeper.timer.start()
    for remove in (lambda: (folder / "lock").unlink(), lambda: shutil.rmtree(folder)):
        remove()
        clock.advance(2)
        with pytest.raises(CannotStart, match="in use by process"):
            lock_state(folder)
    shutil.rmtree(folder)
    other = lock_state(folder)
    clock.advance(2)
    clock.advance(2)
    assert lost == ["lost"]
    os.close(other)


def test_a_confined_server_says_once_that_its_state_folder_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, clock, lost = tmp_path / "state", Clock(), list[str]()
    keeper = LockKeeper(clock, folder, lock_state(folder), lambda: lost.append("lost"))
    keeper.timer.start()
    shutil.rmtree(folder)
    other = lock_state(folder)

    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with capturedLogs() as logged, monkeypatch.context() as confined:
        confined.setattr(os, "open", refused)
        clock.advance(2)
        clock.advance(2)
    assert len([e for e in logged if "is another one now" in e["log_format"]]) == 1
    assert not lost
    os.close(other)


@pytest.mark.e2e
def test_a_server_whose_state_folder_another_took_ends(tmp_path: Path) -> None:
    make_release(tmp_path / "release", small_txt=1_000)
    state = tmp_path / "state"
    with serving(tmp_path / "release", state, TIDEGATE_CONFINE="false") as first:
        # Stopped, lest it be quicker than the other.
        first.signal(signal.SIGSTOP)
        shutil.rmtree(state)
        with serving(tmp_path / "release", state) as second:
            database = (state / "tidegate.db").stat().st_ino
            first.signal(signal.SIGCONT)
            wait_for(lambda: first.process.poll() is not None)
            assert first.process.returncode == 0
            assert any(f"in use by process {second.process.pid}" in s for s in first.errors)
            assert (state / "tidegate.db").stat().st_ino == database
            assert second.process.poll() is None
            assert not [line for line in first.errors if "Traceback" in line], first.errors
