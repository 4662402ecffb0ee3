"""The load of shorter downloads, small ones too, that will overtake a waiting one.

The next seconds are taken to bring as much as the same number of seconds before. So a steady load
counts as steady, and a crowd that began ten seconds ago is not taken to go on for minutes: a load
that has lasted for some time lasts as long again in the median.
"""

from __future__ import annotations

import math
from bisect import bisect_left

#: Bins of log2(size).
_BINS = 41
#: Memories in which what was asked for decays, seconds: each stands for spans of about that length.
_SPANS_S = (2.0, 8.0, 32.0, 128.0, 512.0)


class ShorterLoad:
    """Bytes that were asked for lately, by size, decaying."""

    def __init__(self) -> None:
        self._loads = [[0.0] * _BINS for _ in _SPANS_S]
        #: Loads are told as of then: what comes later counts for as much more as has not decayed
        #: yet, so that not all of them are walked through each time.
        self._noted_s = 0.0
        #: The loads of the first bins in all, by how many, until the next is noted.
        self._sums: dict[int, list[float]] = {}

    def note(self, size_bytes: int, wanted_bytes: int, now: float) -> None:
        """Downloads of about this size have come that want this in all."""
        passed = max(0.0, now - self._noted_s)
        if passed > _SPANS_S[0]:
            for number, span_s in enumerate(_SPANS_S):
                decay = math.exp(-passed / span_s)
                self._loads[number] = [load * decay for load in self._loads[number]]
            self._noted_s, passed = now, 0.0
        self._sums.clear()
        at = min(_BINS - 1, size_bytes.bit_length())
        for loads, span_s in zip(self._loads, _SPANS_S, strict=True):
            loads[at] += wanted_bytes * math.exp(passed / span_s)

    def wait_s(
        self, before_bytes: float, remaining_bytes: int, line_bytes_s: float, now: float
    ) -> tuple[float, float]:
        """When the line is free for a download after `before_bytes` and shorter ones to come.

        The second time counts on the load of a span eight times as long, as a rush may end.
        """
        bins = min(_BINS - 1, remaining_bytes.bit_length())
        passed = max(0.0, now - self._noted_s)
        sums = self._sums.get(bins)
        if sums is None:
            sums = self._sums[bins] = [sum(loads[:bins]) for loads in self._loads]
        alone_s = before_bytes / line_bytes_s
        if not any(sums):
            # Where all want the same file, nothing shorter comes.
            return alone_s, alone_s
        rates = [
            load * math.exp(-passed / span_s) / span_s
            for load, span_s in zip(sums, _SPANS_S, strict=True)
        ]
        # If those that come had all of the line, a wait would have no end.
        parts = [min(0.9, rate / line_bytes_s) for rate in rates]
        return _agreed_s(alone_s, parts, 1.0), _agreed_s(alone_s, parts, 8.0)


def _agreed_s(alone_s: float, parts: list[float], times: float) -> float:
    """A wait stretched by the part of the line that others took for `times` as long."""
    wait_s = alone_s
    for _ in range(12):
        longer_s = alone_s + _at(parts, times * wait_s) * wait_s
        if longer_s <= 1.01 * wait_s:
            break
        wait_s = longer_s
    return wait_s


def _at(rates: list[float], span_s: float) -> float:
    """The rate over a span between those that are remembered."""
    above = bisect_left(_SPANS_S, span_s)
    if above == 0:
        return rates[0]
    if above == len(_SPANS_S):
        return rates[-1]
    low, high = _SPANS_S[above - 1], _SPANS_S[above]
    part = math.log(span_s / low) / math.log(high / low)
    return rates[above - 1] + part * (rates[above] - rates[above - 1])
