"""The table: what is known of every live ticket, packed in columns.

A ticket as a Python object would cost half a kilobyte; in columns it costs about a hundred bytes
and the names of its client. Rows are reused, numbers never are.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from ..contract import ELSEWHERE, TicketRow, TicketState

STATES = tuple(TicketState)
#: Counts of visits stop here.
MOST_POLLS = (1 << 16) - 1
CODES = {state: code for code, state in enumerate(STATES)}
_WAITING = CODES[TicketState.WAITING]
_QUEUED = (_WAITING, CODES[TicketState.READY])
#: Added to the key of a ticket that stands back. Policies give keys between -`BACK_FROM` and this.
BACK = 4e15
#: Keys from here on are of tickets that stand back.
BACK_FROM = BACK / 2.0
#: Rows that a full table grows by, as each column has a price of its own.
_MORE = 256


#: Numbers of a page, as a power of two.
_PAGE_BITS = 7
_IN_PAGE = (1 << _PAGE_BITS) - 1
_BLANK_PAGE = array("i", [-1]) * (1 << _PAGE_BITS)


class RowsByNumber:
    """Which row a number has: a mapping with the few words of `dict` that are asked of it.

    Numbers come one after another, so they need no hashing: pages of rows cost 6 bytes a ticket
    where a dict of a million costs 75. Those of nodes without a leader come from anywhere; they are
    in a dict.
    """

    __slots__ = ("_elsewhere", "_live", "_pages")

    def __init__(self) -> None:
        self._pages: dict[int, array[int]] = {}
        #: How many numbers of each page have a row.
        self._live: dict[int, int] = {}
        self._elsewhere: dict[int, int] = {}

    def __getitem__(self, number: int) -> int:
        """The row of a live ticket; raises KeyError."""
        page = self._pages.get(number >> _PAGE_BITS)
        row = -1 if page is None else page[number & _IN_PAGE]
        return self._elsewhere[number] if row < 0 else row

    def get(self, number: int) -> int | None:
        """The row of a ticket, None unless it lives."""
        page = self._pages.get(number >> _PAGE_BITS)
        row = -1 if page is None else page[number & _IN_PAGE]
        return self._elsewhere.get(number) if row < 0 else row

    def __contains__(self, number: int) -> bool:
        """Whether it lives."""
        return self.get(number) is not None

    def __len__(self) -> int:
        """How many live."""
        return sum(self._live.values()) + len(self._elsewhere)

    def __setitem__(self, number: int, row: int) -> None:
        """A number that has no row yet has this one."""
        if not 0 <= number < ELSEWHERE:
            self._elsewhere[number] = row
            return
        at = number >> _PAGE_BITS
        page = self._pages.get(at)
        if page is None:
            page = self._pages[at] = _BLANK_PAGE[:]
            self._live[at] = 0
        page[number & _IN_PAGE] = row
        self._live[at] += 1

    def pop(self, number: int) -> int:
        """Take a live number out; returns the row that it had."""
        at = number >> _PAGE_BITS
        page = self._pages.get(at)
        if page is None:
            return self._elsewhere.pop(number)
        row, page[number & _IN_PAGE] = self[number], -1
        self._live[at] -= 1
        if not self._live[at]:
            del self._pages[at], self._live[at]
        return row

    def items(self) -> Iterator[tuple[int, int]]:
        """All numbers with their rows."""
        for at, page in self._pages.items():
            first = at << _PAGE_BITS
            for number, row in enumerate(page, first):
                if row >= 0:
                    yield number, row
        yield from self._elsewhere.items()

    def values(self) -> Iterator[int]:
        """All rows in use."""
        return (row for _, row in self.items())


class TicketTable:
    """Columns by row; `rows` finds the row of a number. A free row is blank in all columns."""

    __slots__ = (
        "_free",
        "away",
        "bound",
        "changed_s",
        "client",
        "early",
        "end_bound",
        "end_raw",
        "end_told",
        "expected",
        "file",
        "given_back",
        "issued_s",
        "key",
        "mark",
        "network",
        "number",
        "place",
        "polls",
        "present",
        "priority_class",
        "promise_s",
        "raw",
        "remaining",
        "rows",
        "size",
        "state",
        "subnet",
        "weight",
    )

    def __init__(self) -> None:
        self.rows = RowsByNumber()
        #: Blank rows; the next to be used is the last.
        self._free: list[int] = []
        self.number = array("q")
        self.client: list[str] = []
        self.file: list[str] = []
        self.size = array("q")
        self.remaining = array("q")
        self.weight = array("d")
        self.priority_class: list[str] = []
        #: The crowd that a stranger's ticket counts with, see `policies.laws.crowds`.
        self.network: list[str] = []
        #: The subnet of its client (`Job.subnet`). After a restart that of a known client is empty
        #: until the client asks again.
        self.subnet: list[str] = []
        self.issued_s = array("d")
        self.changed_s = array("d")
        #: Order in the queue, see `TicketQueue`.
        self.key = array("d")
        #: Where the ticket ends in its client's virtual share, see `policies.virtual_sharing`.
        self.mark = array("d")
        #: The return the client was told, in absolute time.
        self.promise_s = array("d")
        #: First estimate of the wait: as the model gave it, as stated, and the stated bound.
        self.raw = array("f")
        #: The first promised return where the owner waits elsewhere, else 0.
        self.away = array("f")
        self.expected = array("f")
        self.bound = array("f")
        #: First estimate of the end, in the same way.
        self.end_raw = array("f")
        self.end_told = array("f")
        self.end_bound = array("f")
        #: The place that its client was shown last, see `policies.estimate.told_places`; 0: none.
        self.place = array("i")
        self.polls = array("H")
        self.early = array("H")
        self.state = bytearray()
        self.present = bytearray()
        #: Whether its start came to nothing once, see `TicketQueue.give_back`.
        self.given_back = bytearray()

    def add(
        self,
        number: int,
        client: str,
        file: str,
        size_bytes: int,
        remaining_bytes: int,
        weight: float,
        priority_class: str,
        issued_s: float,
        changed_s: float,
    ) -> int:
        """Give a waiting ticket a row; returns it."""
        if not self._free:
            self.reserve(1)
        row = self.rows[number] = self._free.pop()
        self.number[row] = number
        self.client[row] = client
        self.file[row] = sys.intern(file)
        self.size[row] = size_bytes
        self.remaining[row] = remaining_bytes
        self.weight[row] = weight
        self.priority_class[row] = sys.intern(priority_class)
        self.issued_s[row] = issued_s
        self.changed_s[row] = changed_s
        self.promise_s[row] = changed_s
        return row

    def reserve(self, count: int) -> None:
        """Let at least `count` rows be free."""
        missing = count - len(self._free)
        if missing <= 0:
            return
        count, first = max(missing, _MORE), len(self.number)
        for column in self._numeric():
            column.frombytes(bytes(count * column.itemsize))
        for names in (self.client, self.file, self.priority_class, self.network, self.subnet):
            names.extend(repeat("", count))
        self.mark[first:] = array("d", repeat(math.inf, count))
        self.state.extend(repeat(_WAITING, count))
        self.present.extend(bytes(count))
        self.given_back.extend(bytes(count))
        self._free[:0] = range(first + count - 1, first - 1, -1)

    def drop(self, number: int) -> None:
        """Forget the ticket and free its row."""
        row = self.rows.pop(number)
        self.client[row] = self.file[row] = self.priority_class[row] = ""
        self.network[row] = self.subnet[row] = ""
        self.key[row] = 0.0
        self.mark[row] = math.inf
        self.raw[row] = self.away[row] = self.expected[row] = self.bound[row] = 0.0
        self.end_raw[row] = self.end_told[row] = self.end_bound[row] = 0.0
        self.place[row] = self.polls[row] = self.early[row] = 0
        self.state[row] = _WAITING
        self.present[row] = self.given_back[row] = 0
        self._free.append(row)

    def view(self, row: int) -> TicketRow:
        """The ticket in this row, as others may see it."""
        state = self.state[row]
        # By place, which costs half of naming the fields: each change of a ticket is told.
        return TicketRow(
            self.number[row],
            self.client[row],
            self.file[row],
            self.size[row],
            self.remaining[row],
            self.weight[row],
            self.issued_s[row],
            STATES[state],
            self.changed_s[row],
            self.polls[row],
            self.early[row],
            self.priority_class[row],
            self.network[row],
            self.key[row] >= BACK_FROM and state in _QUEUED,
        )

    def _numeric(self) -> tuple[array[Any], ...]:
        return (
            *(self.number, self.size, self.remaining, self.weight, self.issued_s, self.changed_s),
            *(self.key, self.mark, self.promise_s, self.raw, self.away, self.expected, self.bound),
            *(self.end_raw, self.end_told, self.end_bound, self.place, self.polls, self.early),
        )
