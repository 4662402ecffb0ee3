"""Waiting downloads without slack: the guard for clients that wait inside their request.

A waiting client has the guard of a running one: once its slack is used up it starts, shortest
first. It comes before all that have slack, so it runs at once and to its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from .hooks import AdmissionView


@dataclass(frozen=True, slots=True)
class OverdueTuning:
    """When the slack of a waiting client is looked at again."""

    #: After this part of it: the level of the virtual sharing rises as others leave ...
    look_part: float = 0.5
    #: ... but no sooner than after this, seconds ...
    least_look_s: float = 0.5
    #: ... and no later, seconds: a line may become faster.
    most_look_s: float = 30.0


OVERDUE = OverdueTuning()


class Overdue:
    """Finds the shortest of those that have no slack.

    `slack_s` tells the slack of a waiting ticket by its row and the time.
    """

    def __init__(self, admission: AdmissionView, slack_s: Callable[[int, float], float]) -> None:
        self._admission = admission
        self._table = table = admission.queue.table
        self._slack_s = slack_s
        #: Tickets of clients here: when their slack is looked at next, and those without slack by
        #: their keys.
        self._later: list[tuple[float, int]] = []
        self._late: list[tuple[float, int]] = []
        self._known: set[int] = set()
        for row in table.rows.values():
            if table.present[row] and admission.is_large(table.size[row]):
                self._note(table.number[row], -math.inf)

    def waits(self, row: int, now: float) -> None:
        """A client waits here from now on."""
        if self._table.present[row] and self._table.number[row] not in self._known:
            self._note(self._table.number[row], self._next_look_s(row, now))

    def _note(self, number: int, look_s: float) -> None:
        self._known.add(number)
        heappush(self._later, (look_s, number))

    def _next_look_s(self, row: int, now: float) -> float:
        look_s = OVERDUE.look_part * self._slack_s(row, now)
        return now + min(OVERDUE.most_look_s, max(OVERDUE.least_look_s, look_s))

    def _row(self, number: int) -> int | None:
        """The row of a ticket whose client still waits here."""
        row = self._admission.row(number)
        if row is not None and self._table.present[row]:
            return row
        self._known.discard(number)
        return None

    def first(self, now: float) -> int | None:
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
