"""What a byte costs a slot: the mean over the downloads that started lately, each counted once.

Those that hold slots at one moment do not tell: slow ones hold theirs for longer, so there are more
of them than among those to come, and the few fast ones take most of what is carried. So downloads
count from when they were first seen, and go on to count when they are over; when the line changes,
which those that run show together, the pace of those that are over is taken to have changed alike.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict
from collections.abc import Iterable

#: At least so many of the latest are remembered.
_LEAST = 100
#: So many must tell of a change of the line.
_TOLD_BY = 4
#: How uneven they are taken to be at first, as of so many.
_UNEVEN, _GUESSED = 0.25, 4


class Paces:
    """Seconds of a slot for a byte, by lease, about in the order of their start."""

    __slots__ = ("_forgotten", "_paces")

    def __init__(self) -> None:
        self._paces: OrderedDict[int, float] = OrderedDict()
        #: Leases have rising numbers; who has one up to this is not taken up again.
        self._forgotten = -1

    def look(self, running: Iterable[tuple[int, float]]) -> None:
        """Those that run now: lease and seconds for a byte, above 0."""
        paces, changes = self._paces, []
        active: set[int] = set()
        for lease, pace in running:
            known = paces.get(lease)
            if known is not None:
                changes.append(pace / known)
            elif lease <= self._forgotten:
                continue
            paces[lease] = pace
            active.add(lease)
        if len(changes) >= _TOLD_BY:
            change = statistics.median(changes)
            for lease in paces:
                if lease not in active:
                    paces[lease] *= change

    def end(self, lease: int, pace: float) -> None:
        """A download is over, and took so many seconds for a byte: 0 if no more than its start."""
        if lease not in self._paces and lease > self._forgotten:
            self._paces[lease] = pace

    def keep(self, most: int) -> None:
        """Forget all but the latest."""
        while len(self._paces) > max(most, _LEAST):
            self._forgotten, _ = self._paces.popitem(last=False)

    @property
    def mean(self) -> float:
        """The mean; of at least one."""
        return math.fsum(self._paces.values()) / len(self._paces)

    @property
    def unevenness(self) -> float:
        """Their variance as a part of their mean squared; a guess while few were seen."""
        seen = len(self._paces)
        mean = self.mean if seen else 0.0
        if mean <= 0.0:
            # Nobody, or only such as took no longer than a start does.
            return _UNEVEN
        squares = math.fsum(pace * pace for pace in self._paces.values()) / (mean * mean) - seen
        return (max(0.0, squares) + _GUESSED * _UNEVEN) / (seen + _GUESSED)

    def __len__(self) -> int:
        return len(self._paces)
