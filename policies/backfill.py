"""Places out of turn: who may have one, and when a waiting client is told that it starts.

A download that starts before its turn runs for a moment and is then paused, which costs the link
only what keeps it alive. So there are as many such places as cost little together; they go by the
told times (`policies.estimate.told_times`), and a told time is the forecast of a turn or a place.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .contract import Forecast
from .estimate.told_times import ToldTimes, due_s
from .hooks import AdmissionView
from .keep_alive import most_paused
from .preemption import PROBE_S, Preemption

#: Newcomers measured at once take no more than this part of the clients that fill the link.
_PROBE_PART = 0.1
#: So many times as many may be paused for the sake of told times,
_OWED_TIMES = 1.5
#: and so many more for each visit, made when it was told, that was in vain.
_VAIN_TIMES = 0.5
#: One that polls starts at once if it would sooner than it is told to come back, and than this,
#: seconds.
_SOON_S = 5.0
#: A client that polls is due from this part of its told time.
_NEARLY = 0.9
#: A turn comes no sooner than after this part of its forecast, whatever came of places.
_TURN_AT_LEAST = 0.85


class Backfill:
    """What a place needs, who is due, and what clients are told."""

    __slots__ = (
        "_admission",
        "_advanced_s",
        "_capacity",
        "_mean_left",
        "_preemption",
        "_queue",
        "_settings",
        "_told",
    )

    def __init__(
        self,
        admission: AdmissionView,
        preemption: Preemption,
        mean_left: Callable[[], float],
    ) -> None:
        #: Bytes that a running download has left in the mean; 0 while none runs.
        self._mean_left = mean_left
        self._admission = admission
        self._queue = admission.queue
        self._capacity = admission.capacity
        self._settings = admission.settings
        self._preemption = preemption
        self._told = ToldTimes()
        #: When those that poll and started before their turn would be measured, one after another.
        self._advanced_s = -math.inf
        table = self._queue.table
        for row in table.rows.values():
            if table.present[row] and admission.is_large(table.size[row]):
                self._told.note(table.number[row], self._due_s(row), math.inf)

    # -- who may have one --------------------------------------------------------------------------

    def may_have_place(self, row: int, now: float) -> bool:
        """Whether this waiting client may start though others come first: it will be paused.

        As long as that is bearable. One whose speed is unknown is measured, not too many at once;
        one whose told time has come is kept waiting only beyond all bounds.
        """
        if not self._capacity.known:
            return False
        owed = self._is_owed(row, now)
        most = self.most_paused()
        if self._preemption.count >= (most * self._owed_times(row) if owed else most):
            return False
        return owed or self._preemption.probes < self._most_probes()

    def may_advance(self, row: int, now: float) -> bool:
        """Whether this client may start now if it would soon: one that polls could not be told.

        Sent away, it is not back before the least time that is told, and the line may be idle
        until then. As much of the line is taken to measure such clients ahead as those at the
        door have in that time, and no more in the long run.
        """
        if self._queue.table.present[row] or not self._capacity.known:
            return False
        if self._preemption.count >= self.most_paused() or self._probes_fill():
            return False
        return self._advanced_s + self._measured_s(row) <= now + self.soon_s

    def _probes_fill(self) -> bool:
        """Whether more that are measured at once would only stand in each other's way."""
        return self._capacity.full and self._preemption.probes >= max(1.0, self._fill())

    @property
    def soon_s(self) -> float:
        """Nobody who polls is sent away for a wait up to this, if it may start."""
        return min(self._settings.retry_min_s, _SOON_S)

    def _measured_s(self, row: int) -> float:
        """For how long this one takes up what is spent on measuring."""
        first_bytes = PROBE_S * self._capacity.typical_client_bytes_s
        part = min(1.0, self._queue.table.remaining[row] / first_bytes)
        return PROBE_S / self._most_probes() * part

    def _is_owed(self, row: int, now: float) -> bool:
        """Whether the time that this client was told has come: its start, or its return."""
        table = self._queue.table
        if table.present[row]:
            return now >= self._due_s(row)
        # The longest time to come back may have cut its return short of its start.
        start_s = table.issued_s[row] + _NEARLY * table.expected[row]
        told_s = max(table.promise_s[row], start_s)
        return table.raw[row] > 0.0 and now >= told_s - self._settings.early_tolerance_s

    def _owed_times(self, row: int) -> float:
        """How many times as many as else may be paused for the sake of this one."""
        table = self._queue.table
        # One that came when it was told, and was sent away again, comes before others.
        vain = 0 if table.present[row] else max(0, table.polls[row] - table.early[row] - 1)
        return _OWED_TIMES + _VAIN_TIMES * vain

    def _due_s(self, row: int) -> float:
        table = self._queue.table
        if table.raw[row] == 0.0:
            return math.inf
        return due_s(table.number[row], table.issued_s[row], table.expected[row])

    def _fill(self) -> float:
        """How many clients fill the link."""
        return self._capacity.demand_bytes_s / self._capacity.typical_client_bytes_s

    def _most_probes(self) -> float:
        return max(1.0, _PROBE_PART * self._fill())

    def most_paused(self) -> float:
        """So many paused leases cost the upkeep that is bearable."""
        return most_paused(self._capacity.rate_bytes_s)

    def next_place(self, now: float) -> tuple[int, ...]:
        """Of the clients that wait here the one that is due first, if it may start."""
        table = self._queue.table
        while (number := self._told.first()) is not None:
            row = self._admission.row(number)
            if row is not None and table.present[row]:
                return (number,) if self.may_have_place(row, now) else ()
            self._told.forget_first()
        return ()

    # -- when --------------------------------------------------------------------------------------

    def next_s(self, now: float) -> float | None:
        """When the next client is due."""
        return self._told.next_s(now)

    def waits(self, row: int, now: float) -> None:
        """A client that waits here has been told its time."""
        if self._queue.table.present[row]:
            self._told.note(self._queue.table.number[row], self._due_s(row), now)

    def starts(self, row: int, in_turn: bool, now: float) -> None:
        """A ticket has started."""
        if in_turn:
            return
        if self._queue.table.present[row]:
            self._told.taken(now)
        elif self._capacity.known:
            self._advanced_s = max(self._advanced_s, now) + self._measured_s(row)

    def forecast(self, row: int, turn_s: float, now: float) -> Forecast:
        """A turn after `turn_s` or a place out of turn, whatever comes first."""
        place_s = self.until_place_s(len(self._queue) - 1, now)
        wait_s = min(turn_s, place_s)
        wait_s = min(wait_s, self._until_due_s(row, now))
        # A turn is known by all that is before it; places come and go.
        return Forecast(wait_s, _TURN_AT_LEAST * wait_s if turn_s < place_s else 0.0)

    def _until_due_s(self, row: int, now: float) -> float:
        """When a client that was told a time before is due; those told since come after it.

        One that polls and came then in vain is the next to have a place.
        """
        table = self._queue.table
        if table.present[row]:
            return max(0.0, self._due_s(row) - now)
        if table.raw[row] == 0.0:
            return math.inf
        due_s = table.issued_s[row] + table.expected[row] - now
        return due_s if due_s > 0.0 else self.until_place_s(0, now)

    def until_place_s(self, before: int, now: float) -> float:
        """When a place out of turn comes, after those who were told a time before."""
        probes_s = PROBE_S * (0.5 + before / self._most_probes())
        beyond = self._preemption.count + before + 1 - self.most_paused()
        held = self._mean_left() if beyond > 0.0 else 0.0
        if held <= 0.0:
            return probes_s
        # A place comes free no faster than the link carries one such download after another.
        interval_s = max(held / self._capacity.rate_bytes_s, self._told.interval_s(now))
        return probes_s + beyond * interval_s
