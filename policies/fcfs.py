"""First come, first served: what a plain web server does (paper A, 'HTTP').

Every slot goes to the first that asks while one is free; the others are told to try again. The one
that comes by soonest after a slot frees gets it, so impatience pays: that is why the other policies
exist.
"""

from __future__ import annotations

from .hooks import Policy


class FcfsPolicy(Policy):
    """All slots to all jobs, no places; tickets taken over from another policy go first."""

    name = "fcfs"
    summary = "First come, first served, as a plain web server: no queue, no times."
    reads = ("busy_retry_s",)
    gives_tickets = False

    def large_slots(self) -> int:
        """All of them."""
        return self.settings.slots
