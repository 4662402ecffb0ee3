"""What an attacker can cost the others: the tables of docs/security.md.

    python -m bench.attacks.table [--seeds 1] [--days 2] [--minutes 45] [--policy NAME …]
        [--attacker WHO …] [--no-live] [--no-simulated] [--no-mirrors] [--results FILE] [--write]

Downloads that have a malicious mirror (a minute); a release day in virtual time under each policy,
calm and attacked (about ten minutes); then real servers under attackers in network namespaces
(root, half a minute for each day). No cell begins after so many `--minutes`; with
`--results` the next run goes on where this one stopped. `--write` puts the tables into
docs/security.md.

Exit code 1 when under the default policy one network that uses nothing costs the honest over 5 % of
their mean session time, or ten addresses over 15 %, by more than two standard errors; when one
network that really downloads costs more than as many honest people as it has shares; when people
behind one address take over 1.5 times as long as the others; when somebody stops the service; or
when an attack did not take place.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import astuple
from pathlib import Path
from typing import cast

from bench.attacks import live, mirrors
from bench.attacks.simulated import ATTACKERS, SHARE, AttackBench, Attacker, Cost, Manner
from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.subject import NothingMeasured

_NAMES: dict[Manner, str] = {"ghost": "ghost", "idle": "idle", "real": "really downloads"}
_MANNERS: tuple[Manner, ...] = tuple(_NAMES)
_LIVE_NAMES = ("small files", "short files", "half a request")
_LIVE_MANNERS: tuple[live.Manner, ...] = (*_MANNERS, "small", "short", "half")
_FETCHING: tuple[live.Manner, ...] = ("real", "small", "short")
_POLICIES = ("fair", "ticket", "reserve", "http")
_LIVE_POLICIES = ("fair", "ticket")
_DEFAULT_POLICY = "fair"
_NAT_PEOPLE = 500
#: What may be lost by those who use nothing: a fraction of the mean session time.
_BARS = {"one IPv4": 0.05, "one /64": 0.05, "one /48": 0.05, "ten addresses": 0.15}
#: So many times as long as the others may those take who share an address with many.
_BEHIND_ONE_MOST = 1.5
_ONE_NETWORK = ("one IPv4", "one /64", "one /48")
_PAGE = Path(__file__).parents[2] / "docs" / "security.md"
_BEGIN, _END = "<!-- make attacks: begin -->\n", "<!-- make attacks: end -->\n"


def _spelled(cost: Cost) -> str:
    taken = f", takes {100 * cost.taken:.0f} %" if cost.taken >= 0.005 else ""
    error = f" ± {100 * cost.error:.1f}" if cost.error else ""
    least = f"at least ({100 * cost.undone:.0f} % not done) " if cost.undone else ""
    return f"{least}{100 * cost.mean:+.1f}{error} %{taken}"


class CostJudge:
    """Hears every figure, and keeps what misses its bar."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        #: What the shares of one network cost when honest people have them.
        self._share: Cost | None = None

    def hear(self, policy: str, title: str, manner: str, costs: list[Cost] | None) -> str:
        """The figure as the cell of a table, see `Cells.get`."""
        bar = _BARS.get(title)
        if costs and costs[0].undone > 0.5:
            costs = None
        if costs is None:
            self._fault(policy, f"{title}, {manner}: stops the service")
            return "no service"
        if not costs:
            return "–"
        cost = costs[0]
        if title == SHARE.title:
            self._share = cost
        elif title in _ONE_NETWORK and manner in _FETCHING:
            share = self._share
            error = 2.0 * math.hypot(cost.error, share.error) if share else 0.0
            if share is not None and cost.mean - share.mean > error:
                what = "large" if manner == "real" else manner
                self._fault(policy, f"{title} downloads more {what} files than its shares give it")
        elif manner not in _FETCHING and bar is not None and cost.mean - 2.0 * cost.error > bar:
            self._fault(policy, f"{title}, {manner}: {_spelled(cost)}")
        return _spelled(cost)

    def hear_behind_one(self, policy: str, pairs_s: Sequence[tuple[float, float]]) -> str:
        """Mean sessions of those behind one address and of the others, day by day, as a cell."""
        if not pairs_s:
            return "–"
        inside_s, outside_s = (statistics.median(found_s) for found_s in zip(*pairs_s, strict=True))
        cell = f"they {inside_s:.1f} s, the others {outside_s:.1f} s"
        if inside_s > _BEHIND_ONE_MOST * outside_s:
            self._fault(policy, f"{live.BEHIND_ONE}: {cell}")
        return cell

    def _fault(self, policy: str, fault: str) -> None:
        if policy == _DEFAULT_POLICY:
            self.faults.append(fault)


