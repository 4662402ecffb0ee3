"""`tidegate loadtest` and `tidegate plan`: a crowd and a verdict, from any folder."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.shared.ports import free_port
from tests.admin_browser import AdminVisit
from tests.faulty_mirrors import certificate
from tests.installed import PACKAGE, PYTHON, TIDEGATE
from tests.running import make_release, serving, wait_for
from tests.test_e2e_staging import admission

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
#: 25 of the paper's clients, much faster than real.
QUICK = ("--time-scale", "240", "--thin", "16", "--users", "40", "--addresses", "own")
PROXY = ("--trusted-proxy", "127.0.0.0/8")


def tidegate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run to the end, in a folder that is not the project's."""
    return subprocess.run(
        [TIDEGATE, *words],
        cwd=folder,
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_a_wrong_workload_is_named_before_anybody_comes(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=100)
    (tmp_path / "release" / "1M").write_bytes(b"x" * 999)
    with serving(tmp_path / "release", tmp_path / "state") as server:
        done = tidegate(tmp_path, "loadtest", "ci", "--host", server.url)
    assert done.returncode == 1
    assert "lacks 7 of the 7 files that are asked for: 10K-a, 10K-b" in done.stderr
    assert "--lay-out" in done.stderr
    done = tidegate(tmp_path, "loadtest", "ci", "--host", "http://127.0.0.1:1")
    assert "does not answer" in done.stderr


def test_it_lays_out_runs_and_ends_in_one_page(tmp_path: Path) -> None:
    release = tmp_path / "release"
    make_release(release, a_txt=100)
    with serving(release, tmp_path / "state", *PROXY, "--bandwidth", "40Mbit") as server:
        words = ["loadtest", "ci", "--host", server.url, "--lay-out", str(release)]
        done = tidegate(tmp_path, *words, "--bandwidth", "40Mbit", "--", *QUICK)
    page = (tmp_path / "loadtest-ci.html").read_text("utf-8")
    first = done.stdout.splitlines()[0]
    assert first in page.replace("&lt;", "<")
    assert first.startswith(("Held: all 2 objectives; ", "Missed: ")), first
    assert "keep it below" in first
    assert "clients who came are through" in done.stderr
    for text in ("Live and simulated", "95 of 100 of these", "p95_wait_small<2s", "meaning"):
        assert text in page.replace("&lt;", "<"), text
    assert done.returncode == (0 if first.startswith("Held") else 1)


MY_PROFILE = """
from tidegate.loadtest import options
from tidegate.loadtest.replay import Replay
from tidegate.loadtest.users import Downloader

__all__ = ["MyClients", "MyDay", "options"]


class MyClients(Downloader):
    pass


class MyDay(Replay):
    pass
"""


def test_an_operator_rehearses_the_day_and_plays_it_again(tmp_path: Path) -> None:
    """Own files and crowd; its record against the next release, by an own profile over TLS.

    The first server trusts no proxy: the clients must be as many people there.
    """
    release, after = tmp_path / "release", tmp_path / "next"
    make_release(release, new_iso=2_000_000, notes_txt=4_000)
    make_release(after, newer_iso=2_100_000, notes_txt=5_000)
    pem = str(certificate(tmp_path, "IP:127.0.0.1"))
    tls, trust = ("--tls-cert", pem, "--tls-key", pem), ("--ca", pem)
    with serving(release, tmp_path / "s1", "--admin", "127.0.0.1:0") as server:
        words = ["loadtest", "--host", server.url, "--release", str(release)]
        words += ["--visitors", "8"]
        done = tidegate(tmp_path, *words, "--within", "3s", "--", "--slo", "failed_fraction<1%")
        assert "16 downloads, 0 failed" in done.stdout, done.stdout + done.stderr
        page = (tmp_path / "loadtest-release_day.html").read_text("utf-8")
        assert "8 visitors within 3 s" in page
        visit = AdminVisit(server)
        words = ["admin", "--url", visit.url, "--token", visit.api_token(), "arrivals"]
        crowd = tidegate(tmp_path, *words, "--span", "1h").stdout
    (tmp_path / "crowd.jsonl").write_text(crowd)
    assert crowd.count("new.iso") == 8
    (tmp_path / "my_day.py").write_text(MY_PROFILE)
    with serving(after, tmp_path / "s2", *PROXY, *tls) as server:
        words = ["loadtest", "./my_day.py", "--host", server.url, *trust, "--trace", "crowd.jsonl"]
        done = tidegate(tmp_path, *words)
        assert "lacks 2 of the 2 files" in done.stderr
        done = tidegate(tmp_path, *words, "--release", str(after), "--bandwidth", "40Mbit")
    assert "16 downloads, 0 failed" in done.stdout, done.stdout + done.stderr
    page = (tmp_path / "loadtest-my_day.html").read_text("utf-8")
    assert "crowd.jsonl" in page
    # One page has both: no cell of a mean is empty.
    assert re.search(r"a client with all its files, mean</td><td>[\d.]+ s</td><td>[\d.]+ s", page)


@contextlib.contextmanager
def locust(folder: Path, url: str) -> Iterator[int]:
    port = free_port()
    command = [PYTHON, "-m", "locust", "-f", str(PACKAGE / "loadtest" / "release_day.py")]
    command += ["--host", url, "--web-host", "127.0.0.1", "--web-port", str(port), *QUICK]
    with subprocess.Popen(
        [*command, "--workload", "exp2"], cwd=folder, stderr=subprocess.DEVNULL
    ) as running:
        try:
            yield port
        finally:
            running.terminate()


def start(port: int, host: str) -> None:
    """Press START."""
    form = {"user_count": "40", "spawn_rate": "40", "workload": "exp2", "time_scale": "240"}
    form |= {"thin": "16", "seed": "1", "addresses": "own", "manner": "tickets", "slo": ""}
    form |= {"rude_fraction": "0", "host": host}
    data = urllib.parse.urlencode(form).encode()
    url = f"http://127.0.0.1:{port}/swarm"
    with urllib.request.urlopen(url, data=data, timeout=20) as answer:
        assert json.loads(answer.read())["success"]


def asked(log: Path) -> int:
    """How many downloads clients have asked for."""
    return log.read_text().count('"GET /1')


def state(port: int) -> str:
    with contextlib.suppress(OSError, ValueError):
        url = f"http://127.0.0.1:{port}/stats/requests"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return str(json.loads(answer.read())["state"])
    return ""


def test_a_second_start_on_locusts_page_begins_anew(tmp_path: Path) -> None:
    release = tmp_path / "release"
    make_release(release, a_txt=100)
    laid = [PYTHON, "-m", "tidegate.loadtest.content", "exp2", str(release)]
    subprocess.run(laid, check=True)
    log = tmp_path / "log"
    log.touch()
    arguments = ("--access-log", str(log))
    with (
        serving(release, tmp_path / "state", *arguments) as server,
        locust(tmp_path, server.url) as port,
    ):
        wait_for(lambda: state(port) == "ready", 60)
        runs = []
        for _ in range(2):
            before = asked(log)
            start(port, server.url)
            wait_for(lambda: asked(log) > before and state(port) == "stopped", 150)  # noqa: B023
            assert asked(log) > before, "this run asked for nothing"
            found = admission(port)
            assert found is not None
            runs.append(found["finished"])
    assert runs[0] == runs[1] != "0"


def test_a_plan_says_what_line_a_crowd_needs(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_iso=4_000_000, SHA256SUMS=100)
    words = ["plan", "--bandwidth", "8Mbit", "--visitors", "60", "--within", "2m", "--wait", "5s"]
    done = tidegate(tmp_path, *words, "release", "--report", "plan.html")
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("With 8.0 Mbit/s, 60 visitors within 2 min lose ")
    assert "on a plain server; below 5 s it takes " in first
    assert first in (tmp_path / "plan.html").read_text("utf-8")
    assert (
        "each visitor takes the large file and one of the small ones; for all of them"
        in done.stdout
    )
    done = tidegate(tmp_path, *words, "release", "--weight", "*.img=2")
    assert "no file has a name like '*.img'" in done.stderr
