"""Compares simulator, live server and paper: Experiment 2, heavy overload, all policies.

`python -m bench.compare` starts a real server for each policy, replays the paper's 400 clients
against it at ten times their pace, and simulates the same clients with the same settings. It prints
the three mean session times in the paper's seconds. The simulator's costs of connections are zero
here, because connections on one machine cost next to nothing; the paper's figures include them.

Exit code 1 when a live mean, or the live order of the policies, differs from the simulator's by
more than the tolerance.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.subject import require
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.metrics import measure
from tidegate.loadtest.sim.paper import LABELS, MEANS
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.workloads import Workload, make_workload, scaled
from tidegate.policies.registry import POLICIES
from tidegate.policies.settings import PolicySettings


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """Experiment 2 of paper A as it is staged, simulated and judged."""

    large_slots: int = 30
    small_slots: int = 6
    #: The share of the population's bandwidth that the line has.
    load: float = 0.5
    #: The largest relative difference of a live mean from the simulated one.
    tolerance: float = 0.15
    #: The size of an answer without a ticket and with one. It does not shrink with the time scale.
    plain_bytes: int = 450
    ticket_bytes: int = 900
    #: How long the server watches a transfer before it uses its rate. Not scaled either.
    look_s: float = 0.2
    #: Simulations with other jitter of the clients; the result is their mean.
    drawings: int = 5
    #: Bounds one run.
    limit_s: int = 900


RUN = ComparedRun()


@dataclass(frozen=True, slots=True)
class ComparedPolicy:
    """The mean session times under one policy in the paper's seconds.

    `ratio` is live to simulated.
    """

    policy: str
    paper_s: float | None
    simulated_s: float
    live_s: float
    failed: float
    ratio: float

    @property
    def gap(self) -> float:
        return self.ratio - 1.0


def scaled_settings(time_scale: float, **fixed: Any) -> dict[str, Any]:
    """Policy settings with all durations divided by `time_scale`."""
    values: dict[str, Any] = {}
    for name, field in PolicySettings.model_fields.items():
        extra = field.json_schema_extra
        unit = extra.get("unit") if isinstance(extra, dict) else None
        if unit == "s" and isinstance(field.default, float):
            values[name] = field.default / time_scale
    return values | fixed


def to_toml(settings: Mapping[str, Any]) -> str:
    """An `[admission]` section of numbers."""
    return "[admission]\n" + "".join(f"{name} = {value!r}\n" for name, value in settings.items())


def _reserve(policy: str) -> int:
    return RUN.small_slots if "reserve_small" in POLICIES[policy].reads else 0


def staged(policy: str, settings: Mapping[str, Any]) -> Scenario:
    """The simulator's scenario for the server of the live runs."""
    reserve = _reserve(policy)
    return Scenario(
        "http" if policy == "fcfs" else policy,
        slots=RUN.large_slots + RUN.small_slots - reserve,
        reserve_small=reserve,
        bandwidth=RUN.load,
        tick_s=0.25,
        hold=False,
        settings=dict(settings),
    )


def simulate(
    policy: str, workload: Workload, seed: int, time_scale: float, settings: Mapping[str, Any]
) -> float:
    """The mean session time of the simulated clients, in the paper's seconds.

    It is the mean over `RUN.drawings` of the clients' jitter, which alone moves FCFS by 5 %.
    """
    scenario = staged(policy, settings)
    conditions = replace(
        scenario.conditions(workload),
        attempt_s=0.0,
        accept_s=0.0,
        look_s=RUN.look_s,
        answer_bytes=RUN.ticket_bytes if POLICIES[policy].gives_tickets else RUN.plain_bytes,
    )
    means = []
    for drawing in range(seed, seed + RUN.drawings):
        made = scenario.make_policy(workload, drawing)
        tally = Engine(workload, made, conditions, drawing).run()
        means.append(measure(workload, conditions, tally)["mean_session_s"] * time_scale)
    return statistics.fmean(means)


