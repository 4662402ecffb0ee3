"""The state of the server in one sentence that an operator can act on."""

from __future__ import annotations

from dataclasses import dataclass

from policies.job import Snapshot
from server.admin.charts import brief
from server.admin.context import Health


@dataclass(frozen=True, slots=True)
class State:
    """`tone` colours the page: calm, busy, queueing or alarm. `more` explains."""

    tone: str
    headline: str
    more: str = ""


def state_of(snapshot: Snapshot, health: Health) -> State:
    """What is going on, worst news first."""
    if health.draining:
        running = snapshot.small_active + snapshot.large_active
        return State("alarm", "Draining", f"{_count(running, 'download')} to go, then it stops.")
    active = snapshot.small_active + snapshot.large_active
    free = max(0, snapshot.slots - active)
    room = _room(snapshot, free)
    if snapshot.waiting or snapshot.ready:
        called = f"{snapshot.ready:,} called and on their way. " if snapshot.ready else ""
        found = State("queueing", f"Queueing: {_line(snapshot)}", called + room)
    elif active == 0:
        found = State("calm", "Quiet", room)
    elif snapshot.large_active >= snapshot.large_slots or free == 0:
        found = State("busy", "Full, nobody in line", f"{room} Who comes now waits or returns.")
    else:
        found = State("calm", "Open: everybody starts at once", room)
    if health.store_degraded:
        more = f"{found.more} The database does not answer ({health.store_fault or 'no reason'}); "
        more += "downloads and the queue go on, history and the journal wait in memory."
        return State("alarm", found.headline, more)
    return found


def _line(snapshot: Snapshot) -> str:
    if not snapshot.waiting:
        one = snapshot.ready == 1
        return "the last one is called" if one else f"the last {snapshot.ready:,} are called"
    last = ""
    if snapshot.last_wait is not None:
        last = f"about {brief(snapshot.last_wait.expected_s)}"
    if snapshot.waiting == 1:
        return f"one waits, {last}" if last else "one waits"
    line = f"{snapshot.waiting:,} wait"
    return f"{line}, the last one {last}" if last else line


def _room(snapshot: Snapshot, free: int) -> str:
    if not snapshot.link_bound:
        return f"{free:,} of {snapshot.slots:,} slots free."
    running = snapshot.small_active + snapshot.large_active - snapshot.paused
    paused = f", {snapshot.paused:,} paused" if snapshot.paused else ""
    return f"{_count(running, 'download')} running{paused}."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
