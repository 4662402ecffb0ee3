"""The command line: what scripts read, what people read, and what they are told when wrong."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.apart import run_apart
from tests.installed import PYTHON
from tidegate.loadtest.report import study_report
from tidegate.loadtest.sim.chronology import Chronicle, draw
from tidegate.loadtest.sim.cli import simulate
from tidegate.loadtest.sim.metrics import mean_and_error, net_faster
from tidegate.loadtest.sim.paper import (
    LABELS,
    LOADS,
    MEANS,
    NET_FASTER,
    Cell,
    findings,
    run_paper,
    same_sign,
)
from tidegate.loadtest.sim.scenario import Scenario, paper_scenarios
from tidegate.loadtest.sim.study import run_seeds
from tidegate.loadtest.trace import to_trace
from tidegate.loadtest.workloads import Workload, exp2, make_workload

ROOT = Path(__file__).resolve().parent.parent
#: So many of an experiment's clients play where a table's shape is tested, on so many slots.
FEW = 25
HEAVY = ["--workload", "exp2", "--bandwidth", "0.5", "--slots", "3", "--reserve-small", "1"]


def few(workload: Workload) -> Workload:
    """The first clients of a population, on a line that is as much narrower."""
    part = FEW / len(workload.visitors)
    return replace(
        workload,
        visitors=workload.visitors[:FEW],
        bandwidth_bytes_s=workload.bandwidth_bytes_s * part,
    )


@pytest.fixture
def few_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experiments have few clients, in this process."""
    for place in ("sim.study._population", "report.find_workload"):
        monkeypatch.setattr(
            f"tidegate.loadtest.{place}", lambda name, seed: few(make_workload(name, seed))
        )


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(simulate, arguments, catch_exceptions=False)


@pytest.mark.usefixtures("few_clients")
def test_run_prints_one_object_with_the_promised_keys() -> None:
    shown = invoke("run", *HEAVY, "--policy", "ticket", "--seeds", "2", "--jobs", "1", "--json")
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.output)
    for key in (
        "mean_session_s",
        "se",
        "ratio_to_http",
        "ratio_to_bound",
        "p99_session_s",
        "net_faster",
        "attempts",
        "eta_within_p90",
    ):
        assert isinstance(found[key], float), key
    assert found["config"]["slots"] == 3
    assert found["config"]["reserve_small"] == 1
    assert found["seeds"] == [0, 1]


@pytest.mark.usefixtures("few_clients")
def test_the_http_control_beside_itself_is_one() -> None:
    shown = invoke("run", "--workload", "exp1", "--policy", "http", "--seeds", "1", "--json")
    found = json.loads(shown.output)
    assert found["ratio_to_http"] == 1.0
    assert found["net_faster"] == 0.0
    assert found["eta_within_p90"] is None
    assert found["se"] is None


def test_any_number_of_processes_gives_the_same_figures(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(to_trace(few(exp2(0)))))
    arguments = ["run", "--trace", str(trace), "--rate", "1Mbit", "--slots", "3"]
    arguments += ["--policy", "reserve", "--seeds", "2", "--json", "--jobs"]
    assert invoke(*arguments, "1").output == invoke(*arguments, "2").output


@pytest.mark.usefixtures("few_clients")
def test_compare_prints_a_row_for_each_policy_and_writes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    shown = invoke(
        *("compare", *HEAVY, "--policy", "ps", "--policy", "ticket-hold", "--seeds", "2"),
        *("--jobs", "1", "--report", str(page)),
    )
    assert shown.exit_code == 0, shown.output
    assert "\nps " in shown.output
    assert "\nticket-hold " in shown.output
    text = page.read_text()
    assert text.count("<svg") == 3
    assert "http" in text
    for outside in ("src=", "href=", "@import", "url("):
        assert outside not in text


def test_a_trace_is_replayed_at_a_given_rate(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(to_trace(few(exp2(0)))))
    shown = invoke("run", "--trace", str(trace), "--rate", "1Mbit", "--policy", "ps", "--json")
    assert shown.exit_code == 0, shown.output
    config = json.loads(shown.output)["config"]
    assert config["bandwidth_bytes_s"] == 125_000.0
    assert config["tells_bandwidth"]
    shown = invoke(
        *("run", "--trace", str(trace), "--rate", "1Mbit", "--policy", "ps", "--json"),
        "--measure-bandwidth",
    )
    assert not json.loads(shown.output)["config"]["tells_bandwidth"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--policy", "ps"], "either --workload or --trace"),
        (["run", *HEAVY, "--policy", "ps", "--rate", "fast"], "--rate"),
        (["run", *HEAVY, "--policy", "ticket", "--come-back", "soon"], "--come-back"),
        (["run", *HEAVY, "--policy", "ticket", "--setting", "slot=1"], "reserve_small"),
        (["run", *HEAVY, "--policy", "ticket", "--setting", "ticket_ttl_s=-1"], "ticket_ttl_s"),
        (["run", *HEAVY, "--policy", "http", "--hold"], "--hold"),
        (["run", *HEAVY, "--policy", "nothing"], "ticket-hold"),
    ],
)
def test_a_wrong_option_is_named_without_a_traceback(arguments: list[str], told: str) -> None:
    shown = invoke(*arguments)
    assert shown.exit_code != 0
    assert told in shown.output
    assert "Traceback" not in shown.output


def test_a_trace_without_a_rate_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("{}")
    assert "needs --rate" in invoke("run", "--trace", str(trace), "--policy", "ps").output
    assert "line 1" in invoke("run", "--trace", str(trace), "--rate", "1M", "--policy", "ps").output


