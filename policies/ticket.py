"""Ticket: Reserve, plus a place in the queue for every large job that must wait (paper A).

Large jobs start nearly first come, first served; coming back often gains nothing; everybody is
told when. That is what `policies.admission` does by default.
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
