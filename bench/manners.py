"""Does rudeness pay, and who pays for it? In virtual time over many seeds, or on a real server.

    python -m bench.manners [--policy NAME] [--seeds 20] [--time-scale 8]
    python -m bench.manners --live SEED

Paper A's Experiment 2 at half its bandwidth: all polite; then a tenth asks every second; then a
hoarder (eight names at one address, a request every 0.2 s, one byte of a file and hang up) and a
ghost (every second another address that never returns) come as well. The attackers do not follow
the time scale, so at 1 they are eight times as strong as at 8. What their requests take of the link
is not simulated; `--live` has that, too: the same clients against a real server, and a forger
besides.

Exit code 1 when polite clients wait over 5 % longer, or the rude shorter than when they were
polite, by more than two standard errors (live: at all).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.compare import figures_of, scaled_settings, staged
from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.subject import require
from tidegate.loadtest.population import scaled
from tidegate.loadtest.sim.conditions import RUDE
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.metrics import columns
from tidegate.loadtest.sim.outcome import DOWNLOAD_FIELDS, SimClient
from tidegate.loadtest.workloads import make_workload, with_rude
from tidegate.policies.contract import Admit, Job, Wait

#: What polite clients may lose by the rude: a fraction of their mean wait.
MOST_LOST = 0.05
#: The part of the clients that can be rude.
_RUDE = 0.1
#: How often each attacker strikes, seconds, and how long a request of it takes.
PAUSES = {"hoarder": 0.2, "ghost": 1.0}
_REQUEST_S = 0.003
#: Names that a server tells apart behind one address.
_NAMES = 8


@dataclass(frozen=True, slots=True)
class Waits:
    """Mean waits of one run for large files, in the paper's seconds."""

    polite_s: float
    rude_s: float


class MannersEngine(Engine):
    """The simulator's engine with attackers beside the visitors."""

    def __init__(self, attackers: Sequence[str], seed: int, *world: Any) -> None:
        workload, policy, conditions = world
        super().__init__(workload, policy, conditions, seed)
        self._draw = random.Random(f"attack/{seed}")
        files = (file for visitor in self.workload.visitors for file in visitor.files)
        self._prey = max(files, key=lambda file: file.size_bytes)
        self._nobody = SimClient(-1, self.workload.visitors[0])
        #: How often each attacker struck.
        self.strikes = Counter(dict.fromkeys(attackers, 0))
        for attacker in attackers:
            self._at(0.0, self._striking(attacker), self._nobody)

    def _striking(self, attacker: str) -> Callable[[SimClient], None]:
        return lambda client: self._strike(attacker)

    def _strike(self, attacker: str) -> None:
        self.strikes[attacker] += 1
        names = _NAMES if attacker == "hoarder" else 1 << 62
        size = self._prey.size_bytes
        job = Job(f"{attacker}#{self._draw.randrange(names)}", self._prey.name, size, size)
        decision = self._driver.offer(job, self.now)
        took_s = _REQUEST_S
        if isinstance(decision, Wait):
            took_s += decision.answer_after_s
        elif isinstance(decision, Admit):
            lease = decision.lease
            self._at(self.now + 1e-3, lambda client: self._hang_up(lease), self._nobody)
        self._settle()
        again_s = self.now + took_s + PAUSES[attacker]
        self._at(again_s, lambda client: self._strike(attacker), self._nobody)

    def _hang_up(self, lease: int) -> None:
        if any(held.lease == lease for held in self.policy.leases()):
            self._driver.end(lease, self.now, self._prey.size_bytes - 1, done=False)
            self._settle()


def run(
    policy: str, seed: int, time_scale: float, *, rude: bool, attackers: Sequence[str]
) -> Waits:
    """One run. Those who would be rude are told apart even when all are polite."""
    marked = with_rude(make_workload("exp2", seed), _RUDE)
    workload = scaled(marked if rude else make_workload("exp2", seed), time_scale=time_scale)
    scenario = staged(policy, scaled_settings(time_scale))
    conditions = replace(
        scenario.conditions(workload),
        attempt_s=_REQUEST_S,
        accept_s=0.0,
        rude_manners=replace(RUDE, own_retry_s=1.0 / time_scale),
    )
    engine = MannersEngine(
        attackers, seed, workload, scenario.make_policy(workload, seed), conditions
    )
    downloads = {
        name: np.asarray(column)
        for name, column in columns(engine.run().downloads, DOWNLOAD_FIELDS).items()
    }
    require_strikes(engine.strikes)
    large = downloads["size_bytes"] >= workload.small_below_bytes
    wait = (downloads["first_byte_s"] - downloads["asked_s"]) * time_scale
    is_rude = np.array([visitor.rude for visitor in marked.visitors])
    who = is_rude[downloads["client"].astype(int)]
    found = Waits(float(wait[large & ~who].mean()), float(wait[large & who].mean()))
    require_waits(found)
    return found


