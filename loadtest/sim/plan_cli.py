"""`tidegate plan`: what line a crowd needs, before it comes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

import click

from ...policies.registry import POLICIES
from ..registry import find_workload, on_release
from ..report import page, pair_of, table
from .arguments import DURATION, RATE, read_weights
from .chronology import Chronicle, draw, natural_end
from .conditions import Starved
from .plan import (
    BEHIND_GATE,
    MEANINGS,
    PLAIN,
    GatePlan,
    Plan,
    files_below,
    gate_rows,
    make_crowd,
    make_plan,
    plan_gate,
    play,
    rows,
    sample_crowd,
    sample_trace,
    verdict,
)


@click.command()
@click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR"
)
@click.option(
    "--bandwidth", type=RATE, required=True, help="What the line carries, such as 200Mbit."
)
@click.option("--visitors", type=click.IntRange(1, 10_000_000), help="How many.")
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A recorded crowd (tidegate admin arrivals) instead, as if it came for the files of DIR.",
)
@click.option(
    "--within",
    type=DURATION,
    default="1h",
    show_default=True,
    help="How long the crowd takes to arrive.",
)
@click.option(
    "--wait",
    type=DURATION,
    default="1m",
    show_default=True,
    help="What each may lose to the crowd, in the mean; the line for that is looked for.",
)
@click.option(
    "--policy",
    type=click.Choice(list(POLICIES)),
    help="Default: fair, and ticket with --gate.",
)
@click.option(
    "--gate",
    is_flag=True,
    help="Say what a gate and the nginx in front of it need (tidegate gate).",
)
@click.option("--patience", type=DURATION, help="Longest wait for a first byte.")
@click.option(
    "--weight",
    "weights",
    multiple=True,
    metavar="PATTERN=N",
    help="Files that match are requested N times as often as others; 0: never. Repeatable.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a self-contained HTML page.",
)
def plan(
    directory: Path,
    bandwidth: float,
    visitors: int | None,
    trace: Path | None,
    within: float,
    wait: float,
    policy: str | None,
    gate: bool,
    patience: float | None,
    weights: tuple[str, ...],
    report: Path | None,
) -> None:
    """How long a crowd would wait for the files of DIR, and what line it would take.

    It is played in virtual time by the server's own policies, beside a plain server.
    """
    if bandwidth <= 0 or within <= 0:
        raise click.UsageError("--bandwidth and --within must be above 0")
    if (visitors is None) == (trace is None):
        raise click.UsageError("give either --visitors or --trace")
    policy = policy or ("ticket" if gate else "fair")
    if gate and POLICIES[policy].link_bound:
        policy += BEHIND_GATE
    try:
        files = files_below(directory)
        if trace is not None:
            crowd = sample_trace(on_release(find_workload(str(trace), 1), files))
        else:
            wanted = read_weights(weights)
            crowd = sample_crowd(
                make_crowd(files, visitors or 1, within, wanted, patience or math.inf)
            )
        found = _played(lambda told: make_plan(crowd, bandwidth, policy, wait, told))
        needed = plan_gate(crowd, bandwidth, policy) if gate else None
        if report is not None:
            report.write_text(plan_page(found, needed), encoding="utf-8")
    except (OSError, ValueError, Starved) as error:
        raise click.ClickException(str(error)) from error
    lines = rows(found)
    widths = [max(len(row[at]) for row in lines) for at in range(len(lines[0]))]
    click.echo(verdict(found) + "\n")
    for row in lines:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        click.echo("  ".join((*cells, MEANINGS.get(row[0], ""))).rstrip())
    if needed is not None:
        title, *wants = gate_rows(needed)
        click.echo(f"\n{title[0]}:")
        for name, amount, why in wants:
            click.echo(f"{name:<20}  {amount:>9}  {why}")
    click.echo("\nTaken for granted:")
    for text in found.crowd.assumptions:
        click.echo(f"- {text}")


def _played(make: Callable[[Callable[[float], None]], Plan]) -> Plan:
    with click.progressbar(
        length=100, label="Playing the crowd", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:
        return make(lambda part: bar.update(round(100 * part) - bar.pos))


def plan_page(found: Plan, gate: GatePlan | None = None) -> str:
    lines = rows(found)
    explained = [(*lines[0], "")] + [(*row, MEANINGS.get(row[0], "")) for row in lines[1:]]
    items = "".join(f"<li>{escape(text)}</li>" for text in found.crowd.assumptions)
    needed = "" if gate is None else table(gate_rows(gate), words=True)
    return page(
        "Release day, before it comes",
        f"<p><strong>{escape(verdict(found))}</strong></p>{table(explained, words=True)}{needed}"
        f"<h2>What each visitor does</h2>{_pictures(found)}"
        f"<h2>Taken for granted</h2><ul>{items}</ul>",
    )


def _pictures(found: Plan) -> str:
    """The crowd under a plain server and under the policy, on one time axis."""
    crowd, line, drawn = found.crowd, found.ours.bandwidth_bytes_s, []
    for title, policy in (
        ("A plain server", PLAIN),
        (found.ours.policy.capitalize(), found.ours.policy),
    ):
        seen = Chronicle()
        run = play(crowd.workload, crowd.each, policy, line, chronicle=seen)
        drawn.append((title, seen.stretched(run.fast, crowd.each)))
    until_s = max(natural_end(seen) for _, seen in drawn)
    pictures = [draw(seen, line, title, until_s=until_s) for title, seen in drawn]
    return pair_of(pictures)
