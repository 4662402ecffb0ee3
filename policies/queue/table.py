"""The table: what is known of every live ticket, packed in columns.

A ticket as a Python object would cost half a kilobyte; in columns it costs about a hundred bytes
and the names of its client. Rows are reused, numbers never are.
"""

from __future__ import annotations

import math
import sys
from array import array
from itertools import repeat
from typing import Any

from ..contract import TicketRow, TicketState

STATES = tuple(TicketState)
#: Counts of visits stop here.
MOST_POLLS = (1 << 16) - 1
CODES = {state: code for code, state in enumerate(STATES)}
#: Added to the key of a ticket that stands back. Policies give keys between -`BACK_FROM` and this.
#: A larger sum would have no digits left for turns between two numbers.
BACK = 2.0**44
#: Keys from here on are of tickets that stand back.
BACK_FROM = BACK / 2.0
#: Rows that a full table grows by, as each column has a price of its own.
_MORE = 256


class TicketTable:
    """Columns by row; `rows` finds the row of a number. A free row is blank in all columns."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
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
        #: The line of a fleet at which its client asks or waits; empty: none that is known.
        self.line: list[str] = []
        self.issued_s = array("d")
        self.changed_s = array("d")
        #: Order in the queue, see `TicketQueue`.
        self.key = array("d")
        #: Where the ticket ends in its client's virtual share, see `policies.virtual_sharing`.
        self.mark = array("d")
        #: The return the client was told, in absolute time.
        self.promise_s = array("d")
        #: When the ticket runs out, in absolute time, if it is ready; infinite: never.
        self.deadline_s = array("d")
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
        self.state = array("B")
        self.present = array("B")
        #: Whether its start came to nothing once, see `TicketQueue.give_back`.
        self.given_back = array("B")
        self._numbers: list[array[Any]] = [
            column for column in vars(self).values() if isinstance(column, array)
        ]
        self._texts = [self.client, self.file, self.priority_class]
        self._texts += [self.network, self.subnet, self.line]

    def add(
        self,
        number: int,
        client: str,
        file: str,
        size_bytes: int,
        remaining_bytes: int,
        weight: float,
        issued_s: float,
        changed_s: float,
        priority_class: str = "",
        network: str = "",
        subnet: str = "",
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
        self.network[row] = sys.intern(network)
        self.subnet[row] = sys.intern(subnet)
        self.issued_s[row] = issued_s
        self.changed_s[row] = self.promise_s[row] = changed_s
        return row

    def reserve(self, count: int) -> None:
        """Let at least `count` rows be free."""
        missing = count - len(self._free)
        if missing <= 0:
            return
        count, first = max(missing, _MORE), len(self.number)
        for column in self._numbers:
            column.frombytes(bytes(count * column.itemsize))
        for names in self._texts:
            names.extend(repeat("", count))
        for times in (self.mark, self.deadline_s):
            times[first:] = array("d", repeat(math.inf, count))
        self._free[:0] = range(first + count - 1, first - 1, -1)

    def drop(self, number: int) -> None:
        """Forget the ticket and free its row."""
        row = self.rows.pop(number)
        for column in self._numbers:
            column[row] = 0
        for names in self._texts:
            names[row] = ""
        self.mark[row] = self.deadline_s[row] = math.inf
        self._free.append(row)

    def view(self, row: int) -> TicketRow:
        """The ticket in this row, as others may see it."""
        state = STATES[self.state[row]]
        # By place, which costs half of naming the fields: each change of a ticket is told.
        return TicketRow(
            self.number[row],
            self.client[row],
            self.file[row],
            self.size[row],
            self.remaining[row],
            self.weight[row],
            self.issued_s[row],
            state,
            self.changed_s[row],
            self.polls[row],
            self.early[row],
            self.priority_class[row],
            self.network[row],
            self.key[row] >= BACK_FROM and state.is_queued,
        )