def require_strikes(strikes: Mapping[str, int]) -> None:
    """Raise NothingMeasured if an attacker never struck."""
    for attacker, count in strikes.items():
        require(count, f"The {attacker} never asked for anything.")


def require_waits(found: Waits) -> None:
    """Raise NothingMeasured unless polite and rude clients had to wait; NaN means no client."""
    require(found.polite_s > 0.0, "No polite client had to wait.")
    require(found.rude_s > 0.0, "No client that can be rude had to wait.")


def spell(values: Sequence[float]) -> tuple[str, float, float]:
    """As text, with mean and standard error, fractions."""
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{100 * mean:+.1f} ± {100 * error:.1f} %", mean, error


def live(policy: str, time_scale: float, seed: int) -> list[str]:
    """Print what a real server's clients feel; what speaks against it."""
    settings, marked = scaled_settings(time_scale), ("--rude-fraction", str(_RUDE))
    runs = {
        "all polite": (*marked, "--reformed"),
        "a tenth polls every second": marked,
        "hoarder, ghost and forger, too": (*marked, "--locustfile", "loadtest/rude.py"),
    }
    sys.stdout.write(markdown.head("", "polite wait, s", "rude wait, s", "failed") + "\n")
    found: list[Waits] = []
    faults = []
    for title, load in runs.items():
        figures = figures_of(policy, seed, time_scale, settings, *load)
        require_attacked(title, figures)
        now = Waits(*(figures[f"mean_wait_large_{who}"] * time_scale for who in ("polite", "rude")))
        failed = f"{100 * figures['failed_fraction']:.1f} %"
        line = markdown.row(title, f"{now.polite_s:.0f}", f"{now.rude_s:.0f}", failed)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        found.append(now)
        lost = now.polite_s / found[0].polite_s - 1.0
        if now.rude_s / found[0].rude_s - 1.0 < lost:
            faults.append(f"{title}: rudeness pays")
        if lost > MOST_LOST:
            faults.append(f"{title}: the polite lose {100 * lost:.0f} %")
    return faults


def require_attacked(title: str, figures: Mapping[str, float]) -> None:
    """Raise NothingMeasured if a live run with attackers had none."""
    for name in ("hoard", "ghost", "forge") if "hoarder" in title else ():
        require(figures.get(f"{name}_answers"), f"{title}: no request to {name} was answered.")


def simulated(policy: str, time_scale: float, seeds: Sequence[int]) -> list[str]:
    """Print what the simulator's clients feel; what speaks against it."""
    rows: dict[str, tuple[bool, tuple[str, ...]]] = {
        "a tenth polls every second": (True, ()),
        "a hoarder": (False, ("hoarder",)),
        "a ghost": (False, ("ghost",)),
        "all of them": (True, tuple(PAUSES)),
    }
    calm = [run(policy, seed, time_scale, rude=False, attackers=()) for seed in seeds]
    sys.stdout.write(markdown.head("", "polite wait longer by", "rude wait longer by") + "\n")
    faults = []
    for title, (rude, attackers) in rows.items():
        found = [run(policy, seed, time_scale, rude=rude, attackers=attackers) for seed in seeds]
        pairs = list(zip(found, calm, strict=True))
        polite, lost, error = spell([now.polite_s / was.polite_s - 1.0 for now, was in pairs])
        rudely, gained, rude_error = spell([now.rude_s / was.rude_s - 1.0 for now, was in pairs])
        sys.stdout.write(markdown.row(title, polite, rudely if rude else "–") + "\n")
        sys.stdout.flush()
        if lost - 2.0 * error > MOST_LOST:
            faults.append(f"{title}: the polite lose {polite}")
        if rude and gained + 2.0 * rude_error < 0.0:
            faults.append(f"{title}: rudeness pays, {rudely}")
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--policy", default="ticket", choices=("ticket", "fair", "adaptive"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--time-scale", type=float, default=8.0)
    parser.add_argument("--live", type=int, metavar="SEED")
    given = parser.parse_args(arguments)
    if given.live is not None:
        faults = live(given.policy, given.time_scale, given.live)
    else:
        faults = simulated(given.policy, given.time_scale, range(1, given.seeds + 1))
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    end_cleanly()
    sys.exit(main())
