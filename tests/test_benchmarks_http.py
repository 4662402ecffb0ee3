"""What the bench of the data plane starts, it ends."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench import http_peers
from tests.installed import PYTHON


def test_servers_end_when_one_of_them_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen = subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def sleeper(_: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(["sleep", "60"], **options))
        return started[-1]

    def refused(*_: object) -> None:
        raise SystemExit("it did not start")

    monkeypatch.setattr(subprocess, "Popen", sleeper)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(http_peers, "await_answer", refused)
    with pytest.raises(SystemExit, match="it did not start"):
        http_peers.start_all(tmp_path, tmp_path, "127.0.0.1", 0, True, False)
    assert started
    assert all(process.poll() is not None for process in started)


def test_ended_from_outside_it_cleans_up(tmp_path: Path) -> None:
    program = """
import os, signal, sys, time
from pathlib import Path
from bench.shared.ending import end_cleanly
end_cleanly()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
finally:
    Path(sys.argv[1]).touch()
"""
    done = subprocess.run([PYTHON, "-c", program, str(tmp_path / "clean")], check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert (tmp_path / "clean").exists()


def test_a_walk_that_does_not_end_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"{http_peers.WALKED}\nsomething else\n")
    http_peers.await_walks(log, 1)
    with pytest.raises(SystemExit, match="still walks"):
        http_peers.await_walks(log, 2, 0.0)
