"""Every condition under every policy, in virtual time, as one table.

    python -m bench.policies.table --results evidence.jsonl --jobs 2       20 populations each
    python -m bench.policies.table --seeds 3 --only "flash crowd" --policy fair
    python -m bench.policies.table --results evidence.jsonl --print        what is there so far

A cell has the mean session time as a part of processor sharing's (what a server without admission
does) for the same clients; how many are done later than under it by more than 5 % and 5 s; and, of
those who were told a time, how many started within the 90 % bound and the median error of waits
over 10 s. Clients that gave up in either run are left out of the first two.

With `--results` every run is written to that file as soon as it is over, a JSON object a line, and
runs that stand there are not played again: stop it and start it as you like. `--figures` prints
others of the figures that the file has.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from bench.policies.conditions import CONDITIONS
from bench.shared import markdown
from bench.shared.ending import end_cleanly
from tidegate.loadtest.sim.bounds import lower_bounds
from tidegate.loadtest.sim.chronicle import Chronicle
from tidegate.loadtest.sim.conditions import Conditions, Starved
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.metrics import later, mean_and_error, measure, session_times
from tidegate.loadtest.sim.scenario import POLICIES, Scenario
from tidegate.loadtest.sim.workers import worker_processes
from tidegate.loadtest.workloads import Workload

#: The columns of the table. Policies that are found later, as those of another distribution, come
#: with `--policy NAME` or `--policy "NAME, polled"`.
COLUMNS = ("fair", "fair, polled", "ticket", "ticket, polled", "reserve", "http")
#: Policies that give no tickets: their clients can but ask again.
ASK_ONLY = frozenset({"reserve", "http", "ftp"})
#: What a run is asked for; in a results file by these names.
MEANING = {
    "to_sharing": "mean session time to that under processor sharing",
    "later": "part of the clients done later than under it by more than 5 % and 5 s",
    "within": "of those told a time, the part that started within the 90 % bound",
    "error": "median error of told waits over 10 s",
    "to_bound": "mean session time to a lower bound that knows the future",
    "longest": "longest session to the longest under processor sharing",
    "idle": "part of the line's bytes not used while somebody waited, from its first wait on",
    "told": "how many clients were told a time",
}
USUAL = ("to_sharing", "later", "within", "error")


#: A run that has not ended then does not end, seconds of virtual time.
_LONGEST_S = 400_000.0


@dataclass(frozen=True, slots=True)
class Task:
    """One population of one condition, under one column."""

    condition: str
    seed: int
    column: str

    @property
    def policy(self) -> tuple[str, bool]:
        """The scenario policy, and whether clients wait inside their request."""
        name, _, polled = self.column.partition(", ")
        return name, name not in ASK_ONLY and not polled


def column(text: str) -> str:
    """A policy's name, or that and `, polled`; raises argparse's error if there is none such."""
    name, _, rest = text.partition(", ")
    if name not in POLICIES or rest not in ("", "polled"):
        raise argparse.ArgumentTypeError(f"no policy of this name: {text}")
    return text


class Idleness(Chronicle):
    """What the line did not carry while somebody waited for a start."""

    def __init__(self, conditions: Conditions) -> None:
        super().__init__()
        self._conditions = conditions
        self._waiting: set[int] = set()
        self._then = (0.0, 0.0)
        self._present_bytes_s = 0.0
        self.could_bytes = self.did_bytes = 0.0

    def arrive(self, now: float, client: int, rate_bytes_s: float) -> None:
        """A client has come."""
        self._present_bytes_s += rate_bytes_s

    def leave(self, now: float, client: int, rate_bytes_s: float) -> None:
        """It has left."""
        self._present_bytes_s -= rate_bytes_s
        self._waiting.discard(client)

    def turned_away(self, now: float, client: int) -> None:
        """It waits, here or elsewhere."""
        self._waiting.add(client)

    def admitted(self, now: float, client: int) -> None:
        """It waits no longer."""
        self._waiting.discard(client)

    def carried(self, now: float, client: int, running: bool) -> None:
        """Nothing to note."""

    def ended(self, now: float, client: int) -> None:
        """Nothing to note."""

    def flow(self, now: float, goodput_bytes_s: float) -> None:
        """What the line carries from now on; until now it carried what it said before."""
        then, carried = self._then
        line = self._conditions.line_bytes_s(then)
        if self._waiting and self._present_bytes_s >= line:
            self.could_bytes += line * (now - then)
            self.did_bytes += min(carried, line) * (now - then)
        self._then = (now, goodput_bytes_s)

    @property
    def part(self) -> float:
        """The part that was not carried; nan where nobody waited."""
        return 1.0 - self.did_bytes / self.could_bytes if self.could_bytes else math.nan


@lru_cache(maxsize=2)
def _beside(condition: str, seed: int) -> tuple[Workload, Scenario, NDArray[np.float64], float]:
    """A population, its usual scenario, its session times under processor sharing, its bound."""
    given = CONDITIONS[condition]
    workload = given.workload(seed)
    usual = Scenario(**{"policy": "ps", "reserve_small": 6, **given.scenario})
    sharing = session_times(usual.simulate(workload, seed), len(workload.visitors))
    conditions = usual.conditions(workload)
    connect_s = conditions.attempt_s + conditions.accept_s
    bound_s = lower_bounds(workload, conditions.bandwidth_bytes_s, connect_s).best_s
    return workload, usual, sharing, bound_s


def play(task: Task) -> dict[str, float]:
    """The figures of one run; nan throughout if somebody waits for ever."""
    workload, usual, sharing, bound_s = _beside(task.condition, task.seed)
    began_s = time.process_time()
    policy, hold = task.policy
    scenario = replace(usual, policy=policy, hold=hold)
    conditions = replace(scenario.conditions(workload), limit_s=_LONGEST_S)
    idleness = Idleness(conditions)
    try:
        tally = Engine(
            workload, scenario.make_policy(workload, task.seed), conditions, task.seed, idleness
        ).run()
    except Starved:
        return dict.fromkeys(MEANING, math.nan)
    times = session_times(tally, len(workload.visitors))
    both = ~np.isnan(times) & ~np.isnan(sharing)
    figures = measure(workload, conditions, tally)
    everybody = not np.isnan(times).any()
    return {
        "to_sharing": float(times[both].mean() / sharing[both].mean()),
        "later": later(times, sharing),
        "within": figures["eta_within_p90"],
        "error": figures["eta_median_error"],
        "to_bound": float(times.mean() / bound_s) if everybody else math.nan,
        "longest": float(times[both].max() / sharing[both].max()),
        "idle": idleness.part,
        "told": figures["eta_told"],
        "cpu_s": time.process_time() - began_s,
    }


Results = dict[Task, dict[str, float]]


def read(path: Path | None) -> Results:
    """What a results file has."""
    found: Results = {}
    if path is not None and path.exists():
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            task = Task(row.pop("condition"), row.pop("seed"), row.pop("column"))
            found[task] = {name: math.nan if one is None else one for name, one in row.items()}
    return found


def written(task: Task, figures: dict[str, float]) -> str:
    """The line of a run in a results file."""
    known = {name: None if math.isnan(one) else round(one, 6) for name, one in figures.items()}
    return json.dumps(asdict(task) | known) + "\n"


def run(tasks: Sequence[Task], jobs: int, path: Path | None) -> Results:
    """Play them, telling how far it is; each is written as soon as it is over."""
    found: Results = {}
    with worker_processes(jobs) as pool:
        futures = {pool.submit(play, task): task for task in tasks}
        for future in as_completed(futures):
            task = futures[future]
            found[task] = figures = future.result()
            if path is not None:
                with path.open("a", encoding="utf-8") as out:
                    out.write(written(task, figures))
            told = f"{len(found)} of {len(tasks)}: {task.condition}, {task.column}, {task.seed}"
            click.echo(f"{told}: {figures['to_sharing']:.3f}", err=True)
    return found


def cell(runs: Sequence[dict[str, float]], figures: Sequence[str]) -> str:
    """One cell: means over the populations; a dash where there is no such figure."""
    parts = []
    for name in figures:
        mean = mean_and_error([run[name] for run in runs])[0]
        if math.isnan(mean):
            parts.append("–")
        elif name in ("to_sharing", "to_bound", "longest"):
            parts.append(f"{mean:.2f}" if name != "to_bound" else f"{mean:.3f}")
        else:
            parts.append(f"{mean:.0f}" if name == "told" else f"{mean:.1%}")
    return "; ".join(parts)


def table(
    results: Results, names: Iterable[str], columns: Sequence[str], figures: Sequence[str]
) -> str:
    """Markdown, a line a condition, with how many populations it was played with."""
    lines = []
    for name in names:
        cells, counts = [], set()
        for one in columns:
            runs = [
                row for task, row in results.items() if (task.condition, task.column) == (name, one)
            ]
            counts.add(len(runs))
            cells.append(cell(runs, figures) if runs else "")
        several = "" if counts == {0} else f" ({'–'.join(str(n) for n in sorted(counts))})"
        lines.append([f"{name}{several}", *cells])
    return markdown.table(["", *(f"`{one}`" for one in columns)], lines)


def main() -> int:
    """Play what is missing and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="conditions with this in them")
    parser.add_argument("--policy", action="append", type=column, default=[])
    parser.add_argument(
        "--results", type=Path, help="a file to keep the runs in, and to go on from"
    )
    parser.add_argument("--figures", action="append", choices=MEANING, default=[])
    parser.add_argument("--print", action="store_true", dest="only_print", help="play nothing")
    options = parser.parse_args()
    columns = tuple(options.policy or COLUMNS)
    names = [one for one in CONDITIONS if all(text in one for text in options.only)]
    results = read(options.results)
    tasks = [
        Task(name, seed, one) for seed in range(options.seeds) for name in names for one in columns
    ]
    if not options.only_print:
        results |= run(
            [task for task in tasks if task not in results], options.jobs, options.results
        )
    wanted = {task: results[task] for task in tasks if task in results}
    click.echo(table(wanted, names, columns, options.figures or USUAL))
    return 0


if __name__ == "__main__":
    end_cleanly()
    sys.exit(main())