class Cells:
    """Figures that were measured, in a file that a run goes on from: JSON lines."""

    def __init__(self, path: Path | None, minutes: float) -> None:
        self._until_s = time.monotonic() + 60.0 * minutes
        self._path = path
        self._known: dict[str, list[Cost]] = {}
        if path is not None and path.exists():
            for text in path.read_text("utf-8").splitlines():
                name, costs = json.loads(text)
                self._known[name] = [Cost(*one) for one in costs]

    @property
    def measures(self) -> bool:
        """Whether there is time to measure anything yet."""
        return time.monotonic() < self._until_s

    def get(self, name: str, measure: Callable[[], list[Cost]]) -> list[Cost]:
        """The figures of this name; empty: not measured yet."""
        if name not in self._known and not self.measures:
            return []
        if name not in self._known:
            found = self._known[name] = measure()
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as out:
                    out.write(f"{json.dumps([name, [astuple(one) for one in found]])}\n")
        return self._known[name]

    def all_of(self, start: str) -> list[float]:
        """The means of all figures whose names begin so."""
        known = self._known.items()
        return [one.mean for name, costs in known if name.startswith(start) for one in costs]


class SimulatedCells:
    """The cells in virtual time; a policy's calm days are played when they are first needed."""

    def __init__(self, cells: Cells, seeds: int) -> None:
        self._cells = cells
        self._seeds = seeds
        self._benches: dict[str, AttackBench] = {}

    def _bench(self, policy: str) -> AttackBench:
        if policy not in self._benches:
            self._benches[policy] = AttackBench(policy, self._seeds)
        return self._benches[policy]

    def attack(self, policy: str, attacker: Attacker, manner: Manner) -> list[Cost]:
        """What one attacker costs, see `Cells.get`."""
        return self._cells.get(
            f"simulated/{self._seeds}/{policy}/{attacker.title}/{manner}",
            lambda: [self._bench(policy).attack(attacker, manner)],
        )

    def nat(self, policy: str) -> str:
        """What people behind one address lose, and what the others lose."""
        found = self._cells.get(
            f"simulated/{self._seeds}/{policy}/nat",
            lambda: list(self._bench(policy).nat(_NAT_PEOPLE)),
        )
        if not found:
            return "–"
        inside, outside = found
        return f"they {_spelled(inside)}, the others {_spelled(outside)}"


