"""The large downloads that run, in the order of their keys, and what is before each of them.

A start or an end moves a few entries, however many run; keys and speeds that changed with time are
put in order together (`reorder`). What is before each is summed up once somebody asks, and kept
from then on: nobody asks while nobody waits.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from operator import attrgetter

from .leases import Lease
from .queue.ranked import RankedList

_key, _entry = attrgetter("key"), attrgetter("key", "id")
#: Fewer are summed up for each who asks: that takes less than to keep their sums.
_MANY = 100


class Running:
    """Leases by `Lease.key`, equal keys by number, each with its `Lease.speed_bytes_s`.

    A lease without a connection takes nothing.
    """

    __slots__ = ("_by_id", "_entered", "_left", "_order", "_speeds", "moved", "stale")

    def __init__(self) -> None:
        self._by_id: dict[int, Lease] = {}
        self._order: list[Lease] = []
        #: Whether keys may have changed since the last `reorder`; there is no order until then.
        self.stale = True
        #: Bytes left by key, None until asked for; and speeds of those with a connection, of each
        #: line apart, with the line of each lease there. Keys change with `reorder` only.
        self._left: RankedList | None = None
        self._speeds: dict[str, RankedList] | None = None
        self._entered: dict[int, str] = {}
        #: Those that came or changed their line since `Preemption` emptied the list.
        self.moved: list[Lease] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, lease: Lease) -> bool:
        return lease.id in self._by_id

    def all(self) -> Iterable[Lease]:
        """All of them, as they came."""
        return self._by_id.values()

    def in_order(self) -> list[Lease]:
        """All of them in order; not to be changed. `reorder` comes first if this is stale.

        It is another list after each `reorder`.
        """
        return self._order

    def reorder(
        self,
        leases: Iterable[Lease] = (),
        keys: Sequence[float] = (),
        speeds: Sequence[float] = (),
    ) -> None:
        """The keys and speeds of these leases are known anew; others keep theirs."""
        for lease, key, speed in zip(leases, keys, speeds, strict=True):
            lease.key, lease.speed_bytes_s = key, speed
        self._order = sorted(self._by_id.values(), key=_key)
        self._left = self._speeds = None
        self.stale = False

    def add(self, lease: Lease) -> None:
        """One more runs; its key and its speed are known unless this is stale."""
        self._by_id[lease.id] = lease
        if not self.stale:
            self.moved.append(lease)
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
            del order[bisect_left(order, (lease.key, lease.id), key=_entry)]
            if self._left is not None:
                self._left.remove(lease.key, lease.id)
            if self._speeds is not None:
                self._take_speed_out(lease)

    def connected(self, lease: Lease) -> bool:
        """Whether this one may have its first connection, or none any more, or another line."""
        if self._speeds is None or self.stale:
            return True
        if self._entered.get(lease.id) == (lease.line if lease.connections else None):
            return False
        self.moved.append(lease)
        self._take_speed_out(lease)
        self._enter_speed(lease)
        return True

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
            on = [lease for lease in before if lease.line == line and lease.connections]
            return sum([lease.speed_bytes_s for lease in on])
        return self._of_line(line).bytes_before(key, 0)

    def filled_at(self, bytes_s: float, line: str) -> float:
        """The key of the one on this line that takes so much with those before it, or infinite."""
        if self._speeds is None and len(self._order) < _MANY:
            taken = 0.0
            for lease in self._order:
                if lease.line == line and lease.connections:
                    taken += lease.speed_bytes_s
                if taken >= bytes_s:
                    return lease.key
            return math.inf
        first = self._of_line(line).reaches(bytes_s)
        return math.inf if first is None else first[0]

    @property
    def summed(self) -> bool:
        """Whether speeds are summed up, so that few steps tell who is before what."""
        return self._speeds is not None

    def lines(self) -> Iterable[str]:
        """All lines on which any has run since they were summed up."""
        return tuple(self._speeds or ())

    def last_before(self, bytes_s: float, line: str) -> tuple[float, float]:
        """Key and number of the last on this line before which all together take less.

        Infinite where that is each of them.
        """
        return self._of_line(line).reaches(bytes_s) or (math.inf, math.inf)

    def between(
        self, after: tuple[float, float], last: tuple[float, float], line: str
    ) -> list[Lease]:
        """Those on this line after the one entry, up to the other."""
        order = self._order
        start = bisect_right(order, after, key=_entry)
        stop = bisect_right(order, last, start, key=_entry)
        return [lease for lease in order[start:stop] if lease.line == line]

    def sum_up(self, *, left: bool) -> None:
        """Somebody is going to ask who is before what, and for what is `left` before them."""
        if len(self._order) >= _MANY:
            self._of_line("")
            if left:
                self._lefts()

    def _lefts(self) -> RankedList:
        left = self._left
        if left is None:
            left = self._left = RankedList()
            _append(left, self._order, [lease.remaining_bytes for lease in self._order])
        return left

    def _of_line(self, line: str) -> RankedList:
        """Speeds of those that are on this line."""
        speeds = self._speeds
        if speeds is None:
            speeds = self._speeds = {}
            self._entered = {}
            lines: dict[str, list[Lease]] = {}
            for lease in self._order:
                if lease.connections:
                    lines.setdefault(lease.line, []).append(lease)
            for name, leases in lines.items():
                speeds[name] = RankedList()
                _append(speeds[name], leases, [lease.speed_bytes_s for lease in leases])
                self._entered.update(dict.fromkeys([lease.id for lease in leases], name))
        found = speeds.get(line)
        if found is None:
            found = speeds[line] = RankedList()
        return found

    def _enter_speed(self, lease: Lease) -> None:
        if lease.connections:
            self._of_line(lease.line).add(lease.key, lease.id, lease.speed_bytes_s)
            self._entered[lease.id] = lease.line

    def _take_speed_out(self, lease: Lease) -> None:
        line = self._entered.pop(lease.id, None)
        if line is not None:
            self._of_line(line).remove(lease.key, lease.id)


def _append(to: RankedList, leases: Sequence[Lease], sizes: Sequence[float]) -> None:
    to.append_all([lease.key for lease in leases], [lease.id for lease in leases], sizes)
