"""How much of the link shorter downloads take that came lately: what a longer one waits for."""

from __future__ import annotations

import math

#: Bins of log2(size).
_BINS = 41
_MEMORY_S = 60.0


class ShorterLoad:
    """Bytes that were asked for lately, by size, decaying."""

    __slots__ = ("_load", "_noted_s")

    def __init__(self) -> None:
        self._load = [0.0] * _BINS
        self._noted_s = 0.0

    def note(self, remaining_bytes: int, now: float) -> None:
        """A download of that many bytes starts."""
        decay = math.exp(-max(0.0, now - self._noted_s) / _MEMORY_S)
        self._noted_s = now
        self._load = [load * decay for load in self._load]
        self._load[min(_BINS - 1, remaining_bytes.bit_length())] += remaining_bytes

    def rate_below(self, remaining_bytes: int) -> float:
        """What all downloads shorter than this ask for, bytes a second."""
        bins = min(_BINS - 1, remaining_bytes.bit_length())
        return sum(self._load[:bins]) / _MEMORY_S
