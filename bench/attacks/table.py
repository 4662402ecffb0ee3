"""Makes the tables of docs/security.md: what attackers cost honest clients.

    python -m bench.attacks.table [--policy NAME …] [--attacker WHO …] [--no-live] [--no-simulated]
        [--seeds 1] [--days 2] [--minutes 45] [--results FILE] [--write]

A release day is played in virtual time under each policy (`fair`), calm and attacked. Then real
servers are attacked in network namespaces (root; half a minute for each day). No cell starts after
`--minutes`; with `--results` the next run continues there. `--write` puts the tables into
docs/security.md.

Exit code 1 when under `fair`

- one network that downloads nothing costs over 5 % of the mean session time, or ten addresses over
  15 %, by more than two standard errors;
- one network that downloads costs more than honest people, as many as it has shares;
- people behind one address take over 1.5 times as long as the others;
- an attack stops the service, or did not take place.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import astuple
from functools import cache
from pathlib import Path

from bench.attacks import live
from bench.attacks.simulated import ATTACKERS, CONDUCTS, SHARE, AttackBench, Attacker, Cost
from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.subject import NothingMeasured

_NAMES: dict[live.Manner, str] = {
    "ghost": "ghost",
    "idle": "idle",
    "real": "really downloads",
    "small": "small files",
    "short": "short files",
    "half": "half a request",
}
_EMPTY = "–"


def _spelled(cost: Cost) -> str:
    taken = f", takes {100 * cost.taken:.0f} %" if cost.taken >= 0.005 else ""
    error = f" ± {100 * cost.error:.1f}" if cost.error else ""
    least = f"at least ({100 * cost.undone:.0f} % not done) " if cost.undone else ""
    return f"{least}{100 * cost.mean:+.1f}{error} %{taken}"


def _error(found_s: Sequence[float]) -> float:
    """The relative standard error of the mean."""
    if len(found_s) < 2:
        return 0.0
    return statistics.stdev(found_s) / math.sqrt(len(found_s)) / statistics.fmean(found_s)


class CostJudge:
    """Makes cells of a table, and collects figures beyond their bars."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        #: The cost of the shares of one network in the hands of honest people.
        self._share: Cost | None = None

    def cell(self, policy: str, title: str, manner: str, cost: Cost | None) -> str:
        """The cell of one figure; None: not measured."""
        if cost is None:
            return _EMPTY
        if cost.undone > 0.5:
            self.fault(policy, f"{title}, {manner}: stops the service")
            return "no service"
        one_network = title in ("one IPv4", "one /64", "one /48")
        if title == SHARE.title:
            self._share = cost
        elif manner not in ("real", "small", "short"):
            # The highest cost of attackers that download nothing.
            bar = 0.05 if one_network else 0.15 if title == "ten addresses" else math.inf
            if cost.mean - 2.0 * cost.error > bar:
                self.fault(policy, f"{title}, {manner}: {_spelled(cost)}")
        elif one_network and self._share is not None:
            error = 2.0 * math.hypot(cost.error, self._share.error)
            if cost.mean - self._share.mean > error:
                self.fault(policy, f"{title}, {manner}: costs more than its shares give it")
        return _spelled(cost)

    def behind_one(self, policy: str, days_s: Sequence[Sequence[float]]) -> str:
        """The cell of session times behind one address and of the others, day by day."""
        if not days_s:
            return _EMPTY
        inside_s, others_s = (statistics.median(found_s) for found_s in zip(*days_s, strict=True))
        text = f"they {inside_s:.1f} s, the others {others_s:.1f} s"
        # The highest ratio of session times behind one shared address to those of the others.
        if inside_s > 1.5 * others_s:
            self.fault(policy, f"{live.BEHIND_ONE}: {text}")
        return text

    def fault(self, policy: str, fault: str) -> None:
        """Add a fault of the default policy; others are ignored."""
        if policy == "fair":
            self.faults.append(fault)


class KeptFigures:
    """Measured figures by name, in a file of JSON lines from which the next run continues."""

    def __init__(self, path: Path | None, minutes: float) -> None:
        self._until_s = time.monotonic() + 60.0 * minutes
        self._path = path
        self._known: dict[str, list[list[float]]] = {}
        #: Cells whose attack did not take place, with the reason.
        self.empty: dict[str, str] = {}
        if path is not None and path.exists():
            self._known.update(map(json.loads, path.read_text("utf-8").splitlines()))

    def get(self, name: str, measure: Callable[[], list[list[float]]]) -> list[list[float]]:
        """The figures of this name; empty if there is no time, or the attack did not take place."""
        if name in self._known or name in self.empty or time.monotonic() > self._until_s:
            return self._known.get(name, [])
        try:
            found = self._known[name] = measure()
        except NothingMeasured as fault:
            self.empty[name] = f"{name}: {fault}"
            return []
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as out:
                out.write(f"{json.dumps([name, found])}\n")
        return found


