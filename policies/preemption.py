"""Preemption: which downloads run, which run in the background, and which are paused.

The downloads whose own speeds fill the line run. The one that fills it and a few beyond run in the
*background*: they get what the others leave (`keep_alive.BACKGROUND_WEIGHT`). So they take nothing
from those before them, and the line stays full while one download follows another.

A *probe* is a first short run of a client whose speed is unknown: the guard needs it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .capacity import Capacity
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
    #: A line counts as filled by this part of its demand, as sums of speeds are rounded.
    enough: float = 1.0 - 1e-9


PREEMPTION = PreemptionTuning()
#: The last that runs where all do.
_ALL = (math.inf, math.inf)
#: Speeds below this are none, bytes/s.
_NOTHING = 1e-9

Ids = tuple[int, ...]


class Preemption:
    """The paused leases of one policy, and those that are being probed."""

    __slots__ = ("_behind", "_last", "_order", "_pool", "_probes", "_turned", "count")

    def __init__(self, pool: LeasePool) -> None:
        self._pool = pool
        #: The order of the last decision, and on each line key and number of the last that ran.
        self._order: object = None
        self._last: dict[str, tuple[float, float]] = {}
        #: On each line: the entries after which leases run in the background.
        self._behind: dict[str, tuple[float, float]] = {}
        #: Leases that went to the background, and came back, since `background_changes`.
        self._turned: tuple[list[int], list[int]] = [], []
        #: Leases that run whatever their rank: since when, the latest last.
        self._probes: dict[Lease, float] = {}
        #: How many are paused that have had a turn, or a place out of turn.
        self.count = 0

    def inherit(self) -> None:
        """Another policy left a lease paused."""
        self.count += 1

    def probe(self, lease: Lease, now: float) -> None:
        """Let a newcomer run for a moment, to see what its client can take."""
        self._probes.pop(lease, None)
        self._probes[lease] = now

    def drop(self, lease: Lease) -> None:
        """The lease is over."""
        self.count -= lease.paused and not lease.opened
        self._probes.pop(lease, None)

    @property
    def probes(self) -> int:
        """Leases that are being probed now."""
        return len(self._probes)

    def choose(self, running: Running, capacity: Capacity, now: float) -> tuple[Ids, Ids]:
        """Pause and resume: on each line the first run until their speeds meet its demand.

        Looks only at leases for which this may have changed since the last decision.
        """
        touched = self._end_probes(now) + running.moved
        running.moved = []
        self._behind = {}
        for line in running.lines():
            fills = PREEMPTION.enough * capacity.demand_of(line)
            first, filler = running.reaches(_NOTHING, line), running.reaches(fills, line)
            # The one that fills the line is behind, but never the first that takes something.
            self._behind[line] = first if filler <= first else (filler[0], filler[1] - 0.5)
            was = self._last.get(line, _ALL)
            last = running.reaches(fills + PREEMPTION.beyond * fills, line)
            self._last[line] = last
            if was != last:
                touched += running.between(min(was, last), max(was, last), line)
        order = running.in_order()
        if order is not self._order:
            self._order, touched = order, list(order)
        pause, resume = [], []
        for lease in touched:
            if lease not in running:
                continue
            last = self._last.get(lease.line, _ALL)
            runs = (lease.key, lease.id) <= last or lease in self._probes
            if runs and lease.paused:
                self._pool.resume(lease)
                self.count -= not lease.opened
                resume.append(lease.id)
            elif not runs and not lease.paused:
                self._pool.pause(lease, now)
                self.count += not lease.opened
                pause.append(lease.id)
        self._turn(running)
        return tuple(pause), tuple(resume)

    def _end_probes(self, now: float) -> list[Lease]:
        over: list[Lease] = []
        for lease, began_s in self._probes.items():
            if now < began_s + PREEMPTION.probe_s:
                break
            if lease.cap_bytes_s < math.inf or now >= began_s + PREEMPTION.longest_probe_s:
                over.append(lease)
        for lease in over:
            del self._probes[lease]
        return over

    def _turn(self, running: Running) -> None:
        """Move leases to the background, and out of it."""
        wanted, (behind, ahead) = set(), self._turned
        for line, after in self._behind.items():
            for lease in running.between(after, self._last[line], line):
                if lease.connections and not lease.paused and lease not in self._probes:
                    wanted.add(lease.id)
                    if not lease.background:
                        self._pool.put_behind(lease, background=True)
                        behind.append(lease.id)
        for number in self._pool.background.keys() - wanted:
            self._pool.put_behind(self._pool.background[number], background=False)
            ahead.append(number)

    def background_changes(self) -> tuple[Ids, Ids]:
        """Leases that went to the background since the last call, and those that came back."""
        behind, ahead = self._turned
        self._turned = [], []
        return tuple(behind), tuple(ahead)

    def next_s(self, now: float) -> float | None:
        """When the next probe is over at the soonest."""
        soonest: float | None = None
        # Thousands may be overdue while no speed is known: only the others are walked.
        for began_s in reversed(self._probes.values()):
            if began_s + PREEMPTION.probe_s <= now:
                break
            soonest = began_s + PREEMPTION.probe_s
        return now + PREEMPTION.probe_s if soonest is None and self._probes else soonest
