"""Fair: shortest remaining bytes first, small jobs at once, the link always full.

The downloads with the fewest bytes left run, as many as it takes to fill the link with their own
speeds; the others are paused, or wait at the door. So a finished page or archive leaves room at
once for the next shortest, and a slow client costs no slot that a fast one could use: there are
as many slots as the link has use for (up to `slots_max`). Two bounds keep large jobs alive:
waiting is worth bytes (`ageing`), and no started download is paused longer than `max_pause_s` at
a stretch. Remaining bytes count, so a resumed download keeps its rank.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_left, insort
from dataclasses import replace
from operator import attrgetter

from policies.base import Hall
from policies.book import WAITING, Rank
from policies.job import Admit, Advance, Job
from policies.queued import QueuedPolicy
from policies.settings import PolicySettings
from policies.slots import Lease

_key = attrgetter("key")
#: Bins of log2(size) for the load that overtakes.
_BINS = 41
_LOAD_MEMORY_S = 60.0


class FairPolicy(QueuedPolicy):
    """Ranks by remaining bytes; pauses and resumes."""

    name = "fair"

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
        #: (when its pause must end, lease) and (when its forced run may end, lease).
        self._stopped: list[tuple[float, int]] = []
        for lease in self._order:
            if lease.paused:
                lease.pause_due_s = min(lease.pause_due_s, lease.stopped_s + settings.max_pause_s)
                heapq.heappush(self._stopped, (lease.pause_due_s, lease.id))
        self._paused_count = len(self._stopped)
        self._forced: dict[int, float] = {}
        self._load = [0.0] * _BINS
        self._load_s = 0.0

    # -- order ---------------------------------------------------------------------------------

    @property
    def large_cap(self) -> int:
        """Slots that large jobs may hold, running or paused."""
        return self._slots - min(self.settings.reserve_small, self._slots - 1)

    @property
    def ready_target(self) -> int:
        """Fair needs no long ready list: whoever outranks it is made ready besides."""
        base = self.settings.ready_list or max(1, self.settings.slots - self.settings.reserve_small)
        return math.ceil(base / (1.0 - self._eta.no_show_fraction)) + self._extra_ready

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

    def _demand(self) -> float:
        """Own speeds of clients that should run together, bytes a second."""
        return self._capacity.demand_bytes_s

    def _sort(self) -> None:
        if not self._sorted:
            for lease in self._order:
                lease.key = self._lease_key(lease)
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

    def _start(self, job: Job, now: float, ticket: int | None, large: bool) -> Admit:
        admit = super()._start(job, now, ticket, large)
        if large:
            self._note_load(job.remaining_bytes, now)
            lease = self._leases[admit.lease]
            if ticket is not None:
                row = self._book.shelf.rows[ticket]
                lease.waited_from_s = self._book.shelf.issued_s[row]
            lease.key = self._lease_key(lease)
            self._sort()
            insort(self._order, lease, key=_key)
        return admit

    def _close(self, lease: Lease, now: float, done: bool) -> None:
        super()._close(lease, now, done)
        if lease.large:
            self._order.remove(lease)
            self._paused_count -= lease.paused
            self._capacity.learn(lease)
            self._forced.pop(lease.id, None)

    def _may_start(self, row: int, now: float) -> bool:
        if self.large_free() <= 0:
            return False
        shelf = self._book.shelf
        entry = (shelf.key[row], shelf.number[row])
        self._sort()
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
        wakes = [wake for wake in (passed.wake_at, self._next_force()) if wake is not None]
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
        free = self.large_free()
        book, capacity = self._book, self._capacity
        if free <= 0 or not len(book):
            return (), False
        self._sort()
        demand = self._demand()
        typical = min(capacity.typical_client_bytes_s, capacity.rate_bytes_s)
        call: list[int] = []
        taken, at = 0.0, 0
        order = self._order
        while taken < demand and len(call) < free:
            while len(call) >= len(book.here):
                # Everybody ready at the door is called; look for more in the wait list.
                row = book.first_waiting()
                if row is None:
                    break
                self._make_ready(row, now)
            candidate = book.here[len(call)] if len(call) < len(book.here) else None
            if candidate is None:
                break
            while at < len(order) and order[at].key < candidate[0]:
                if order[at].connections:
                    taken += capacity.speed(order[at])
                at += 1
            if taken >= demand:
                break
            call.append(candidate[1])
            taken += typical
        return tuple(call), False

    def _choose(self, now: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which leases stop and which go on, shortest first until the link is full."""
        self._sort()
        capacity, settings = self._capacity, self.settings
        demand = self._demand()
        pause: list[int] = []
        resume: list[int] = []
        self._force(now)
        taken = 0.0
        for lease in self._order:
            runs = taken < demand or lease.id in self._forced
            if runs and lease.connections:
                taken += capacity.speed(lease)
            if runs and lease.paused:
                lease.paused = False
                lease.resumed_s = now
                self._paused_count -= 1
                resume.append(lease.id)
            elif not runs and not lease.paused:
                lease.paused = True
                self._paused_count += 1
                lease.stopped_s = now
                lease.pause_due_s = now + settings.max_pause_s
                heapq.heappush(self._stopped, (lease.pause_due_s, lease.id))
                pause.append(lease.id)
        return tuple(pause), tuple(resume)

    def _force(self, now: float) -> None:
        """Let run for a moment whoever has been paused as long as is bearable."""
        for number in [number for number, until in self._forced.items() if until <= now]:
            del self._forced[number]
        while self._stopped and self._stopped[0][0] <= now:
            due, number = heapq.heappop(self._stopped)
            lease = self._leases.get(number)
            # An entry of an earlier pause is due before the present one.
            if lease is not None and lease.paused and lease.pause_due_s == due:
                self._forced[number] = now + self.settings.min_run_s

    def _next_force(self) -> float | None:
        while self._stopped:
            due, number = self._stopped[0]
            lease = self._leases.get(number)
            if lease is not None and lease.paused and lease.pause_due_s == due:
                break
            heapq.heappop(self._stopped)
        first = self._stopped[0][0] if self._stopped else math.inf
        first = min(first, min(self._forced.values(), default=math.inf))
        return None if first == math.inf else first

    # -- when ----------------------------------------------------------------------------------

    def _note_load(self, remaining_bytes: int, now: float) -> None:
        decay = math.exp(-max(0.0, now - self._load_s) / _LOAD_MEMORY_S)
        self._load_s = now
        self._load = [load * decay for load in self._load]
        self._load[min(_BINS - 1, remaining_bytes.bit_length())] += remaining_bytes

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
        bins = min(_BINS - 1, shelf.remaining[row].bit_length())
        overtaking = sum(self._load[:bins]) / _LOAD_MEMORY_S / link
        return before / link / (1.0 - min(0.9, overtaking))
