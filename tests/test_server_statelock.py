"""One server for one state folder."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from server.app.config import CannotStart
from server.app.state_lock import lock_state


def test_a_second_server_is_told_who_has_the_folder(tmp_path: Path) -> None:
    first = lock_state(tmp_path / "a" / "state")
    with pytest.raises(CannotStart, match=f"in use by process {os.getpid()};.*--state"):
        lock_state(tmp_path / "a" / "state")
    os.close(first)
    os.close(lock_state(tmp_path / "a" / "state"))


def test_a_process_that_was_killed_leaves_the_folder_free(tmp_path: Path) -> None:
    code = (
        "import os, sys; from server.app.state_lock import *; "
        "lock_state(Path(sys.argv[1])); os._exit(9)"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, check=False)
    assert done.returncode == 9
    os.close(lock_state(tmp_path))


def test_a_folder_that_cannot_be_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStart, match="give another --state"):
        lock_state(tmp_path / "file")


def test_a_folder_that_was_open_to_others_is_closed_when_it_is_ours(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    (state / "tidegate.db").write_text("hashes")
    (state / "tidegate.db").chmod(0o644)
    os.close(lock_state(state))
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "tidegate.db").stat().st_mode) == 0o600


def test_a_folder_of_others_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (shared / "somebody").write_text("else")
    os.close(lock_state(shared))
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755
    assert stat.S_IMODE((shared / "somebody").stat().st_mode) == 0o644
    assert stat.S_IMODE((shared / "lock").stat().st_mode) == 0o600
