"""The places that clients are shown: the order of the starts that they were told.

A place never rises. Where the order of turn is not that of arrival, a newcomer may be told to start
sooner than others; these keep their place, as they keep their told time.
"""

from __future__ import annotations

from ..queue.ranked import RankedList
from ..queue.table import TicketTable


class ToldPlaces:
    """Waiting tickets by their told starts; `TicketTable.place` has what each was shown last."""

    def __init__(self, table: TicketTable) -> None:
        self._table = table
        self._order = RankedList()

    def _told_s(self, row: int) -> float:
        return self._table.issued_s[row] + self._table.expected[row]

    def told(self, row: int) -> None:
        """A ticket waits, and its client knows when it starts; it may be noted before."""
        table = self._table
        if table.raw[row] > 0.0 and not table.place[row]:
            self._order.add(self._told_s(row), table.number[row], 0.0)
            table.place[row] = len(self._order)

    def over(self, row: int) -> None:
        """A ticket has started or left."""
        if self._table.place[row]:
            self._order.remove(self._told_s(row), self._table.number[row])
            self._table.place[row] = 0

    def place(self, row: int) -> int | None:
        """How many that wait were told to start sooner, plus one; None before it was told a time.

        It is the place that was shown before where that is less.
        """
        table = self._table
        shown = table.place[row]
        if not shown:
            return None
        before = self._order.rank(self._told_s(row), table.number[row])
        table.place[row] = place = min(shown, before + 1)
        return place
