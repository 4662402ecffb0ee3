"""Reserve: large jobs never take the last slots, so small ones rarely wait (paper A).

No places are kept among large jobs; they are told when to try again.
"""

from __future__ import annotations

from .hooks import Policy


class ReservePolicy(Policy):
    """Large jobs hold at most `slots - reserve_small` slots; tickets taken over go first."""

    name = "reserve"
    summary = "First come, first served, but small files always find a slot."
    reads = ("reserve_small", "small_below_bytes", "busy_retry_s", "come_back_s")
    gives_tickets = False

    def retry_s(self) -> float:
        """The fixed come-back time where there is one."""
        settings = self.settings
        return settings.busy_retry_s if settings.come_back_s is None else settings.come_back_s
