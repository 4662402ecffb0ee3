"""How fast bytes come lately: a sliding window under one second. Pure."""

from __future__ import annotations

import math
from collections import deque

_WINDOW_S = 0.6


class Meter:
    """Rate over the last `_WINDOW_S` of work; a source that falls silent decays towards zero.

    Idle time does not count: `rest` stops the clock, `start` sets it going again at the first
    bytes after it (so the round trip of the first request does not look like slowness).
    """

    __slots__ = (
        "_buckets",
        "_fresh",
        "_since",
        "_sum",
        "last_s",
        "total_bytes",
    )

    def __init__(self) -> None:
        self.total_bytes = 0
        self.last_s = -math.inf
        self._buckets: deque[list[float]] = deque()
        self._sum = 0.0
        self._since: float | None = None
        self._fresh = True

    def start(self, now: float) -> None:
        """Work begins, or goes on, now."""
        if self._since is None:
            self._buckets.clear()
            self._sum = 0.0
            self._since = now
            self._fresh = True
            self.last_s = now

    def rest(self) -> None:
        """Nothing is asked for: the time that passes now says nothing about the rate."""
        self._since = None

    def add(self, count: int, now: float) -> None:
        self.total_bytes += count
        self.last_s = now
        if self._fresh:
            self._fresh = False
            self._since = now
            return
        self._sum += count
        if self._buckets and now - self._buckets[-1][0] < _WINDOW_S / 24:
            self._buckets[-1][1] += count
        else:
            self._buckets.append([now, count])
            self._trim(now)

    def rate(self, now: float) -> float | None:
        """Bytes per second, or None while too little has been seen to say."""
        if self._since is None or self._fresh:
            return None
        self._trim(now)
        span_s = min(_WINDOW_S, now - self._since)
        if span_s < 0.02 or (self._sum == 0 and span_s < _WINDOW_S):
            return None
        return self._sum / span_s

    def lately(self, now: float, span_s: float = 0.1) -> float | None:
        """The same over a shorter time: ahead of `rate` while the sender still speeds up."""
        if self._since is None or self._fresh:
            return None
        span_s = min(span_s, now - self._since)
        if span_s < 0.02:
            return None
        total = 0.0
        for when, count in reversed(self._buckets):
            if when < now - span_s:
                break
            total += count
        return total / span_s

    def _trim(self, now: float) -> None:
        buckets, edge = self._buckets, now - _WINDOW_S
        while buckets and buckets[0][0] < edge:
            self._sum -= buckets.popleft()[1]
