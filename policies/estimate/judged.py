"""Told times judged: how many came within their bound, and how far off the middle one was."""

from __future__ import annotations

from collections import deque
from statistics import median

#: Told times of fewer clients are not judged: three that came back late would look like a fault.
_LEAST_JUDGED = 20
#: A told time counts in the median error if what it told of took longer than this, seconds.
_LONG_S = 10.0


class Judged:
    """Counts told times that were kept, and the relative errors of the latest."""

    def __init__(self) -> None:
        self._told = self._kept = 0
        self._errors: deque[float] = deque(maxlen=500)

    def bound(self, *, kept: bool) -> None:
        """What was told came within its bound, or it did not."""
        self._told += 1
        self._kept += kept

    def error(self, told_s: float, took_s: float) -> None:
        """What was told to take `told_s` took `took_s`."""
        if took_s > _LONG_S:
            self._errors.append(abs(took_s - told_s) / took_s)

    @property
    def counts(self) -> tuple[int, int]:
        """How many were judged, and how many of them were kept."""
        return self._told, self._kept

    @property
    def within_p90(self) -> float | None:
        """The part that came within its bound; None of too few."""
        return self._kept / self._told if self._told >= _LEAST_JUDGED else None

    @property
    def median_error(self) -> float | None:
        """Median of |actual - told| / actual over those above 10 s; None of too few."""
        return median(self._errors) if len(self._errors) >= _LEAST_JUDGED else None
