"""Seconds that a slot needs for a byte: the mean of the downloads that started lately.

The downloads that run at one moment are a biased sample, because slow ones hold their slots for
longer. So each download counts once, from its first look, and goes on to count when it is over.
When the line changes, the running downloads show that together. Then the paces of those that are
over are scaled by the same factor.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict
from collections.abc import Iterable


class Paces:
    """Seconds for a byte by lease, about in the order of their start."""

    def __init__(self) -> None:
        self._paces: OrderedDict[int, float] = OrderedDict()
        #: Leases have rising numbers. One up to this is not remembered again.
        self._forgotten = -1

    def look(self, running: Iterable[tuple[int, float]]) -> None:
        """Add the running downloads: lease, and seconds for a byte (above 0)."""
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
        # It takes some running downloads to see a change of the line.
        if len(changes) >= 4:
            change = statistics.median(changes)
            for lease in paces:
                if lease not in active:
                    paces[lease] *= change

    def end(self, lease: int, pace: float) -> None:
        """A download is over. `pace` is 0 if it took no longer than a start does."""
        if lease not in self._paces and lease > self._forgotten:
            self._paces[lease] = pace

    def __len__(self) -> int:
        return len(self._paces)

    def keep(self, most: int) -> None:
        """Forget all but the latest: `most`, or a hundred."""
        while len(self._paces) > max(most, 100):
            self._forgotten, _ = self._paces.popitem(last=False)

    @property
    def mean(self) -> float:
        """The mean of at least one."""
        return math.fsum(self._paces.values()) / len(self._paces)

    def below(self, slowest: float) -> list[float]:
        """Those below this, in order."""
        return sorted([pace for pace in self._paces.values() if pace < slowest])

    @property
    def deviation(self) -> float:
        """The standard deviation as a part of the mean; 0 before any is known."""
        mean = self.mean if self._paces else 0.0
        if mean <= 0.0:
            return 0.0
        square = math.fsum([pace * pace for pace in self._paces.values()]) / len(self._paces)
        return math.sqrt(max(0.0, square / mean**2 - 1.0))
