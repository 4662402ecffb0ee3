"""Ticket: Reserve, plus a place in the queue for every large job that must wait (paper A).

Large jobs start nearly in the order in which they came. Coming back often gains nothing, and each
client is told when to return. The wait list, the ready list with its growth, the time to live and
no-shows are in `policies.ready_list`, in the words of the paper; the return is told by
`policies.estimate.retry`, and early visits are punished there. Every policy shares them.
"""

from __future__ import annotations

import math

from .hooks import Policy
from .settings import TICKETS


class TicketPolicy(Policy):
    """Large jobs hold at most `slots - reserve_small` slots and queue for them with tickets."""

    name = "ticket"
    summary = "Strict order: every large download that must wait is given a place and a time."
    reads = ("reserve_small", "small_below_bytes", "busy_retry_s", *TICKETS)

    def spare(self, now: float) -> tuple[int, float]:
        """All slots that are free."""
        return self.admission.large_room(now), math.inf
