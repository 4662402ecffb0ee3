"""Which bytes of a file have been delivered: a set of half-open intervals."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Coverage:
    """Grows by `add`; knows how many different bytes it holds."""

    __slots__ = ("_starts", "_stops", "total_bytes")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.total_bytes = 0

    def add(self, start: int, stop: int) -> None:
        """Add [start, stop); an empty or inverted interval adds nothing."""
        if stop <= start:
            return
        # Everything from the first interval that ends at or after start, to the last one that
        # begins at or before stop, melts into one.
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        for index in range(first, last):
            self.total_bytes -= self._stops[index] - self._starts[index]
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]
        self.total_bytes += stop - start
