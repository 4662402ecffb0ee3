"""Places out of turn, and told times that are kept.

A policy that may pause can let a client start before its turn: that costs the link only the little
which keeps a paused download alive. There are a few such places. They go to those at the door in
the order of the times that they were told, so it can be told when one comes; and a client whose
told time has come starts even when all are taken, within a bound.

A told time is due a little before or after it, spread evenly over the tickets, so that clients
told together do not start together.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

#: A client starts no sooner than after this part of its told wait ...
_FIRST = 0.95
#: ... and no later than after this.
_LAST = 1.1
#: Even spread of consecutive numbers over (0, 1): the golden section (Weyl 1916).
_GOLDEN = 0.6180339887498949
#: How long a place takes to come free, before the first has, seconds. Not sensitive: it is learnt.
_FIRST_INTERVAL_S = 3.0
#: What is learnt from each place that comes free.
_MEMORY = 0.05


def due_s(number: int, issued_s: float, expected_s: float) -> float:
    """When a ticket that was told `expected_s` as it was issued starts at the latest."""
    return issued_s + expected_s * (_FIRST + (_LAST - _FIRST) * (number * _GOLDEN % 1.0))


class ToldTimes:
    """Tickets of clients at the door by when they are due, and how fast places come to them."""

    __slots__ = ("_due", "_interval_s", "_known", "_since_s")

    def __init__(self) -> None:
        self._due: list[tuple[float, int]] = []
        self._known: set[int] = set()
        self._interval_s = _FIRST_INTERVAL_S
        #: Since when the first of them waits for a place.
        self._since_s = math.inf

    def note(self, number: int, due_s: float, now: float) -> None:
        """This ticket is due then; a ticket is due at one time only, however often it is noted."""
        if number in self._known:
            return
        if not self._due:
            self._since_s = now
        self._known.add(number)
        heappush(self._due, (due_s, number))

    def first(self) -> int | None:
        """The one that is due next."""
        return self._due[0][1] if self._due else None

    def forget_first(self) -> None:
        """It has started or left."""
        self._known.discard(heappop(self._due)[1])

    def next_s(self, now: float) -> float | None:
        """When the next one is due; one that is past could not be kept, and waits for an end."""
        return self._due[0][0] if self._due and self._due[0][0] > now else None

    def taken(self, now: float) -> None:
        """One of them got a place out of turn."""
        if self._since_s < now:
            self._interval_s += _MEMORY * (now - self._since_s - self._interval_s)
        self._since_s = now

    def interval_s(self, now: float) -> float:
        """How long it takes until one place more is there."""
        return max(self._interval_s, 0.5 * (now - self._since_s)) if self._due else self._interval_s
