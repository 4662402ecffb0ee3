"""`tidegate simulate`: the paper's experiments, a comparison, or one scripted scenario."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from ...policies import registry
from ...policies.settings import fault_text
from ..report import paper_report, study_report
from .arguments import COME_BACK, RATE, WORKLOAD, read_network, read_settings
from .conditions import Starved
from .paper import LOADS, Cell, findings, order_agrees, run_paper
from .scenario import MANNERS, POLICIES, Scenario
from .study import StudyResult, run_seeds
from .tables import LEGEND, as_object, comparison, paper_object, paper_table


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    """The options that `run` and `compare` have in common; most are fields of `Scenario`."""
    for option in reversed(
        (
            click.option(
                "--workload",
                type=WORKLOAD,
                metavar="NAME",
                help="Population: its name, FILE.jsonl or FILE.py[:FUNCTION].",
            ),
            click.option(
                "--trace",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="Replay recorded arrivals (JSON lines) instead; needs --rate.",
            ),
            click.option(
                "--bandwidth",
                type=click.FloatRange(min=0.0, min_open=True),
                default=1.0,
                show_default=True,
                help="Server bandwidth as a fraction of what the workload asks for.",
            ),
            click.option(
                "--rate",
                "bandwidth_bytes_s",
                type=RATE,
                help="Server bandwidth itself, such as 100Mbit.",
            ),
            click.option(
                "--slots",
                type=click.IntRange(1, 1_000_000),
                default=30,
                show_default=True,
                help="Slots for large downloads.",
            ),
            click.option(
                "--reserve-small",
                type=click.IntRange(0, 999_999),
                default=0,
                show_default=True,
                help="Further slots for small ones only (30 and 6 is the paper's +20 %).",
            ),
            click.option(
                "--come-back",
                "come_back_s",
                default="eta",
                type=COME_BACK,
                show_default=True,
                help="Come-back time of large downloads: eta, or seconds (the paper: 30).",
            ),
            click.option(
                "--hold/--poll",
                default=None,
                help="Clients wait inside their request, or come back when told "
                "[default: hold for ticket-hold, fair and adaptive].",
            ),
            click.option(
                "--rude",
                type=click.FloatRange(0.0, 1.0),
                default=0.0,
                show_default=True,
                help="Fraction of the clients that ask again every second.",
            ),
            click.option(
                "--rtt",
                metavar="TIME[,TIME…]",
                help="Round-trip time to the clients, 20ms or for several kinds 10ms,100ms: then "
                "connections start slowly.",
            ),
            click.option(
                "--router-queue",
                metavar="SIZE",
                help="The line is a router's, which holds this much before it; needs --rtt "
                "[default: the line is the server's own card].",
            ),
            click.option(
                "--manners",
                type=click.Choice(list(MANNERS)),
                default="polite",
                show_default=True,
                help="How the others take a come-back time.",
            ),
            click.option(
                "--measure-bandwidth",
                "tells_bandwidth",
                is_flag=True,
                callback=lambda _context, _option, measures: not measures,
                help="Do not tell the policy the link's capacity; let it measure.",
            ),
            click.option(
                "--setting",
                "settings",
                multiple=True,
                callback=lambda _context, _option, given: read_settings(given),
                metavar="NAME=VALUE",
                help="Any further policy setting; repeatable.",
            ),
            click.option(
                "--seeds",
                type=click.IntRange(1, 10_000),
                default=20,
                show_default=True,
                help="How many populations.",
            ),
            click.option("--first-seed", type=int, default=0, show_default=True),
            _jobs,
            click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
            click.option(
                "--report", "report_path", type=_path, help="Write a self-contained HTML page."
            ),
        )
    ):
        command = option(command)
    return command


_path = click.Path(dir_okay=False, writable=True, path_type=Path)
_jobs = click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    default=lambda: os.cpu_count() or 1,
    show_default="all processors",
    help="Runs at the same time.",
)


@click.group()
def simulate() -> None:
    """Try admission policies in virtual time, with the server's own policy code."""


@simulate.command()
@click.option("--policy", type=click.Choice(list(POLICIES)), required=True)
@_shared
def run(policy: str, as_json: bool, **options: Any) -> None:
    """One policy on one workload; with --json one object for scripts."""
    _study([policy], as_json=as_json, single=True, **options)


