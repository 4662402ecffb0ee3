"""`tidegate simulate cluster`: what a fleet brings a crowd, and where its leader's ceiling is."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from ...policies.registry import POLICIES
from ...protocol.errors import ProtocolError
from ...protocol.units import format_rate, parse_duration, parse_size
from .arguments import read_rate
from .fleet import Failure, Fleet, FleetResult, SimFleetPlan
from .fluid import PLANNED, FluidResult, ceiling_per_s
from .fluid import simulate as flow

#: A crowd up to this size is played client by client.
_PLAYED_MOST = 5_000


def _seconds(text: str, option: str) -> float:
    try:
        return parse_duration(text)
    except ProtocolError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _bytes(text: str, option: str) -> int:
    try:
        return parse_size(text)
    except ProtocolError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def read_failures(texts: Sequence[str], nodes: int) -> tuple[Failure, ...]:
    """`--fail leader@60s+2s` or `--fail 3@60s+30s`, nodes counted from 1."""
    found = []
    for text in texts:
        who, _, times = text.partition("@")
        at, _, length = times.partition("+")
        number = int(who) if who.isdecimal() else 0
        if (who != "leader" and not 1 <= number <= nodes) or not at or not length:
            raise click.BadParameter(
                f"{text!r} is not leader@AT+FOR or NODE@AT+FOR, such as 2@60s+30s",
                param_hint="--fail",
            )
        node = None if who == "leader" else number - 1
        found.append(Failure(node, _seconds(at, "--fail"), _seconds(length, "--fail")))
    return tuple(found)


@click.command()
@click.option("--nodes", type=click.IntRange(1, 200), default=3, show_default=True)
@click.option("--line", default="1Gbit", show_default=True, help="What each node's line carries.")
@click.option("--clients", type=click.IntRange(1, 10_000_000), default=1_000, show_default=True)
@click.option(
    "--within", default="10m", show_default=True, help="How long the crowd takes to arrive."
)
@click.option("--size", default="100MB", show_default=True, help="What each wants, in the mean.")
@click.option("--speed", default="50Mbit", show_default=True, help="What a client's line carries.")
@click.option("--policy", type=click.Choice(list(POLICIES)), default="fair", show_default=True)
@click.option("--slots", type=click.IntRange(1, 100_000), default=30, show_default=True)
@click.option("--delay", default="1ms", show_default=True, help="A message takes, each way.")
@click.option(
    "--decision-us",
    type=click.FloatRange(1.0),
    default=400.0,
    show_default=True,
    help="What a decision takes of the leader's core.",
)
@click.option(
    "--report-us",
    type=click.FloatRange(0.0),
    default=10.0,
    show_default=True,
    help="What the progress of one body takes of it, four times a second.",
)
@click.option("--hold/--poll", default=True, show_default=True, help="How those wait who wait.")
@click.option(
    "--balancer",
    type=click.Choice(["fewest", "chance"]),
    default="fewest",
    show_default=True,
    help="Where a request goes: to the node with the fewest connections, or to any.",
)
@click.option("--fail", "fails", multiple=True, help="leader@AT+FOR or NODE@AT+FOR. Repeatable.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--fluid", is_flag=True, help="As a fluid also where each client could be played.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def cluster(
    nodes: int,
    line: str,
    clients: int,
    within: str,
    size: str,
    speed: str,
    policy: str,
    slots: int,
    delay: str,
    decision_us: float,
    report_us: float,
    hold: bool,
    balancer: str,
    fails: tuple[str, ...],
    seed: int,
    fluid: bool,
    as_json: bool,
) -> None:
    """A crowd at several nodes with one leader: waits, and what the leader has to do.

    Up to 5 000 clients are played one by one on the server's own policy; more are a fluid.
    """
    plan = SimFleetPlan(
        nodes,
        read_rate(line),
        clients,
        _seconds(within, "--within"),
        float(_bytes(size, "--size")),
        read_rate(speed),
        policy=policy,
        slots=slots,
        delay_s=_seconds(delay, "--delay"),
        decision_s=decision_us / 1e6,
        report_s=report_us / 1e6,
        hold=hold,
        balancer=balancer,
        failures=read_failures(fails, nodes),
        seed=seed,
    )
    if min(plan.line_bytes_s, plan.speed_bytes_s, plan.size_bytes, plan.within_s) <= 0:
        raise click.UsageError("--line, --speed, --size and --within must be above 0")
    try:
        streamed = flow(plan)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    played = Fleet(plan).run() if clients <= _PLAYED_MOST and not fluid else None
    found = report(plan, streamed, played)
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
    else:
        width = max(len(name) for name in found)
        for name, value in found.items():
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            click.echo(f"{name.ljust(width)}  {shown}")
        click.echo(f"\n{verdict(plan, streamed)}")


def report(
    plan: SimFleetPlan, streamed: FluidResult, played: FleetResult | None
) -> dict[str, float | int | str]:
    """What was found, by what it is called."""
    found: dict[str, float | int | str] = {"model": "fluid" if played is None else "each client"}
    if played is None:
        found |= {
            "mean wait, s": streamed.mean_wait_s,
            "mean session, s": streamed.mean_session_s,
            "all done after, s": streamed.ended_s,
            "bodies at most": streamed.most_bodies,
            "waiting at most": streamed.most_waiting,
            "leader falls behind by, s": streamed.leader_behind_s,
        }
    else:
        found |= {
            "mean wait, s": played.mean_wait_s,
            "mean session, s": played.mean_session_s,
            "all done after, s": played.ended_s,
            "bodies at most": played.most_bodies,
            "bodies broken off": played.broken,
            "decisions": played.decisions,
            "slowest decision, s": played.leader_longest_s,
        }
    return found | {
        "leader's time at the peak": streamed.leader_peak,
        "leader's ceiling, downloads/s": ceiling_per_s(plan),
    }


def verdict(plan: SimFleetPlan, streamed: FluidResult) -> str:
    """Where the leader's ceiling is, and what then."""
    lines = format_rate(plan.line_bytes_s * plan.nodes)
    if streamed.partitions == 1:
        return (
            f"One leader suffices for {plan.nodes} nodes with {lines}: at the peak it is at work "
            f"for {streamed.leader_peak:.0%} of its time, and it is planned for {PLANNED:.0%}."
        )
    return (
        f"One leader does not suffice: it would have to work for {streamed.leader_peak:.0%} of its "
        f"time, and is planned for {PLANNED:.0%}. Divide the release tree among "
        f"{streamed.partitions} clusters, each with its own part of the nodes and its own queue: "
        "a client's place is one within its part, and a file's popularity is known where it lies."
    )