def simulated_rows(
    policies: Iterable[str],
    attackers: Iterable[Attacker],
    seeds: int,
    results: KeptFigures,
    judge: CostJudge,
) -> Iterator[str]:
    """The rows of the table in virtual time."""
    bench = cache(lambda policy: AttackBench(policy, seeds))

    def costs(policy: str, title: str, measure: Callable[[], list[Cost]]) -> list[Cost]:
        name = f"simulated/{seeds}/{policy}/{title}"
        found = results.get(name, lambda: [[*astuple(cost)] for cost in measure()])
        return [Cost(*figures) for figures in found]

    yield markdown.head("policy", "who, simulated", *(_NAMES[one] for one in CONDUCTS))
    for policy in policies:
        for attacker in attackers:
            cells = []
            for manner in CONDUCTS:
                cost = None
                if attacker is not SHARE or manner == "real":
                    measured = costs(
                        policy,
                        f"{attacker.title}/{manner}",
                        lambda policy=policy, attacker=attacker, manner=manner: [  # type: ignore[misc]
                            bench(policy).attack(attacker, manner)
                        ],
                    )
                    cost = next(iter(measured), None)
                cells.append(judge.cell(policy, attacker.title, manner, cost))
            yield markdown.row(f"`{policy}`", attacker.title, *cells)
        nat = costs(policy, "nat", lambda policy=policy: [*bench(policy).nat(500)])  # type: ignore[misc]
        if nat:
            cell = f"they {_spelled(nat[0])}, the others {_spelled(nat[1])}"
            yield markdown.row(
                f"`{policy}`", "500 honest people behind one NAT", _EMPTY, _EMPTY, cell
            )


def live_rows(
    policies: Iterable[str],
    titles: Sequence[str],
    days: int,
    people: int,
    results: KeptFigures,
    judge: CostJudge,
) -> Iterator[str]:
    """The rows of the table of real servers: medians of days, beside calm days."""

    def one_day(policy: str, title: str, manner: live.Manner, day: int) -> list[list[float]]:
        def measure() -> list[list[float]]:
            if title == live.BEHIND_ONE:
                return [[*live.behind_one(policy)]]
            return [[live.day(policy, title, manner, people)]]

        return results.get(f"live/{policy}/{title or 'no attacker'}/{manner}/{day}", measure)

    def all_days(policy: str, title: str, manner: live.Manner) -> list[list[float]]:
        found = [one_day(policy, title, manner, day) for day in range(days)]
        return [figures[0] for figures in found if figures]

    def manners(title: str) -> Iterator[live.Manner]:
        for manner in _NAMES:
            if manner == "real" or title not in ("", SHARE.title, live.BEHIND_ONE):
                yield manner

    yield markdown.head("policy", "who, live", *_NAMES.values())
    for policy in policies:
        # Day by day, calm and attacked: noise of the machine affects all of them.
        for day, title in itertools.product(range(days), ("", *titles)):
            for manner in manners(title):
                one_day(policy, title, manner, day)
        calm_s = [mean_s for (mean_s,) in all_days(policy, "", "real")]
        told = ", ".join(f"{one:.1f} s" for one in calm_s)
        yield markdown.row(f"`{policy}`", f"no attacker: {told}", *[_EMPTY] * len(_NAMES))
        for title in titles:
            cells = dict.fromkeys(_NAMES, _EMPTY)
            for manner in manners(title):
                found_s = all_days(policy, title, manner)
                if title == live.BEHIND_ONE:
                    cells[manner] = judge.behind_one(policy, found_s)
                elif calm_s and found_s:
                    cost = _live_cost([mean_s for (mean_s,) in found_s], calm_s)
                    cells[manner] = judge.cell(policy, title, manner, cost)
            yield markdown.row(f"`{policy}`", title, *cells.values())


def _live_cost(attacked_s: Sequence[float], calm_s: Sequence[float]) -> Cost:
    middle_s = statistics.median(attacked_s)
    ratio = middle_s / statistics.median(calm_s)
    error = ratio * math.hypot(_error(calm_s), _error(attacked_s))
    return Cost(ratio - 1.0, error, undone=float(middle_s >= live.DAY.longest_s))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    names = ("fair", "ticket", "reserve", "http", "adaptive")
    parser.add_argument("--policy", action="append", choices=names)
    all_simulated = (SHARE, *ATTACKERS)
    choices = [*dict.fromkeys((*(one.title for one in all_simulated), *live.ATTACKERS))]
    choices.append(live.BEHIND_ONE)
    parser.add_argument("--attacker", action="append", choices=choices)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--days", type=int, default=2)
    parser.add_argument("--people", type=int, default=live.DAY.people, help="On a live day.")
    parser.add_argument("--minutes", type=float, default=45.0, help="No cell starts later.")
    parser.add_argument("--no-live", dest="live", action="store_false")
    parser.add_argument("--no-simulated", dest="simulated", action="store_false")
    parser.add_argument("--results", type=Path, help="Keeps figures, and goes on from them.")
    parser.add_argument("--write", action="store_true", help="Put the tables into the page.")
    given = parser.parse_args(arguments)
    if given.people < 1 or (given.results and given.people != live.DAY.people):
        parser.error(f"--people is at least 1, and {live.DAY.people} where figures are kept")
    chosen = given.attacker or choices
    policies = given.policy or ("fair",)
    results, judge = KeptFigures(given.results, given.minutes), CostJudge()
    tables: list[str] = []

    def show(rows: Iterable[str]) -> None:
        tables.append("".join(f"{row}\n" for row in rows))
        sys.stdout.write(f"{tables[-1]}\n")
        sys.stdout.flush()

    if given.simulated:
        attackers = [one for one in all_simulated if one.title in chosen]
        show(simulated_rows(policies, attackers, given.seeds, results, judge))
    if given.live:
        served = [name for name in ("fair", "ticket") if name in policies]
        titles = [one for one in (live.BEHIND_ONE, *live.ATTACKERS) if one in chosen]
        with live.line() if served else nullcontext():
            show(live_rows(served, titles, given.days, given.people, results, judge))
    if given.write:
        page = Path(__file__).parents[2] / "docs" / "security.md"
        markdown.put_between_marks(page, "make attacks", "\n".join(tables).rstrip("\n"))
    faults = [*judge.faults, *results.empty.values()]
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    end_cleanly()
    sys.exit(main())
