"""How fast could it have been? Lower bounds on the mean session time that no policy can pass.

They know the future (arrivals, sizes, speeds) and relax the problem, so each is a true bound for
the simulator's model and for any policy in it:

- *cap*: every client alone on the link.
- *SRPT*: one machine as fast as the link, no client limits; shortest remaining processing time is
  optimal there (Schrage 1968).
- *combined*: both limits at once. A client that wants p bytes at no more than r bytes a second
  is done no earlier than p / 2r after the mean instant of its bytes (the mean busy time bound of
  Goemans et al. 2002). The sum of these mean instants, under client caps and link capacity, is a
  linear program; any prices on link time give a lower bound by duality. The prices start from
  those of the greedy schedule and are improved by a few subgradient steps.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...policies.max_min import Flow, SharedLink
from ..workloads import Workload

_Vector = NDArray[np.float64]

_FEWEST_BINS, _MOST_BINS = 150, 500
_STEPS = 24
#: Downloads that need less of their client's line than this are points in time to the dual.
_BRIEF_S = 0.02
_NEWTON = 18
#: Jobs x bins in all: populations too large for the finest bins get coarser ones.
_CELLS = 1_000_000
#: Jobs x bins at once in the dual; bounds its memory.
_CHUNK = 2_000_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds on the mean session time, seconds."""

    cap_s: float
    srpt_s: float
    combined_s: float

    @property
    def best_s(self) -> float:
        """The tightest of them."""
        return max(self.cap_s, self.srpt_s, self.combined_s)


def alone_s(
    workload: Workload, bandwidth_bytes_s: float, connect_s: float = 0.5, *, joint: bool = False
) -> _Vector:
    """Session time of every client if it had the server for itself, in workload order."""
    return np.array(
        [
            connect_s * (1 if joint else len(visitor.files))
            + visitor.total_bytes / min(visitor.rate_bytes_s, bandwidth_bytes_s)
            for visitor in workload.visitors
        ]
    )


def lower_bounds(workload: Workload, bandwidth_bytes_s: float, connect_s: float = 0.5) -> Bounds:
    """All bounds for this population on a link of this capacity.

    `connect_s` is what each download costs before its first byte.
    """
    if not workload.visitors:
        return Bounds(0.0, 0.0, 0.0)
    alone = alone_s(workload, bandwidth_bytes_s, connect_s)
    return Bounds(
        cap_s=float(alone.mean()),
        srpt_s=_srpt(workload, bandwidth_bytes_s, connect_s),
        combined_s=_combined(workload, bandwidth_bytes_s, connect_s),
    )


def _srpt(workload: Workload, bandwidth_bytes_s: float, connect_s: float) -> float:
    total, now, index = 0.0, 0.0, 0
    visitors = workload.visitors
    queue: list[tuple[float, float]] = []  # (remaining seconds of the whole link, arrival)
    while index < len(visitors) or queue:
        if not queue:
            now = max(now, visitors[index].arrival_s + connect_s)
        while index < len(visitors) and visitors[index].arrival_s + connect_s <= now:
            visitor = visitors[index]
            heapq.heappush(queue, (visitor.total_bytes / bandwidth_bytes_s, visitor.arrival_s))
            index += 1
        left, arrival = heapq.heappop(queue)
        until = visitors[index].arrival_s + connect_s if index < len(visitors) else math.inf
        if now + left <= until:
            now += left
            total += now - arrival
        else:
            heapq.heappush(queue, (left - (until - now), arrival))
            now = until
    return total / len(visitors)


def _gap_s(sizes: list[int], connect_s: float) -> float:
    """How much later than its bytes' mean instant a session ends because of its reconnections.

    Bytes before a gap lie at least `connect_s` earlier than without it.
    """
    whole = sum(sizes)
    if whole == 0:
        return connect_s * (len(sizes) - 1)
    before, gap = 0, 0.0
    for size in sizes[:-1]:
        before += size
        gap += connect_s * before / whole
    return gap


