"""The state of the server in one sentence that an operator can act on."""

from __future__ import annotations

from dataclasses import dataclass

from ...policies.contract import Snapshot
from ...policies.registry import POLICIES
from ...protocol.units import format_duration
from ..control.report import counted
from ..control.vitals import Health


@dataclass(frozen=True, slots=True)
class Status:
    """`tone` colours the page: calm, busy, queueing or alarm. `more` explains."""

    tone: str
    headline: str
    more: str = ""


def state_of(snapshot: Snapshot, health: Health) -> Status:
    """What is going on, worst news first."""
    active = snapshot.small_active + snapshot.large_active
    if health.draining:
        return Status("alarm", "Draining", f"{counted(active, 'download')} to go, then it stops.")
    if snapshot.closed:
        running = f"{counted(active, 'download')} still running." if active else "Nothing runs."
        waits = _waiting(snapshot) if snapshot.people_waiting else "nobody waits"
        return Status("alarm", f"Doors closed: {waits}", f"{running} Nobody starts until you open.")
    room = _room(snapshot)
    if snapshot.people_waiting:
        found = Status("queueing", _line(snapshot), f"{_parts(snapshot)}{room}")
    elif active == 0:
        found = Status(
            "calm", "Sending by multicast" if health.multicast_receivers else "Quiet", room
        )
    elif not snapshot.link_bound and _free(snapshot) <= _kept_for_small(snapshot):
        if keeps_queue(snapshot):
            headline, more = "Full, and nobody waits", "The next large download waits."
        else:
            headline, more = "Full: clients are told to come back", "This policy has no queue."
        found = Status("busy", headline, f"{room} {more}")
    else:
        found = Status("calm", "Open: everybody starts at once", room)
    if health.multicast_receivers:
        receivers = counted(health.multicast_receivers, "receiver")
        found = Status(found.tone, found.headline, f"{found.more} Multicast reaches {receivers}.")
    if health.totals.fleet_fault:
        found = Status("alarm", found.headline, f"{found.more} {health.totals.fleet_fault}")
    if health.store_degraded:
        more = f"{found.more} The database does not answer ({health.store_fault or 'no reason'}); "
        more += "downloads and the queue go on, history and the journal wait in memory."
        return Status("alarm", found.headline, more)
    return found


def keeps_queue(snapshot: Snapshot) -> bool:
    """Whether the policy counts clients that wait; the others ask again and again."""
    return POLICIES[snapshot.mode].gives_tickets


def _waiting(snapshot: Snapshot) -> str:
    """How many people wait: those who have not started, and those whose download is paused."""
    people = snapshot.people_waiting
    return "1 person is waiting" if people == 1 else f"{people:,} people are waiting"


def _line(snapshot: Snapshot) -> str:
    told = _waiting(snapshot)
    if not snapshot.waiting and not snapshot.ready:
        return f"{told}: all downloads have begun."
    if snapshot.last_wait is None or not snapshot.waiting:
        return f"{told}."
    return f"{told}. The last starts in about {format_duration(snapshot.last_wait.expected_s)}."


def _parts(snapshot: Snapshot) -> str:
    """Which of those who wait have begun, and which may start."""
    parts = ((snapshot.paused, "paused after the start"), (snapshot.ready, "ready to start"))
    return "".join(f"{n:,} of them {'is' if n == 1 else 'are'} {what}. " for n, what in parts if n)


def _free(snapshot: Snapshot) -> int:
    return max(0, snapshot.slots - snapshot.small_active - snapshot.large_used)


def _kept_for_small(snapshot: Snapshot) -> int:
    """Free slots that no large download may take."""
    return max(0, _free(snapshot) - max(0, snapshot.large_slots - snapshot.large_used))


def _room(snapshot: Snapshot) -> str:
    if snapshot.link_bound:
        running = snapshot.small_active + snapshot.large_active - snapshot.paused
        told = counted(running, "download") if running else "No download"
        return f"{told} {'is' if running <= 1 else 'are'} running."
    free, kept = _free(snapshot), _kept_for_small(snapshot)
    promised = min(free - kept, snapshot.ready)
    parts = [f"{free - kept - promised:,} of {snapshot.slots:,} slots free"]
    if promised:
        parts.append(f"{promised:,} kept for those who are ready")
    if kept:
        parts.append(f"{kept:,} kept for small files")
    return ", ".join(parts) + "."
