"""Measures multicast beside its peers: `python -m bench.multicast.lab`.

One sender at 100 Mb/s sends to N receivers with losses. A cell has the bytes on the sender's wire
(all headers, both protocols) divided by the file's size, and the seconds until the last receiver
has the right file. The start of Python is not counted: our receivers are loaded before, as the
peers' daemons are.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys

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


def _losses(text: str) -> list[float]:
    found = [float(part) for part in text.split(",")]
    if not all(0 <= one < 100 for one in found):
        raise argparse.ArgumentTypeError("a loss is from 0 to below 100 percent")
    return found


def main() -> None:
    """Measure multicast on this machine: network namespaces, real processes, peers beside."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--receivers", type=int, choices=range(1, 201), default=8, metavar="N")
    parser.add_argument("--mib", type=float, default=32.0)
    parser.add_argument("--loss", type=_losses, default=[0.0, 1.0, 5.0, 10.0], help="%%, by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tools", default="ours,uftp,udpcast,tcp")
    parser.add_argument("--fec", default="auto", help="our erasure code")
    parser.add_argument("--line", type=float, default=100.0, help="Mb/s of the sender's interface")
    parser.add_argument("--rate", type=float, help="Mb/s of ours; default 99.8 %% of the line")
    parser.add_argument("--burst", type=float, help="the mean length of bursts of losses")
    given = parser.parse_args()
    tools = given.tools.split(",")
    unknown = [name for name in tools if name != "ours" and name not in PEERS]
    if unknown:
        parser.error(f"no tool {unknown[0]!r}; there are ours, {', '.join(PEERS)}")
    if os.geteuid() != 0:
        parser.error("this lab builds network namespaces; run it as root")
    end_cleanly()
    bench = MulticastBench(given.mib, given.fec, given.rate or 0.998 * given.line)
    try:
        tools = [name for name in tools if name == "ours" or available(name)]
        rows = []
        for _, loss, name in itertools.product(range(given.rounds), given.loss, tools):
            network = MulticastLab(given.receivers, loss, given.line, mean_burst=given.burst)
            row = bench.run(name, network)
            rows.append(row)
            print(
                f"{row.tool}\t{row.loss:g} %\t{row.good}/{row.receivers} good\t"
                f"{row.ratio:.3f}\t{row.seconds:.2f} s\t{row.note}",
                flush=True,
            )
        print(f"\n{table(rows, given.loss, tools)}")
    except LabFailed as fault:
        sys.exit(f"The lab could not be built: {fault}")
    finally:
        bench.close()


if __name__ == "__main__":
    main()