def _combined(workload: Workload, bandwidth_bytes_s: float, connect_s: float) -> float:
    visitors = workload.visitors
    fixed = 0.0
    rows: list[tuple[float, float, float]] = []
    for visitor in visitors:
        size = visitor.total_bytes
        cap = min(visitor.rate_bytes_s, bandwidth_bytes_s)
        fixed += connect_s + size / (2.0 * cap)
        fixed += _gap_s([file.size_bytes for file in visitor.files], connect_s)
        if size:
            rows.append((visitor.arrival_s + connect_s, float(size), cap))
    if not rows:
        return fixed / len(visitors)
    jobs = np.array(rows)
    edges, prices = _greedy_prices(jobs, bandwidth_bytes_s)
    widths = np.diff(edges)
    best, usage = _dual(jobs, bandwidth_bytes_s, edges, prices)
    # Polyak's step towards a hoped-for value; hope less each time it was not met.
    hope = 0.1 * abs(fixed + best)
    candidate, value = prices, best
    for _ in range(_STEPS):
        excess = usage / widths - bandwidth_bytes_s
        # Price 0 cannot fall; only what can move counts.
        excess[(candidate <= 0.0) & (excess < 0.0)] = 0.0
        norm = float(np.dot(widths, excess * excess))
        if norm <= 0.0:
            break
        candidate = np.maximum(0.0, candidate + (best + hope - value) / norm * excess)
        value, usage = _dual(jobs, bandwidth_bytes_s, edges, candidate)
        if value > best:
            best = value
        else:
            hope *= 0.7
    return (fixed + best) / len(visitors)


