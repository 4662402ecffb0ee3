"""What an attacker can cost the others: the tables of docs/security.md.

    python -m bench.attacks.table [--seeds 3] [--policy NAME …] [--attacker WHO …] [--no-live]
        [--write]

In virtual time, a release day of 1 161 visitors under each policy, calm and attacked; then a
default server on 127.0.0.1 under live attackers. `--write` puts the tables into docs/security.md.

Exit code 1 when under the default policy one network that uses nothing costs the honest over 5 % of
their mean session time, or ten addresses over 15 %, by more than two standard errors; when one
network that really downloads costs more than as many honest people as it has shares; or when
somebody stops the service.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.attacks import live
from bench.attacks.simulated import ATTACKERS, SHARE, AttackBench, Attacker, Cost, Manner
from bench.shared import markdown
from loadtest.sim.conditions import Starved

_MANNERS: tuple[Manner, ...] = ("ghost", "idle", "real")
_DEFAULT_POLICY = "fair"
_NAT_PEOPLE = 500
#: What may be lost by those who use nothing: a fraction of the mean session time.
_BARS = {"one IPv4": 0.05, "one /64": 0.05, "one /48": 0.05, "ten addresses": 0.15}
_ONE_NETWORK = ("one IPv4", "one /64", "one /48")
_PAGE = Path(__file__).parents[2] / "docs" / "security.md"
_BEGIN, _END = "<!-- make attacks: begin -->\n", "<!-- make attacks: end -->\n"


def _spelled(cost: Cost) -> str:
    taken = f", takes {100 * cost.taken:.0f} %" if cost.taken >= 0.005 else ""
    return f"{100 * cost.mean:+.1f} ± {100 * cost.error:.1f} %{taken}"


class CostJudge:
    """Hears every figure, and keeps what misses its bar."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        #: What the shares of one network cost when honest people have them.
        self._share: Cost | None = None

    def hear(self, policy: str, attacker: Attacker, manner: Manner, cost: Cost | None) -> str:
        """The figure as the cell of a table; None: the honest got no service."""
        bar = _BARS.get(attacker.title)
        if cost is None:
            self._fault(policy, f"{attacker.title}, {manner}: stops the service")
            return "no service"
        if attacker is SHARE:
            self._share = cost
        elif attacker.title in _ONE_NETWORK and manner == "real":
            share = self._share
            error = 2.0 * math.hypot(cost.error, share.error) if share else 0.0
            if share is not None and cost.mean - share.mean > error:
                self._fault(policy, f"{attacker.title} downloads more than its shares give it")
        elif manner != "real" and bar is not None and cost.mean - 2.0 * cost.error > bar:
            self._fault(policy, f"{attacker.title}, {manner}: {_spelled(cost)}")
        return _spelled(cost)

    def _fault(self, policy: str, fault: str) -> None:
        if policy == _DEFAULT_POLICY:
            self.faults.append(fault)


def simulated(
    policies: Sequence[str], attackers: Sequence[Attacker], seeds: int, judge: CostJudge
) -> Iterator[str]:
    """The rows of the simulated table, as they are known."""
    yield markdown.head("policy", "who", "ghost", "idle", "really downloads") + "\n"
    for policy in policies:
        bench = AttackBench(policy, seeds)
        for attacker in attackers:
            cells = []
            for manner in _MANNERS:
                if attacker is SHARE and manner != "real":
                    cells.append("–")
                    continue
                try:
                    cost = bench.attack(attacker, manner)
                except Starved:
                    cost = None
                cells.append(judge.hear(policy, attacker, manner, cost))
            yield markdown.row(f"`{policy}`", attacker.title, *cells) + "\n"
        inside, outside = bench.nat(_NAT_PEOPLE)
        people = f"{_NAT_PEOPLE} honest people behind one NAT"
        spelled = f"they {_spelled(inside)}, the others {_spelled(outside)}"
        yield markdown.row(f"`{policy}`", people, "–", "–", spelled) + "\n"


def lived() -> Iterator[str]:
    """The rows of the live table."""
    yield markdown.head("who", "idle", "half a request", "really downloads") + "\n"
    rows: dict[str, list[str]] = {}
    for attack, cost in live.run():
        row = rows.setdefault(attack.title, [])
        row.append(f"{100 * cost:+.0f} %")
        if attack.manner == "real":
            yield markdown.row(attack.title, *row) + "\n"


def _written(text: str) -> None:
    page = _PAGE.read_text("utf-8")
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    _PAGE.write_text(f"{before}{_BEGIN}{text}{_END}{after}", "utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--policy", action="append", choices=("fair", "adaptive", "ticket"))
    everybody = (SHARE, *ATTACKERS)
    titles = [attacker.title for attacker in everybody]
    parser.add_argument("--attacker", action="append", choices=titles)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--no-live", dest="live", action="store_false")
    parser.add_argument("--write", action="store_true", help="Put the tables into the page.")
    given = parser.parse_args(arguments)
    judge = CostJudge()
    lines: list[str] = []

    def show(rows: Iterator[str]) -> None:
        for row in rows:
            lines.append(row)
            sys.stdout.write(row)
            sys.stdout.flush()

    attackers = [one for one in everybody if one.title in (given.attacker or titles)]
    show(simulated(given.policy or ("fair", "ticket"), attackers, given.seeds, judge))
    if given.live:
        lines.append("\n")
        show(lived())
    if given.write:
        _written("".join(lines))
    sys.stdout.write("".join(f"{fault}\n" for fault in judge.faults))
    return 1 if judge.faults else 0


if __name__ == "__main__":
    sys.exit(main())
