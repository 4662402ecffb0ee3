"""Leases that run in a given order, as if they had just been looked at."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.policies.capacity import Capacity
from tidegate.policies.leases import Lease, LeasePool
from tidegate.policies.preemption import Preemption
from tidegate.policies.running import Running


class InOrder:
    """Decides about the leases that it is given, with what their clients seem to take by now."""

    def __init__(self, capacity: Capacity, pool: LeasePool | None = None) -> None:
        self._capacity = capacity
        self._running = Running(capacity)
        self.preemption = Preemption(LeasePool() if pool is None else pool, self._running)
        self._leases: list[Lease] = []

    def choose(self, leases: Sequence[Lease], now: float) -> tuple[tuple[int, ...], ...]:
        """Which of these pause, and which go on; those of the call before are over."""
        for one in self._leases:
            if one not in leases:
                self._running.remove(one)
                self.preemption.remove(one)
        for place, one in enumerate(leases):
            one.key, one.speed_bytes_s = float(place), self._capacity.speed(one)
            if one not in self._leases:
                self._running.add(one)
                self.preemption.add(one)
        self._leases = list(leases)
        self._running.reorder()
        return self.preemption.choose(now)
