"""First come, first served: what a plain web server does (paper A, 'HTTP').

Every slot goes to whoever asks while one is free; the others are told to try again. Whoever comes
by soonest after a slot frees gets it, so impatience pays: that is why the other policies exist.
"""

from __future__ import annotations

from policies.queued import QueuedPolicy


class FcfsPolicy(QueuedPolicy):
    """All slots to all jobs, no places."""

    name = "fcfs"

    @property
    def gives_tickets(self) -> bool:
        """Never; tickets taken over from another policy are served first."""
        return False
