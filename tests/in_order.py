"""Leases that run in a given order, as if they had just been looked at."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.policies.capacity import Capacity
from tidegate.policies.leases import Lease
from tidegate.policies.running import Running


def in_order(leases: Iterable[Lease], capacity: Capacity) -> Running:
    """These, with what their clients seem to take by now."""
    running = Running()
    for place, one in enumerate(leases):
        one.key, one.speed_bytes_s = float(place), capacity.speed(one)
        running.add(one)
    running.reorder()
    return running
