"""What all policies share: the slot pool, the life of a lease, and the counts.

`queued.py` adds the queue; a policy of its own says how many of the slots large jobs may take
(`large_cap`) and whether they get tickets. State lives in `Hall`, so that another policy, or the
same one with other settings, takes it over whole.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.book import Book
from policies.capacity import Capacity
from policies.eta import Estimator
from policies.idlers import Idlers
from policies.job import (
    Admit,
    Decision,
    Job,
    LeaseView,
    Reason,
    Refuse,
    TicketState,
    Wait,
)
from policies.settings import PolicySettings
from policies.slots import Lease, SlotPool

#: A download that took this much, or a tenth of what it wanted, is in earnest.
_TAKEN_BYTES = 1 << 20
#: A client that reconnects at once, for ranges or after a broken line, keeps its slot anyway.
_SHORTEST_IDLE = 0.25


@dataclass(slots=True)
class Tally:
    """Counts since the first policy of this server was built; they survive a switch."""

    offers: int = 0
    admitted_small: int = 0
    admitted_large: int = 0
    completed: int = 0
    tickets_issued: int = 0
    tickets_expired: int = 0
    early_polls: int = 0
    refused: int = 0


@dataclass(slots=True)
class Hall:
    """All state of admission that outlives the policy that made it."""

    pool: SlotPool = field(default_factory=SlotPool)
    tally: Tally = field(default_factory=Tally)
    book: Book = field(default_factory=Book)
    eta: Estimator = field(default_factory=Estimator)
    capacity: Capacity = field(default_factory=Capacity)
    idlers: Idlers = field(default_factory=Idlers)


class BasePolicy(ABC):
    """Leases and counts; keeps no places. Subclasses add who may start."""

    name = "base"

    def __init__(
        self, settings: PolicySettings, rng: random.Random, hall: Hall | None = None
    ) -> None:
        self.settings = settings
        self.hall = hall if hall is not None else Hall()
        self._rng = rng
        self._pool = self.hall.pool
        self._leases = self._pool.leases
        self._tally = self.hall.tally
        self._book = self.hall.book
        self._eta = self.hall.eta
        self._slots = settings.slots

    # -- what a policy decides -------------------------------------------------------------

    @property
    def mode(self) -> str:
        """The mode in one word, for policies that change it."""
        return self.name

    @property
    def large_cap(self) -> int:
        """Slots that large jobs may hold at once."""
        return self._slots

    def is_large(self, job: Job) -> bool:
        """Large jobs are those that may have to wait for small ones (paper A: 20 KB)."""
        return job.size_bytes >= self.settings.small_below_bytes

    def large_free(self) -> int:
        """Slots that a large job could take this instant."""
        pool = self._pool
        return min(self.large_cap - pool.large_active, self._slots - len(pool))

    @abstractmethod
    def _offer_large(self, job: Job, now: float, ticket: int | None) -> Decision: ...

    def _offer_small(self, job: Job, now: float) -> Decision:
        if len(self._leases) < self._slots or self._make_room(now):
            return self._start(job, now, None, False)
        return Wait(self.settings.busy_retry_s)

    def _make_room(self, now: float) -> bool:
        """A small job found every slot taken: whether there is one for it after all."""
        return False

    def _plain_retry_s(self) -> float:
        return self.settings.busy_retry_s

    # -- the seam ----------------------------------------------------------------------------

    def admit_small(self, now: float) -> bool:
        """See `AdmissionPolicy.admit_small`."""
        if len(self._leases) < self._slots or self._make_room(now):
            self._tally.admitted_small += 1
            return True
        return False

    def offer(self, job: Job, now: float, ticket: int | None = None) -> Decision:
        """See `AdmissionPolicy.offer`."""
        self._tally.offers += 1
        lease = self._pool.find(job.client, job.file)
        if lease is not None:
            return self._join(lease, now)
        if self.is_large(job):
            return self._offer_large(job, now, ticket)
        return self._offer_small(job, now)

    def progress(self, lease: int, now: float, remaining_bytes: int, rate_bytes_s: float) -> None:
        """See `AdmissionPolicy.progress`."""
        held = self._leases[lease]
        held.remaining_bytes = remaining_bytes
        held.rate_bytes_s = rate_bytes_s

    def detach(self, lease: int, now: float, remaining_bytes: int) -> None:
        """See `AdmissionPolicy.detach`."""
        held = self._leases[lease]
        held.remaining_bytes = remaining_bytes
        self._pool.detach(held, now, self._kept_s(held, now))

    def _kept_s(self, held: Lease, now: float) -> float:
        """How long the slot stays with a download that has lost its last connection.

        Who has hardly taken anything keeps it no longer than it used it, all times without a
        connection together, so that asking and hanging up at once, even again and again, holds
        little up; and each time that such a slot ran out, the next is kept half as long. A small
        download is sooner begun anew than resumed: its slot is not kept.
        """
        if not held.large:
            return 0.0
        whole_s = self.settings.lease_idle_s
        if _in_earnest(held):
            return whole_s
        shortest_s = _SHORTEST_IDLE * whole_s * 0.5 ** self.hall.idlers.times(held.client)
        used_s = now - held.started_s - held.idled_s
        return min(whole_s, max(0.0, max(shortest_s, used_s) - held.idled_s))

    def release(self, lease: int, now: float, done: bool) -> None:
        """See `AdmissionPolicy.release`."""
        self._close(self._leases[lease], now, done)

    def observe(  # noqa: B027 - most policies do not care
        self, goodput_bytes_s: float, link_busy: bool, now: float
    ) -> None:
        """See `AdmissionPolicy.observe`."""

    def leases(self) -> Sequence[LeaseView]:
        """See `AdmissionPolicy.leases`."""
        return [lease.view() for lease in self._leases.values()]

    # -- the life of a lease -----------------------------------------------------------------

    def _join(self, lease: Lease, now: float) -> Decision:
        if lease.connections >= self.settings.connections_per_lease:
            return self._refuse(Reason.TOO_MANY_CONNECTIONS, self.settings.busy_retry_s)
        self._pool.attach(lease, now)
        return Admit(lease.id, lease.ticket, joined=True)

    def _start(self, job: Job, now: float, ticket: int | None, large: bool) -> Admit:
        lease = self._pool.open(job, now, ticket, large)
        if large:
            self._tally.admitted_large += 1
        else:
            self._tally.admitted_small += 1
        return Admit(lease.id, ticket)

    def _close(self, lease: Lease, now: float, done: bool) -> None:
        self._pool.close(lease)
        self._tally.completed += done
        if done:
            self.hall.idlers.used(lease.client)
        if lease.large and _in_earnest(lease):
            self._eta.ended(lease, now)
            if lease.ticket is None:
                self._eta.newcomers.learn(True)
        if lease.ticket is not None:
            row = self._book.shelf.rows[lease.ticket]
            self._book.end(row, TicketState.DONE if done else TicketState.EXPIRED, now)

    def _end_idle(self, now: float) -> tuple[int, ...]:
        idled = self._pool.idled_out(now)
        for lease in idled:
            if lease.large and not _in_earnest(lease):
                if not self.hall.idlers.times(lease.client):
                    self._eta.newcomers.learn(False)
                self.hall.idlers.idled(lease.client)
            self._close(lease, now, False)
        return tuple(lease.id for lease in idled)

    def _refuse(self, reason: Reason, retry_after_s: float | None = None) -> Refuse:
        self._tally.refused += 1
        return Refuse(reason, retry_after_s)


def _in_earnest(lease: Lease) -> bool:
    """Whether the download took enough to be believed."""
    taken = lease.started_bytes - lease.remaining_bytes
    return taken >= min(_TAKEN_BYTES, lease.started_bytes // 10)
