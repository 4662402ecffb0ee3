"""What outlives the policy that made it: the queue, the leases, and all that was learnt."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .capacity import Capacity
from .estimate.estimator import Estimator
from .estimate.newcomers import Newcomers
from .laws.crowds import Crowds
from .laws.reputation import Delivered, FirstUses, Reputation
from .leases import LeasePool
from .network_order import NetworkOrder
from .queue.tickets import TicketQueue


@dataclass(slots=True)
class AdmissionCounts:
    """The totals of `Snapshot`: since the first policy of this server; they survive a switch."""

    offers_total: int = 0
    admitted_small_total: int = 0
    admitted_large_total: int = 0
    completed_total: int = 0
    tickets_issued_total: int = 0
    tickets_expired_total: int = 0
    early_polls_total: int = 0
    refused_total: int = 0


@dataclass(slots=True)
class AdmissionState:
    """All state that outlives the policy that made it."""

    pool: LeasePool = field(default_factory=LeasePool)
    tally: AdmissionCounts = field(default_factory=AdmissionCounts)
    queue: TicketQueue = field(default_factory=TicketQueue)
    estimator: Estimator = field(default_factory=Estimator)
    newcomers: Newcomers = field(default_factory=Newcomers)
    capacity: Capacity = field(default_factory=Capacity)
    reputation: Reputation = field(default_factory=Reputation)
    delivered: Delivered = field(default_factory=Delivered)
    crowds: Crowds = field(init=False)
    network_order: NetworkOrder = field(default_factory=NetworkOrder)
    first_uses: FirstUses = field(default_factory=FirstUses)
    #: No download starts; what runs may finish, new requests are queued.
    closed: bool = False
    #: A server before this one told clients to return by this time at the latest.
    told_before_until_s: float = -math.inf

    def __post_init__(self) -> None:
        self.crowds = Crowds(self.queue, self.pool, self.newcomers, self.estimator)
