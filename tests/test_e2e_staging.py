"""What a load test says when something is wrong from the start, and the staging site by itself."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.shared.ports import free_port
from tests.installed import PACKAGE, PYTHON
from tests.running import wait_for
from tests.test_e2e_loadtest import finished

pytestmark = pytest.mark.e2e


def test_a_server_that_is_not_there_is_named_before_the_run() -> None:
    command = [PYTHON, "-m", "locust", "--config", "loadtest/ci.conf"]
    done = finished([*command, "--host", "ftp://127.0.0.1"])
    assert done.returncode == 1
    assert "'ftp://127.0.0.1' is no address of a server" in done.stderr
    program = (
        "from tidegate.loadtest.options import why_not; print(why_not('http://127.0.0.1:1', 0.0))"
    )
    done = finished([PYTHON, "-c", program])
    assert "http://127.0.0.1:1 does not answer" in done.stdout
    assert "connection refused" in done.stdout


def test_an_objective_that_no_run_can_meet_is_refused_before_the_run() -> None:
    command = [PYTHON, "-m", "locust", "--config", "loadtest/ci.conf"]
    done = finished([*command, "--slo", "p95_wait_smal<2s"])
    assert done.returncode == 2
    assert "'p95_wait_smal' is no figure of a run" in done.stderr


def test_a_staging_site_is_the_only_one_in_its_folder_and_ends_all_it_started(
    tmp_path: Path,
) -> None:
    command = [PYTHON, "-m", "bench.staging", str(tmp_path)]
    with subprocess.Popen(command, cwd=PACKAGE, stdout=subprocess.PIPE, text=True) as site:
        assert site.stdout is not None
        try:
            for line in site.stdout:
                if line.startswith("mirror"):
                    break
            second = finished(command)
            assert second.returncode == 1
            assert "Another bench.staging runs in" in second.stderr
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


def test_locusts_page_has_a_tab_with_the_figures_of_all_workers(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        site = stack.enter_context(ended([PYTHON, "-m", "bench.staging", str(tmp_path)]))
        assert site.stdout is not None
        origin = next(line for line in site.stdout if line.startswith("origin")).split()[-1]
        port, inner = free_port(), free_port()
        locust = [PYTHON, "-m", "locust", "-f", "loadtest/release_day.py", "--host", origin]
        master = ["--master", f"--master-bind-port={inner}", f"--web-port={port}", "--autostart"]
        master += ["--web-host=127.0.0.1", "--expect-workers=1", "--users=50", "--workload=exp2"]
        stack.enter_context(ended([*locust, *master, "--time-scale=120", "--thin=8"]))
        stack.enter_context(ended([*locust, "--worker", f"--master-port={inner}"]))
        wait_for(lambda: admission(port) is not None, 60.0)
        found = admission(port)
        page = read(f"http://127.0.0.1:{port}/")
    assert found is not None, "no download finished"
    assert "Admission" in page
    for option in ("time_scale", "workload", "rude_fraction", "slo"):
        assert f'"{option}": {{' in page, "our options are fields of the start form"
    assert '"figures_json": {' not in page, "a page must not write files"


@contextlib.contextmanager
def ended(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Runs for as long as it is needed."""
    with subprocess.Popen(
        command, cwd=PACKAGE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        try:
            yield running
        finally:
            running.terminate()
            running.communicate()


def admission(port: int) -> dict[str, str] | None:
    """Our rows of the page's statistics, once a download has finished."""
    try:
        stats = json.loads(read(f"http://127.0.0.1:{port}/stats/requests"))
    except (OSError, ValueError):
        return None
    rows = stats["extended_stats"][0]["data"]
    assert [row["name"] for row in rows] == list(range(len(rows))), "the page sorts by it"
    groups = [row["group"] for row in rows]
    assert len(set(groups)) == 1 + sum(a != b for a, b in itertools.pairwise(groups)), groups
    found = {row["figure"]: row["value"] for row in rows}
    return found if found.get("finished", "0") != "0" else None


def read(url: str) -> str:
    """What is there."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        text: str = answer.read().decode("utf-8")
    return text
