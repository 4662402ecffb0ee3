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
from policies.overtaking import Overtaking
from policies.pauses import PROBE_S, Pauses
from policies.promises import Promises, due_s
from policies.ranks import ByBytes
from policies.settings import PolicySettings
from policies.slots import Lease

#: Newcomers that are measured at once, and leases that run just to be kept alive, take no more
#: than these parts of the clients that fill the link (mean in Experiment 2 at 50 %: 1.086 times
#: the lower bound with a tenth for upkeep, 1.067 with this).
_PROBE_PART, _UPKEEP_PART = 0.1, 0.03
#: So many times as many may be paused for the sake of told times.
_OWED_TIMES = 1.5
#: and so many more for each visit, made when it was told, that was in vain.
_VAIN_TIMES = 0.5


class FairPolicy(ByBytes):
    """Ranks by remaining bytes; pauses and resumes."""

    name = "fair"
    link_bound = True

    def __init__(
        self, settings: PolicySettings, rng: random.Random, hall: Hall | None = None
    ) -> None:
        super().__init__(settings, rng, hall)
        self._inherited_pauses = False
        self._pauses = Pauses(settings.max_pause_s, settings.min_run_s)
        for lease in self._order:
            if lease.paused:
                self._pauses.inherit(lease)
        self._overtaking = Overtaking()
        self._promises = Promises()
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

    def _out_of_turn(self, row: int, now: float) -> bool:
        """Whether this waiting client may start though others come first: it will be paused.

        As long as that is bearable. One whose speed is unknown is measured, not too many at once;
        one whose told time has come is kept waiting only beyond all bounds.
        """
        capacity = self._capacity
        if not math.isfinite(capacity.rate_bytes_s):
            return False
        owed = self._is_owed(row, now)
        most = self._most_paused()
        if self._pauses.count >= (most * self._owed_times(row) if owed else most):
            return False
        client = self._book.shelf.client[row]
        slow = capacity.recall(client) <= self._slow_bytes_s
        if owed or (slow and not capacity.recall_is_floor(client)):
            return True
        return self._pauses.probes < self._most_probes()

    def _is_owed(self, row: int, now: float) -> bool:
        """Whether the time that this client was told has come: its start, or its return."""
        shelf = self._book.shelf
        if shelf.present[row]:
            return now >= self._due_s(row)
        told = shelf.raw[row] > 0.0
        return told and now >= shelf.promise_s[row] - self.settings.early_tolerance_s

    def _owed_times(self, row: int) -> float:
        """How many times as many as else may be paused for the sake of this one."""
        shelf = self._book.shelf
        # Who has come when it was told, and was sent away again, comes before others.
        vain = 0 if shelf.present[row] else max(0, shelf.polls[row] - shelf.early[row] - 1)
        return _OWED_TIMES + _VAIN_TIMES * vain

    def _due_s(self, row: int) -> float:
        shelf = self._book.shelf
        if shelf.raw[row] == 0.0:
            return math.inf
        return due_s(shelf.number[row], shelf.issued_s[row], shelf.expected[row])

    def _fill(self) -> float:
        """How many clients fill the link."""
        return self._demand() / self._capacity.typical_client_bytes_s

    def _most_probes(self) -> float:
        return max(1.0, _PROBE_PART * self._fill())

    def _most_paused(self) -> float:
        """So many paused leases cost the upkeep that is bearable."""
        settings = self.settings
        return _UPKEEP_PART * self._fill() * settings.max_pause_s / settings.min_run_s

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

    # -- when ----------------------------------------------------------------------------------

    def _raw_s(self, row: int, now: float) -> float:
        if not math.isfinite(self._capacity.rate_bytes_s):
            return super()._raw_s(row, now)
        forecast_s = self._forecast_s(row, now)
        due_s = self._due_s(row) if self._book.shelf.present[row] else math.inf
        return forecast_s if due_s == math.inf else min(forecast_s, max(0.0, due_s - now))

    def _foresee(self, now: float) -> None:
        if math.isfinite(self._capacity.rate_bytes_s):
            self._check_newcomers(now)
        else:
            super()._foresee(now)

    def _next_raw_s(self, now: float) -> float:
        if not math.isfinite(self._capacity.rate_bytes_s):
            return super()._next_raw_s(now)
        book, shelf = self._book, self._book.shelf
        before = sum(lease.remaining_bytes for lease in self._order) + book.line.total_bytes
        before += sum(shelf.remaining[shelf.rows[number]] for _, number in book.ready)
        in_turn_s = before / self._capacity.rate_bytes_s
        return min(in_turn_s, self._until_place_s(len(book), now))

    def _forecast_s(self, row: int, now: float) -> float:
        """Its turn or a place out of turn, whatever comes first."""
        return min(self._until_turn_s(row), self._until_place_s(len(self._book) - 1, now))

    def _until_turn_s(self, row: int) -> float:
        """Bytes before this one at the speed of the link, stretched by those that overtake."""
        book, shelf = self._book, self._book.shelf
        link = self._capacity.rate_bytes_s
        key, number = shelf.key[row], shelf.number[row]
        self._sort()
        before = sum(lease.remaining_bytes for lease in self._order if lease.key < key)
        for entry in book.ready:
            if entry >= (key, number):
                break
            before += shelf.remaining[shelf.rows[entry[1]]]
        shows = 1.0 - self._eta.no_show_fraction
        if shelf.state[row] == WAITING:
            before += int(shows * book.line.bytes_before(key, number))
        overtaking = self._overtaking.rate_below(shelf.remaining[row]) / link
        return before / link / (1.0 - min(0.9, overtaking))

    def _until_place_s(self, before: int, now: float) -> float:
        """When a place out of turn comes, after those who were told a time before."""
        probes_s = PROBE_S * (0.5 + before / self._most_probes())
        beyond = self._pauses.count + before + 1 - self._most_paused()
        if beyond <= 0.0:
            return probes_s
        return probes_s + beyond * self._promises.interval_s(now)
