"""The large downloads that run, in the order of their keys, and what is before each of them.

A start or an end moves a few entries, however many run; keys that changed with time are put in
order together (`reorder`). What is before each is summed up once somebody asks, and kept from then
on: nobody asks while nobody waits.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable
from operator import attrgetter

from policies.leases import Lease
from policies.queue.ranked import RankedList

_key = attrgetter("key")


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
        #: Bytes left by key, None until asked for; speeds likewise, of each line apart; and of each
        #: lease the key in there, whether it had a connection, and its line.
        self._left: RankedList | None = None
        self._speeds: dict[str, RankedList] = {}
        self._entered: dict[int, tuple[float, bool, str]] = {}

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
        self._left = None
        self.stale = False

    def add(self, lease: Lease) -> None:
        """One more runs; its key is known unless this is stale."""
        self._by_id[lease.id] = lease
        if not self.stale:
            insort(self._order, lease, key=_key)
            if self._left is not None:
                self._enter(lease, self._left)

    def remove(self, lease: Lease) -> None:
        """It is over."""
        del self._by_id[lease.id]
        if not self.stale:
            self._order.remove(lease)
            if self._left is not None:
                self._take_out(lease, self._left)

    def connected(self, lease: Lease) -> None:
        """Any lease may have its first connection, or none any more, or another line."""
        left, entered = self._left, self._entered.get(lease.id)
        if left is None or entered is None or self.stale:
            return
        if entered[1:] != (lease.connections > 0, lease.line):
            self._take_out(lease, left)
            self._enter(lease, left)

    # -- sums; never while stale -------------------------------------------------------------------

    def left_before(self, key: float) -> float:
        """What all with lower keys still want, bytes; progress since `reorder` is not in it."""
        return self._summed().bytes_before(key, 0)

    def left_in_all(self) -> float:
        """The same of all."""
        return self._summed().total_bytes

    def speed_before(self, key: float, line: str) -> float:
        """What all of this line with lower keys can take together, bytes/s."""
        self._summed()
        speeds = self._speeds.get(line)
        return 0.0 if speeds is None else speeds.bytes_before(key, 0)

    def filled_at(self, bytes_s: float, line: str) -> float:
        """The key of the one on this line that takes so much with those before it, or infinite."""
        self._summed()
        speeds = self._speeds.get(line)
        first = None if speeds is None else speeds.reaches(bytes_s)
        return math.inf if first is None else first[0]

    def sum_up(self) -> None:
        """Somebody is going to ask."""
        self._summed()

    def _summed(self) -> RankedList:
        left = self._left
        if left is None:
            order = self._order
            keys, numbers = [lease.key for lease in order], [lease.id for lease in order]
            left = self._left = RankedList()
            left.append_all(keys, numbers, [lease.remaining_bytes for lease in order])
            self._speeds, self._entered = {}, {}
            lines: dict[str, list[Lease]] = {}
            for lease in order:
                lines.setdefault(lease.line, []).append(lease)
                self._entered[lease.id] = lease.key, lease.connections > 0, lease.line
            for line, leases in lines.items():
                speeds = self._speeds[line] = RankedList()
                speeds.append_all(
                    [lease.key for lease in leases],
                    [lease.id for lease in leases],
                    [self._speed(lease) for lease in leases],
                )
        return left

    def _speed(self, lease: Lease) -> float:
        return self._speed_of(lease) if lease.connections else 0.0

    def _enter(self, lease: Lease, left: RankedList) -> None:
        key, line = lease.key, lease.line
        left.add(key, lease.id, lease.remaining_bytes)
        self._speeds.setdefault(line, RankedList()).add(key, lease.id, self._speed(lease))
        self._entered[lease.id] = key, lease.connections > 0, line

    def _take_out(self, lease: Lease, left: RankedList) -> None:
        key, _, line = self._entered.pop(lease.id)
        left.remove(key, lease.id)
        self._speeds[line].remove(key, lease.id)
