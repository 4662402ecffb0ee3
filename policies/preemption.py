"""Who is paused, for how long at most, and who runs out of turn: to keep alive, or to be measured.

Laws: no lease is paused longer than `max_pause_s` at a stretch (given a call at `next_s`); once its
time has come it runs at least `min_run_s`. A *probe* is a first short run of a client whose speed
nobody knows: rank needs the speed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping

from policies.leases import Lease

#: A probe lasts this long: two looks at the progress of a live transfer.
PROBE_S = 0.5
#: Pauses that end within this part of the longest one end together.
_TOGETHER = 0.03


class Preemption:
    """The paused leases of one policy and the deadlines of their pauses."""

    __slots__ = ("_max_pause_s", "_min_run_s", "_out_of_turn", "_probes", "_stopped", "count")

    def __init__(self, max_pause_s: float, min_run_s: float) -> None:
        self._max_pause_s = max_pause_s
        self._min_run_s = min_run_s
        #: (when its pause must end, lease); an entry of an earlier pause is stale.
        self._stopped: list[tuple[float, int]] = []
        #: Lease -> until when it runs whatever its rank.
        self._out_of_turn: dict[int, float] = {}
        self._probes: set[int] = set()
        self.count = 0

    def inherit(self, lease: Lease) -> None:
        """Another policy left this lease paused: its pause goes on, no longer than ours may."""
        lease.pause_due_s = min(lease.pause_due_s, lease.stopped_s + self._max_pause_s)
        heapq.heappush(self._stopped, (lease.pause_due_s, lease.id))
        self.count += 1

    def pause(self, lease: Lease, now: float) -> None:
        """The lease stops."""
        lease.paused = True
        lease.stopped_s = now
        lease.pause_due_s = now + self._max_pause_s
        heapq.heappush(self._stopped, (lease.pause_due_s, lease.id))
        self.count += 1

    def resume(self, lease: Lease, now: float) -> None:
        """The lease goes on."""
        lease.paused = False
        self.count -= 1

    def probe(self, lease: Lease, now: float) -> None:
        """Let a newcomer run for a moment, to see what its client can take."""
        self._out_of_turn[lease.id] = now + PROBE_S
        self._probes.add(lease.id)

    def drop(self, lease: Lease) -> None:
        """The lease is over."""
        self.count -= lease.paused
        self._out_of_turn.pop(lease.id, None)
        self._probes.discard(lease.id)

    @property
    def probes(self) -> int:
        """Newcomers that are being measured now."""
        return len(self._probes)

    def come_due(self, leases: Mapping[int, Lease], now: float) -> None:
        """End what has lasted its time; let those run that were paused for the longest time."""
        out_of_turn = self._out_of_turn
        for number in [number for number, until in out_of_turn.items() if until <= now]:
            del out_of_turn[number]
            self._probes.discard(number)
        if not self._stopped or self._stopped[0][0] > now:
            return
        # Those who are due soon run with those who are due now: fewer wakes for the same upkeep.
        soon = now + _TOGETHER * self._max_pause_s
        while self._stopped and self._stopped[0][0] <= soon:
            due, number = heapq.heappop(self._stopped)
            if self._stands(leases, due, number):
                out_of_turn[number] = now + self._min_run_s

    def choose(
        self, order: Iterable[Lease], demand: float, typical: float, most: float, now: float
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which leases stop and which go on, in this order until their speeds meet the demand.

        A client whose speed is not known is taken to have the `typical` one; none has more than
        the `most`.
        """
        pause: list[int] = []
        resume: list[int] = []
        out_of_turn = self._out_of_turn
        taken = 0.0
        for lease in order:
            if taken < demand or lease.id in out_of_turn:
                if lease.connections:
                    cap = lease.cap_bytes_s
                    if cap == math.inf:
                        cap = typical
                    taken += cap if cap < most else most
                if lease.paused:
                    self.resume(lease, now)
                    resume.append(lease.id)
            elif not lease.paused:
                self.pause(lease, now)
                pause.append(lease.id)
        return tuple(pause), tuple(resume)

    def next_s(self, leases: Mapping[int, Lease]) -> float | None:
        """When `come_due` has something to do at the latest."""
        while self._stopped and not self._stands(leases, *self._stopped[0]):
            heapq.heappop(self._stopped)
        first = self._stopped[0][0] if self._stopped else math.inf
        first = min(first, min(self._out_of_turn.values(), default=math.inf))
        return None if first == math.inf else first

    @staticmethod
    def _stands(leases: Mapping[int, Lease], due: float, number: int) -> bool:
        lease = leases.get(number)
        return lease is not None and lease.paused and lease.pause_due_s == due
