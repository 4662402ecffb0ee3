"""Measures multicast beside its peers: `python -m bench.multicast.lab`.

One sender at 100 Mb/s sends to N receivers with losses. A cell has the bytes on the sender's wire
(all headers, both protocols) divided by the file's size, and the seconds until the last receiver
has the right file. The start of Python is not counted: our receivers are loaded before, as the
peers' daemons are.
"""

from __future__ import annotations

import os
import statistics
import sys

import click

from bench.multicast.bench import MulticastBench, TrialRow
from bench.multicast.network import MulticastLab
from bench.multicast.peers import PEERS, available
from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.namespaces import LabFailed


def table(rows: list[TrialRow], losses: list[float], tools: list[str]) -> str:
    lines = []
    for loss in losses:
        cells = [f"{loss:g} %"]
        for tool in tools:
            mine = [row for row in rows if row.tool == tool and row.loss == loss]
            good = [row for row in mine if row.good == row.receivers]
            if not good:
                cells.append("failed")
                continue
            ratio = statistics.median(row.ratio for row in good)
            seconds = statistics.median(row.seconds for row in good)
            failed = f" ({len(mine) - len(good)} of {len(mine)} failed)" if good != mine else ""
            cells.append(f"{ratio:.3f}, {seconds:.2f} s{failed}")
        lines.append(cells)
    return markdown.table(["loss", *tools], lines)


def _losses(ctx: click.Context, param: click.Parameter, text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise click.BadParameter("write percentages such as 0,1,5,10", ctx, param) from error
    if not all(0 <= one < 100 for one in found):
        raise click.BadParameter("a loss is from 0 to below 100 percent", ctx, param)
    return found


@click.command()
@click.option("--receivers", type=click.IntRange(1, 200), default=8, show_default=True)
@click.option("--mib", type=click.FloatRange(0.1, 4096), default=32, show_default=True)
@click.option("--loss", "losses", default="0,1,5,10", show_default=True, callback=_losses)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--tools", default="ours,uftp,udpcast,tcp", show_default=True)
@click.option("--fec", default="auto", show_default=True, help="Our erasure code.")
@click.option("--line", default=100.0, show_default=True, help="Mb/s of the sender's interface.")
@click.option("--rate", type=float, help="Mb/s that ours is paced at; default 99.8 % of the line.")
@click.option("--burst", type=float, help="The mean length of bursts of losses.")
def lab(
    receivers: int,
    mib: float,
    losses: list[float],
    rounds: int,
    tools: str,
    fec: str,
    line: float,
    rate: float | None,
    burst: float | None,
) -> None:
    """Measure multicast on this machine: network namespaces, real processes, peers beside."""
    if os.geteuid() != 0:
        click.echo("tidegate: this lab builds network namespaces; run it as root", err=True)
        sys.exit(2)
    names = [name for name in tools.split(",") if name]
    unknown = [name for name in names if name != "ours" and name not in PEERS]
    if unknown:
        click.echo(
            f"tidegate: no tool {unknown[0]!r}; there are ours, {', '.join(PEERS)}", err=True
        )
        sys.exit(2)
    end_cleanly()
    bench = MulticastBench(mib, fec, rate or 0.998 * line)
    try:
        names = [name for name in names if name == "ours" or available(name)]
        rows = []
        for _ in range(rounds):
            for loss in losses:
                for name in names:
                    network = MulticastLab(receivers, loss, line, mean_burst=burst)
                    row = bench.run(name, network)
                    rows.append(row)
                    click.echo(
                        f"{row.tool}\t{row.loss:g} %\t{row.good}/{row.receivers} good\t"
                        f"{row.ratio:.3f}\t{row.seconds:.2f} s\t{row.note}"
                    )
        click.echo("\n" + table(rows, losses, names))
    except LabFailed as fault:
        click.echo(f"tidegate: the lab could not be built: {fault}", err=True)
        sys.exit(1)
    finally:
        bench.close()


if __name__ == "__main__":
    lab()
