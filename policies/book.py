"""The ticket book: who waits, in which order, who may start, and who never came.

Laws: a ticket is in exactly one of wait list, ready list and started; numbers grow by one and are
never used twice, not even across `restore`; one client has at most one waiting or ready ticket for
a file; `place` counts those that are before a ticket in the order of turn, ready ones first.

The order of turn is a key given by the policy when the ticket is issued (lower is earlier, equal
keys by number). The book holds tickets; when to move them is the policy's business.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator

from policies.deadlines import Deadlines
from policies.job import Job, TicketRow, TicketState
from policies.line import Line
from policies.shelf import CODES, MOST_POLLS, Shelf

WAITING = CODES[TicketState.WAITING]
READY = CODES[TicketState.READY]
STARTED = CODES[TicketState.STARTED]

#: How many tickets that are over are remembered, to tell a used one from an unknown one.
_REMEMBERED = 10_000

#: (number, remaining_bytes, weight, issued_s) -> key
Rank = Callable[[int, int, float, float], float]


class Book:
    """All live tickets. Methods take rows of `shelf`, which are valid until the ticket ends."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.line = Line()
        #: Ready tickets in order: all of them, and those whose owners wait at the door.
        self.ready: list[tuple[float, int]] = []
        self.here: list[tuple[float, int]] = []
        self.next_number = 1
        #: Key of the latest ticket that came to its turn: the virtual clock of the queue.
        self.served = 0.0
        self.rank: Rank = self.fair_share
        self.ended: OrderedDict[int, TicketRow] = OrderedDict()
        self._index: dict[str, int | tuple[int, ...]] = {}
        self._deadlines = Deadlines()
        self._changed: dict[int, TicketRow | None] | None = None

    def __len__(self) -> int:
        """Tickets that wait or are ready."""
        return len(self.line) + len(self.ready)

    # -- order ---------------------------------------------------------------------------------

    def fair_share(
        self, number: int, remaining_bytes: int, weight: float, issued_s: float
    ) -> float:
        """First come, first served by weight: weight w enters at 1/w of the queue's length.

        As numbers grow with each ticket, only finitely many can overtake a given one.
        """
        if weight == 1.0:
            return float(number)
        return self.served + (number - self.served) / weight

    def set_rank(self, rank: Rank) -> None:
        """Order the queue by another rule; every ticket stays in it."""
        if rank == self.rank:
            return
        self.rank = rank
        # The virtual clock has a meaning for shares only; it starts again at the oldest ticket.
        self.served = min(self.line, default=self.next_number) - 1.0
        self.rerank()

    def rerank(self) -> None:
        """Ask the rule again for every ticket's key."""
        shelf, rows = self.shelf, self.shelf.rows
        waiting = list(self.line)
        ready = [number for _, number in self.ready]
        for number in (*ready, *waiting):
            row = rows[number]
            if shelf.key[row] != -math.inf:
                shelf.key[row] = self._key_of(row)
        self.line = Line()
        for number in sorted(waiting, key=lambda number: (shelf.key[rows[number]], number)):
            row = rows[number]
            self.line.add(shelf.key[row], number, shelf.remaining[row])
        self.ready = sorted((shelf.key[rows[number]], number) for number in ready)
        self.here = [entry for entry in self.ready if shelf.present[rows[entry[1]]]]

    def _key_of(self, row: int) -> float:
        shelf = self.shelf
        return self.rank(
            shelf.number[row], shelf.remaining[row], shelf.weight[row], shelf.issued_s[row]
        )

    def place(self, row: int) -> int:
        """How many are before this ticket, plus one."""
        entry = (self.shelf.key[row], self.shelf.number[row])
        if self.shelf.state[row] == READY:
            return bisect_left(self.ready, entry) + 1
        return len(self.ready) + self.line.rank(*entry) + 1

    # -- coming in -----------------------------------------------------------------------------

    def find(self, client: str, file: str) -> int | None:
        """The row of the place that this client holds for this file."""
        rows = self._index.get(client)
        if rows is None:
            return None
        for row in (rows,) if isinstance(rows, int) else rows:
            if self.shelf.file[row] == file:
                return row
        return None

    def held_by(self, client: str) -> int:
        """How many places this client holds."""
        rows = self._index.get(client)
        return 0 if rows is None else 1 if isinstance(rows, int) else len(rows)

    def issue(self, job: Job, now: float) -> int:
        """Give the job the next number and a place in the wait list; returns its row."""
        number = self.next_number
        self.next_number += 1
        return self._enter(number, job, now, now)

    def restore(self, ticket: TicketRow, now: float) -> int | None:
        """Take up a ticket from elsewhere; its row, None if it is known or over already.

        One that had started is first in the ready list.
        """
        if ticket.number in self.shelf.rows or ticket.number in self.ended:
            return None
        self.next_number = max(self.next_number, ticket.number + 1)
        if ticket.state not in (TicketState.WAITING, TicketState.READY, TicketState.STARTED):
            self._remember(ticket)
            return None
        if self.find(ticket.client, ticket.file) is not None:
            return None
        job = Job(
            ticket.client, ticket.file, ticket.size_bytes, ticket.remaining_bytes, ticket.weight
        )
        row = self._enter(ticket.number, job, ticket.issued_s, now)
        shelf = self.shelf
        shelf.polls[row] = min(ticket.polls, MOST_POLLS)
        shelf.early[row] = min(ticket.early_polls, MOST_POLLS)
        shelf.promise_s[row] = now
        return row

    def _enter(self, number: int, job: Job, issued_s: float, now: float) -> int:
        shelf = self.shelf
        row = shelf.add(number, job, issued_s, now)
        key = shelf.key[row] = self._key_of(row)
        self.line.add(key, number, job.remaining_bytes)
        held = self._index.get(job.client)
        if held is None:
            self._index[job.client] = row
        else:
            self._index[job.client] = (held, row) if isinstance(held, int) else (*held, row)
        self._note(number)
        return row

    # -- moving on -----------------------------------------------------------------------------

    def first_waiting(self) -> int | None:
        """The row whose turn is next in the wait list."""
        first = self.line.first()
        return None if first is None else self.shelf.rows[first[1]]

    def make_ready(self, row: int, now: float, deadline_s: float, first: bool = False) -> None:
        """Move a waiting ticket to the ready list, good until `deadline_s` unless at the door."""
        shelf = self.shelf
        entry = (shelf.key[row], shelf.number[row])
        self.line.remove(*entry)
        if first:
            entry = (-math.inf, entry[1])
            shelf.key[row] = -math.inf
        elif self.rank == self.fair_share:
            self.served = max(self.served, entry[0])
        insort(self.ready, entry)
        if shelf.present[row]:
            insort(self.here, entry)
        self._set_state(row, READY, now)
        self.keep_until(row, deadline_s)

    def move_first(self, row: int) -> None:
        """Put a ready ticket before all others."""
        present = self.shelf.present[row]
        self._unready(row)
        self.shelf.key[row] = -math.inf
        entry = (-math.inf, self.shelf.number[row])
        insort(self.ready, entry)
        if present:
            insort(self.here, entry)

    def keep_until(self, row: int, deadline_s: float) -> None:
        """A ready ticket expires at `deadline_s` (inf: while its owner is at the door)."""
        deadline_s = math.inf if self.shelf.present[row] else deadline_s
        self._deadlines.set(self.shelf.number[row], deadline_s)

    def set_present(self, row: int, present: bool) -> None:
        """Whether the owner waits at the door."""
        shelf = self.shelf
        if bool(shelf.present[row]) == present:
            return
        shelf.present[row] = present
        if shelf.state[row] == READY:
            entry = (shelf.key[row], shelf.number[row])
            if present:
                insort(self.here, entry)
            else:
                del self.here[bisect_left(self.here, entry)]

    def resize(self, row: int, remaining_bytes: int) -> None:
        """The client wants more or less than before; its place follows if size decides it."""
        shelf = self.shelf
        if shelf.remaining[row] == remaining_bytes:
            return
        shelf.remaining[row] = remaining_bytes
        number, old = shelf.number[row], shelf.key[row]
        if shelf.state[row] == WAITING:
            self.line.remove(old, number)
            if self.rank != self.fair_share:
                shelf.key[row] = self._key_of(row)
            self.line.add(shelf.key[row], number, remaining_bytes)

    def reweigh(self, row: int, weight: float) -> None:
        """The client has shown a better preference since; its place follows."""
        shelf = self.shelf
        shelf.weight[row] = weight
        if shelf.state[row] == WAITING:
            number = shelf.number[row]
            self.line.remove(shelf.key[row], number)
            shelf.key[row] = min(shelf.key[row], self._key_of(row))
            self.line.add(shelf.key[row], number, shelf.remaining[row])

    def start(self, row: int, now: float) -> None:
        """The ticket's download runs: it leaves the queue, but stays known until it ends."""
        self._leave(row)
        self._set_state(row, STARTED, now)

    def end(self, row: int, state: TicketState, now: float) -> None:
        """The ticket is over."""
        if self.shelf.state[row] != STARTED:
            self._leave(row)
        shelf = self.shelf
        shelf.state[row] = CODES[state]
        shelf.changed_s[row] = now
        self._remember(shelf.view(row))
        shelf.drop(shelf.number[row])

    def overdue(self, now: float) -> list[int]:
        """Rows of ready tickets that nobody claimed in time; they stay until ended."""
        return [self.shelf.rows[number] for number in self._deadlines.take_due(now)]

    def next_deadline(self) -> float | None:
        """When the next ready ticket runs out."""
        return self._deadlines.next()

    def running_out(self, low_s: float, high_s: float) -> Iterator[int]:
        """Rows of ready tickets whose owners are away and whose time ends between these."""
        for number in self._deadlines.between(low_s, high_s):
            yield self.shelf.rows[number]

    def _leave(self, row: int) -> None:
        shelf = self.shelf
        if shelf.state[row] == READY:
            self._unready(row)
            self._deadlines.drop(shelf.number[row])
        else:
            self.line.remove(shelf.key[row], shelf.number[row])
        client = shelf.client[row]
        held = self._index[client]
        if isinstance(held, int):
            del self._index[client]
        else:
            rest = tuple(other for other in held if other != row)
            self._index[client] = rest[0] if len(rest) == 1 else rest

    def _unready(self, row: int) -> None:
        shelf = self.shelf
        entry = (shelf.key[row], shelf.number[row])
        del self.ready[bisect_left(self.ready, entry)]
        if shelf.present[row]:
            del self.here[bisect_left(self.here, entry)]

    def _set_state(self, row: int, state: int, now: float) -> None:
        self.shelf.state[row] = state
        self.shelf.changed_s[row] = now
        self._note(self.shelf.number[row])

    # -- telling -------------------------------------------------------------------------------

    def row_of(self, number: int) -> TicketRow | None:
        """The ticket as it stands or as it ended, if that is remembered."""
        row = self.shelf.rows.get(number)
        return self.ended.get(number) if row is None else self.shelf.view(row)

    def queue(self, start: int = 0) -> Iterator[TicketRow]:
        """All waiting and ready tickets in the order of turn, without the first `start`."""
        shelf = self.shelf
        for _, number in self.ready[start:]:
            yield shelf.view(shelf.rows[number])
        for number in self.line.numbers_from(max(0, start - len(self.ready))):
            yield shelf.view(shelf.rows[number])

    def changes(self) -> list[TicketRow]:
        """Tickets that changed since the last call; the first call tells all live ones.

        Nothing is collected before the first call, so that a book without a journal costs nothing.
        """
        if self._changed is None:
            self._changed = {}
            return [self.shelf.view(row) for row in self.shelf.rows.values()]
        changed, self._changed = self._changed, {}
        rows = self.shelf.rows
        return [
            self.shelf.view(rows[number]) if row is None else row for number, row in changed.items()
        ]

    def _note(self, number: int, ended: TicketRow | None = None) -> None:
        if self._changed is not None:
            self._changed[number] = ended

    def _remember(self, ticket: TicketRow) -> None:
        self.ended[ticket.number] = ticket
        if len(self.ended) > _REMEMBERED:
            self.ended.popitem(last=False)
        self._note(ticket.number, ticket)
