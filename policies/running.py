"""The large downloads that have begun, in the order of their keys, and what fills each line."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from operator import attrgetter

from .capacity import Capacity
from .leases import Lease

_entry = attrgetter("key", "id")


def _own_s(lease: Lease) -> float:
    """How long the rest takes at the speed of its client."""
    return lease.remaining_bytes / lease.speed_bytes_s


#: A line counts as filled by this part of its demand, as sums of speeds are rounded.
ENOUGH = 1.0 - 1e-9


@dataclass(slots=True)
class FilledLine:
    """One line: in order, the keys of leases that take something, and what those before take.

    It goes no further than the lease with which they take `most_bytes_s`.
    """

    most_bytes_s: float
    _keys: list[float] = field(default_factory=list)
    _taken: list[float] = field(default_factory=lambda: [0.0])

    @property
    def is_full(self) -> bool:
        """Whether those so far take all."""
        return self._taken[-1] >= self.most_bytes_s

    @property
    def filled_at(self) -> float:
        """The key of the lease with which the line is full; infinite while it is not."""
        return self._keys[-1] if self.is_full else math.inf

    def add(self, lease: Lease) -> None:
        """The next in order."""
        self._keys.append(lease.key)
        self._taken.append(self._taken[-1] + lease.speed_bytes_s)

    def before(self, key: float) -> float:
        """What those take together that come before a waiting download of this key, bytes/s.

        Of equal ones the running download comes first. Exact up to what fills the line.
        """
        return self._taken[bisect_right(self._keys, key)]


class Running:
    """Leases by `Lease.key`, equal keys by number, each with its `Lease.speed_bytes_s`.

    Call `reorder` after a change of keys or speeds.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._by_id: dict[int, Lease] = {}
        self._by_client: dict[str, list[Lease]] = {}
        self._order: list[Lease] = []
        #: All lines that any of them has, and perhaps more.
        self._lines: set[str] = set()
        #: How many of them have been looked at since `some` began anew.
        self._looked_at = 0
        #: Whether there are keys that are not set. There is no order until `reorder`.
        self.stale = True
        #: Whether anything has changed since downloads were last chosen to run.
        self.changed = True
        #: By line, of the present order.
        self._filled: dict[str, FilledLine] | None = None
        #: Keys in order, and bytes left of all with lower ones.
        self._lefts: tuple[Sequence[float], Sequence[float]] | None = None
        #: Those that take longest by themselves first.
        self._slowest: list[Lease] | None = None
        #: By line, and by how many come before.
        self._room_in_s: dict[tuple[str, int], float] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, lease: Lease) -> bool:
        return lease.id in self._by_id

    def in_order(self) -> Sequence[Lease]:
        """All of them in order. Only while not `stale`."""
        return self._order

    def some(self, most: int) -> list[Lease]:
        """The next ones to be looked at, in turn; all of them while `stale`."""
        if self.stale:
            return list(self._by_id.values())
        start = self._looked_at if self._looked_at < len(self) else 0
        self._looked_at = start + most
        return list(islice(self._by_id.values(), start, start + most))

    def speed_of(self, client: str) -> float:
        """What a client takes with all that it fetches at once, bytes/s."""
        leases = self._by_client.get(client, ())
        if len(leases) == 1:
            return leases[0].speed_bytes_s
        return sum([lease.speed_bytes_s for lease in leases])

    def add(self, lease: Lease) -> None:
        """A lease has begun; its key and its speed are known unless this is stale."""
        self._by_id[lease.id] = lease
        self._by_client.setdefault(lease.client, []).append(lease)
        if not self.stale:
            insort(self._order, lease, key=_entry)
        self.touch(lease)

    def remove(self, lease: Lease) -> None:
        """A lease is over."""
        del self._by_id[lease.id]
        others = self._by_client[lease.client]
        others.remove(lease)
        if not others:
            del self._by_client[lease.client]
        if not self.stale:
            del self._order[bisect_left(self._order, _entry(lease), key=_entry)]
        self.touch(lease)

    def reorder(self) -> None:
        """Keys and speeds have changed."""
        self._order = sorted(self._by_id.values(), key=_entry)
        self._lines = {lease.line for lease in self._order}
        self.stale = False
        self._changes()

    def touch(self, lease: Lease) -> None:
        """A lease has come, gone, or got or lost its connections or its line."""
        self._lines.add(lease.line)
        self._changes()

    def _changes(self) -> None:
        self.changed = True
        self._filled = self._lefts = self._slowest = None
        self._room_in_s.clear()

    # -- only while not stale ----------------------------------------------------------------------

    def first_ones(self, part: float) -> Iterator[tuple[Lease, float, float]]:
        """In order those that take this part of the demand of their lines.

        Each comes with the parts that those before it take, and those up to it.
        """
        demands = {line: ENOUGH * self._capacity.demand_of(line) for line in self._lines}
        taken = dict.fromkeys(demands, 0.0)
        full = 0
        for lease in self._order:
            line = lease.line
            before, demand = taken[line], demands[line]
            if before >= part * demand:
                continue
            after = taken[line] = before + (lease.speed_bytes_s if lease.connections else 0.0)
            yield lease, before / demand, after / demand
            if after >= part * demand:
                full += 1
                if full == len(demands):
                    return

    def filled(self, line: str) -> FilledLine:
        """How far this line is filled."""
        if self._filled is None:
            demand_of = self._capacity.demand_of
            self._filled = {one: FilledLine(ENOUGH * demand_of(one)) for one in self._lines}
            for lease, _, _ in self.first_ones(1.0):
                if lease.connections:
                    self._filled[lease.line].add(lease)
        return self._filled.get(line) or FilledLine(ENOUGH * self._capacity.demand_of(line))

    def left_before(self, key: float) -> float:
        """Bytes that all with lower keys still want."""
        if self._lefts is None:
            lefts = [lease.remaining_bytes for lease in self._order]
            self._lefts = [lease.key for lease in self._order], [*accumulate(lefts, initial=0)]
        keys, sums = self._lefts
        return sums[bisect_left(keys, key)]

    def taken_before(self, key: float, more_bytes: int, line_bytes_s: float) -> int:
        """Bytes that those with lower keys take until the line has carried `more_bytes` too.

        None takes more than its client can: one that reads nothing keeps no other waiting.
        """
        if self._slowest is None:
            self._slowest = sorted(self._order, key=_own_s, reverse=True)
        left, line = self.left_before(key) + more_bytes, line_bytes_s
        for lease in self._slowest:
            # Bytes left may have been looked at since: no speed fills a line that has others left.
            if _own_s(lease) * line <= left or lease.speed_bytes_s >= line:
                break
            if lease.key < key:
                # It is not done by then, and takes its speed for all that time.
                left -= lease.remaining_bytes
                line -= lease.speed_bytes_s
        return max(0, int(left / line * line_bytes_s) - more_bytes)

    def room_in_s(self, line: str, key: float, line_bytes_s: float) -> float:
        """When enough of those with lower keys are done that their line has room for one more.

        The others no longer fill it then. It carries `line_bytes_s`. Those that cannot be paused
        have no order: what ends has had the same as each of the others.
        """
        count = bisect_left(self._order, (key, 0), key=_entry)
        known = self._room_in_s.get((line, count))
        if known is not None:
            return known
        before = [one for one in self._order[:count] if one.line == line and one.connections]
        taken = sum([lease.speed_bytes_s for lease in before])
        most, room_s, done_bytes = ENOUGH * self._capacity.demand_of(line), 0.0, 0
        for others, lease in zip(range(len(before))[::-1], sorted(before, key=_own_s), strict=True):
            if taken < most:
                break
            taken -= lease.speed_bytes_s
            done_bytes += lease.remaining_bytes
            shared = others * lease.remaining_bytes if lease.key == -math.inf else 0
            room_s = max(_own_s(lease), (done_bytes + shared) / line_bytes_s)
        self._room_in_s[line, count] = room_s
        return room_s
