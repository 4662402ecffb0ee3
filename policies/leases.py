"""The lease pool: who holds a slot, who goes on without one, and when an unused one is given up.

Laws: a lease holds one slot from `open` to `close`, however many connections ride on it; there is
at most one lease for each (client, file); the counts of small and large leases always equal what
the table holds. A *slotless* lease goes on, but holds no slot, until it takes its share again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field

from .contract import Job, LeaseView


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """One admitted download. Only the pool changes the fields that are counted."""

    id: int
    job: InitVar[Job]
    started_s: float
    ticket: int | None
    large: bool
    client: str = field(init=False)
    file: str = field(init=False)
    #: It began while the line was unknown, for a client that could have been shown a page.
    unwarned: bool = field(init=False)
    size_bytes: int = field(init=False)
    remaining_bytes: int = field(init=False)
    started_bytes: int = field(init=False)
    seen_bytes: int = field(init=False)
    #: What the order counts of it, see `rank_bytes`.
    believed_bytes: int = field(init=False)
    #: The subnet of its client, known or not (`Job.subnet`).
    subnet: str = field(init=False)
    #: The line that carries it, see `Job`.
    line: str = field(init=False)
    weight: float = field(init=False)
    cap_bytes_s: float = field(init=False)
    #: Since when it is paused, in the present stretch; else when it was paused last, or went on.
    stopped_s: float = field(init=False)
    #: It began at once, and its policy has not been told of it yet; see `AdmissionPolicy`.
    fresh: bool = False
    #: Whether its client has never had a byte of it.
    untouched: bool = True
    #: Where it ends in its client's virtual share, see `policies.virtual_sharing`.
    mark: float = math.inf
    slotless: bool = False
    #: Its slot went to another client although it was used, see `policies.laws.crowds`.
    lent: bool = False
    #: The network as a part of whose crowd it counts (`policies.laws.crowds`); empty: none.
    network: str = ""
    connections: int = 1
    #: It only takes what others leave of its line.
    background: bool = False
    #: The client takes at least that: the link held it back.
    cap_is_floor: bool = False
    #: The cap is what its program was seen to read.
    reads: bool = False
    #: What its client takes counts in the usual speed of clients.
    speed_counted: bool = False
    rate_bytes_s: float = 0.0
    #: When it runs out without a connection, since when it has had none, and for how long it had
    #: none before.
    idle_at: float = math.inf
    idle_from_s: float = math.inf
    idled_s: float = 0.0
    #: Rank among the running (Fair): lower goes first; and what its client was taken to take when
    #: that was found.
    key: float = 0.0
    speed_bytes_s: float = 0.0
    #: Its network had more than its share: others that run go first (`policies.preemption`).
    yields: bool = False
    paused: bool = False
    #: It only got its first bytes: its turn is still to come (`policies.first_bytes`).
    opened: bool = False
    #: What it ranked by when others went first; 0 while none does.
    stood_back_bytes: int = 0

    def __post_init__(self, job: Job) -> None:
        self.client, self.file, self.subnet, self.line = job.client, job.file, job.subnet, job.line
        self.unwarned = not job.present
        self.size_bytes = job.size_bytes
        self.remaining_bytes = self.believed_bytes = job.remaining_bytes
        self.started_bytes = self.seen_bytes = job.remaining_bytes
        self.weight, self.cap_bytes_s = job.weight, job.rate_bytes_s
        self.stopped_s = self.started_s

    def took(self, remaining_bytes: int) -> None:
        """So much is left; more than was claimed at first counts as wanted from the start."""
        more = remaining_bytes - self.started_bytes
        if more > 0:
            self.started_bytes += more
            self.seen_bytes += more
        if remaining_bytes < self.started_bytes:
            self.untouched = False
        self.remaining_bytes = remaining_bytes

    @property
    def rank_bytes(self) -> int:
        """What is left of what was believed to be wanted, by the bytes that were delivered.

        What a download gets while it stands back changes no order, up to half of it: otherwise fast
        ones would overtake slow ones.
        """
        left = self.remaining_bytes
        wanted = self.believed_bytes - self.started_bytes + left
        left = wanted if wanted > left else left
        stood_back = self.stood_back_bytes
        return stood_back if 0 < stood_back < 2 * left else left

    def view(self) -> LeaseView:
        """The lease as others may see it."""
        return LeaseView(
            lease=self.id,
            ticket=self.ticket,
            client=self.client,
            file=self.file,
            size_bytes=self.size_bytes,
            remaining_bytes=self.remaining_bytes,
            large=self.large,
            started_s=self.started_s,
            connections=self.connections,
            paused=self.paused,
            rate_bytes_s=self.rate_bytes_s,
        )


class LeasePool:
    """All leases of one server. It knows no limits: policies compare its counts with theirs."""

    def __init__(self, *, can_pause: bool = True) -> None:
        #: Whether a download that runs can be paused; another program that sends it cannot do that.
        self.can_pause = can_pause
        self.leases: dict[int, Lease] = {}
        #: Slots of large leases that most likely are not used, see `policies.laws.reputation`.
        self.doubted = 0
        self._by_key: dict[tuple[str, str], Lease] = {}
        self._idle: list[tuple[float, int]] = []
        self._next = 1
        #: How many are of large jobs, and how many are paused.
        self.large_active = self.paused = 0
        #: Those that only take what others leave.
        self.background: dict[int, Lease] = {}
        self._told_background: set[int] = set()
        #: Large leases without a slot.
        self.slotless: dict[int, Lease] = {}
        #: Large leases that began at once: those that the policy does not know of yet, and those
        #: that have no ticket yet.
        self.fresh: dict[int, Lease] = {}
        self.without_ticket: dict[int, Lease] = {}

    def __len__(self) -> int:
        return len(self.leases)

    @property
    def small_active(self) -> int:
        """Leases of small jobs."""
        return len(self.leases) - self.large_active

    @property
    def slots_used(self) -> int:
        """Leases that hold a slot."""
        return len(self.leases) - len(self.slotless) - self.doubted

    @property
    def large_used(self) -> int:
        """Leases of large jobs that hold a slot."""
        return self.large_active - len(self.slotless) - self.doubted

    def pause(self, lease: Lease, now: float) -> None:
        """It stops; not one that is paused already."""
        lease.paused, lease.stopped_s = True, now
        self.paused += 1

    def resume(self, lease: Lease) -> None:
        """It goes on; only one that is paused."""
        lease.paused = False
        self.paused -= 1

    def set_background(self, leases: Mapping[int, Lease]) -> None:
        """These, and no others, take only what the others leave of the line."""
        for number, lease in self.background.items():
            if number not in leases:
                lease.background = False
        for lease in leases.values():
            lease.background = True
        self.background = dict(leases)

    def background_changes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which leases went to the background since the last call, and which left it."""
        told, now = self._told_background, self.background.keys()
        if told == now:
            return (), ()
        behind = tuple(number for number in now if number not in told)
        ahead = tuple(number for number in told if number not in now and number in self.leases)
        self._told_background = set(now)
        return behind, ahead

    def remove_slot(self, lease: Lease) -> None:
        """The lease goes on without its slot."""
        lease.slotless = True
        self.slotless[lease.id] = lease

    def return_slot(self, lease: Lease) -> None:
        """The lease has a slot again."""
        lease.slotless = lease.lent = False
        self.slotless.pop(lease.id, None)

    def find(self, client: str, file: str) -> Lease | None:
        """The lease this download already has."""
        return self._by_key.get((client, file))

    def open(self, job: Job, now: float, ticket: int | None, large: bool) -> Lease:
        """Give the job a slot, with one connection on it."""
        lease = Lease(self._next, job, now, ticket, large)
        self._next += 1
        self.leases[lease.id] = lease
        self._by_key[(job.client, job.file)] = lease
        self.large_active += large
        return lease

    def attach(self, lease: Lease, now: float) -> None:
        """One more connection rides on the lease."""
        if not lease.connections:
            lease.idled_s += max(0.0, now - lease.idle_from_s)
        lease.connections += 1
        lease.idle_at = lease.idle_from_s = math.inf

    def detach(self, lease: Lease, now: float, idle_s: float) -> None:
        """One connection has ended; without any, the lease lasts `idle_s` more."""
        lease.connections = max(0, lease.connections - 1)
        if lease.connections == 0:
            lease.idle_from_s = min(lease.idle_from_s, now)
            lease.idle_at = now + idle_s
            heapq.heappush(self._idle, (lease.idle_at, lease.id))

    def close(self, lease: Lease) -> None:
        """The slot is free again."""
        del self.leases[lease.id]
        del self._by_key[(lease.client, lease.file)]
        self.fresh.pop(lease.id, None)
        self.large_active -= lease.large
        self.paused -= lease.paused
        self.background.pop(lease.id, None)
        if lease.slotless:
            self.return_slot(lease)
        if lease.ticket is None:
            self.without_ticket.pop(lease.id, None)

    def idled_out(self, now: float, most: int) -> list[Lease]:
        """At most `most` leases that were unused for too long; they stay open until closed."""
        out: list[Lease] = []
        while self._idle and self._idle[0][0] <= now and len(out) < most:
            deadline, number = heapq.heappop(self._idle)
            lease = self.leases.get(number)
            if lease is not None and lease.idle_at == deadline:
                # The same deadline may stand here twice: told once is enough.
                lease.idle_at = math.inf
                out.append(lease)
        return out

    def next_idle(self) -> float | None:
        """When the next unused lease runs out, None if all are in use."""
        while self._idle:
            deadline, number = self._idle[0]
            lease = self.leases.get(number)
            if lease is not None and lease.idle_at == deadline:
                return deadline
            heapq.heappop(self._idle)
        return None
