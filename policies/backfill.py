"""Backfill: which waiting clients start before their turn.

A waiting client has the guard of a running one: once its slack is used up it starts, shortest
first. It comes before all that have slack, so it runs at once and to its end.

A client that comes back shortly before its turn may start ahead of it. Sent away, it is not back
before the least time that is told, and the line may be idle until then. (Related: EASY backfilling,
Lifka 1995, which moves a job forward where that delays no reservation.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from .hooks import AdmissionView
from .keep_alive import most_paused
from .preemption import PREEMPTION, Preemption


@dataclass(frozen=True, slots=True)
class BackfillTuning:
    """Parts and times. What the laws bring: `make laws`."""

    #: Newcomers that are probed at once take this part of the clients that fill the line.
    probed_part: float = 0.1
    #: A poller starts at once rather than be told a wait up to this (or `retry_min_s`), seconds.
    soon_s: float = 5.0
    #: The slack of a waiting client is looked at again after this part of it: the level of the
    #: virtual sharing rises as others leave ...
    look_part: float = 0.5
    #: ... but no sooner than after this, seconds ...
    least_look_s: float = 0.5
    #: ... and no later, seconds: a line may become faster.
    most_look_s: float = 30.0


BACKFILL = BackfillTuning()


class Backfill:
    """Clients that wait in their request by their slack, and pollers that may start ahead.

    `slack_s` tells the slack of a waiting ticket by its row and the time.
    """

    __slots__ = (
        "_admission",
        "_ahead_s",
        "_capacity",
        "_known",
        "_late",
        "_later",
        "_preemption",
        "_slack_s",
        "_table",
    )

    def __init__(
        self,
        admission: AdmissionView,
        preemption: Preemption,
        slack_s: Callable[[int, float], float],
    ) -> None:
        self._admission = admission
        self._capacity = admission.capacity
        self._table = table = admission.queue.table
        self._preemption = preemption
        self._slack_s = slack_s
        #: Until when pollers that started ahead of their turn use up what is spent on probes.
        self._ahead_s = -math.inf
        #: Tickets of clients here: when their slack is looked at next, and those without slack by
        #: their keys.
        self._later: list[tuple[float, int]] = []
        self._late: list[tuple[float, int]] = []
        self._known: set[int] = set()
        for row in table.rows.values():
            if table.present[row] and admission.is_large(table.size[row]):
                self._note(table.number[row], -math.inf)

    # -- waiting clients without slack -------------------------------------------------------------

    def waits(self, row: int, now: float) -> None:
        """A client waits here from now on."""
        if self._table.present[row] and self._table.number[row] not in self._known:
            self._note(self._table.number[row], self._next_look_s(row, now))

    def _note(self, number: int, look_s: float) -> None:
        self._known.add(number)
        heappush(self._later, (look_s, number))

    def _next_look_s(self, row: int, now: float) -> float:
        look_s = BACKFILL.look_part * self._slack_s(row, now)
        return now + min(BACKFILL.most_look_s, max(BACKFILL.least_look_s, look_s))

    def _row(self, number: int) -> int | None:
        """The row of a ticket whose client still waits here."""
        row = self._admission.row(number)
        if row is not None and self._table.present[row]:
            return row
        self._known.discard(number)
        return None

    def late(self, now: float) -> int | None:
        """The shortest of the waiting downloads here that have no slack."""
        while self._later and self._later[0][0] <= now:
            _, number = heappop(self._later)
            row = self._row(number)
            if row is not None and self._slack_s(row, now) <= 0.0:
                heappush(self._late, (self._table.key[row], number))
            elif row is not None:
                self._note(number, self._next_look_s(row, now))
        while self._late:
            _, number = self._late[0]
            row = self._row(number)
            if row is not None and self._slack_s(row, now) <= 0.0:
                return number
            # It has left, or others that came have slowed the virtual sharing down.
            heappop(self._late)
            if row is not None:
                self._note(number, self._next_look_s(row, now))
        return None

    # -- pollers -----------------------------------------------------------------------------------

    def may_start_ahead(self, row: int, now: float) -> bool:
        """Whether a poller may start now if its turn is near.

        In the long run such starts take what is spent on probes, and no more.
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

    def _fill(self) -> float:
        """How many clients fill the line."""
        return self._capacity.demand_bytes_s / self._capacity.typical_client_bytes_s

    def _most_probes(self) -> float:
        return max(1.0, BACKFILL.probed_part * self._fill())

    def most_paused(self) -> float:
        """How many paused downloads the line bears."""
        return most_paused(self._capacity.rate_bytes_s)

    def starts(self, row: int, in_turn: bool, now: float) -> None:
        """A ticket has started."""
        if not (in_turn or self._table.present[row]) and self._capacity.known:
            self._ahead_s = max(self._ahead_s, now) + self._probed_s(row)
