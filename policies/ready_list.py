"""The wait list and the ready list: the rules of Ticket (paper A), which every policy shares.

A large download that must wait gets the next number and stands on the *wait list*. While the *ready
list* is shorter than its target, the first tickets of the wait list move to it. A download starts
when its client presents a ready ticket and a slot for large downloads is free.

| paper A | here |
|---|---|
| threshold of the ready list | `target`: as many as may start, and those whose turn is near |
| unclaimed tickets adjust its size | `target` grows by 1 / (1 - the part of no-shows) |
| it grows while slots stay free, and shrinks | `grow`: by a quarter each `ready_grow_s` |
| time to live of a ready ticket | `make_ready`: `ticket_ttl_s` from the promised return |
| no-show | `expire`: the ticket was not presented in time |

Beyond the paper: a ticket that is late already keeps no place from the next one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .hooks import Policy
from .queue.tickets import READY
from .room import Room
from .settings import PolicySettings
from .state import AdmissionState


@dataclass(frozen=True)
class ReadyTuning:
    """How the ready list follows what happens; the paper gives no figures."""

    #: A return that was promised longer ago than this part of the time to live is late.
    late_part: float = 0.05
    #: Late tickets that are counted: a flood of no-shows makes no more ready than this.
    most_late: int = 1_000
    #: The ready list grows by this part of its target, and by one at least.
    growth: float = 0.25


TUNING = ReadyTuning()


class ReadyList:
    """Moves tickets of the queue from the wait list to the ready list, and out of it unclaimed."""

    def __init__(
        self, state: AdmissionState, settings: PolicySettings, policy: Policy, room: Room
    ) -> None:
        self._state = state
        self._queue = state.queue
        self._estimator = state.estimator
        self._capacity = state.capacity
        self._settings = settings
        self._policy = policy
        self._room = room
        #: What growth has added to the target, and when it did so last.
        self._extra = 0
        self._grown_s = -math.inf
        #: Ready tickets whose owners should have come by now.
        self._late = 0

    @property
    def link_decides(self) -> bool:
        """Whether the link, not the slots, says how many run: then some slot is always free."""
        return self._policy.link_bound and self._capacity.known

    @property
    def target(self) -> int:
        """How long the ready list should be, so that enough tickets are likely to be claimed."""
        # No absent client can be told to return sooner than `retry_min_s`. Tickets whose turn comes
        # before that are ready, or their slots would go to the first client that asks.
        near = self._estimator.turns_within(self._settings.retry_min_s)
        threshold = self._settings.ready_list or self._policy.ready_slots() + near
        claimed = 1.0 - self._estimator.no_show_fraction
        return max(math.ceil(threshold / claimed), threshold + self._late) + self._extra

    def promote(self, now: float, most: int) -> bool:
        """Move tickets from the wait list to the ready list; whether more than `most` are due."""
        queue = self._queue
        if not len(queue.line):
            return False
        target = self.target
        room, forward = target - len(queue.ready), target - queue.forward_ready()
        while forward > 0:
            row = queue.first_waiting()
            if row is None or (room <= 0 and queue.stands_back(row)):
                return False
            if most <= 0:
                return True
            self.make_ready(row, now)
            room, forward, most = room - 1, forward - 1, most - 1
        return False

    def make_ready(self, row: int, now: float, first: bool = False) -> None:
        """Move this ticket to the ready list; it lives from its promised return on."""
        promise_s = max(now, self._queue.table.promise_s[row])
        self._queue.make_ready(row, now, promise_s + self._settings.ticket_ttl_s, first)

    def expire(self, now: float, most: int) -> list[int]:
        """Rows of ready tickets that were not presented in time; no-shows are learnt from them."""
        rows = [row for row in self._queue.overdue(now, most) if not self._may_return(row, now)]
        for row in rows:
            self._estimator.claimed(False)
            if self._queue.table.polls[row]:
                # One that never came back at all is counted among newcomers.
                self._estimator.left()
        return rows

    def _may_return(self, row: int, now: float) -> bool:
        """Whether a server before this one may have told its client a later return.

        Then it stays. One that lost its download (or wants a small file) was told none.
        """
        until_s = self.told_before_until_s(row)
        if now < until_s:
            self._queue.keep_until(row, until_s)
        return now < until_s

    def told_before_until_s(self, row: int) -> float:
        """Until when this ticket stays, as far as a server before this one told its return."""
        table = self._queue.table
        if table.raw[row] or table.given_back[row] or table.key[row] == -math.inf:
            return -math.inf
        return self._state.told_before_until_s + self._settings.ticket_ttl_s

    def presented(self, row: int) -> None:
        """This ticket starts: a ready one of an absent client was claimed."""
        table = self._queue.table
        if table.state[row] == READY and table.polls[row] and not table.present[row]:
            self._estimator.claimed(True)

    def advance(self, now: float) -> None:
        """Grow while slots stay free although tickets wait, and shrink back as slots fill."""
        self._grow(now)
        late_s = (1.0 - TUNING.late_part) * self._settings.ticket_ttl_s
        late = self._queue.count_running_out(now, now + late_s)
        self._late = min(TUNING.most_late, late)

    def _grow(self, now: float) -> None:
        due = now >= self._grown_s + self._settings.ready_grow_s
        if self.link_decides:
            self._extra, self._grown_s = 0, now
        elif self._room.large_free() <= 0 or not self._queue.line:
            if self._extra and due:
                self._extra = int((1.0 - TUNING.growth) * self._extra)
                self._grown_s = now
            elif not self._extra:
                self._grown_s = now
        elif due:
            step = max(1, int(TUNING.growth * self.target))
            self._extra = min(self._extra + step, len(self._queue))
            self._grown_s = now

    def grows_s(self) -> float | None:
        """When the list grows, if a slot is free meanwhile."""
        if not self._queue.line or self.link_decides:
            return None
        return self._grown_s + self._settings.ready_grow_s
