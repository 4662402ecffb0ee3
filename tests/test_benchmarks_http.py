"""What the bench of the data plane starts, it ends."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench import http_peers


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
        http_peers.start_all(tmp_path, tmp_path, "127.0.0.1", 0, True)
    assert started
    assert all(process.poll() is not None for process in started)
