"""How fast is the simulator? `python -m bench.sim --clients 10000`.

Prints the CPU seconds of one 400-client run for every policy, the seconds of the lower bound, and
a release day with a million clients (or as many as asked for) under processor sharing, HTTP and
Ticket.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from dataclasses import replace

import click

from tidegate.loadtest.sim.bounds import lower_bounds
from tidegate.loadtest.sim.scenario import POLICIES, Scenario
from tidegate.loadtest.workloads import RELEASE_DAY, Workload, exp2, release_pareto

BAR_S = 0.5


def timed(scenario: Scenario, workload: Workload) -> tuple[float, int]:
    """CPU seconds and events of one run."""
    start = time.process_time()
    tally = scenario.simulate(workload)
    return time.process_time() - start, tally.events


def main(clients: int, chosen: Sequence[str]) -> int:
    """Print everything; exit code 1 when a 400-client run takes longer than the bar."""
    worst = 0.0
    workload = exp2(0)
    for policy in chosen or POLICIES:
        scenario = Scenario(policy, reserve_small=6, bandwidth=0.5)
        took = min(timed(scenario, workload)[0] for _ in range(3))
        worst = max(worst, took)
        click.echo(f"exp2 heavy, 400 clients, {policy:<12} {took:7.3f} s")
    start = time.perf_counter()
    lower_bounds(workload, 0.5 * workload.bandwidth_bytes_s)
    click.echo(f"exp2 heavy, lower bounds             {time.perf_counter() - start:7.3f} s")
    # More bandwidth brings more clients; their speeds and the slots grow with it.
    few = len(release_pareto(0).visitors)
    scale = clients / few
    shape = replace(
        RELEASE_DAY,
        bandwidth_bytes_s=RELEASE_DAY.bandwidth_bytes_s * scale,
    )
    start = time.perf_counter()
    crowd = release_pareto(0, shape=shape)
    made = time.perf_counter() - start
    count = len(crowd.visitors)
    click.echo(f"release-pareto, {count} clients made    {made:7.1f} s")
    for policy in ("ps", "ticket-hold", "http"):
        scenario = Scenario(
            policy, slots=max(2, round(30 * scale)), reserve_small=max(1, round(6 * scale))
        )
        took, events = timed(scenario, crowd)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        click.echo(
            f"release-pareto, {count} clients, {policy:<12} {took:7.1f} s, "
            f"{events} events, {1e6 * took / events:.1f} us each, peak {memory:.0f} MB",
        )
    return 0 if worst < BAR_S else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=1_000_000, help="on the release day")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="for Experiment 2")
    given = parser.parse_args()
    raise SystemExit(main(given.clients, given.policy or []))