class LiveCells:
    """The cells of real servers: medians of some days, each beside a day without attackers."""

    def __init__(self, cells: Cells, days: int, titles: Sequence[str], people: int) -> None:
        self._cells = cells
        self._people = people
        self._days = range(days)
        #: Cells whose subject did not take place, with the sentence that says so.
        self.empty: dict[str, str] = {}
        self._titles = [one for one in live.ATTACKERS if not titles or one in titles]
        self._with_nat = not titles or live.BEHIND_ONE in titles

    @property
    def measures(self) -> bool:
        """See `Cells`."""
        return self._cells.measures

    def calm_s(self, policy: str) -> list[float]:
        """Mean sessions of days without attackers."""
        return self._cells.all_of(f"landed/{policy}/calm/")

    def measure(self, policy: str) -> None:
        """The n-th day of all, calm and attacked, then the next one."""
        for day in self._days:
            if self._with_nat:
                self._behind_one(policy, day)
            for title in ("", *self._titles) if self._titles else ():
                for manner in _LIVE_MANNERS if title else ("calm",):
                    if manner == "half" and policy != _DEFAULT_POLICY:
                        continue
                    if manner != "real" and title == SHARE.title:
                        continue
                    name = f"landed/{policy}/{title}/{manner}" if title else f"landed/{policy}/calm"

                    def one(title: str = title, manner: str = manner) -> list[Cost]:
                        kind = cast("live.Manner", manner)
                        return [Cost(live.day(policy, title, kind, self._people), 0.0)]

                    self._get(policy, f"{name}/{day}", one)

    def _behind_one(self, policy: str, day: int) -> list[Cost]:
        name = f"landed/{policy}/{live.BEHIND_ONE}/{day}"
        return self._get(policy, name, lambda: [Cost(one, 0.0) for one in live.behind_one(policy)])

    def _get(self, policy: str, name: str, measure: Callable[[], list[Cost]]) -> list[Cost]:
        """As `Cells.get`; a day on which nothing was measured leaves its cell empty."""
        if name in self.empty:
            return []
        try:
            return self._cells.get(name, measure)
        except NothingMeasured as fault:
            self.empty[name] = f"{policy}: {fault}"
            return []

    def behind_one(self, policy: str) -> list[tuple[float, float]]:
        """Mean sessions behind one address and elsewhere, of each day that was measured."""
        days = (self._behind_one(policy, day) for day in self._days) if self._with_nat else ()
        return [(day[0].mean, day[1].mean) for day in days if day]

    def attack(self, policy: str, title: str, manner: live.Manner) -> list[Cost] | None:
        """What one attacker costs. None: no service; empty: not measured."""
        calm_s = self.calm_s(policy)
        found_s = self._cells.all_of(f"landed/{policy}/{title}/{manner}/")
        if not found_s or not calm_s:
            return []
        if statistics.median(found_s) >= live.LONGEST_S:
            return None
        ratio = statistics.median(found_s) / statistics.median(calm_s)
        return [Cost(ratio - 1.0, ratio * math.hypot(_error(calm_s), _error(found_s)))]


def _error(found_s: Sequence[float]) -> float:
    """The standard error of their mean, as a part of it."""
    if len(found_s) < 2:
        return 0.0
    return statistics.stdev(found_s) / math.sqrt(len(found_s)) / statistics.fmean(found_s)


def simulated_rows(
    policies: Sequence[str],
    attackers: Sequence[Attacker],
    simulated: SimulatedCells,
    judge: CostJudge,
) -> Iterator[str]:
    """The rows of the simulated table, as they are known."""
    yield markdown.head("policy", "who, simulated", *_NAMES.values()) + "\n"
    for policy in policies:
        for attacker in attackers:
            cells = [
                "–"
                if attacker is SHARE and manner != "real"
                else judge.hear(
                    policy, attacker.title, manner, simulated.attack(policy, attacker, manner)
                )
                for manner in _MANNERS
            ]
            if set(cells) != {"–"}:
                yield markdown.row(f"`{policy}`", attacker.title, *cells) + "\n"
        people = f"{_NAT_PEOPLE} honest people behind one NAT"
        nat = simulated.nat(policy)
        if nat != "–":
            yield markdown.row(f"`{policy}`", people, "–", "–", nat) + "\n"


