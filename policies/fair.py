"""Fair: shortest remaining bytes first, slow clients beside them, the link always full.

The downloads with the fewest bytes left run, as many as it takes to fill the link with their own
speeds; the others are paused, or wait at the door. So a finished page or archive leaves room at
once for the next shortest, and a slow client costs no slot that a fast one could use: there are
as many slots as the link has use for (up to `slots_max`).

A client that takes little more than its equal share of the link runs at once, too, whatever its
bytes: it needs long anyway, and all the others together lose less by it than it would by waiting.
All such clients get up to half of the link. To know who is slow, newcomers whose client was never
measured run for a moment first, within bounds.

Two bounds keep large jobs alive: waiting is worth bytes (`ageing`), and no started download is
paused longer than `max_pause_s` at a stretch. Remaining bytes count, so a resumed download keeps
its rank.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from dataclasses import replace
from operator import attrgetter

from policies.base import Hall
from policies.book import WAITING, Rank
from policies.job import Admit, Advance, Job
from policies.overtaking import Overtaking
from policies.pauses import PROBE_S, Pauses
from policies.queued import QueuedPolicy
from policies.settings import PolicySettings
from policies.slots import Lease

_key = attrgetter("key")
_cap = attrgetter("cap_bytes_s")
#: Slow is a client that takes no more than this many equal shares of the link. Delaying it costs it
#: the delay; running it beside N others costs each of them rate / capacity of its time left, half
#: of that in the mean: the two are equal at two shares. Measured: p99 of large downloads in paper
#: A's Experiment 1 at 75 % 587 s with 0, 541 with 1, 466 with 1.5, 478 with 2; processor sharing
#: has 453. The mean falls by 1 % besides.
_SLOW_SHARES = 1.5
#: The part of the link that slow clients may have before shorter downloads.
_SLOW_PART = 0.5
#: How long the first place out of turn takes to come free before one was seen to, seconds; it is
#: learnt from what waits were, this part of it from each.
_FIRST_LEAVE_S, _LEAVE_MEMORY = 3.0, 0.05
#: A head start no file's size outweighs, bytes.
_HEAD_START = 1e15
#: Newcomers that are measured at once, and leases that run just to be kept alive, take no more
#: than these parts of the clients that fill the link (mean in Experiment 2 at 50 %: 1.086 times
#: the lower bound with a tenth for upkeep, 1.067 with this).
_PROBE_PART, _UPKEEP_PART = 0.1, 0.03


class FairPolicy(QueuedPolicy):
    """Ranks by remaining bytes; pauses and resumes."""

    name = "fair"
    link_bound = True

    def __init__(
        self, settings: PolicySettings, rng: random.Random, hall: Hall | None = None
    ) -> None:
        self._credit_bytes_s = 0.0
        super().__init__(settings, rng, hall)
        self._slots = max(settings.slots, settings.slots_max)
        self._capacity = self.hall.capacity
        self._capacity.configure(settings.bandwidth_bytes_s, settings.overbook)
        self._inherited_pauses = False
        self._set_credit()
        #: Large leases in the order of their keys (exact after `_sort`).
        self._order = [lease for lease in self._leases.values() if lease.large]
        self._sorted = False
        self._pauses = Pauses(settings.max_pause_s, settings.min_run_s)
        for lease in self._order:
            if lease.paused:
                self._pauses.inherit(lease)
        self._slow_bytes_s = 0.0
        self._overtaking = Overtaking()
        #: How long it takes until one place more is free out of turn.
        self._leave_s = _FIRST_LEAVE_S

    # -- order ---------------------------------------------------------------------------------

    @property
    def large_cap(self) -> int:
        """Slots that large jobs may hold, running or paused."""
        return self._slots - min(self.settings.reserve_small, self._slots - 1)

    @property
    def ready_target(self) -> int:
        """Fair needs no long ready list: whoever outranks it is made ready besides."""
        base = self.settings.ready_list or max(1, self.settings.slots - self.settings.reserve_small)
        return self._lengthened(base)

    def _rank(self) -> Rank:
        return self._rank_by_bytes

    def _rank_by_bytes(
        self, number: int, remaining_bytes: int, weight: float, issued_s: float
    ) -> float:
        return remaining_bytes / weight + self._credit_bytes_s * issued_s

    def _set_credit(self) -> None:
        """Fix what a second of waiting is worth; again only when the link has changed a lot."""
        link = self._capacity.rate_bytes_s
        wanted = self.settings.ageing * link if math.isfinite(link) else 0.0
        if wanted == self._credit_bytes_s:
            return
        if self._credit_bytes_s and 0.5 < wanted / self._credit_bytes_s < 2.0:
            return
        self._credit_bytes_s = wanted
        self._book.rerank()
        self._sorted = False

    def _lease_key(self, lease: Lease) -> float:
        return lease.remaining_bytes / lease.weight + self._credit_bytes_s * lease.waited_from_s

    def _favour_slow(self) -> None:
        """Give a head start to slow clients, the slowest first, up to half of the link."""
        link = self._capacity.rate_bytes_s
        if not math.isfinite(link):
            return
        everybody = len(self._order) + len(self._book)
        self._slow_bytes_s = _SLOW_SHARES * link / max(1, everybody)
        slow = [lease for lease in self._order if lease.cap_bytes_s <= self._slow_bytes_s]
        slow.sort(key=_cap)
        left = _SLOW_PART * link
        for lease in slow:
            left -= lease.cap_bytes_s
            if left < 0.0:
                break
            lease.key -= _HEAD_START

    def _knows_slow(self, row: int, now: float) -> bool:
        """Whether this waiting client should start out of turn: it is slow, or to be measured."""
        capacity = self._capacity
        if not math.isfinite(capacity.rate_bytes_s):
            return False
        if self._pauses.count >= self._most_paused():
            return False
        speed = capacity.recall(self._book.shelf.client[row])
        if speed < math.inf:
            return speed <= self._slow_bytes_s
        return self._pauses.probes < self._most_probes()

    def _fill(self) -> float:
        """How many clients fill the link."""
        return self._demand() / self._capacity.typical_client_bytes_s

    def _most_probes(self) -> float:
        return max(1.0, _PROBE_PART * self._fill())

    def _most_paused(self) -> float:
        """So many paused leases cost the upkeep that is bearable."""
        settings = self.settings
        return _UPKEEP_PART * self._fill() * settings.max_pause_s / settings.min_run_s

    def _demand(self) -> float:
        """Own speeds of clients that should run together, bytes a second."""
        return self._capacity.demand_bytes_s

    def _sort(self) -> None:
        if not self._sorted:
            for lease in self._order:
                lease.key = self._lease_key(lease)
            self._favour_slow()
            self._order.sort(key=_key)
            self._sorted = True

    # -- the seam ------------------------------------------------------------------------------

    def observe(self, goodput_bytes_s: float, link_busy: bool, now: float) -> None:
        """See `AdmissionPolicy.observe`."""
        wanted = bool(self._book.here) or any(lease.paused for lease in self._order)
        self._capacity.observe(goodput_bytes_s, link_busy, wanted)
        self._set_credit()

    def progress(self, lease: int, now: float, remaining_bytes: int, rate_bytes_s: float) -> None:
        """See `AdmissionPolicy.progress`."""
        super().progress(lease, now, remaining_bytes, rate_bytes_s)
        held = self._leases[lease]
        if held.large:
            self._sorted = False
            self._capacity.measured(held, rate_bytes_s)

    def detach(self, lease: int, now: float, remaining_bytes: int) -> None:
        """See `AdmissionPolicy.detach`."""
        super().detach(lease, now, remaining_bytes)
        self._sorted = False

    def _start_ticket(self, row: int, job: Job, now: float) -> Admit:
        shelf = self._book.shelf
        raw_s = shelf.raw[row]
        if raw_s > 2.0 * PROBE_S:
            # What was laid out in places was off by this much.
            waited_s = now - shelf.issued_s[row]
            self._leave_s *= min(4.0, max(0.25, waited_s / raw_s)) ** _LEAVE_MEMORY
        return super()._start_ticket(row, job, now)

    def _start(self, job: Job, now: float, ticket: int | None, large: bool) -> Admit:
        admit = super()._start(job, now, ticket, large)
        if large:
            self._overtaking.note(job.remaining_bytes, now)
            lease = self._leases[admit.lease]
            if ticket is not None:
                row = self._book.shelf.rows[ticket]
                lease.waited_from_s = self._book.shelf.issued_s[row]
            self._sort()
            lease.key = self._lease_key(lease)
            if lease.cap_bytes_s == math.inf:
                lease.cap_bytes_s = self._capacity.recall(job.client)
            if lease.cap_bytes_s == math.inf:
                self._pauses.probe(lease, now)
            elif lease.cap_bytes_s <= self._slow_bytes_s:
                self._sorted = False
            insort(self._order, lease, key=_key)
        return admit

    def _close(self, lease: Lease, now: float, done: bool) -> None:
        super()._close(lease, now, done)
        if lease.large:
            self._order.remove(lease)
            self._pauses.drop(lease)
            self._capacity.learn(lease)

    def _may_start(self, row: int, now: float) -> bool:
        if self._large_room(now) <= 0:
            return False
        shelf = self._book.shelf
        entry = (shelf.key[row], shelf.number[row])
        self._sort()
        if self._knows_slow(row, now):
            return True
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

    def advance(self, now: float) -> Advance:
        """See `AdmissionPolicy.advance`."""
        passed = super().advance(now)
        pause, resume = self._choose(now)
        next_s = self._pauses.next_s(self._leases)
        wakes = [wake for wake in (passed.wake_at, next_s) if wake is not None]
        return replace(passed, pause=pause, resume=resume, wake_at=min(wakes) if wakes else None)

    # -- who runs ------------------------------------------------------------------------------

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
        self._sort()
        demand = self._demand()
        typical = min(capacity.typical_client_bytes_s, capacity.rate_bytes_s)
        call: list[int] = []
        taken, next_here, at = 0.0, 0, 0
        order = self._order
        while taken < demand and len(call) < free:
            while next_here >= len(book.here):
                # Everybody ready at the door is called; look for more in the wait list.
                row = book.first_waiting()
                if row is None:
                    break
                self._make_ready(row, now)
            if next_here >= len(book.here):
                break
            key, number = book.here[next_here]
            if not self._is_small(book.shelf.rows[number]):
                while at < len(order) and order[at].key < key:
                    if order[at].connections:
                        taken += capacity.speed(order[at])
                    at += 1
                if taken >= demand:
                    break
                call.append(number)
                taken += typical
            next_here += 1
        # One more may come out of turn, as there is always one that has waited longest.
        if len(call) < free and next_here < len(book.here):
            number = book.here[next_here][1]
            if self._knows_slow(book.shelf.rows[number], now):
                call.append(number)
        return tuple(call), False

    def _choose(self, now: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which leases stop and which go on, shortest first until the link is full."""
        self._sort()
        demand = self._demand()
        self._pauses.come_due(self._leases, now)
        return self._pauses.choose(self._order, demand, self._capacity.speed, now)

    # -- when ----------------------------------------------------------------------------------

    def _raw_s(self, row: int, now: float) -> float:
        """Bytes before this one at the speed of the link, stretched by those that overtake."""
        book, shelf = self._book, self._book.shelf
        link = self._capacity.rate_bytes_s
        if not math.isfinite(link):
            return super()._raw_s(row, now)
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
        in_turn_s = before / link / (1.0 - min(0.9, overtaking))
        return min(in_turn_s, self._out_of_turn_s((key, number)))

    def _out_of_turn_s(self, entry: tuple[float, int]) -> float:
        """When a place among the measured and paused ones comes to this ticket at the door."""
        before = bisect_left(self._book.here, entry)
        probes_s = PROBE_S * (0.5 + before / self._most_probes())
        beyond = self._pauses.count + before + 1 - self._most_paused()
        if beyond <= 0.0:
            return probes_s
        return probes_s + beyond * self._leave_s
