"""The large downloads that run, in the order of their keys, and what is before each of them.

A start or an end moves a few entries, however many run; keys that changed with time are put in
order together (`reorder`). What is before each is summed up once somebody asks, and kept from then
on: nobody asks while nobody waits.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from operator import attrgetter

from policies.leases import Lease
from policies.queue.ranked import RankedList

_key = attrgetter("key")
#: Fewer are summed up for each who asks: that takes less than to keep their sums.
_MANY = 100


class Running:
    """Leases by `Lease.key`, equal keys by number; `speed_of` says what a client can take, bytes/s.

    A lease without a connection takes nothing.
    """

    __slots__ = ("_by_id", "_entered", "_left", "_order", "_speed_of", "_speeds", "stale")

    def __init__(self, speed_of: Callable[[Lease], float]) -> None:
        self._speed_of = speed_of
        self._by_id: dict[int, Lease] = {}
        self._order: list[Lease] = []
        #: Whether keys may have changed since the last `reorder`; there is no order until then.
        self.stale = True
        #: Bytes left by key, None until asked for; and speeds, of each line apart, with the line of
        #: each lease there and whether it had a connection. Keys change with `reorder` only.
        self._left: RankedList | None = None
        self._speeds: dict[str, RankedList] | None = None
        self._entered: dict[int, tuple[bool, str]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> Iterable[Lease]:
        """All of them, as they came."""
        return self._by_id.values()

    def in_order(self) -> list[Lease]:
        """All of them in order; not to be changed. `reorder` comes first if this is stale."""
        return self._order

    def reorder(self) -> None:
        """The keys of all leases are known anew."""
        self._order = sorted(self._by_id.values(), key=_key)
        self._left = self._speeds = None
        self.stale = False

    def add(self, lease: Lease) -> None:
        """One more runs; its key is known unless this is stale."""
        self._by_id[lease.id] = lease
        if not self.stale:
            insort(self._order, lease, key=_key)
            if self._left is not None:
                self._left.add(lease.key, lease.id, lease.remaining_bytes)
            if self._speeds is not None:
                self._enter_speed(lease)

    def remove(self, lease: Lease) -> None:
        """It is over."""
        del self._by_id[lease.id]
        if not self.stale:
            order = self._order
            del order[order.index(lease, bisect_left(order, lease.key, key=_key))]
            if self._left is not None:
                self._left.remove(lease.key, lease.id)
            if self._speeds is not None:
                self._take_speed_out(lease)

    def connected(self, lease: Lease) -> None:
        """Any lease may have its first connection, or none any more, or another line."""
        if self._speeds is None or self.stale:
            return
        entered = self._entered.get(lease.id)
        if entered is not None and entered != (lease.connections > 0, lease.line):
            self._take_speed_out(lease)
            self._enter_speed(lease)

    # -- sums; never while stale -------------------------------------------------------------------

    def left_before(self, key: float) -> float:
        """What all with lower keys still want, bytes; progress since `reorder` is not in it."""
        return self._lefts().bytes_before(key, 0)

    def left_in_all(self) -> float:
        """The same of all."""
        return self._lefts().total_bytes

    def speed_before(self, key: float, line: str) -> float:
        """What all of this line with lower keys can take together, bytes/s."""
        if self._speeds is None and len(self._order) < _MANY:
            before = self._order[: bisect_left(self._order, key, key=_key)]
            return sum([self._speed(lease) for lease in before if lease.line == line])
        return self._of_line(line).bytes_before(key, 0)

    def filled_at(self, bytes_s: float, line: str) -> float:
        """The key of the one on this line that takes so much with those before it, or infinite."""
        if self._speeds is None and len(self._order) < _MANY:
            taken, speed_of = 0.0, self._speed_of
            for lease in self._order:
                if lease.line == line and lease.connections:
                    taken += speed_of(lease)
                if taken >= bytes_s:
                    return lease.key
            return math.inf
        first = self._of_line(line).reaches(bytes_s)
        return math.inf if first is None else first[0]

    def sum_up(self) -> None:
        """Somebody is going to ask."""
        if len(self._order) >= _MANY:
            self._lefts()
            self._of_line("")

    def _lefts(self) -> RankedList:
        left = self._left
        if left is None:
            left, order = RankedList(), self._order
            keys, numbers = [lease.key for lease in order], [lease.id for lease in order]
            left.append_all(keys, numbers, [lease.remaining_bytes for lease in order])
            self._left = left
        return left

    def _of_line(self, line: str) -> RankedList:
        """Speeds of those that are on this line."""
        speeds = self._speeds
        if speeds is None:
            speeds = self._speeds = {}
            self._entered = {}
            lines: dict[str, list[Lease]] = {}
            for lease in self._order:
                lines.setdefault(lease.line, []).append(lease)
                self._entered[lease.id] = lease.connections > 0, lease.line
            for name, leases in lines.items():
                keys, numbers = [lease.key for lease in leases], [lease.id for lease in leases]
                speeds[name] = RankedList()
                speeds[name].append_all(keys, numbers, [self._speed(lease) for lease in leases])
        found = speeds.get(line)
        if found is None:
            found = speeds[line] = RankedList()
        return found

    def _speed(self, lease: Lease) -> float:
        return self._speed_of(lease) if lease.connections else 0.0

    def _enter_speed(self, lease: Lease) -> None:
        self._of_line(lease.line).add(lease.key, lease.id, self._speed(lease))
        self._entered[lease.id] = lease.connections > 0, lease.line

    def _take_speed_out(self, lease: Lease) -> None:
        _, line = self._entered.pop(lease.id)
        self._of_line(line).remove(lease.key, lease.id)
