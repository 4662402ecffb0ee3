"""Reserve: large jobs never take the last slots, so small ones hardly ever wait (paper A).

No places are kept among large jobs; they are told when to try again.
"""

from __future__ import annotations

from policies.queued import QueuedPolicy


class ReservePolicy(QueuedPolicy):
    """Large jobs hold at most `slots - reserve_small` slots."""

    name = "reserve"

    @property
    def gives_tickets(self) -> bool:
        """Never; tickets taken over from another policy are served first."""
        return False

    @property
    def large_cap(self) -> int:
        """All slots but the reserved ones."""
        return self._slots - self.settings.reserve_small

    def _plain_retry_s(self) -> float:
        settings = self.settings
        return settings.busy_retry_s if settings.come_back_s is None else settings.come_back_s
