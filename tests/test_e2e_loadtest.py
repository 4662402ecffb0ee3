"""Load profiles against a real staging site: reports, objectives, workers, the composition."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from bench.shared.ports import free_port
from tests.databases import postgres
from tests.installed import PACKAGE, PYTHON
from tidegate.loadtest.workloads import make_workload, scaled

__all__ = ["postgres"]

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.e2e
#: Small enough for a test: 50 of the paper's clients, forty times as fast.
QUICK = ("--time-scale", "120", "--thin", "8", "--users", "60")
#: So few slots that most have to wait.
FULL = ("--policy", "ticket", "--slots", "4", "--reserve-small", "1", "--bandwidth", "3MB")


#: The server's own times, shortened as the clients' are.
FAST = {
    "TIDEGATE_TICKET_TTL_S": "4",
    "TIDEGATE_READY_GROW_S": "0.5",
    "TIDEGATE_LEASE_IDLE_S": "1",
}


#: One site for most of them: what a load test shows does not depend on a fresh one.
SITE = (
    *FULL,
    *("--multicast", "--multicast-interface", "127.0.0.1", "--multicast-rate", "50Mbit"),
    # Else mirrors on the same machine are done before a cohort stands.
    *("--multicast-hold", "0"),
)


def finished(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run to the end; one that does not end is told to, so that it ends what it started."""
    with started(command) as process:
        try:
            out, err = process.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def started(command: list[str]) -> subprocess.Popen[str]:
    """A process whose output is kept."""
    return subprocess.Popen(
        command,
        cwd=PACKAGE,
        env=os.environ | FAST,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Site:
    """A staging site that several runs use, one after the other."""

    def __init__(self, folder: Path, origin: str) -> None:
        self.folder, self._origin = folder, origin

    def command(self, profile: str, *locust: str) -> list[str]:
        """The command that runs one profile here; its figures go into the site's folder."""
        (self.folder / "figures.json").unlink(missing_ok=True)
        command = [PYTHON, "-m", "locust", "--config", f"loadtest/{profile}.conf"]
        command += ["--host", self._origin, "--workload", "exp2", *QUICK]
        return [*command, "--figures-json", str(self.folder / "figures.json"), *locust]

    def run(self, profile: str, *locust: str) -> subprocess.CompletedProcess[str]:
        """Run one profile to its end."""
        return finished(self.command(profile, *locust))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    command = [PYTHON, "-m", "bench.staging", str(folder), "--workload", "exp2"]
    with started([*command, "--", *SITE]) as staging:
        try:
            assert staging.stdout is not None
            origin = next(line for line in staging.stdout if line.startswith("origin"))
            yield Site(folder, origin.split()[-1])
        finally:
            staging.terminate()
            staging.communicate()


def figures(folder: Path) -> Mapping[str, float]:
    """The figures that the run wrote."""
    found: Mapping[str, float] = json.loads((folder / "figures.json").read_text())["figures"]
    return found


def test_a_run_reports_its_figures_and_keeps_its_objectives(site: Site) -> None:
    done = site.run("ci")
    assert done.returncode == 0, done.stdout + done.stderr
    found = figures(site.folder)
    assert found["finished"] == found["arrived"] > 50
    assert found["failed"] == 0
    assert found["tickets_issued"] == found["tickets_redeemed"] > 0
    assert found["verified_bytes"] > 1_000_000


def test_a_worker_that_dies_takes_few_arrivals_with_it_and_a_missed_objective_is_named(
    site: Site,
) -> None:
    """What it was handed is lost; all that had not been handed out yet comes at the other one."""
    command = site.command("ci", "--processes", "2", "--run-time", "30s")
    port = str(free_port())
    command += ["--master-bind-port", port, "--master-port", port]
    with started([*command, "--slo", "p50_session<0.000001s"]) as process:
        assert process.stderr is not None
        told = []
        while "Sending spawn jobs" not in (line := process.stderr.readline()):
            assert line, "".join(told)
            told.append(line)
        below = psutil.Process(process.pid).children(recursive=True)
        max(below, key=lambda child: (child.create_time(), child.pid)).kill()
        out, err = process.communicate(timeout=100)
    assert process.returncode == 1, out + err
    assert "objective missed: p50_session<0.000001s: measured" in err + out
    assert figures(site.folder)["finished"] == figures(site.folder)["arrived"] > 55


def test_one_command_sets_up_a_site_on_postgresql_and_browsers_get_their_files(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config = tmp_path / "tidegate.toml"
    url = request.getfixturevalue("postgres").make(migrated=False)
    # Browsers whose turn comes before they could return would have no page.
    config.write_text(f'database = "{url}"\n[admission]\nretry_min_s = 0.1\n')
    command = [PYTHON, "-m", "bench.staging", str(tmp_path), "--workload", "exp2"]
    command += ["--profile", "loadtest/browser.conf"]
    command += [f"--locust={option}" for option in ("--workload", "exp2", *QUICK)]
    done = finished([*command, "--", *FULL, "--config", str(config)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert figures(tmp_path)["finished"] == figures(tmp_path)["arrived"] > 50
    assert figures(tmp_path)["queued"] > 0


def test_clients_of_several_connections_get_their_files_through_a_full_server(site: Site) -> None:
    done = site.run("mirror_fanout")
    assert done.returncode == 0, done.stdout + done.stderr
    found = figures(site.folder)
    assert found["finished"] == found["arrived"] > 50
    assert found["queued"] > 0


def test_the_rude_harm_nobody(site: Site) -> None:
    done = site.run("rude", "--rude-fraction", "0.3", "--slo", "failed_fraction<=0%")
    found = figures(site.folder)
    assert found["finished"] == found["arrived"] > 50, done.stdout + done.stderr
    assert found["failed"] == 0


def test_the_composition_is_valid(tmp_path: Path) -> None:
    name = "docker-compose.yml"
    compose = shutil.which("docker-compose")
    assert compose, "docker-compose is missing; apt-get install docker-compose"
    shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "deploy").mkdir()
    for secret in ("postgres", "grafana"):
        (tmp_path / "deploy" / f"{secret}-password").write_text("only for this test")
    done = subprocess.run(
        [compose, "-f", name, "config", "-q"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "only for this test" not in (tmp_path / name).read_text()


def test_hot_objects_come_by_multicast(site: Site) -> None:
    done = site.run("hot_object", "--thin", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    found = figures(site.folder)
    assert found["finished"] == found["arrived"] == 10
    assert found["verified_bytes"] == 10 * 1_000_000
    assert found["multicast_bytes"] > 0, done.stdout + done.stderr


def test_a_steady_day_begins_anew_until_its_time_is_over(site: Site) -> None:
    done = site.run("steady", "--run-time", "6s", "--time-scale", "600", "--thin", "200")
    assert done.returncode == 0, done.stdout + done.stderr
    visitors = scaled(make_workload("exp2", 1), time_scale=600.0, thin=200.0).visitors
    assert figures(site.folder)["finished"] > 2 * sum(len(one.files) for one in visitors)
