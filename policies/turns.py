"""Turns: which tickets are ready, who of those at the door is called, and who never came.

The ready list grows with the slots and with the measured no-shows, and while slots stay free
although tickets wait; a ready ticket's time to live counts from the return that was promised. Who
waits at the door is called in turn the instant a slot is free, but does not push past an absent
one that is due any moment. Small jobs that found every slot taken come before all large ones.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from itertools import islice

from policies.base import BasePolicy, Hall
from policies.book import READY, WAITING, Rank
from policies.job import Advance, TicketState
from policies.settings import PolicySettings

#: A slot is kept free for an absent ticket whose promised return is this near, seconds.
_DUE_S = 0.5
_MOST_DUE = 200
#: Whose promised return is longer ago than this part of its time to live is late.
_LATE_PART = 0.05
_MOST_LATE = 1_000


class Turns(BasePolicy):
    """The passing of time for tickets in order of the book."""

    #: See `Snapshot`.
    link_bound = False

    def __init__(
        self, settings: PolicySettings, rng: random.Random, hall: Hall | None = None
    ) -> None:
        super().__init__(settings, rng, hall)
        self._book.set_rank(self._rank())
        self._extra_ready = 0
        #: Ready tickets whose owners should have come by now.
        self._late = 0
        self._grown_s = -math.inf
        self._advanced_s: float | None = None
        #: Since when a slot for large jobs has been free although tickets wait.
        self._idle_since_s: float | None = None
        # Pauses that another policy left behind end with the first `advance`.
        self._inherited_pauses = hall is not None

    # -- what a policy decides -----------------------------------------------------------------

    @property
    def gives_tickets(self) -> bool:
        """Whether a large job that must wait gets a ticket now."""
        return True

    def _rank(self) -> Rank:
        return self._book.fair_share

    @property
    def ready_target(self) -> int:
        """How long the ready list should be."""
        base = self.settings.ready_list or max(1, self.large_cap)
        return self._lengthened(base)

    def _lengthened(self, base: int) -> int:
        """Enough ready tickets that as many as `base` are likely to be claimed."""
        expected = math.ceil(base / (1.0 - self._eta.no_show_fraction))
        # Who is late already keeps no place from the next: a ghost holds nobody up.
        return max(expected, base + self._late) + self._extra_ready

    def _may_start(self, row: int, now: float) -> bool:
        """Whether this ready ticket of a large job may take a slot this instant."""
        free = self._large_room(now)
        if free <= 0:
            return False
        shelf = self._book.shelf
        entry = (shelf.key[row], shelf.number[row])
        owed = bisect_left(self._book.here, entry)
        owed += self._due_before(entry, now, free - owed)
        return free > owed

    # -- small jobs that found every slot taken --------------------------------------------------

    def _is_small(self, row: int) -> bool:
        return self._book.shelf.size[row] < self.settings.small_below_bytes

    def _small_may_start(self, row: int, now: float) -> bool:
        """Whether this ready ticket of a small job may take a slot this instant."""
        number = self._book.shelf.number[row]
        return self._slots - len(self._pool) > self._small_owed(now, number)

    def _small_owed(self, now: float, before: float = math.inf) -> int:
        """Slots that small jobs with tickets below `before` will take at once."""
        shelf = self._book.shelf
        owed = 0
        for key, number in self._book.ready:
            if key > -math.inf or number >= before:
                break
            row = shelf.rows[number]
            owed += self._is_small(row) and (bool(shelf.present[row]) or self._is_due(row, now))
        return owed

    def _large_room(self, now: float) -> int:
        """Slots that a large job could take without keeping a small one waiting."""
        free = self.large_free()
        ready = self._book.ready
        if free > 0 and ready and ready[0][0] == -math.inf:
            free = min(free, self._slots - len(self._pool) - self._small_owed(now))
        return free

    def _call_small(self, now: float) -> tuple[int, ...]:
        """Small jobs at the door that may start now."""
        shelf = self._book.shelf
        call: list[int] = []
        for key, number in self._book.here:
            if key > -math.inf:
                break
            row = shelf.rows[number]
            if self._is_small(row) and self._small_may_start(row, now):
                call.append(number)
        return tuple(call)

    # -- time ------------------------------------------------------------------------------------

    def advance(self, now: float) -> Advance:
        """See `AdmissionPolicy.advance`."""
        if self._advanced_s is not None:
            self._eta.waited(len(self._book) * max(0.0, now - self._advanced_s))
        self._advanced_s = now
        idled = self._end_idle(now)
        expired = self._expire(now)
        self._grow(now)
        late_s = (1.0 - _LATE_PART) * self.settings.ticket_ttl_s
        self._late = sum(1 for _ in islice(self._book.running_out(now, now + late_s), _MOST_LATE))
        self._fill_ready(now)
        small = self._call_small(now)
        call, held_for_due = self._call(now)
        wakes = [self._pool.next_idle(), self._book.next_deadline()]
        if held_for_due:
            wakes.append(now + _DUE_S)
        if self._book.line and self.large_free() > 0:
            wakes.append(self._grown_s + self.settings.ready_grow_s)
        if not len(self._book) or self.large_free() <= 0:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now
        known = [wake for wake in wakes if wake is not None]
        return Advance(
            resume=self._end_inherited_pauses(now),
            idled_out=idled,
            expired=expired,
            call=small + call,
            wake_at=min(known) if known else None,
        )

    def _end_inherited_pauses(self, now: float) -> tuple[int, ...]:
        if not self._inherited_pauses:
            return ()
        self._inherited_pauses = False
        paused = [lease for lease in self._leases.values() if lease.paused]
        for lease in paused:
            lease.paused = False
            lease.resumed_s = now
        return tuple(lease.id for lease in paused)

    def _expire(self, now: float) -> tuple[int, ...]:
        shelf = self._book.shelf
        out = []
        for row in self._book.overdue(now):
            out.append(shelf.number[row])
            self._eta.claimed(False)
            if shelf.polls[row]:
                # Newcomers that never come are counted as such.
                self._eta.left()
            self._tally.tickets_expired += 1
            self._book.end(row, TicketState.EXPIRED, now)
        return tuple(out)

    def _grow(self, now: float) -> None:
        """Lengthen the ready list while slots stay free although tickets wait, and shrink back."""
        settings = self.settings
        if self.large_free() <= 0 or not self._book.line:
            if self._extra_ready and now - self._grown_s >= settings.ready_grow_s:
                self._extra_ready = self._extra_ready * 3 // 4
                self._grown_s = now
            elif not self._extra_ready:
                self._grown_s = now
        elif now - self._grown_s >= settings.ready_grow_s:
            # Who takes tickets and never returns must not keep the others from idle slots.
            step = max(1, self.ready_target // 4)
            self._extra_ready = min(self._extra_ready + step, len(self._book))
            self._grown_s = now

    def _fill_ready(self, now: float) -> None:
        book = self._book
        room = self.ready_target - len(book.ready)
        while room > 0:
            row = book.first_waiting()
            if row is None:
                return
            self._make_ready(row, now)
            room -= 1

    def _make_ready(self, row: int, now: float, first: bool = False) -> None:
        promise = max(now, self._book.shelf.promise_s[row])
        self._book.make_ready(row, now, promise + self.settings.ticket_ttl_s, first)

    def _call(self, now: float) -> tuple[tuple[int, ...], bool]:
        """Large jobs at the door that may start now, and whether a slot is kept for one due."""
        free = self._large_room(now)
        call: list[int] = []
        if free <= 0:
            return (), False
        shelf = self._book.shelf
        for entry in self._book.here:
            if len(call) >= free:
                break
            if self._is_small(shelf.rows[entry[1]]):
                continue
            if len(call) + self._due_before(entry, now, free - len(call)) >= free:
                return tuple(call), True
            call.append(entry[1])
        return tuple(call), False

    def _due_before(self, entry: tuple[float, int], now: float, enough: int) -> int:
        """Absent ready tickets of large jobs before this one whose return is due just now.

        Counts up to `enough`, and looks at no more than a few hundred: when so many are due at
        once, whichever come first take all the slots anyway.
        """
        shelf, ttl_s = self._book.shelf, self.settings.ticket_ttl_s
        due = 0
        rows = self._book.running_out(now + ttl_s - _DUE_S, now + ttl_s + _DUE_S)
        for row in islice(rows, _MOST_DUE):
            before = (shelf.key[row], shelf.number[row]) < entry
            due += before and not self._is_small(row)
            if due >= enough:
                break
        return due

    def _is_due(self, row: int, now: float) -> bool:
        """Whether an absent ticket's promised return is due just now."""
        shelf = self._book.shelf
        return not shelf.present[row] and abs(shelf.promise_s[row] - now) <= _DUE_S

    def _queued_row(self, ticket: int) -> int | None:
        row = self._book.shelf.rows.get(ticket)
        if row is None or self._book.shelf.state[row] not in (WAITING, READY):
            return None
        return row
