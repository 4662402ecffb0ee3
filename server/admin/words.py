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
    free = max(0, snapshot.slots - snapshot.small_active - snapshot.large_active)
    if snapshot.waiting or snapshot.ready:
        line = f"{snapshot.waiting:,} wait"
        if snapshot.last_wait is not None:
            line += f", the last one about {brief(snapshot.last_wait.expected_s)}"
        more = f"{snapshot.ready:,} called and on their way; {free} of {snapshot.slots} slots free."
        found = State("queueing", f"Queueing: {line}", more)
    elif snapshot.large_active >= snapshot.large_slots or free == 0:
        kept = f"{free} of {snapshot.slots} slots free"
        found = State("busy", "Full, nobody in line", f"{kept}; who comes now waits or returns.")
    elif snapshot.small_active + snapshot.large_active == 0:
        found = State("calm", "Quiet", f"All {snapshot.slots} slots are free.")
    else:
        found = State(
            "calm", "Open: everybody starts at once", f"{free} of {snapshot.slots} slots free."
        )
    if health.store_degraded:
        more = f"{found.more} The database does not answer ({health.store_fault or 'no reason'}); "
        more += "downloads and the queue go on, history and the journal wait in memory."
        return State("alarm", found.headline, more)
    return found


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
