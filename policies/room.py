"""How many slots a job could take this instant: what the policy allows, less what leases hold."""

from __future__ import annotations

import math

from .hooks import Policy
from .settings import PolicySettings
from .state import AdmissionState

#: A return that was promised for so near a time is due just now, seconds.
DUE_S = 0.5


class Room:
    """The slots of one policy beside the leases and the queue; it changes neither."""

    def __init__(self, state: AdmissionState, settings: PolicySettings, policy: Policy) -> None:
        self._state = state
        self._pool = state.pool
        self._queue = state.queue
        self._policy = policy
        self.small_below_bytes = settings.small_below_bytes
        #: See the setting; a policy whose link decides shares the line itself.
        self.network_shares = 0 if policy.link_bound else settings.network_shares

    def is_small(self, row: int) -> bool:
        """Whether this ticket never waits for large jobs."""
        return self._queue.table.size[row] < self.small_below_bytes

    def free(self) -> int:
        """Free slots that a job may take; none while the doors are closed."""
        return 0 if self._state.closed else self._policy.slots() - self._pool.slots_used

    def large_free(self) -> int:
        """Slots that a large job could take this instant."""
        unused = self.large_unused()
        return min(0, unused) if self._state.closed else unused

    def large_unused(self) -> int:
        """The same, also while the doors are closed: for downloads that run."""
        # Asked several times at each event: the counts are read once.
        policy, pool = self._policy, self._pool
        used = len(pool.leases) - len(pool.slotless) - pool.doubted
        large = policy.large_slots() - used + pool.small_active
        free = policy.slots() - used
        return large if large < free else free

    def for_large(self, now: float) -> int:
        """Slots that a large job could take without keeping a small one waiting."""
        free = self.large_free()
        first = self._queue.ready.first()
        if free > 0 and first is not None and first[0] == -math.inf:
            free = min(free, self.free() - math.ceil(self.owed_to_small(now)))
        return free

    def for_small(self, now: float, before: float = math.inf) -> bool:
        """Whether a small job may start beside those with tickets below `before`."""
        free = self.free()
        return free > 0 and free > int(self.owed_to_small(now, before, most=free))

    def owed_to_small(self, now: float, before: float = math.inf, most: float = math.inf) -> float:
        """Slots that small jobs with tickets below `before` take now, or in the mean just now.

        Counts to `most`: thousands may be ready. A client that waits here takes its slot at once.
        Clients that are due come one by one, and hold a slot for a moment each: with a slot kept
        for each of them, most would stay empty.
        """
        table, here, due = self._queue.table, 0, 0
        for number in self._queue.ready:
            row = table.rows[number]
            if table.key[row] > -math.inf or number >= before or here >= most:
                break
            if self.is_small(row):
                here += bool(table.present[row])
                due += self.is_due(row, now)
        return here + due * min(1.0, self._state.estimator.held_by_small_s / (2.0 * DUE_S))

    def is_due(self, row: int, now: float) -> bool:
        """Whether an absent ticket's promised return is due just now."""
        table = self._queue.table
        return not table.present[row] and abs(table.promise_s[row] - now) <= DUE_S