def figures_of(
    policy: str, workload: Workload, settings: Mapping[str, Any], options: Sequence[str]
) -> dict[str, float]:
    """Replay the same clients against a real server. Returns the run's figures.

    `options` are Locust's. Raises RuntimeError when the run did not finish.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-compare-") as name:
        folder = Path(name)
        config = folder / "tidegate.toml"
        fixed = {
            "slots": RUN.large_slots + RUN.small_slots,
            "reserve_small": _reserve(policy),
            "small_below_bytes": workload.small_below_bytes,
        }
        config.write_text(to_toml(dict(settings) | fixed), encoding="utf-8")
        command = [sys.executable, "-m", "bench.staging", str(folder), "--workload", "exp2"]
        command += ["--profile", "loadtest/paper_exp2.conf"]
        users = ("--users", str(len(workload.visitors)))
        command += [f"--locust={option}" for option in (*options, *users)]
        command += ["--", "--config", str(config)]
        rate = int(workload.bandwidth_bytes_s * RUN.load)
        command += ["--policy", policy, "--bandwidth", f"{rate}B/s"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN.limit_s, check=False
        )
        figures = folder / "figures.json"
        if not figures.exists():
            raise RuntimeError(f"{policy}: the replay ended with {done.returncode}: {done.stderr}")
        found: dict[str, float] = json.loads(figures.read_text("utf-8"))["figures"]
    require_overload(policy, found, len(workload.visitors))
    return found


def require_overload(policy: str, figures: Mapping[str, float], clients: int) -> None:
    """Raise NothingMeasured unless all clients came, some had to wait, and some finished."""
    came = figures.get("arrived", 0.0)
    require(came >= clients, f"{policy}: {came:.0f} of {clients} clients came.")
    require(figures.get("finished"), f"{policy}: no download finished.")
    require(
        figures.get("queued"), f"{policy}: no client was told to wait, so nothing was overloaded."
    )


def replay(
    policy: str, seed: int, time_scale: float, thin: float, settings: Mapping[str, Any]
) -> ComparedPolicy:
    """One population under one policy, live and simulated."""
    workload = scaled(make_workload("exp2", seed), time_scale=time_scale, thin=thin)
    options = ["--seed", str(seed), "--time-scale", str(time_scale), "--thin", str(thin)]
    found = figures_of(policy, workload, settings, options)
    simulated_s = simulate(policy, workload, seed, time_scale, settings)
    live_s, failed = found["mean_visit"] * time_scale, found.get("failed_fraction", 0.0)
    label = {"fcfs": "HTTP+0", "reserve": "Reserve+20", "ticket": "Ticket+20"}.get(policy)
    paper_s = float(MEANS["exp2", "heavy"][LABELS.index(label)]) if label else None
    return ComparedPolicy(policy, paper_s, simulated_s, live_s, failed, live_s / simulated_s)


def faults(rows: Sequence[ComparedPolicy]) -> list[str]:
    """All differences between live and simulated runs beyond the tolerance, as sentences."""
    found = [
        f"{row.policy}: the live mean is {100 * row.gap:+.0f} % off the simulator's"
        for row in rows
        if abs(row.gap) > RUN.tolerance
    ]
    found += [f"{row.policy}: {100 * row.failed:.1f} % failed" for row in rows if row.failed]
    for one in rows:
        for other in rows:
            apart = other.simulated_s > one.simulated_s * (1 + RUN.tolerance)
            if apart and one.live_s > other.live_s:
                found.append(f"{one.policy} beats {other.policy} in the simulator, not live")
    return found


def table(rows: Sequence[ComparedPolicy]) -> str:
    return markdown.table(
        ("policy", "paper, s", "simulated, s", "live, s", "live ÷ simulated"),
        (
            (
                row.policy,
                "–" if row.paper_s is None else f"{row.paper_s:.0f}",
                f"{row.simulated_s:.0f}",
                f"{row.live_s:.0f}",
                f"{row.ratio:.2f}",
            )
            for row in rows
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--time-scale", type=float, default=10.0)
    parser.add_argument("--thin", type=float, default=1.0, help="keep one client in N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", action="append", choices=sorted(POLICIES))
    given = parser.parse_args()
    settings = scaled_settings(given.time_scale)
    rows = [
        replay(policy, given.seed, given.time_scale, given.thin, settings)
        for policy in given.policy or POLICIES
    ]
    sys.stdout.write(table(rows) + "\n")
    found = faults(rows)
    for sentence in found:
        sys.stdout.write(sentence + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    end_cleanly()
    sys.exit(main())
