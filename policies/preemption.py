"""Preemption: which downloads run, which run in the background, and which are paused.

The downloads whose own speeds fill the line run. The one that fills it and a few beyond run in the
*background*: they get what the others leave (`keep_alive.BACKGROUND_WEIGHT`). So they take nothing
from those before them, and the line stays full while one download follows another.

A *probe* is a first short run of a client whose speed is unknown: the guard needs it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .leases import Lease, LeasePool
from .running import Running


@dataclass(frozen=True, slots=True)
class PreemptionTuning:
    """Times are seconds."""

    #: A probe lasts for two looks at the progress of a live transfer ...
    probe_s: float = 0.5
    #: ... or until this, while its client's speed has still not been seen.
    longest_probe_s: float = 2.0
    #: This part of a line's demand runs beyond it, in the background. `make laws`: "background".
    beyond: float = 0.2


PREEMPTION = PreemptionTuning()

Ids = tuple[int, ...]


class Preemption:
    """Pauses and resumes leases of one policy; some of them are being probed."""

    __slots__ = ("_pool", "_probes", "_running", "_unpaused", "count")

    def __init__(self, pool: LeasePool, running: Running) -> None:
        self._pool = pool
        self._running = running
        self._unpaused: dict[int, Lease] = {}
        #: Leases that run whatever their rank: since when, the latest last.
        self._probes: dict[Lease, float] = {}
        #: How many are paused that have had a turn, or a place out of turn.
        self.count = 0

    def add(self, lease: Lease) -> None:
        """A lease has begun, perhaps under another policy."""
        if not lease.paused:
            self._unpaused[lease.id] = lease
        elif not lease.opened:
            self.count += 1

    def probe(self, lease: Lease, now: float) -> None:
        """Let a newcomer run for a moment, to see what its client can take."""
        self._probes.pop(lease, None)
        self._probes[lease] = now

    def remove(self, lease: Lease) -> None:
        """A lease is over."""
        self.count -= lease.paused and not lease.opened
        self._unpaused.pop(lease.id, None)
        self._probes.pop(lease, None)

    @property
    def probes(self) -> int:
        """Leases that are being probed now."""
        return len(self._probes)

    def choose(self, now: float) -> tuple[Ids, Ids]:
        """Pause and resume: on each line the first run until their speeds meet its demand."""
        if not self._end_probes(now) and not self._running.changed:
            return (), ()
        self._running.changed = False
        runs: dict[int, Lease] = {}
        behind: dict[int, Lease] = {}
        for lease, before, after in self._running.first_ones(1.0 + PREEMPTION.beyond):
            runs[lease.id] = lease
            # The one that fills the line is behind, but never the first that takes something.
            if before > 0.0 and after >= 1.0 and lease.connections:
                behind[lease.id] = lease
        for lease in self._probes:
            runs[lease.id] = lease
            behind.pop(lease.id, None)
        pause = [lease for number, lease in self._unpaused.items() if number not in runs]
        resume = [lease for lease in runs.values() if lease.paused]
        for lease in pause:
            self._pool.pause(lease, now)
            self.count += not lease.opened
            del self._unpaused[lease.id]
        for lease in resume:
            self._pool.resume(lease)
            self.count -= not lease.opened
            self._unpaused[lease.id] = lease
        self._pool.set_background(behind)
        return tuple([lease.id for lease in pause]), tuple([lease.id for lease in resume])

    def _end_probes(self, now: float) -> bool:
        """Whether any is over."""
        over: list[Lease] = []
        for lease, began_s in self._probes.items():
            if now < began_s + PREEMPTION.probe_s:
                break
            if lease.cap_bytes_s < math.inf or now >= began_s + PREEMPTION.longest_probe_s:
                over.append(lease)
        for lease in over:
            del self._probes[lease]
        return bool(over)

    def next_s(self, now: float) -> float | None:
        """When the next probe is over at the soonest."""
        soonest: float | None = None
        # Thousands may be overdue while no speed is known: only the others are walked.
        for began_s in reversed(self._probes.values()):
            if began_s + PREEMPTION.probe_s <= now:
                break
            soonest = began_s + PREEMPTION.probe_s
        return now + PREEMPTION.probe_s if soonest is None and self._probes else soonest