def live_rows(policies: Sequence[str], lived: LiveCells, judge: CostJudge) -> Iterator[str]:
    """The rows of the live table."""
    yield markdown.head("policy", "who, live", *_NAMES.values(), *_LIVE_NAMES) + "\n"
    with live.line() if lived.measures else nullcontext():
        for policy in policies:
            lived.measure(policy)
    for policy in policies:
        pair = judge.hear_behind_one(policy, lived.behind_one(policy))
        if pair != "–":
            yield markdown.row(f"`{policy}`", live.BEHIND_ONE, "–", "–", pair, *["–"] * 3) + "\n"
        days = ", ".join(f"{one:.1f} s" for one in lived.calm_s(policy))
        if days:
            yield markdown.row(f"`{policy}`", f"nobody: {days}", *["–"] * 6) + "\n"
        for title in live.ATTACKERS:
            cells = [
                judge.hear(policy, title, manner, lived.attack(policy, title, manner))
                for manner in _LIVE_MANNERS
            ]
            if set(cells) != {"–"}:
                yield markdown.row(f"`{policy}`", title, *cells) + "\n"
    judge.faults += lived.empty.values()


def mirror_rows(cells: Cells, judge: CostJudge) -> Iterator[str]:
    """The rows of the table of malicious mirrors, a minute."""
    head = ("a mirror that", "time of the download", "bytes taken from it", "the file")
    yield markdown.head(*head) + "\n"
    found = cells.get("mirrors", lambda: list(mirrors.costs()))
    for title, cost in zip(mirrors.TITLES, found or (), strict=False):
        right = cost.taken < mirrors.WRONG
        taken = f"{cost.taken / 1e6:.1f} MB" if right else "–"
        yield (
            markdown.row(title, f"{100 * cost.mean:+.0f} %", taken, "right" if right else "WRONG")
            + "\n"
        )
        if not right:
            judge.faults.append(f"a mirror that {title}: the file is wrong")


def _written(text: str) -> None:
    page = _PAGE.read_text("utf-8")
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    _PAGE.write_text(f"{before}{_BEGIN}{text}{_END}{after}", "utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--policy", action="append", choices=(*_POLICIES, "adaptive"))
    everybody = (SHARE, *ATTACKERS)
    titles = [attacker.title for attacker in everybody]
    choices = dict.fromkeys((*titles, *live.ATTACKERS, live.BEHIND_ONE))
    parser.add_argument("--attacker", action="append", choices=choices)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--days", type=int, default=2)
    parser.add_argument("--people", type=int, default=live.PEOPLE, help="On a live day.")
    parser.add_argument("--minutes", type=float, default=45.0, help="No cell begins after so many.")
    parser.add_argument("--no-live", dest="live", action="store_false")
    parser.add_argument("--no-simulated", dest="simulated", action="store_false")
    parser.add_argument("--no-mirrors", dest="mirrors", action="store_false")
    parser.add_argument("--results", type=Path, help="Keeps figures, and goes on from them.")
    parser.add_argument("--write", action="store_true", help="Put the tables into the page.")
    given = parser.parse_args(arguments)
    judge = CostJudge()
    attackers = [one for one in everybody if one.title in (given.attacker or titles)]
    policies = given.policy or _POLICIES
    if given.people < 1 or (given.results and given.people != live.PEOPLE):
        parser.error(
            f"--people is at least 1, and {live.PEOPLE} where figures are kept (--results)"
        )
    cells = Cells(given.results, given.minutes)
    tables = {"simulated": "", "live": "", "mirrors": ""}

    def show(title: str, rows: Iterator[str]) -> None:
        tables[title] = "".join(rows)
        sys.stdout.write(f"{tables[title]}\n")
        sys.stdout.flush()

    if given.mirrors:
        show("mirrors", mirror_rows(cells, judge))
    if given.simulated:
        played = SimulatedCells(cells, given.seeds)
        show("simulated", simulated_rows(policies, attackers, played, judge))
    if given.live:
        lived = LiveCells(cells, given.days, given.attacker or (), given.people)
        names = [name for name in _LIVE_POLICIES if name in policies]
        show("live", live_rows(names, lived, judge))
    if given.write:
        _written("\n".join(text for text in tables.values() if text))
    sys.stdout.write("".join(f"{fault}\n" for fault in judge.faults))
    return 1 if judge.faults else 0


if __name__ == "__main__":
    end_cleanly()
    sys.exit(main())
