"""What a load test says when something is wrong from the start, and the staging site by itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_e2e_loadtest import ROOT, finished

pytestmark = pytest.mark.e2e


def test_a_server_that_is_not_there_is_named_before_the_run() -> None:
    command = [sys.executable, "-m", "locust", "--config", "loadtest/ci.conf"]
    done = finished([*command, "--host", "ftp://127.0.0.1"])
    assert done.returncode == 1
    assert "'ftp://127.0.0.1' is no address of a server" in done.stderr
    program = "from loadtest.presence import why_not; print(why_not('http://127.0.0.1:1', 0.0))"
    done = finished([sys.executable, "-c", program])
    assert "http://127.0.0.1:1 does not answer" in done.stdout
    assert "Connection refused" in done.stdout


def test_an_objective_that_no_run_can_meet_is_refused_before_the_run() -> None:
    command = [sys.executable, "-m", "locust", "--config", "loadtest/ci.conf"]
    done = finished([*command, "--slo", "p95_wait_smal<2s"])
    assert done.returncode == 2
    assert "'p95_wait_smal' is no figure of a run" in done.stderr


def test_a_staging_site_is_the_only_one_in_its_folder_and_ends_all_it_started(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "tools/staging", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as site:
        assert site.stdout is not None
        try:
            for line in site.stdout:
                if line.startswith("mirror"):
                    break
            second = finished(command)
            assert second.returncode == 1
            assert "Another tools/staging runs in" in second.stderr
        finally:
            site.send_signal(signal.SIGINT)
            site.stdout.read()
    assert site.returncode == 130
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if names(path, str(tmp_path))]
    assert not left


def names(cmdline: Path, text: str) -> bool:
    """Whether a process was started with `text` in its arguments."""
    try:
        return text.encode() in cmdline.read_bytes()
    except OSError:
        return False