@simulate.command()
@click.option(
    "--policy",
    "policies",
    type=click.Choice(list(POLICIES)),
    multiple=True,
    # What servers do today, and what ours do.
    default=("http", "ps", "ticket", "fair"),
    show_default=True,
    help="Repeatable.",
)
@_shared
def compare(policies: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Several policies on the same populations, beside the HTTP control and the lower bound."""
    _study(policies, as_json=as_json, single=False, **options)


def _study(
    policies: Sequence[str],
    *,
    workload: str | None,
    trace: Path | None,
    seeds: int,
    first_seed: int,
    jobs: int,
    as_json: bool,
    single: bool,
    report_path: Path | None,
    **options: Any,
) -> None:
    if (workload is None) == (trace is None):
        raise click.UsageError("give either --workload or --trace")
    if trace is not None and options["bandwidth_bytes_s"] is None:
        raise click.UsageError("--trace needs --rate: a trace does not say what the link carries")
    results: list[StudyResult] = []
    # Nothing is drawn of what was recorded: it is one population.
    numbers = range(first_seed, first_seed + (seeds if trace is None else 1))
    name = workload or str(trace)
    try:
        scenarios = [_scenario(policy, **options) for policy in dict.fromkeys(policies)]
        for scenario in scenarios:
            with _progress(scenario.policy, len(numbers)) as bar:
                told = partial(bar.update, 1)
                results.append(run_seeds(name, scenario, numbers, jobs=jobs, told=told))
    except (Starved, ValueError) as error:
        # pydantic's ValidationError is a ValueError too.
        raise click.ClickException(_sentence(error)) from error
    if report_path is not None:
        _write(report_path, study_report(results))
    if as_json:
        shown = [as_object(result) for result in results]
        click.echo(json.dumps(shown[0] if single else {"results": shown}, allow_nan=False))
    else:
        click.echo(comparison(results))
        if not single:
            click.echo(f"\n{LEGEND}")


def _progress(policy: str, runs: int) -> Any:
    """A bar on a terminal; a comparison may take minutes."""
    return click.progressbar(
        length=runs, label=f"{policy:<11}", file=sys.stderr, hidden=not sys.stderr.isatty()
    )


def _scenario(policy: str, *, rtt: str | None, router_queue: str | None, **fields: Any) -> Scenario:
    if fields["hold"] and not registry.POLICIES[POLICIES[policy]].gives_tickets:
        raise click.UsageError(f"--hold needs a policy that keeps places, which {policy} does not")
    return Scenario(policy, network=read_network(rtt, router_queue), **fields)


def _sentence(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {fault_text(first)}" if where else fault_text(first)
    return str(error)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error


@simulate.command()
@click.option(
    "--experiment",
    type=click.Choice(["1", "2", "both"]),
    default="both",
    show_default=True,
)
@click.option(
    "--load",
    "loads",
    type=click.Choice(list(LOADS)),
    multiple=True,
    help="100, 75, 50 or 30 % of the required bandwidth; default: all the paper has.",
)
@click.option("--seeds", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--first-seed", type=int, default=0, show_default=True)
@click.option(
    "--come-back",
    "come_back_s",
    default="30",
    type=COME_BACK,
    show_default=True,
    help="Come-back time of Reserve and Ticket: seconds, or eta for the policy's own estimate.",
)
@_jobs
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--report", "report_path", type=_path, help="Write a self-contained HTML page.")
def paper(
    experiment: str,
    loads: tuple[str, ...],
    seeds: int,
    first_seed: int,
    come_back_s: float | None,
    jobs: int,
    as_json: bool,
    report_path: Path | None,
) -> None:
    """The eleven scenarios of both experiments, our figures beside the paper's."""
    experiments = ["exp1", "exp2"] if experiment == "both" else [f"exp{experiment}"]

    def tell(cell: Cell) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{cell.experiment} {cell.load} {cell.label:<12}", nl=False, err=True)

    cells = run_paper(
        experiments,
        loads or ("sufficient", "light", "heavy"),
        range(first_seed, first_seed + seeds),
        come_back_s=come_back_s,
        jobs=jobs,
        told=tell,
    )
    if sys.stderr.isatty():
        click.echo("\r" + " " * 40 + "\r", nl=False, err=True)
    statements = findings(cells)
    orders = {
        (cell.experiment, cell.load): order_agrees(cells, cell.experiment, cell.load)
        for cell in cells
    }
    if report_path is not None:
        _write(report_path, paper_report(cells, statements))
    if as_json:
        click.echo(json.dumps(paper_object(cells, statements, orders), allow_nan=False))
    else:
        click.echo(paper_table(cells, statements, orders))
