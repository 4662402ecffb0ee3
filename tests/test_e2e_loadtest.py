"""Load profiles against a real staging site: reports, objectives, workers, the composition."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadtest.population import scaled
from loadtest.workloads import make_workload

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


def staging(
    folder: Path,
    profile: str,
    *locust: str,
    serve: tuple[str, ...] = (),
    database: str = "sqlite",
) -> list[str]:
    """The command that runs one profile on a fresh site."""
    command = [sys.executable, "-m", "bench.staging", str(folder), "--workload", "exp2"]
    command += ["--profile", f"loadtest/{profile}.conf", "--database", database]
    command += [f"--locust={option}" for option in ("--workload", "exp2", *QUICK, *locust)]
    if serve:
        command += ["--", *serve]
    return command


def run(folder: Path, profile: str, *locust: str, **site: Any) -> subprocess.CompletedProcess[str]:
    """Run one profile on a fresh site to the end."""
    return finished(staging(folder, profile, *locust, **site))


def finished(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run to the end; one that does not end is told to, so that it ends what it started."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | FAST,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def figures(folder: Path) -> Mapping[str, float]:
    """The figures that the run wrote."""
    found: Mapping[str, float] = json.loads((folder / "figures.json").read_text())["figures"]
    return found


def test_a_run_reports_in_json_csv_and_html_and_keeps_its_objectives(tmp_path: Path) -> None:
    page, table = tmp_path / "report.html", tmp_path / "figures.csv"
    done = run(
        tmp_path,
        "ci",
        *("--figures-json", str(tmp_path / "figures.json")),
        *("--figures-csv", str(table), "--html", str(page)),
        serve=FULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = figures(tmp_path)
    assert found["finished"] == found["arrived"] > 50
    assert found["failed"] == 0
    assert found["tickets_issued"] == found["tickets_redeemed"] > 0
    assert found["verified_bytes"] > 1_000_000
    rows = dict(csv.reader(table.read_text().splitlines()))
    assert float(rows["finished"]) == found["finished"]
    report = page.read_text()
    assert report.rindex('id="tidegate-admission"') > report.rindex("</script>")
    assert "told to wait large" in report
    summary = [sys.executable, "-m", "loadtest.summary", str(tmp_path)]
    subprocess.run(summary, cwd=ROOT, check=True, capture_output=True)
    text = (tmp_path / "summary.html").read_text()
    assert "Load test: ci" in text
    assert "verified_bytes" in text
    assert "<svg" in text


def test_workers_report_to_their_master_that_names_a_missed_objective(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "ci",
        *("--processes", "2", "--figures-json", str(tmp_path / "figures.json")),
        *("--slo", "p50_session<0.000001s"),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "objective missed: p50_session<0.000001s: measured" in done.stderr + done.stdout
    assert figures(tmp_path)["finished"] == figures(tmp_path)["arrived"] > 50


def test_a_worker_that_dies_takes_few_arrivals_with_it(tmp_path: Path) -> None:
    """What it was handed is lost; all that had not been handed out yet comes at the other one."""
    told = tmp_path / "figures.json"
    command = staging(
        tmp_path, "ci", "--processes", "2", "--run-time", "30s", "--figures-json", str(told)
    )
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | FAST, stderr=subprocess.STDOUT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert any(b"Sending spawn jobs" in line for line in process.stdout)
        below = psutil.Process(process.pid).children(recursive=True)
        locust = [child for child in below if "locust" in child.cmdline()]
        max(locust, key=lambda child: (child.create_time(), child.pid)).kill()
        process.communicate(timeout=100)
    assert figures(tmp_path)["finished"] == figures(tmp_path)["arrived"] > 55


@pytest.mark.parametrize(
    ("profile", "database"), [("browser", "postgres"), ("mirror_fanout", "sqlite")]
)
def test_every_kind_of_client_gets_its_file_through_a_full_server(
    tmp_path: Path, profile: str, database: str
) -> None:
    done = run(
        tmp_path,
        profile,
        *("--figures-json", str(tmp_path / "figures.json")),
        serve=FULL,
        database=database,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert figures(tmp_path)["finished"] == figures(tmp_path)["arrived"] > 50
    assert figures(tmp_path)["queued"] > 0


def test_rudeness_gains_nothing_and_forgers_harm_nobody(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "rude",
        *("--figures-json", str(tmp_path / "figures.json"), "--rude-fraction", "0.3"),
        *("--slo", "failed_fraction<=0%"),
        serve=("--policy", "ticket", "--slots", "16", "--reserve-small", "4", "--bandwidth", "3MB"),
    )
    found = figures(tmp_path)
    assert found["finished"] == found["arrived"] > 50, done.stdout + done.stderr
    assert found["refused"] > 0
    assert found["failed"] == 0


@pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.cluster.yml"])
def test_the_composition_is_valid(name: str, tmp_path: Path) -> None:
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


def test_hot_objects_come_by_multicast(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "hot_object",
        *("--figures-json", str(tmp_path / "figures.json"), "--thin", "40"),
        serve=(
            *("--multicast", "--multicast-interface", "127.0.0.1", "--multicast-rate", "50Mbit"),
            # Else mirrors on the same machine are done before a cohort stands.
            *("--multicast-hold", "0"),
        ),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = figures(tmp_path)
    assert found["finished"] == found["arrived"] == 10
    assert found["verified_bytes"] == 10 * 1_000_000
    assert found["multicast_bytes"] > 0, done.stdout + done.stderr


def test_a_steady_day_begins_anew_until_its_time_is_over(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "steady",
        *("--figures-json", str(tmp_path / "figures.json"), "--run-time", "7s"),
        *("--time-scale", "600", "--thin", "40"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    visitors = scaled(make_workload("exp2", 1), time_scale=600.0, thin=40.0).visitors
    assert figures(tmp_path)["finished"] > 2 * sum(len(one.files) for one in visitors)