def _greedy_prices(jobs: _Vector, bandwidth_bytes_s: float) -> tuple[_Vector, _Vector]:
    """Bins of time, and what link time is worth in them when the smallest job always goes first.

    While the link is full its price falls by 1/p a second, p being the size of the job that gets
    only what is left over; it is 0 where the link is not full.
    """
    link = SharedLink(bandwidth_bytes_s)
    waiting: list[tuple[float, int, Flow]] = []
    running: list[tuple[float, int, Flow]] = []
    slopes: list[tuple[float, float]] = []
    carried = 0.0
    arrivals = np.argsort(jobs[:, 0], kind="stable")
    index, now = 0, 0.0

    def choose() -> None:
        # Run the smallest until their caps fill the link; the largest of them takes what is left.
        nonlocal carried
        while waiting and running and waiting[0][0] < -running[0][0]:
            negative, number, flow = heapq.heappop(running)
            carried -= flow.cap_bytes_s
            link.stop(flow)
            heapq.heappush(waiting, (-negative, number, flow))
            while waiting and carried < bandwidth_bytes_s:
                size, number, flow = heapq.heappop(waiting)
                carried += flow.cap_bytes_s
                link.start(flow)
                heapq.heappush(running, (-size, number, flow))
        while waiting and carried < bandwidth_bytes_s:
            size, number, flow = heapq.heappop(waiting)
            carried += flow.cap_bytes_s
            link.start(flow)
            heapq.heappush(running, (-size, number, flow))
        while running and not running[0][2].running:
            heapq.heappop(running)

    while index < len(jobs) or len(link) or waiting:
        until = link.next_end()
        if index < len(jobs):
            until = min(until, float(jobs[arrivals[index], 0]))
        full = carried >= bandwidth_bytes_s and bool(running)
        slopes.append((now, 1.0 / -running[0][0] if full else 0.0))
        now = until
        link.run_to(now)
        while (flow := link.pop_ended()) is not None:
            carried -= flow.cap_bytes_s
        while index < len(jobs) and jobs[arrivals[index], 0] <= now:
            number = int(arrivals[index])
            heapq.heappush(
                waiting, (jobs[number, 1], number, Flow(jobs[number, 2], jobs[number, 1]))
            )
            index += 1
        while running and not running[0][2].running:
            heapq.heappop(running)
        choose()
    # The latest useful instant of any job lies within the greedy schedule plus the longest job.
    start = float(jobs[:, 0].min())
    times = np.array([at for at, _ in slopes] + [now])
    falls = np.array([slope for _, slope in slopes])
    price_at = np.zeros(len(times))
    for position in range(len(falls) - 1, -1, -1):
        fall = falls[position] * (times[position + 1] - times[position])
        price_at[position] = price_at[position + 1] + fall if falls[position] > 0.0 else 0.0
    long = int((jobs[:, 1] >= _BRIEF_S * jobs[:, 2]).sum())
    bins = max(_FEWEST_BINS, min(_MOST_BINS, _CELLS // max(1, long)))
    # Equal shares of the events in each bin: fine where much happens.
    edges = np.unique(
        np.concatenate(
            [np.quantile(times, np.linspace(0, 1, bins // 2)), np.linspace(start, now, bins // 2)]
        )
    )
    edges = edges[edges >= start]
    middles = (edges[:-1] + edges[1:]) / 2.0
    prices = np.interp(middles, times, price_at)
    return edges, prices


def _dual(
    jobs: _Vector, bandwidth_bytes_s: float, edges: _Vector, prices: _Vector
) -> tuple[float, _Vector]:
    """The dual value at these prices, and how much link time of each bin the jobs would buy.

    A job buys the cheapest instants: it pays (t - release)/p + price(t) for each byte and needs
    p / cap seconds. The bought part of a bin is its beginning, as cost grows within a bin. Time
    after the last bin is free of charge and unlimited, so no job is cut off.
    """
    starts, widths = edges[:-1], np.diff(edges)
    starts = np.append(starts, edges[-1])
    widths = np.append(widths, math.inf)
    price = np.append(prices, 0.0)
    used = np.zeros(len(starts))
    value = -bandwidth_bytes_s * float(np.dot(prices, np.diff(edges)))
    rows = max(1, _CHUNK // len(starts))
    brief = jobs[:, 1] < _BRIEF_S * jobs[:, 2]
    for first in range(0, int(brief.sum()), rows):
        # So short that its bytes may as well flow in one instant, the cheapest.
        part = jobs[brief][first : first + rows]
        release, size = part[:, 0:1], part[:, 1:2]
        begin = np.maximum(starts, release)
        entry = np.where(starts + widths > release, (begin - release) / size + price, math.inf)
        chosen = entry.argmin(axis=1)
        value += float((size[:, 0] * entry[np.arange(len(part)), chosen]).sum())
        np.add.at(used, chosen, size[:, 0])
    jobs = jobs[~brief]
    for first in range(0, len(jobs), rows):
        release = jobs[first : first + rows, 0:1]
        size = jobs[first : first + rows, 1:2]
        cap = jobs[first : first + rows, 2:3]
        need = size / cap
        begin = np.maximum(starts, release)
        room = np.maximum(0.0, starts + widths - begin)
        entry = (begin - release) / size + price  # cost at the beginning of each bin
        # The price limit at which a job has bought enough: Newton's method, kept in a bracket.
        # Weak duality holds at any limit, so stopping early costs tightness, never truth.
        low = entry.min(axis=1, keepdims=True)
        # At this limit it has bought the whole interval right after its release, at least.
        high = np.max(price) + need / size
        limit = np.minimum(high, low + need / size)
        for _ in range(_NEWTON):
            time = np.clip((limit - entry) * size, 0.0, room)
            short = need - time.sum(axis=1, keepdims=True)
            low = np.where(short >= 0.0, limit, low)
            high = np.where(short >= 0.0, high, limit)
            slope = size * ((time > 0.0) & (time < room)).sum(axis=1, keepdims=True)
            newton = limit + short / np.maximum(slope, 1e-300)
            inside = (slope > 0.0) & (newton > low) & (newton < high)
            limit = np.where(inside, newton, (low + high) / 2.0)
        time = np.clip((limit - entry) * size, 0.0, room)
        short = need - time.sum(axis=1, keepdims=True)
        cost = time * entry + time * time / (2.0 * size)
        value += float((cap * cost).sum() + (cap * short * limit).sum())
        used += (cap * time).sum(axis=0)
    return value, used[:-1]