@pytest.mark.usefixtures("few_clients")
def test_paper_marks_every_cell_and_every_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    cells: list[Cell] = []

    def kept(*given: Any, **more: Any) -> list[Cell]:
        cells.extend(run_paper(*given, **more))
        return cells

    monkeypatch.setattr("tidegate.loadtest.sim.cli.run_paper", kept)
    shown = invoke("paper", "--experiment", "2", "--load", "heavy", "--seeds", "1", "--jobs", "1")
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("exp2 heavy ") == 11
    assert "1265" in shown.output
    for finding in findings(cells):
        mark = "reproduced    " if finding.reproduced else "not reproduced"
        assert f"{mark}  {finding.text}" in shown.output
    assert [cell.label for cell in cells] == list(LABELS)
    assert cells[0].paper_mean_s == 1265
    assert cells[0].improvement == 0.0
    assert cells[-1].paper_net_faster == 0.65


def paper_cells(experiment: str, load: str) -> list[Cell]:
    """Cells in which ours are the paper's own figures."""
    means, nets = MEANS[experiment, load], NET_FASTER[experiment, load]
    cells = []
    for label, mean_s, net in zip(LABELS, means, nets, strict=True):
        result = SimpleNamespace(mean={"mean_session_s": mean_s, "net_faster": net / 100})
        gain = 1.0 - mean_s / means[0]
        cells.append(Cell(experiment, load, label, result, gain, mean_s, gain, net / 100, True))  # type: ignore[arg-type]
    return cells


def test_a_finding_is_reproduced_by_the_papers_own_figures_and_by_no_others() -> None:
    cells = paper_cells("exp2", "heavy")
    told = findings(cells)
    assert len(told) == 5
    assert all(finding.reproduced for finding in told)
    # Where nobody gains, only what speaks of equals holds.
    levelled = [replace(cell, improvement=0.0) for cell in cells]
    assert [finding.reproduced for finding in findings(levelled)] == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_a_finding_about_two_scenarios_needs_both() -> None:
    cells = [
        replace(cell, improvement=0.2) if cell.label == "Ticket+20" else cell
        for cell in paper_cells("exp1", "sufficient")
    ]
    told = {finding.text: finding.reproduced for finding in findings(cells)}
    assert not told["Exp 1 sufficient: Reserve+20 and Ticket+20 are worse than HTTP+0"]


def test_reserved_slots_gain_what_the_paper_found() -> None:
    """Experiment 2 under heavy load, all 400 clients: HTTP beside Reserve and Ticket."""
    scenarios = paper_scenarios(LOADS["heavy"], None)
    for label in ("Reserve+20", "Ticket+20"):
        assert run_seeds("exp2", scenarios[label], [0]).mean["ratio_to_http"] <= 0.5


def test_the_papers_tables_are_whole_and_cells_compare_by_sign() -> None:
    assert all(len(row) == len(LABELS) for row in (*MEANS.values(), *NET_FASTER.values()))
    assert same_sign(0.4, 0.7)
    assert not same_sign(0.4, -0.1)
    assert same_sign(0.04, -0.03)
    assert same_sign(0.04, 0.06)
    assert not same_sign(0.0, 0.2)
    assert findings([]) == []


def test_a_run_is_drawn_as_one_picture() -> None:
    workload, scenario = few(exp2(0)), Scenario("ticket", slots=3, reserve_small=1, bandwidth=0.5)
    chronicle = Chronicle()
    scenario.simulate(workload, 0, chronicle)
    svg = draw(chronicle, scenario.capacity(workload), "exp2, ticket")
    assert svg.startswith("<svg")
    assert svg.endswith("</svg>")


@pytest.mark.usefixtures("few_clients")
def test_a_report_names_the_figures_it_shows() -> None:
    result = run_seeds("exp2", Scenario("ticket", reserve_small=6, bandwidth=0.5), [0])
    assert "mean time from a client&#x27;s arrival" in study_report([result])


def test_means_leave_out_what_a_run_does_not_have() -> None:
    assert mean_and_error([1.0, math.nan, 3.0]) == (2.0, 1.0)
    assert math.isnan(mean_and_error([math.nan])[0])


def test_net_faster_counts_only_differences_beyond_five_percent_and_five_seconds() -> None:
    control = [100.0, 100.0, 10.0, 100.0]
    ours = [80.0, 97.0, 6.0, 120.0]
    assert net_faster(ours, control) == 0.0
    assert net_faster([80.0, 97.0, 6.0, 100.0], control) == 0.25


@pytest.mark.usefixtures("few_clients")
def test_compare_without_a_policy_takes_the_usual_ones() -> None:
    shown = invoke("compare", *HEAVY, "--seeds", "1", "--jobs", "1", "--json")
    assert shown.exit_code == 0, shown.output
    told = [result["config"]["policy"] for result in json.loads(shown.output)["results"]]
    assert told == ["http", "ps", "ticket", "fair"]


@pytest.mark.skipif(os.geteuid() != 0, reason="process numbers of one's own need root")
@pytest.mark.parametrize("cleanly", [True, False])
def test_who_ends_a_study_ends_its_processes(cleanly: bool) -> None:
    program = f"""
import os, signal, time
from bench.shared.ending import end_cleanly
from tidegate.loadtest.sim.workers import worker_processes
if {cleanly}:
    end_cleanly()
with worker_processes(2) as pool:
    pool.submit(os.getpid).result()
    long = [pool.submit(time.sleep, 600) for _ in range(9)]
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)
"""
    done = run_apart([PYTHON, "-c", program])
    assert (done.code, done.programs) == (143 if cleanly else -15, []), done.said
