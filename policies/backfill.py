"""Backfill: which waiting clients start before their turn, and when a client is told it starts.

A download that starts before its turn runs for a moment and is then paused, which costs the line
only what keeps it alive. So there are as many such *places* as cost little together. They go by
told times (`policies.estimate.told_times`): a client whose told time has come starts, in turn or
not. A told time is the forecast of a turn or of a place, whichever comes first. (Related: EASY
backfilling, Lifka 1995, which moves a job forward where that delays no reservation.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .contract import Forecast
from .estimate.told_times import ToldTimes, due_s
from .hooks import AdmissionView
from .keep_alive import most_paused
from .preemption import PREEMPTION, Preemption


@dataclass(frozen=True, slots=True)
class BackfillTuning:
    """Parts and factors. What the laws bring: `make laws`."""

    #: Newcomers that are probed at once take this part of the clients that fill the line.
    probed_part: float = 0.1
    #: This many times as many may be paused for the sake of told times ...
    owed_factor: float = 1.5
    #: ... and this many more for each visit, made when it was told, that was in vain.
    vain_factor: float = 0.5
    #: A poller starts at once rather than be told a wait up to this (or `retry_min_s`), seconds.
    soon_s: float = 5.0
    #: A poller is due from this part of its told time.
    poll_due_part: float = 0.9
    #: A turn comes no sooner than after this part of its forecast, whatever comes of places.
    turn_at_least: float = 0.85


BACKFILL = BackfillTuning()


class Backfill:
    """What a place needs, which client is due, and what clients are told."""

    __slots__ = (
        "_admission",
        "_ahead_s",
        "_capacity",
        "_mean_left",
        "_preemption",
        "_table",
        "_told",
    )

    def __init__(
        self, admission: AdmissionView, preemption: Preemption, mean_left: Callable[[], float]
    ) -> None:
        self._admission = admission
        self._capacity = admission.capacity
        self._table = table = admission.queue.table
        self._preemption = preemption
        #: Bytes that a running download has left in the mean; 0 while none runs.
        self._mean_left = mean_left
        self._told = ToldTimes()
        #: Until when pollers that started ahead of their turn use up what is spent on probes.
        self._ahead_s = -math.inf
        for row in table.rows.values():
            if table.present[row] and admission.is_large(table.size[row]):
                self._told.note(table.number[row], self._due_s(row), math.inf)

    # -- who may have a place ----------------------------------------------------------------------

    def may_have_place(self, row: int, now: float) -> bool:
        """Whether this waiting client may start though others come first: it will be paused."""
        if not self._capacity.known:
            return False
        owed, most = self._is_owed(row, now), self.most_paused()
        if self._preemption.count >= (most * self._owed_factor(row) if owed else most):
            return False
        return owed or self._preemption.probes < self._most_probes()

    def may_start_ahead(self, row: int, now: float) -> bool:
        """Whether a poller may start now if its turn is near.

        Sent away, it is not back before the least time that is told, and the line may be idle until
        then. In the long run such starts take what is spent on probes, and no more.
        """
        if self._table.present[row] or not self._capacity.known:
            return False
        fills = self._capacity.full and self._preemption.probes >= max(1.0, self._fill())
        if fills or self._preemption.count >= self.most_paused():
            return False
        return self._ahead_s + self._probed_s(row) <= now + self.soon_s

    @property
    def soon_s(self) -> float:
        """No poller is sent away for a wait up to this, if it may start."""
        return min(self._admission.settings.retry_min_s, BACKFILL.soon_s)

    def _probed_s(self, row: int) -> float:
        """For how long this one takes up what is spent on probes."""
        first_bytes = PREEMPTION.probe_s * self._capacity.typical_client_bytes_s
        part = min(1.0, self._table.remaining[row] / first_bytes)
        return PREEMPTION.probe_s / self._most_probes() * part

    def _is_owed(self, row: int, now: float) -> bool:
        """Whether the time that this client was told has come: its start, or its return."""
        table = self._table
        if table.present[row]:
            return now >= self._due_s(row)
        # The longest time to come back may have cut its return short of its start.
        start_s = table.issued_s[row] + BACKFILL.poll_due_part * table.expected[row]
        told_s = max(table.promise_s[row], start_s)
        return table.raw[row] > 0.0 and now >= told_s - self._admission.settings.early_tolerance_s

    def _owed_factor(self, row: int) -> float:
        table = self._table
        vain = 0 if table.present[row] else max(0, table.polls[row] - table.early[row] - 1)
        return BACKFILL.owed_factor + BACKFILL.vain_factor * vain

    def _due_s(self, row: int) -> float:
        table = self._table
        if table.raw[row] == 0.0:
            return math.inf
        return due_s(table.number[row], table.issued_s[row], table.expected[row])

    def _fill(self) -> float:
        """How many clients fill the line."""
        return self._capacity.demand_bytes_s / self._capacity.typical_client_bytes_s

    def _most_probes(self) -> float:
        return max(1.0, BACKFILL.probed_part * self._fill())

    def most_paused(self) -> float:
        """How many paused downloads the line bears."""
        return most_paused(self._capacity.rate_bytes_s)

    def next_place(self, now: float) -> tuple[int, ...]:
        """Of the clients that wait here the one that is due first, if it may start."""
        while (number := self._told.first()) is not None:
            row = self._admission.row(number)
            if row is not None and self._table.present[row]:
                return (number,) if self.may_have_place(row, now) else ()
            self._told.forget_first()
        return ()

    # -- when --------------------------------------------------------------------------------------

    def next_s(self, now: float) -> float | None:
        """When the next client is due."""
        return self._told.next_s(now)

    def waits(self, row: int, now: float) -> None:
        """A client that waits here has been told its time."""
        if self._table.present[row]:
            self._told.note(self._table.number[row], self._due_s(row), now)

    def starts(self, row: int, in_turn: bool, now: float) -> None:
        """A ticket has started."""
        if in_turn:
            return
        if self._table.present[row]:
            self._told.taken(now)
        elif self._capacity.known:
            self._ahead_s = max(self._ahead_s, now) + self._probed_s(row)

    def forecast(self, row: int, turn_s: float, now: float) -> Forecast:
        """A turn after `turn_s` or a place out of turn, whichever comes first."""
        place_s = self.until_place_s(len(self._admission.queue) - 1, now)
        wait_s = min(turn_s, place_s, self._until_due_s(row, now))
        # A turn is known by all that is before it; places come and go.
        return Forecast(wait_s, BACKFILL.turn_at_least * wait_s if turn_s < place_s else 0.0)

    def _until_due_s(self, row: int, now: float) -> float:
        """When a client that was told a time before is due; those told since come after it."""
        table = self._table
        if table.present[row]:
            return max(0.0, self._due_s(row) - now)
        if table.raw[row] == 0.0:
            return math.inf
        left_s = table.issued_s[row] + table.expected[row] - now
        # A poller that came in vain when it was due is the next to have a place.
        return left_s if left_s > 0.0 else self.until_place_s(0, now)

    def until_place_s(self, before: int, now: float) -> float:
        """When a place comes for one behind `before` others."""
        probes_s = PREEMPTION.probe_s * (0.5 + before / self._most_probes())
        beyond = self._preemption.count + before + 1 - self.most_paused()
        held = self._mean_left() if beyond > 0.0 else 0.0
        if held <= 0.0:
            return probes_s
        # A place comes free no faster than the line carries one such download after another.
        interval_s = max(held / self._capacity.rate_bytes_s, self._told.interval_s(now))
        return probes_s + beyond * interval_s
