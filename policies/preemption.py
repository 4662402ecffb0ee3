"""Who is paused, and who runs out of turn for a moment, to be measured.

A *probe* is a first short run of a client whose speed nobody knows: rank needs the speed. What
keeps a paused client from giving up is sent by the data plane (`policies.upkeep`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from policies.capacity import Capacity
from policies.leases import Lease, LeasePool

#: A probe lasts this long, two looks at the progress of a live transfer; while its client's speed
#: has still not been seen, up to the second of these, seconds.
PROBE_S, _PROBE_MOST_S = 0.5, 2.0


class Preemption:
    """The paused leases of one policy, and those that are being measured."""

    __slots__ = ("_pool", "_probes", "count")

    def __init__(self, pool: LeasePool) -> None:
        self._pool = pool
        #: Those that run whatever their rank: since when, the latest last.
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
        """Newcomers that are being measured now."""
        return len(self._probes)

    def choose(
        self, order: Iterable[Lease], capacity: Capacity, now: float
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which leases stop and which go on.

        On each line they run in this order until their speeds meet its demand. A client whose speed
        is not known is taken to have the typical one; none has more than its line.
        """
        probes = self._probes
        if probes:
            over = [lease for lease, began_s in probes.items() if _is_over(lease, began_s, now)]
            for lease in over:
                del probes[lease]
        pause: list[int] = []
        resume: list[int] = []
        typical = capacity.typical_client_bytes_s
        # Of each line: what it has room for beside those that go on.
        room: dict[str, float] = {}
        line, left, most = None, 0.0, 0.0
        for lease in order:
            if lease.line != line:
                # Nearly always there is one line only.
                if line is not None:
                    room[line] = left
                line = lease.line
                most = capacity.rate_of(line)
                left = room[line] if line in room else capacity.demand_of(line)
            if left > 0.0 or lease in probes:
                if lease.connections:
                    cap = lease.cap_bytes_s
                    if cap == math.inf:
                        cap = typical
                    left -= cap if cap < most else most
                if lease.paused:
                    self._pool.resume(lease)
                    self.count -= not lease.opened
                    resume.append(lease.id)
            elif not lease.paused:
                self._pool.pause(lease, now)
                self.count += not lease.opened
                pause.append(lease.id)
        return tuple(pause), tuple(resume)

    def next_s(self, now: float) -> float | None:
        """When the next probe is over at the soonest."""
        soonest: float | None = None
        # Thousands may be overdue while no speed is known: only the others are walked.
        for began_s in reversed(self._probes.values()):
            if began_s + PROBE_S <= now:
                break
            soonest = began_s + PROBE_S
        return now + PROBE_S if soonest is None and self._probes else soonest


def _is_over(lease: Lease, began_s: float, now: float) -> bool:
    """Whether a probe has told what it can."""
    if lease.cap_bytes_s == math.inf:
        return now >= began_s + _PROBE_MOST_S
    return now >= began_s + PROBE_S
