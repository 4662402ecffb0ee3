"""The order of Fair: fewest remaining bytes first, waiting worth bytes, slow clients before all.

A client that takes little more than its equal share of the link comes first, whatever its bytes:
it needs long anyway, and all the others together lose less by it than it would by waiting. All
such clients get up to half of the link.
"""

from __future__ import annotations

import math
import random
from bisect import insort
from operator import attrgetter

from policies.base import Hall
from policies.book import Rank
from policies.job import Admit, Decision, Job
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
#: A head start no file's size outweighs, bytes.
_HEAD_START = 1e15


class ByBytes(QueuedPolicy):
    """Waiting tickets and running leases in one order; subclasses say how many of them run."""

    def __init__(
        self, settings: PolicySettings, rng: random.Random, hall: Hall | None = None
    ) -> None:
        self._credit_bytes_s = 0.0
        super().__init__(settings, rng, hall)
        self._slots = max(settings.slots, settings.slots_max)
        self._capacity = self.hall.capacity
        self._capacity.configure(settings.bandwidth_bytes_s, settings.overbook)
        self._set_credit()
        #: Large leases in the order of their keys (exact after `_sort`).
        self._order = [lease for lease in self._leases.values() if lease.large]
        self._sorted = False
        #: See `_last_key`; None when it must be found again.
        self._last: float | None = None
        self._slow_bytes_s = 0.0

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
        self._rerank()

    def _rerank(self) -> None:
        """What a second is worth has changed, and with it all keys."""
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
        slow = [lease for lease in self._order if self._is_slow(lease)]
        slow.sort(key=_cap)
        left = _SLOW_PART * link
        for lease in slow:
            left -= lease.cap_bytes_s
            if left < 0.0:
                break
            lease.key -= _HEAD_START

    def _is_slow(self, lease: Lease) -> bool:
        return lease.cap_bytes_s <= self._slow_bytes_s and not lease.cap_is_floor

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
            self._last = None

    def _last_key(self) -> float:
        """The rank of the lease whose speed fills the link with those before it; else infinite."""
        self._sort()
        if self._last is None:
            taken, demand, speed = 0.0, self._demand(), self._capacity.speed
            self._last = math.inf
            for lease in self._order:
                if lease.connections:
                    taken += speed(lease)
                if taken >= demand:
                    self._last = lease.key
                    break
        return self._last

    # -- the seam ------------------------------------------------------------------------------

    def observe(self, goodput_bytes_s: float, link_busy: bool, now: float) -> None:
        """See `AdmissionPolicy.observe`."""
        wanted = bool(self._book.here) or any(lease.paused for lease in self._order)
        self._capacity.observe(goodput_bytes_s, link_busy, wanted)
        self._set_credit()
        self._last = None

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
            lease = self._leases[admit.lease]
            if ticket is not None:
                row = self._book.shelf.rows[ticket]
                lease.waited_from_s = self._book.shelf.issued_s[row]
            self._sort()
            lease.key = self._lease_key(lease)
            if lease.cap_bytes_s == math.inf:
                lease.cap_bytes_s = self._capacity.recall(job.client)
                lease.cap_is_floor = self._capacity.recall_is_floor(job.client)
            if self._is_slow(lease):
                self._sorted = False
            insort(self._order, lease, key=_key)
            self._last = None
        return admit

    def _join(self, lease: Lease, now: float) -> Decision:
        self._last = None
        return super()._join(lease, now)

    def _close(self, lease: Lease, now: float, done: bool) -> None:
        super()._close(lease, now, done)
        if lease.large:
            self._order.remove(lease)
            self._last = None
            self._capacity.learn(lease)
