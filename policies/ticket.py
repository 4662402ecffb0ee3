"""Ticket: Reserve, plus a place in the queue for every large job that must wait (paper A).

Large jobs start nearly first come, first served; coming back often gains nothing; everybody is
told when. The mechanism is in `queued.py`.
"""

from __future__ import annotations

from policies.queued import QueuedPolicy


class TicketPolicy(QueuedPolicy):
    """Large jobs hold at most `slots - reserve_small` slots and queue for them with tickets."""

    name = "ticket"

    @property
    def large_cap(self) -> int:
        """All slots but the reserved ones."""
        return self._slots - self.settings.reserve_small
