"""One link shared max-min among many transfers, each capped by its client; exact, without steps.

Water filling: every transfer gets min(its cap, its weight times L) where the water level L makes
the sum equal the capacity (or is infinite when all caps fit). Transfers *at their cap* end at a
known instant as long as they stay so. Transfers *at the level* run at L by weight, so they end in
the order of `remaining / weight + V`, where V is a clock that runs at L bytes a second (virtual
time as in fair queueing: Parekh and Gallager 1993). Each side is two heaps, one by end and one by
cap; entries go stale by a stamp and are dropped when they surface. So an arrival, an end or a pause
costs O(log n) plus the transfers that cross the level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Literal

#: Caps are rounded to this many bytes a second, so that their sums are exact in a double.
_QUANTUM = 1.0 / 1024.0
#: Weights are rounded for the same reason.
_WEIGHT_QUANTUM = 2.0**-24


def _rounded(cap_bytes_s: float) -> float:
    if not math.isfinite(cap_bytes_s):
        return cap_bytes_s
    return max(_QUANTUM, round(cap_bytes_s / _QUANTUM) * _QUANTUM)


class Flow:
    """One transfer. `payload` belongs to the caller; `weight` is changed by `SharedLink.weigh`."""

    __slots__ = (
        "_end",
        "_remaining",
        "_stamp",
        "_state",
        "cap_bytes_s",
        "payload",
        "since_s",
        "weight",
    )

    def __init__(self, cap_bytes_s: float, remaining_bytes: float, payload: Any = None) -> None:
        self.cap_bytes_s = _rounded(cap_bytes_s)
        self.payload = payload
        self.weight = 1.0
        #: What it got when it was last looked at, or until it was done; since when it runs.
        self.since_s = 0.0
        self._remaining = float(remaining_bytes)
        self._end = 0.0  # instant (capped) or value of V (at the level) at which it is done
        #: Not carried, at its cap, or at the level.
        self._state: Literal["out", "capped", "level"] = "out"
        self._stamp = 0

    @property
    def running(self) -> bool:
        """Whether the link carries it now."""
        return self._state != "out"


_Heap = list[tuple[float, int, Flow]]


def _first(heap: _Heap) -> tuple[float, int, Flow] | None:
    """The first entry that is not stale; stale ones before it are dropped."""
    while heap:
        entry = heap[0]
        if entry[2]._stamp == entry[1]:
            return entry
        heappop(heap)
    return None


class SharedLink:
    """The shared link. Time only moves forward, through `run_to`."""

    def __init__(self, capacity_bytes_s: float, now: float = 0.0) -> None:
        if not capacity_bytes_s > 0:
            raise ValueError("the link's capacity must be above 0 bytes a second")
        self.capacity_bytes_s = capacity_bytes_s
        self.now = now
        self.delivered_bytes = 0.0
        self._v = 0.0
        #: The most that a transfer of weight 1 gets; infinite while every cap fits. Read only.
        self.level_bytes_s = math.inf
        self._level_count = 0
        self._level_weight = 0.0
        self._capped_count = 0
        self._capped_sum = 0.0
        self._stamps = 0
        self._capped_by_end: _Heap = []
        self._capped_by_cap: _Heap = []
        self._level_by_end: _Heap = []
        self._level_by_cap: _Heap = []

    def set_capacity(self, capacity_bytes_s: float) -> None:
        """Change what the link carries from now on."""
        if capacity_bytes_s == self.capacity_bytes_s:
            return
        if not capacity_bytes_s > 0:
            raise ValueError("the link's capacity must be above 0 bytes a second")
        self.capacity_bytes_s = capacity_bytes_s
        self._rebalance()

    # --- what is ---------------------------------------------------------------------------

    @property
    def goodput_bytes_s(self) -> float:
        """What the link carries in all."""
        return self.capacity_bytes_s if self._level_count else self._capped_sum

    @property
    def full(self) -> bool:
        """Whether some transfer gets less than it could take."""
        return self._level_count > 0

    def __len__(self) -> int:
        return self._level_count + self._capped_count

    def rate(self, flow: Flow) -> float:
        """What this transfer gets now, bytes a second."""
        state = flow._state
        if state == "capped":
            return flow.cap_bytes_s
        return flow.weight * self.level_bytes_s if state == "level" else 0.0

    def remaining(self, flow: Flow) -> float:
        """What is left of this transfer, bytes."""
        state = flow._state
        if state == "capped":
            left = (flow._end - self.now) * flow.cap_bytes_s
        elif state == "level":
            left = (flow._end - self._v) * flow.weight
        else:
            return flow._remaining
        return left if left > 0.0 else 0.0

    def looks(self, flows: Iterable[Flow]) -> Iterator[tuple[float, float]]:
        """What `remaining` and `rate` say of each of these: for many, many times a second.

        Nothing may change on the link until the last was looked at.
        """
        now, v, level = self.now, self._v, self.level_bytes_s
        for flow in flows:
            state = flow._state
            if state == "capped":
                rate = flow.cap_bytes_s
                left = (flow._end - now) * rate
            elif state == "level":
                rate = flow.weight * level
                left = (flow._end - v) * flow.weight
            else:
                left, rate = flow._remaining, 0.0
            yield left if left > 0.0 else 0.0, rate

    def until_s(self, flow: Flow, but_bytes: float) -> float:
        """Seconds until no more than `but_bytes` of this transfer is left, at its present rate.

        0: it is so now; infinite: it does not run.
        """
        left = self.remaining(flow) - but_bytes
        if left <= 0.0:
            return 0.0
        state = flow._state
        if state == "capped":
            return left / flow.cap_bytes_s
        rate = flow.weight * self.level_bytes_s if state == "level" else 0.0
        return left / rate if rate > 0.0 else math.inf

    # --- time ------------------------------------------------------------------------------

    def next_end(self) -> float:
        """When the next transfer is done if nothing else happens; infinite when none runs."""
        end = math.inf
        if first := _first(self._capped_by_end):
            end = first[0]
        if first := _first(self._level_by_end):
            end = min(end, self.now + max(0.0, first[0] - self._v) / self.level_bytes_s)
        return max(end, self.now)

    def run_to(self, now: float) -> None:
        """Let time pass up to `now`, which must not lie behind the next end."""
        passed = now - self.now
        if passed <= 0.0:
            return
        if self._level_count:
            self._v += self.level_bytes_s * passed
            self.delivered_bytes += self.capacity_bytes_s * passed
        else:
            self.delivered_bytes += self._capped_sum * passed
        self.now = now

    def pop_ended(self) -> Flow | None:
        """Take out one transfer that is done by now; None when there is none."""
        # The tolerance is a nanosecond: instants are sums and differences of doubles.
        first = _first(self._capped_by_end)
        if first is None or first[0] > self.now + 1e-9:
            first = _first(self._level_by_end)
            if first is None or first[0] > self._v + 1e-9 * max(1.0, self.level_bytes_s):
                return None
        flow = first[2]
        self._take_out(flow)
        flow._remaining = 0.0
        self._rebalance()
        return flow

    # --- which transfers run ---------------------------------------------------------------

    def start(self, flow: Flow) -> None:
        """Carry this transfer from now on (again, if it was stopped)."""
        if flow._state != "out":
            return
        flow.since_s = self.now
        if flow.cap_bytes_s <= flow.weight * self.level_bytes_s and math.isfinite(flow.cap_bytes_s):
            self._put_capped(flow)
        else:
            self._put_level(flow)
        self._rebalance()

    def stop(self, flow: Flow) -> None:
        """Carry it no longer; what is left of it stays with it."""
        if flow._state == "out":
            return
        flow._remaining = self.remaining(flow)
        self._take_out(flow)
        self._rebalance()

    def change(self, flow: Flow, more_bytes: float, cap_bytes_s: float) -> None:
        """A running transfer wants more (or less) than before, or its client is faster or slower.

        What is left never falls below nothing.
        """
        self.stop(flow)
        flow._remaining = max(0.0, flow._remaining + more_bytes)
        flow.cap_bytes_s = _rounded(cap_bytes_s)
        self.start(flow)

    def weigh(self, flow: Flow, weight: float) -> None:
        """A transfer counts as `weight` transfers (above 0) from now on."""
        running, since_s = flow.running, flow.since_s
        self.stop(flow)
        flow.weight = max(_WEIGHT_QUANTUM, round(weight / _WEIGHT_QUANTUM) * _WEIGHT_QUANTUM)
        if running:
            self.start(flow)
            flow.since_s = since_s

    def _put_capped(self, flow: Flow) -> None:
        self._stamps += 1
        flow._stamp = stamp = self._stamps
        flow._state = "capped"
        flow._end = self.now + flow._remaining / flow.cap_bytes_s
        self._capped_sum += flow.cap_bytes_s
        self._capped_count += 1
        heappush(self._capped_by_end, (flow._end, stamp, flow))
        heappush(self._capped_by_cap, (-flow.cap_bytes_s / flow.weight, stamp, flow))

    def _put_level(self, flow: Flow) -> None:
        self._stamps += 1
        flow._stamp = stamp = self._stamps
        flow._state = "level"
        flow._end = self._v + flow._remaining / flow.weight
        self._level_count += 1
        self._level_weight += flow.weight
        heappush(self._level_by_end, (flow._end, stamp, flow))
        heappush(self._level_by_cap, (flow.cap_bytes_s / flow.weight, stamp, flow))

    def _take_out(self, flow: Flow) -> None:
        if flow._state == "capped":
            self._capped_count -= 1
            self._capped_sum = self._capped_sum - flow.cap_bytes_s if self._capped_count else 0.0
        else:
            self._level_count -= 1
            self._level_weight -= flow.weight
            if not self._level_count:
                # No end refers to it any more: start afresh, stay precise.
                self._level_weight = self._v = 0.0
        flow._state = "out"
        self._stamps += 1
        flow._stamp = self._stamps

    def _move(self, flow: Flow, put: Callable[[Flow], None]) -> None:
        flow._remaining = self.remaining(flow)
        self._take_out(flow)
        put(flow)

    def _fill(self) -> float:
        if self._level_count:
            return max(0.0, self.capacity_bytes_s - self._capped_sum) / self._level_weight
        return math.inf if self._capped_sum <= self.capacity_bytes_s else 0.0

    def _rebalance(self) -> None:
        level = self._fill()
        while (first := _first(self._capped_by_cap)) and -first[0] > level:
            self._move(first[2], self._put_level)
            level = self._fill()
        while (first := _first(self._level_by_cap)) and first[0] <= level:
            self._move(first[2], self._put_capped)
            level = self._fill()
        self.level_bytes_s = level
        if len(self._capped_by_end) + len(self._level_by_end) > 64 + 8 * len(self):
            self._sweep()

    def _sweep(self) -> None:
        for heap in (
            self._capped_by_end,
            self._capped_by_cap,
            self._level_by_end,
            self._level_by_cap,
        ):
            heap[:] = [entry for entry in heap if entry[2]._stamp == entry[1]]
            heapify(heap)
