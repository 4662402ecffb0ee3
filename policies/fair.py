"""Fair: shortest remaining bytes first, slow clients beside them, the link always full.

The downloads with the fewest bytes left run, as many as it takes to fill the link with their own
speeds; the others are paused, or wait at the door. So a finished page or archive leaves room at
once for the next shortest, and a slow client costs no slot that a fast one could use: there are
as many slots as the link has use for (up to `slots_max`). The order is that of `policies.ranks`.

Newcomers run for a moment first, to give them their first bytes and to see what they can take;
some are then paused. As many may be paused as cost the link little to keep alive; the others wait
at the door, and start in turn, or out of turn as they were told (`policies.promises`).

Two bounds keep large jobs alive: waiting is worth bytes (`ageing`), and no started download is
paused longer than `max_pause_s` at a stretch. Remaining bytes count, so a resumed download keeps
its rank.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort

from policies.base import Hall
from policies.book import READY, WAITING
from policies.job import Admit, Advance, Job, Wait
from policies.places import Places
from policies.settings import PolicySettings
from policies.slots import Lease


class FairPolicy(Places):
    """Ranks by remaining bytes; pauses and resumes."""

    name = "fair"
    link_bound = True

    def __init__(
        self, settings: PolicySettings, rng: random.Random, hall: Hall | None = None
    ) -> None:
        super().__init__(settings, rng, hall)
        self._inherited_pauses = False
        #: Waiting tickets whose owners are there, in order; some entries may be stale.
        self._door: list[tuple[float, int]] = []
        self._find_door()
        for row in self._book.shelf.rows.values():
            if self._book.shelf.present[row] and not self._is_small(row):
                self._promises.note(self._book.shelf.number[row], self._due_s(row), math.inf)

    # -- the seam ------------------------------------------------------------------------------

    def advance(self, now: float) -> Advance:
        """See `AdmissionPolicy.advance`."""
        passed = super().advance(now)
        if self._pauses.count >= self._most_paused():
            # Slots there are enough; what a returning client lacks is a place.
            self._idle_since_s = None
        pause, resume = self._choose(now)
        call = passed.call
        if not call and len(self._book) and self._large_room(now) > 0:
            # One may come out of turn, now that it is known how many are paused.
            call = self._next_out_of_turn(now)
        wakes = [passed.wake_at, self._pauses.next_s(self._leases), self._promises.next_s(now)]
        known = [wake for wake in wakes if wake is not None]
        return Advance(
            pause=pause,
            resume=resume,
            idled_out=passed.idled_out,
            expired=passed.expired,
            call=call,
            wake_at=min(known) if known else None,
        )

    def _start_ticket(self, row: int, job: Job, now: float) -> Admit:
        if self._book.shelf.present[row] and not self._in_turn(row, now):
            self._promises.taken(now)
        return super()._start_ticket(row, job, now)

    def _start(self, job: Job, now: float, ticket: int | None, large: bool) -> Admit:
        admit = super()._start(job, now, ticket, large)
        if large:
            self._overtaking.note(job.remaining_bytes, now)
            self._pauses.probe(self._leases[admit.lease], now)
        return admit

    def _close(self, lease: Lease, now: float, done: bool) -> None:
        super()._close(lease, now, done)
        if lease.large:
            self._pauses.drop(lease)

    def _wait(self, row: int, now: float) -> Wait:
        wait = super()._wait(row, now)
        shelf = self._book.shelf
        if shelf.present[row] and not self._is_small(row):
            self._promises.note(shelf.number[row], self._due_s(row), now)
            if shelf.state[row] == WAITING:
                insort(self._door, (shelf.key[row], shelf.number[row]))
        return wait

    def _turn_has_come(self, row: int, now: float) -> bool:
        # Being ready is a matter of order; what counts is whether the link has use for it.
        waiting = self._book.shelf.state[row] == WAITING
        if waiting and not self._is_small(row) and self._may_start(row, now):
            self._make_ready(row, now)
        return super()._turn_has_come(row, now)

    # -- who may start -------------------------------------------------------------------------

    def _may_start(self, row: int, now: float) -> bool:
        if self._large_room(now) <= 0:
            return False
        return self._out_of_turn(row, now) or self._in_turn(row, now)

    def _in_turn(self, row: int, now: float) -> bool:
        """Whether the link has use for this one beside those that come first."""
        shelf = self._book.shelf
        entry = (shelf.key[row], shelf.number[row])
        if entry[0] > self._last_key():
            return False
        typical = self._capacity.typical_client_bytes_s
        demand = self._demand()
        # Those at the door who come first have been called, or will be at once.
        taken = bisect_left(self._book.here, entry) * typical
        for lease in self._order:
            if lease.key >= entry[0]:
                return True
            if lease.connections:
                taken += self._capacity.speed(lease)
            if taken >= demand:
                return False
        return taken < demand

    # -- who runs ------------------------------------------------------------------------------

    def _first_at_door(self) -> int | None:
        """The first in the wait list whose owner is there."""
        shelf = self._book.shelf
        while self._door:
            key, number = self._door[0]
            row = self._queued_row(number)
            known = row is not None and shelf.key[row] == key
            if row is not None and known and shelf.state[row] == WAITING and shelf.present[row]:
                return row
            del self._door[0]
        return None

    def _grow(self, now: float) -> None:
        if math.isfinite(self._capacity.rate_bytes_s):
            # Slots are always free; whoever comes may start if the link has use for it.
            self._extra_ready, self._grown_s = 0, now
        else:
            super()._grow(now)

    def _rerank(self) -> None:
        super()._rerank()
        self._find_door()

    def _find_door(self) -> None:
        shelf, rows = self._book.shelf, self._book.shelf.rows
        waiting = ((shelf.key[rows[number]], number) for number in self._book.line)
        self._door = [entry for entry in waiting if shelf.present[rows[entry[1]]]]

    def _fill_ready(self, now: float) -> None:
        super()._fill_ready(now)
        # Rank may change until the last moment: whoever is before the last ready one is ready too.
        book = self._book
        while book.ready:
            first = book.line.first()
            if first is None or first >= book.ready[-1]:
                return
            self._make_ready(book.shelf.rows[first[1]], now)

    def _call(self, now: float) -> tuple[tuple[int, ...], bool]:
        """Those at the door whose bytes are fewer than what the link is busy with."""
        free = self._large_room(now)
        book, capacity = self._book, self._capacity
        if free <= 0 or not len(book):
            return (), False
        last_key = self._last_key()
        demand = self._demand()
        typical = min(capacity.typical_client_bytes_s, capacity.rate_bytes_s)
        call: list[int] = []
        taken, next_here, at = 0.0, 0, 0
        order = self._order
        while taken < demand and len(call) < free:
            if next_here >= len(book.here):
                # Everybody ready at the door is called; look for more in the wait list.
                row = self._first_at_door()
                if row is None:
                    break
                self._make_ready(row, now)
            key, called = book.here[next_here]
            if not self._is_small(book.shelf.rows[called]):
                if key > last_key:
                    break
                while at < len(order) and order[at].key < key:
                    if order[at].connections:
                        taken += capacity.speed(order[at])
                    at += 1
                if taken >= demand:
                    break
                call.append(called)
                taken += typical
            next_here += 1
        return tuple(call), False

    def _next_out_of_turn(self, now: float) -> tuple[int, ...]:
        """Of the clients at the door the one that is due first, if it may start."""
        shelf = self._book.shelf
        while (number := self._promises.first()) is not None:
            row = self._queued_row(number)
            if row is not None and shelf.present[row]:
                if not self._out_of_turn(row, now):
                    return ()
                if shelf.state[row] != READY:
                    self._make_ready(row, now)
                return (number,)
            self._promises.forget_first()
        return ()

    def _choose(self, now: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which leases stop and which go on, shortest first until the link is full."""
        self._sort()
        self._pauses.come_due(self._leases, now)
        capacity = self._capacity
        typical, most = capacity.typical_client_bytes_s, capacity.rate_bytes_s
        return self._pauses.choose(self._order, self._demand(), typical, most, now)
