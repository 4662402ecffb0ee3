"""The same fleet as a fluid: millions of clients and hundreds of nodes in seconds.

Clients are a stream, not persons: they come, wait, run and leave at rates. The order of the queue
does not matter for means (all want the same of the lines), so there is no policy here, only what
bounds it: the lines, the clients' own speed, the slots and the leader's time. What it leaves out:
chance (lines are shared as if each had the mean of all), sizes (shortest first would make the mean
session shorter), what a trial or a pause costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .fleet import TICK_S, SimFleetPlan

_STEPS = 4_000
#: Clients that wait elsewhere come back this often while their turn is far, s (`retry_max_s`).
_POLL_S = 300.0
#: A leader is planned to be at work for so much of its time: above, decisions wait for each other.
PLANNED = 0.7


@dataclass(frozen=True, slots=True)
class FluidResult:
    """Means over all clients, and the leader's greatest load; times in seconds.

    `leader_peak` is the part of the leader's time that is asked for at the worst moment; above 1
    decisions fall behind, by `leader_behind_s` at most.
    """

    mean_wait_s: float
    mean_session_s: float
    ended_s: float
    most_waiting: float
    most_bodies: float
    leader_peak: float
    leader_behind_s: float

    @property
    def partitions(self) -> int:
        """Into how many clusters the release tree is to be divided, one leader each."""
        return max(1, math.ceil(self.leader_peak / PLANNED))


def simulate(plan: SimFleetPlan) -> FluidResult:
    """One run; raises ValueError for a fleet that never gets done."""
    step_s = plan.within_s / _STEPS
    slots = plan.slots * plan.nodes if plan.policy != "fair" else math.inf
    backlog = waiting = running = now = 0.0
    left_bytes = left = 0.0
    waited = ran = 0.0
    most_waiting = most_bodies = peak = behind = 0.0
    arrived = 0.0
    while left < plan.clients - 0.5:
        if now > 1e4 * plan.within_s:
            raise ValueError("This fleet does not get done: its lines carry nothing.")
        lines, led = _there(plan, now)
        come = min(plan.clients / plan.within_s * step_s, plan.clients - arrived)
        arrived += come
        waiting += come
        # What the leader is told: each newcomer asks, each start is a decision or a call, each end
        # a message; those who poll ask again; bodies report.
        polls = 0.0 if plan.hold else waiting / _POLL_S * step_s
        reports = running * step_s / TICK_S * plan.report_s
        room_s = max(0.0, step_s * led - reports)
        gone = 0.0
        if running > 0.0:
            rate = min(running * plan.speed_bytes_s, lines)
            sent = min(rate * step_s, left_bytes)
            gone = min(running, sent / (left_bytes / running)) if left_bytes > 0.0 else running
            left_bytes -= sent
            left_bytes = max(0.0, left_bytes)
        wish = math.inf if slots == math.inf else max(0.0, slots - running + gone)
        # A full line takes no more: that is where Fair stops, and slots beyond it do not help.
        full = lines / plan.speed_bytes_s
        wish = min(wish, max(0.0, math.ceil(full) - running + gone))
        starts = min(waiting, wish)
        # Messages are worked off in their order; starts are what can wait.
        told_s = (come + polls + gone) * plan.decision_s
        starts = min(starts, max(0.0, room_s - backlog - told_s) / plan.decision_s)
        backlog = max(0.0, backlog + told_s + starts * plan.decision_s - room_s)
        behind = max(behind, backlog)
        wanted = min(full, come / step_s * plan.size_bytes / plan.speed_bytes_s)
        asked_s = (3.0 * come + polls) * plan.decision_s + max(
            reports, wanted * step_s / TICK_S * plan.report_s
        )
        peak = max(peak, asked_s / step_s)
        running += starts - gone
        left_bytes += starts * plan.size_bytes
        waiting -= starts
        left += gone
        waited += waiting * step_s
        ran += running * step_s
        most_waiting, most_bodies = max(most_waiting, waiting), max(most_bodies, running)
        now += step_s
    mean_wait_s = waited / plan.clients + 2.0 * plan.delay_s + plan.decision_s
    return FluidResult(
        mean_wait_s,
        mean_wait_s + ran / plan.clients,
        now,
        most_waiting,
        most_bodies,
        peak,
        behind,
    )


def _there(plan: SimFleetPlan, now: float) -> tuple[float, bool]:
    """What the lines carry at this time, and whether a leader is there."""
    nodes, led = plan.nodes, True
    for failure in plan.failures:
        if failure.at_s <= now < failure.at_s + failure.for_s:
            if failure.node is None:
                led = False
            else:
                nodes -= 1
    return nodes * plan.line_bytes_s, led


def ceiling_per_s(plan: SimFleetPlan) -> float:
    """How many downloads a second one leader begins and ends, each running as this plan has it."""
    body_s = plan.size_bytes / plan.speed_bytes_s
    each_s = 3.0 * plan.decision_s + body_s / TICK_S * plan.report_s
    return PLANNED / each_s
