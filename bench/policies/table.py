"""Every condition under every policy, in virtual time, as one table.

    python -m bench.policies.table                    20 populations each: hours of CPU
    python -m bench.policies.table --seeds 3 --only "flash crowd" --policy fair

A cell has the mean session time as a part of processor sharing's (what a server without admission
does) for the same clients; how many are done later than under it by more than 5 % and 5 s; and, of
those who were told a time, how many started within the 90 % bound and the median error of waits
over 10 s. Who gave up in either run is left out of the first two.
"""

from __future__ import annotations

import argparse
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import click
import numpy as np

from bench.policies.conditions import CONDITIONS
from loadtest.sim.metrics import later, mean_and_error, measure, session_times
from loadtest.sim.scenario import Scenario

#: Column -> policy, and whether clients wait inside their request.
COLUMNS: dict[str, tuple[str, bool]] = {
    "fair": ("fair", True),
    "fair, polled": ("fair", False),
    "ticket": ("ticket", True),
    "ticket, polled": ("ticket", False),
    "reserve": ("reserve", False),
    "http": ("http", False),
}
FIGURES = ("to_sharing", "later", "within", "error")

Task = tuple[str, int, tuple[str, ...]]


def play(task: Task) -> dict[str, dict[str, float]]:
    """All columns of one condition with one population."""
    name, seed, columns = task
    condition = CONDITIONS[name]
    workload = condition.workload(seed)
    usual = Scenario(**{"policy": "ps", "reserve_small": 6, **condition.scenario})
    clients = len(workload.visitors)
    sharing = session_times(usual.simulate(workload, seed), clients)
    found = {}
    for column in columns:
        policy, hold = COLUMNS[column]
        scenario = replace(usual, policy=policy, hold=hold)
        tally = scenario.simulate(workload, seed)
        times = session_times(tally, clients)
        both = ~np.isnan(times) & ~np.isnan(sharing)
        figures = measure(workload, scenario.conditions(workload), tally)
        found[column] = {
            "to_sharing": float(times[both].mean() / sharing[both].mean()),
            "later": later(times, sharing),
            "within": figures["eta_within_p90"],
            "error": figures["eta_median_error"],
        }
    return found


def cell(runs: list[dict[str, float]]) -> str:
    """One cell: means over the populations; a dash where nobody was told a time."""
    means = {name: mean_and_error([run[name] for run in runs])[0] for name in FIGURES}
    parts = [f"{means['to_sharing']:.2f}", f"{means['later']:.1%}"]
    parts += ["–" if math.isnan(means[name]) else f"{means[name]:.0%}" for name in FIGURES[2:]]
    return "; ".join(parts)


def main() -> int:
    """Play and print, a line a condition as soon as it is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="conditions with this in them")
    parser.add_argument("--policy", action="append", choices=COLUMNS, default=[])
    options = parser.parse_args()
    columns = tuple(options.policy or COLUMNS)
    names = [one for one in CONDITIONS if all(text in one for text in options.only)]
    click.echo(f"| | {' | '.join(f'`{column}`' for column in columns)} |")
    click.echo("|---" * (len(columns) + 1) + "|")
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in names:
            runs = list(pool.map(play, [(name, seed, columns) for seed in range(options.seeds)]))
            cells = [cell([run[column] for run in runs]) for column in columns]
            click.echo(f"| {name} | {' | '.join(cells)} |")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
