"""The large downloads that have begun, in the order of their keys, with sums over that order.

`reorder` sets keys and speeds that have changed with time. Between two calls of it a start or an
end moves a few entries, however many there are.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from operator import attrgetter

from .leases import Lease
from .queue.ranked import RankedList

_key, _entry = attrgetter("key"), attrgetter("key", "id")


def _takes(lease: Lease) -> float:
    """What a lease takes of its line: nothing without a connection."""
    return lease.speed_bytes_s if lease.connections else 0.0


def _summed(leases: Sequence[Lease], sizes: Sequence[float]) -> RankedList:
    ranked = RankedList()
    ranked.append_all([one.key for one in leases], [one.id for one in leases], sizes)
    return ranked


class Running:
    """Leases by `Lease.key`, equal keys by number, each with its `Lease.speed_bytes_s`."""

    __slots__ = ("_by_id", "_entered", "_left", "_order", "_speeds", "moved", "stale")

    def __init__(self) -> None:
        self._by_id: dict[int, Lease] = {}
        self._order: list[Lease] = []
        #: Whether keys may have changed since the last `reorder`. There is no order until then.
        self.stale = True
        #: Bytes left; and speeds, by line. None: to be summed up when they are asked for.
        self._left: RankedList | None = None
        self._speeds: dict[str, RankedList] | None = None
        #: Of each lease in `_speeds`: its line, and whether it had a connection.
        self._entered: dict[int, tuple[str, bool]] = {}
        #: Leases that came or changed their line since `Preemption` emptied the list.
        self.moved: list[Lease] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, lease: Lease) -> bool:
        return lease.id in self._by_id

    def all(self) -> Iterable[Lease]:
        """All of them, as they came."""
        return self._by_id.values()

    def in_order(self) -> Sequence[Lease]:
        """All of them in order: another list after each `reorder`. Only while not `stale`."""
        return self._order

    def reorder(
        self,
        leases: Iterable[Lease] = (),
        keys: Iterable[float] = (),
        speeds: Iterable[float] = (),
    ) -> None:
        """Set keys and speeds of these leases; others keep theirs."""
        for lease, key, speed in zip(leases, keys, speeds, strict=True):
            lease.key, lease.speed_bytes_s = key, speed
        self._order = sorted(self._by_id.values(), key=_entry)
        self._left = self._speeds = None
        self.stale = False

    def add(self, lease: Lease) -> None:
        """A lease has begun; its key and its speed are known unless this is stale."""
        self._by_id[lease.id] = lease
        if not self.stale:
            self.moved.append(lease)
            insort(self._order, lease, key=_entry)
            if self._left is not None:
                self._left.add(lease.key, lease.id, lease.remaining_bytes)
            if self._speeds is not None:
                self._enter(lease)

    def remove(self, lease: Lease) -> None:
        """A lease is over."""
        del self._by_id[lease.id]
        if not self.stale:
            del self._order[bisect_left(self._order, (lease.key, lease.id), key=_entry)]
            if self._left is not None:
                self._left.remove(lease.key, lease.id)
            if self._speeds is not None:
                line, _ = self._entered.pop(lease.id)
                self._speeds[line].remove(lease.key, lease.id)

    def connection_changed(self, lease: Lease) -> bool:
        """Whether this one has its first connection, none any more, or another line."""
        if self._speeds is None or self.stale:
            return True
        entered = self._entered.get(lease.id)
        if entered is None or entered == (lease.line, lease.connections > 0):
            # A small download never enters.
            return False
        self.moved.append(lease)
        self._speeds[entered[0]].remove(lease.key, lease.id)
        self._enter(lease)
        return True

    def _enter(self, lease: Lease) -> None:
        self._entered[lease.id] = lease.line, lease.connections > 0
        self._of_line(lease.line).add(lease.key, lease.id, _takes(lease))

    # -- sums; only while not stale ----------------------------------------------------------------

    def _lefts(self) -> RankedList:
        if self._left is None:
            self._left = _summed(self._order, [one.remaining_bytes for one in self._order])
        return self._left

    def _of_line(self, line: str) -> RankedList:
        speeds = self._speeds
        if speeds is None:
            speeds, order = {}, self._order
            for name in dict.fromkeys([one.line for one in order]):
                on = [one for one in order if one.line == name]
                speeds[name] = _summed(on, [*map(_takes, on)])
            self._speeds = speeds
            self._entered = {one.id: (one.line, one.connections > 0) for one in self._order}
        return speeds.setdefault(line, RankedList())

    def sum_up(self) -> None:
        """Sum up what may be asked, so that who asks later does not pay for it."""
        self._lefts()
        self._of_line("")

    def left_before(self, key: float) -> float:
        """Bytes that all with lower keys still want, as of the last `reorder`."""
        return self._lefts().bytes_before(key, 0)

    def left_in_all(self) -> float:
        """Bytes that all still want, as of the last `reorder`."""
        return self._lefts().total_bytes

    def speed_before(self, key: float, line: str) -> float:
        """Bytes/s that all of this line with lower keys take together."""
        return self._of_line(line).bytes_before(key, 0)

    def reaches(self, bytes_s: float, line: str) -> tuple[float, float]:
        """Key and number of the first on this line that takes so much with those before it.

        Infinite where all together take less.
        """
        return self._of_line(line).reaches(bytes_s) or (math.inf, math.inf)

    def lines(self) -> Sequence[str]:
        """The lines on which any has run since the last `reorder`."""
        self._of_line("")
        return tuple(self._speeds or ())

    def between(
        self, after: tuple[float, float], last: tuple[float, float], line: str
    ) -> list[Lease]:
        """Those on this line after the one entry, up to the other."""
        start = bisect_right(self._order, after, key=_entry)
        stop = bisect_right(self._order, last, start, key=_entry)
        return [lease for lease in self._order[start:stop] if lease.line == line]
