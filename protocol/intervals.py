"""Sets of byte positions as sorted, disjoint, half-open spans. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Span = tuple[int, int]


class IntervalSet:
    """A set of byte positions. Adjacent spans are merged. O(log n + spans touched)."""

    __slots__ = ("_ends", "_starts", "total")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.total = 0
        for start, end in spans:
            self.add(start, end)

    def __iter__(self) -> Iterator[Span]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def add(self, start: int, end: int) -> int:
        """Add [start, end). Returns how many bytes are new."""
        if end <= start:
            return 0
        low = bisect_left(self._ends, start)
        high = bisect_right(self._starts, end)
        fresh = end - start
        if low < high:
            for at in range(low, high):
                fresh -= max(0, min(end, self._ends[at]) - max(start, self._starts[at]))
            start = min(start, self._starts[low])
            end = max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]
        self.total += fresh
        return fresh

    def total_with(self, spans: Iterable[Span]) -> int:
        """The size of the union with `spans`."""
        total, reached = self.total, 0
        for start, end in sorted(spans):
            start = max(start, reached)
            if end > start:
                if self._starts:
                    total += sum(last - first for first, last in self.holes(start, end))
                else:
                    total += end - start
                reached = end
        return total

    def remove(self, start: int, end: int) -> int:
        """Remove [start, end). Returns how many bytes were in the set."""
        low = bisect_right(self._ends, start)
        high = bisect_left(self._starts, end)
        if end <= start or low >= high:
            return 0
        gone = 0
        starts, ends = [], []
        for at in range(low, high):
            first, last = self._starts[at], self._ends[at]
            gone += min(end, last) - max(start, first)
            if first < start:
                starts.append(first)
                ends.append(start)
            if last > end:
                starts.append(end)
                ends.append(last)
        self._starts[low:high] = starts
        self._ends[low:high] = ends
        self.total -= gone
        return gone

    def covers(self, start: int, end: int) -> bool:
        """Whether all of [start, end) is in the set."""
        at = bisect_right(self._starts, start) - 1
        return end <= start or (at >= 0 and self._ends[at] >= end)

    def overlaps(self, start: int, end: int) -> bool:
        """Whether any byte of [start, end) is in the set."""
        low = bisect_right(self._ends, start)
        return end > start and low < len(self._starts) and self._starts[low] < end

    def holes(self, start: int, end: int) -> list[Span]:
        """The parts of [start, end) outside the set."""
        found: list[Span] = []
        at = bisect_right(self._ends, start)
        while at < len(self._starts) and self._starts[at] < end and start < end:
            if self._starts[at] > start:
                found.append((start, self._starts[at]))
            start = self._ends[at]
            at += 1
        if start < end:
            found.append((start, end))
        return found

    def within(self, start: int, end: int) -> list[Span]:
        """The parts of [start, end) in the set."""
        found: list[Span] = []
        at = bisect_right(self._ends, start)
        while at < len(self._starts) and self._starts[at] < end:
            found.append((max(start, self._starts[at]), min(end, self._ends[at])))
            at += 1
        return found

    def first(self, start: int = 0) -> Span | None:
        """The first span, or its part, from `start` on; None when there is none."""
        at = bisect_right(self._ends, start) if start else 0
        return (max(start, self._starts[at]), self._ends[at]) if at < len(self._starts) else None

    def reach(self, start: int) -> int:
        """The end of the span with `start`; `start` itself when it is outside the set."""
        at = bisect_right(self._starts, start) - 1
        return max(start, self._ends[at]) if at >= 0 and self._ends[at] > start else start
