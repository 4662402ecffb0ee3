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
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...policies.max_min import Flow, SharedLink
from ..workloads import Workload
from .outcome import mean, quantile


@dataclass(slots=True)
class _Demand:
    """What one client wants, in the dual."""

    release_s: float
    size_bytes: float
    cap_bytes_s: float
    #: From the last prices: the next are near, so the search for theirs starts here.
    limit_s: float = 0.0

    @property
    def is_brief(self) -> bool:
        # Downloads that need less of their client's line than this are points in time to the dual.
        return self.size_bytes < 0.02 * self.cap_bytes_s


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds on the mean session time, seconds."""

    cap_s: float
    srpt_s: float
    combined_s: float

    @property
    def best_s(self) -> float:
        return max(self.cap_s, self.srpt_s, self.combined_s)


def alone_s(
    workload: Workload, bandwidth_bytes_s: float, connect_s: float = 0.5, *, joint: bool = False
) -> list[float]:
    """Session time of every client if it had the server for itself, in workload order."""
    return [
        connect_s * (1 if joint else len(visitor.files))
        + visitor.total_bytes / min(visitor.rate_bytes_s, bandwidth_bytes_s)
        for visitor in workload.visitors
    ]


def lower_bounds(workload: Workload, bandwidth_bytes_s: float, connect_s: float = 0.5) -> Bounds:
    """All bounds for this population on a link of this capacity.

    `connect_s` is what each download costs before its first byte.
    """
    if not workload.visitors:
        return Bounds(0.0, 0.0, 0.0)
    alone = alone_s(workload, bandwidth_bytes_s, connect_s)
    return Bounds(
        cap_s=mean(alone),
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
    jobs: list[_Demand] = []
    for visitor in visitors:
        size = visitor.total_bytes
        cap = min(visitor.rate_bytes_s, bandwidth_bytes_s)
        fixed += connect_s + size / (2.0 * cap)
        fixed += _gap_s([file.size_bytes for file in visitor.files], connect_s)
        if size:
            jobs.append(_Demand(visitor.arrival_s + connect_s, float(size), cap))
    if not jobs:
        return fixed / len(visitors)
    jobs.sort(key=lambda job: job.release_s)
    edges, prices = _greedy_prices(jobs, bandwidth_bytes_s)
    widths = [after - before for before, after in pairwise(edges)]
    best, usage = _dual(jobs, bandwidth_bytes_s, edges, prices)
    # Polyak's step towards a hoped-for value; hope less each time it was not met.
    hope = 0.1 * abs(fixed + best)
    candidate, value = prices, best
    for _ in range(24):
        excess = [
            used / width - bandwidth_bytes_s for used, width in zip(usage, widths, strict=True)
        ]
        # Price 0 cannot fall; only what can move counts.
        excess = [
            0.0 if price <= 0.0 and over < 0.0 else over
            for price, over in zip(candidate, excess, strict=True)
        ]
        norm = sum(width * over * over for width, over in zip(widths, excess, strict=True))
        if norm <= 0.0:
            break
        step = (best + hope - value) / norm
        candidate = [
            max(0.0, price + step * over) for price, over in zip(candidate, excess, strict=True)
        ]
        value, usage = _dual(jobs, bandwidth_bytes_s, edges, candidate)
        if value > best:
            best = value
        else:
            hope *= 0.7
    return (fixed + best) / len(visitors)


def _greedy_prices(
    jobs: Sequence[_Demand], bandwidth_bytes_s: float
) -> tuple[list[float], list[float]]:
    """Bins of time, and what link time is worth in them when the smallest job always goes first.

    While the link is full its price falls by 1/p a second, p being the size of the job that gets
    only what is left over; it is 0 where the link is not full.
    """
    link = SharedLink(bandwidth_bytes_s)
    waiting: list[tuple[float, int, Flow]] = []
    running: list[tuple[float, int, Flow]] = []
    slopes: list[tuple[float, float]] = []
    carried = 0.0
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
            until = min(until, jobs[index].release_s)
        full = carried >= bandwidth_bytes_s and bool(running)
        slopes.append((now, 1.0 / -running[0][0] if full else 0.0))
        now = until
        link.run_to(now)
        while (flow := link.pop_ended()) is not None:
            carried -= flow.cap_bytes_s
        while index < len(jobs) and jobs[index].release_s <= now:
            job = jobs[index]
            flow = Flow(job.cap_bytes_s, job.size_bytes)
            heapq.heappush(waiting, (job.size_bytes, index, flow))
            index += 1
        while running and not running[0][2].running:
            heapq.heappop(running)
        choose()
    # The latest useful instant of any job lies within the greedy schedule plus the longest job.
    start = jobs[0].release_s
    times = [at for at, _ in slopes] + [now]
    price_at = [0.0] * len(times)
    for position in range(len(slopes) - 1, -1, -1):
        slope = slopes[position][1]
        fall = slope * (times[position + 1] - times[position])
        price_at[position] = price_at[position + 1] + fall if slope > 0.0 else 0.0
    long = sum(not job.is_brief for job in jobs)
    # Jobs x bins in all: populations too large for the finest bins get coarser ones.
    half = max(150, min(500, 1_000_000 // max(1, long))) // 2
    # Equal shares of the events in each bin: fine where much happens.
    parts = [number / (half - 1) for number in range(half)]
    cuts = {quantile(times, part) for part in parts} | {
        start + part * (now - start) for part in parts
    }
    edges = sorted(cut for cut in cuts if cut >= start)
    prices = [_between(times, price_at, (low + high) / 2.0) for low, high in pairwise(edges)]
    return edges, prices


def _between(places: Sequence[float], values: Sequence[float], at: float) -> float:
    """Linear interpolation between values at ascending places."""
    after = bisect_right(places, at)
    if not 0 < after < len(places):
        return values[0 if after == 0 else -1]
    part = (at - places[after - 1]) / (places[after] - places[after - 1])
    return values[after - 1] + part * (values[after] - values[after - 1])


def _dual(
    jobs: Sequence[_Demand],
    bandwidth_bytes_s: float,
    edges: Sequence[float],
    prices: Sequence[float],
) -> tuple[float, list[float]]:
    """The dual value at these prices, and how much link time of each bin the jobs would buy.

    A job buys the cheapest instants: it pays (t - release)/p + price(t) for each byte and needs
    p / cap seconds. The bought part of a bin is its beginning, as cost grows within a bin. Time
    after the last bin is free of charge and unlimited, so no job is cut off.

    Costs are compared as times, t + p * price(t): the job buys every instant below a limit.
    """
    starts = list(edges)
    ends = [*edges[1:], math.inf]
    bin_prices = [*prices, 0.0]
    widths = [end - start for start, end in zip(starts, ends, strict=True)]
    #: From here on nothing costs anything.
    free_s = max(
        (end for end, price in zip(ends, prices, strict=False) if price > 0.0), default=0.0
    )
    used = [0.0] * len(starts)
    value = -bandwidth_bytes_s * sum(
        price * width for price, width in zip(prices, widths, strict=False)
    )
    for job in jobs:
        release, size, cap = job.release_s, job.size_bytes, job.cap_bytes_s
        need = size / cap
        first = bisect_right(ends, release)
        # The interval right after the release, or after all prices, bounds the limit.
        dearest = max(bin_prices[first : bisect_left(starts, release + need, first + 1)])
        high = min(release + size * dearest, max(release, free_s)) + need
        last = bisect_left(starts, high, first + 1)
        costs = [
            start + size * price
            for start, price in zip(starts[first:last], bin_prices[first:last], strict=True)
        ]
        costs[0] = release + size * bin_prices[first]
        low = min(costs)
        if job.is_brief:
            # So short that its bytes may as well flow in one instant, the cheapest.
            value += low - release
            used[first + costs.index(low)] += size
            continue
        rooms = widths[first:last]
        rooms[0] = ends[first] - release
        offers = [
            (cost, room, number)
            for number, (cost, room) in enumerate(zip(costs, rooms, strict=True), first)
            if cost < high
        ]
        limit = job.limit_s = _limit(offers, need, low, high, job.limit_s)
        bought = paid = 0.0
        for cost, room, number in offers:
            time = limit - cost
            if time <= 0.0:
                continue
            if time > room:
                time = room
            bought += time
            paid += time * (cost - release + time / 2.0)
            used[number] += cap * time
        # Weak duality holds at any limit: what is short is paid for at the limit.
        value += (paid + (need - bought) * (limit - release)) / need
    return value, used[:-1]


def _limit(
    offers: Sequence[tuple[float, float, int]],
    need: float,
    low: float,
    high: float,
    guess: float,
) -> float:
    """The cost at which a job has bought enough: Newton's method, kept in a bracket."""
    limit = guess if low < guess < high else min(high, low + need)
    # Newton's steps.
    for _ in range(18):
        short, slope = need, 0
        for cost, room, _ in offers:
            time = limit - cost
            if time >= room:
                short -= room
            elif time > 0.0:
                short -= time
                slope += 1
        if -1e-9 * need <= short <= 1e-9 * need:
            break
        if short > 0.0:
            low = limit
        else:
            high = limit
        newton = limit + short / slope if slope else low
        limit = newton if low < newton < high else (low + high) / 2.0
    return limit
