"""What the bench of the data plane starts, it ends."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench import http_peers, mix
from bench.shared import markdown
from bench.shared.processes import NotStarted, wait_for
from tests.installed import PYTHON
from tidegate.server.http.request_shape import recognise


def test_servers_end_when_one_of_them_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen = subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def sleeper(_: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(["sleep", "60"], **options))
        return started[-1]

    def refused(*_: object, **__: object) -> None:
        raise SystemExit("it did not start")

    monkeypatch.setattr(subprocess, "Popen", sleeper)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(http_peers, "wait_for", refused)
    with (
        pytest.raises(SystemExit, match="it did not start"),
        http_peers.all_running(tmp_path, tmp_path, False),
    ):
        pass
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
    with subprocess.Popen(["sleep", "60"]) as running:
        assert wait_for("it", log, http_peers.WALKED, running) == http_peers.WALKED
        with pytest.raises(NotStarted, match="something else"):
            wait_for("it", log, "is over twice", running, 0.1)
        running.terminate()


def test_the_mix_is_the_same_each_time_and_well_formed() -> None:
    requests = mix.requests()
    assert requests == mix.requests()
    assert mix.sizes() == mix.sizes()
    assert len(set(requests)) > 0.9 * mix.MIX.requests, "few are alike"
    assert abs(sum(one.share for one in mix.PROGRAMS) - 1.0) < 1e-9
    assert all(recognise(request) for request in requests)
    found = [request for request in requests if b"/none-" in request]
    assert 0.5 < len(found) / mix.MIX.requests / mix.MIX.missing < 2


def test_a_table_stands_between_the_marks_of_a_document(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- bench.http_peers -->\nold\n<!-- /bench.http_peers -->\nb\n")
    for _ in range(2):
        markdown.put_between_marks(page, "bench.http_peers", "new")
        told = page.read_text()
        assert told == "a\n<!-- bench.http_peers -->\nnew\n<!-- /bench.http_peers -->\nb\n"
    with pytest.raises(SystemExit, match="needs the lines"):
        markdown.put_between_marks(page, "make laws", "new")


def test_the_worst_row_is_named() -> None:
    rows, nginx = http_peers.ROWS[:2], (2.0, 1000.0, 1.0)
    results: dict[str, list[http_peers.Round]] = {
        rows[0].name: [(nginx, (3.0, 500.0, 2.0))],
        rows[1].name: [(nginx, (4.0, 500.0, 2.0)), (nginx, (6.0, 500.0, 4.0))],
    }
    assert http_peers.worst(results) == (
        f"Worst row beside nginx: {rows[1].name}, 2.50 times its CPU."
    )
    assert http_peers.table(rows, results).splitlines()[-1] == (
        f"| {rows[1].name} | 2.0 µs, 1,000/s | 5.0 µs, 500/s | 2.50 (2.00–3.00) | 1.0, 3.0 |"
    )
