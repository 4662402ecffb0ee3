"""The table: what is known of every live ticket, packed in columns.

A ticket as a Python object would cost half a kilobyte; in columns it costs about a hundred bytes
and the names of its client. Rows are reused, numbers never are.
"""

from __future__ import annotations

import math
import sys
from array import array

from policies.contract import Job, TicketRow, TicketState

STATES = tuple(TicketState)
#: Counts of visits stop here.
MOST_POLLS = (1 << 16) - 1
CODES = {state: code for code, state in enumerate(STATES)}
_WAITING = CODES[TicketState.WAITING]


class TicketTable:
    """Columns by row; `rows` finds the row of a number. Whoever adds a row fills all columns."""

    __slots__ = (
        "_free",
        "away",
        "bound",
        "changed_s",
        "client",
        "early",
        "expected",
        "file",
        "given_back",
        "issued_s",
        "key",
        "mark",
        "number",
        "polls",
        "present",
        "priority_class",
        "promise_s",
        "raw",
        "remaining",
        "rows",
        "size",
        "state",
        "weight",
    )

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self._free: list[int] = []
        self.number = array("q")
        self.client: list[str] = []
        self.file: list[str] = []
        self.size = array("q")
        self.remaining = array("q")
        self.weight = array("d")
        self.priority_class: list[str] = []
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
        self.polls = array("H")
        self.early = array("H")
        self.state = bytearray()
        self.present = bytearray()
        #: Whether its start came to nothing once, see `TicketQueue.give_back`.
        self.given_back = bytearray()

    def add(
        self, number: int, job: Job, remaining_bytes: int, issued_s: float, changed_s: float
    ) -> int:
        """Give a waiting ticket a row; returns it."""
        if self._free:
            row = self._free.pop()
            self.number[row] = number
            self.client[row] = job.client
            self.file[row] = sys.intern(job.file)
            self.size[row] = job.size_bytes
            self.remaining[row] = remaining_bytes
            self.weight[row] = job.weight
            self.priority_class[row] = sys.intern(job.priority_class)
            self.issued_s[row] = issued_s
            self.changed_s[row] = changed_s
            self.key[row] = 0.0
            self.mark[row] = math.inf
            self.promise_s[row] = issued_s
            self.raw[row] = self.away[row] = self.expected[row] = self.bound[row] = 0.0
            self.polls[row] = self.early[row] = 0
            self.state[row] = _WAITING
            self.present[row] = self.given_back[row] = 0
        else:
            row = len(self.number)
            self.number.append(number)
            self.client.append(job.client)
            self.file.append(sys.intern(job.file))
            self.size.append(job.size_bytes)
            self.remaining.append(remaining_bytes)
            self.weight.append(job.weight)
            self.priority_class.append(sys.intern(job.priority_class))
            self.issued_s.append(issued_s)
            self.changed_s.append(changed_s)
            self.key.append(0.0)
            self.mark.append(math.inf)
            self.promise_s.append(issued_s)
            self.raw.append(0.0)
            self.away.append(0.0)
            self.expected.append(0.0)
            self.bound.append(0.0)
            self.polls.append(0)
            self.early.append(0)
            self.state.append(_WAITING)
            self.present.append(0)
            self.given_back.append(0)
        self.rows[number] = row
        return row

    def drop(self, number: int) -> None:
        """Forget the ticket and free its row."""
        row = self.rows.pop(number)
        self.client[row] = self.file[row] = ""
        self._free.append(row)

    def view(self, row: int) -> TicketRow:
        """The ticket in this row, as others may see it."""
        return TicketRow(
            number=self.number[row],
            client=self.client[row],
            file=self.file[row],
            size_bytes=self.size[row],
            remaining_bytes=self.remaining[row],
            weight=self.weight[row],
            issued_s=self.issued_s[row],
            state=STATES[self.state[row]],
            changed_s=self.changed_s[row],
            polls=self.polls[row],
            early_polls=self.early[row],
            priority_class=self.priority_class[row],
        )
