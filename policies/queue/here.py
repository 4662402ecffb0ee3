"""Whose clients wait inside their request, in the order of turn, and on which line of a fleet."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

_Entry = tuple[float, int]


class LinesHere:
    """Keys and numbers of waiting tickets by their line; a ticket without one is of the line "".

    `set_line` comes before `add`.
    """

    def __init__(self) -> None:
        self._line_of: dict[int, str] = {}
        self._by_line: dict[str, list[_Entry]] = {}

    def set_line(self, number: int, line: str) -> None:
        """This ticket asks, or is to wait, at such a line; not while it waits."""
        if line:
            self._line_of[number] = line
        else:
            self._line_of.pop(number, None)

    def line_of(self, number: int) -> str:
        """Where it asks or waits."""
        return self._line_of.get(number, "")

    def add(self, entry: _Entry) -> None:
        """Its client waits."""
        insort(self._by_line.setdefault(self.line_of(entry[1]), []), entry)

    def remove(self, entry: _Entry) -> None:
        """It waits no more, or has another key."""
        line = self.line_of(entry[1])
        entries = self._by_line[line]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del self._by_line[line]

    def fill(self, entries: Iterable[_Entry]) -> None:
        """These wait, in their order, and no others."""
        self._by_line.clear()
        for entry in entries:
            self._by_line.setdefault(self.line_of(entry[1]), []).append(entry)

    def lines(self) -> Iterator[tuple[str, Sequence[_Entry]]]:
        """Who waits, line by line."""
        return iter(self._by_line.items())

    def on(self, line: str) -> Sequence[_Entry]:
        """Who waits at this line."""
        return self._by_line.get(line, ())
