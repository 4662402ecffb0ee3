"""Water filling: hand-made cases, then a brute-force integrator as the judge."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.policies.max_min import Flow, SharedLink


def drain(link: SharedLink) -> list[tuple[float, Flow]]:
    ended: list[tuple[float, Flow]] = []
    while (at := link.next_end()) < math.inf:
        link.run_to(at)
        flow = link.pop_ended()
        assert flow is not None
        ended.append((at, flow))
    return ended


def test_two_equal_clients_share_the_link_evenly() -> None:
    link = SharedLink(100.0)
    short, long = Flow(1_000.0, 100.0, "short"), Flow(1_000.0, 300.0, "long")
    link.start(short)
    link.start(long)
    assert link.rate(short) == 50.0
    # 100 bytes at 50 B/s end at 2 s; the other then has 200 left at 100 B/s: 4 s.
    assert [(at, flow.payload) for at, flow in drain(link)] == [(2.0, "short"), (4.0, "long")]


def test_what_a_slow_client_leaves_goes_to_the_fast_one() -> None:
    link = SharedLink(100.0)
    slow, fast = Flow(10.0, 100.0, "slow"), Flow(1_000.0, 900.0, "fast")
    link.start(slow)
    link.start(fast)
    assert (link.rate(slow), link.rate(fast)) == (10.0, 90.0)
    assert [round(at, 9) for at, _ in drain(link)] == [10.0, 10.0]


def test_a_stopped_transfer_gets_nothing_and_keeps_what_is_left() -> None:
    link = SharedLink(100.0)
    one, two = Flow(1_000.0, 100.0), Flow(1_000.0, 100.0)
    link.start(one)
    link.start(two)
    link.run_to(1.0)
    link.stop(one)
    assert link.rate(one) == 0.0
    assert link.rate(two) == 100.0
    assert link.remaining(one) == pytest.approx(50.0)
    link.run_to(1.5)
    assert link.pop_ended() is two
    link.start(one)
    assert link.next_end() == pytest.approx(2.0)


def test_an_unlimited_client_takes_the_whole_link() -> None:
    link = SharedLink(100.0)
    flow = Flow(math.inf, 200.0)
    link.start(flow)
    assert link.rate(flow) == 100.0
    assert link.full
    assert [at for at, _ in drain(link)] == [2.0]


def test_an_empty_link_never_ends_anything_and_needs_a_capacity() -> None:
    assert SharedLink(1.0).next_end() == math.inf
    assert SharedLink(1.0).pop_ended() is None
    with pytest.raises(ValueError, match="above 0"):
        SharedLink(0.0)


def water_fill(capacity: float, flows: list[Flow]) -> list[float]:
    """The textbook allocation by weight, by sorting."""
    shares, left = [0.0] * len(flows), capacity
    order = sorted(range(len(flows)), key=lambda i: flows[i].cap_bytes_s / flows[i].weight)
    weight = sum(flow.weight for flow in flows)
    for index in order:
        flow = flows[index]
        shares[index] = min(flow.cap_bytes_s, left * flow.weight / weight)
        left -= shares[index]
        weight -= flow.weight
    return shares


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.floats(10.0, 5_000.0))
def test_matches_a_brute_force_integrator(seed: int, count: int, capacity: float) -> None:
    """Random starts, stops and resumptions; the judge recomputes every share from nothing."""
    rng = random.Random(seed)
    link = SharedLink(capacity)
    flows = [
        Flow(
            rng.choice([math.inf, rng.uniform(1, 200), rng.uniform(1, 2_000)]), rng.uniform(1, 5e3)
        )
        for _ in range(count)
    ]
    for flow in flows:
        link.weigh(flow, rng.choice([1.0, 1.0, rng.uniform(0.01, 4.0)]))
    left = {flow: link.remaining(flow) for flow in flows}
    running: list[Flow] = []
    toggles = sorted((rng.uniform(0, 20), rng.randrange(count)) for _ in range(3 * count))
    now = 0.0
    for at, index in [*toggles, (math.inf, 0)]:
        while True:
            shares = water_fill(capacity, running)
            for flow, share in zip(running, shares, strict=True):
                assert link.rate(flow) == pytest.approx(share, rel=1e-6)
            ends = [now + left[f] / s for f, s in zip(running, shares, strict=True)]
            assert link.next_end() == pytest.approx(min(ends, default=math.inf), rel=1e-6, abs=1e-6)
            until = min(at, link.next_end())
            if until == math.inf:
                break
            for flow, share in zip(running, shares, strict=True):
                left[flow] = max(0.0, left[flow] - share * (until - now))
            now = until
            link.run_to(now)
            while (gone := link.pop_ended()) is not None:
                assert left[gone] == pytest.approx(0.0, abs=1e-3)
                left[gone] = 0.0
                running.remove(gone)
            if until == at:
                break
        if at == math.inf:
            break
        target = flows[index]
        if target in running and rng.random() < 0.2:
            link.weigh(target, rng.uniform(0.01, 4.0))
        elif target in running:
            link.stop(target)
            running.remove(target)
            assert link.remaining(target) == pytest.approx(left[target], rel=1e-6, abs=1e-3)
        elif left[target] > 0.0:
            link.start(target)
            running.append(target)
    assert len(link) == 0


def test_a_thousand_changes_leave_no_stale_entries_behind() -> None:
    rng = random.Random(1)
    link = SharedLink(10_000.0)
    flows = [Flow(rng.uniform(1, 100), 1e6) for _ in range(50)]
    for _ in range(5_000):
        flow = rng.choice(flows)
        if flow.running:
            link.stop(flow)
        else:
            link.start(flow)
    heaps = (link._capped_by_end, link._level_by_end, link._capped_by_cap, link._level_by_cap)
    assert sum(map(len, heaps)) < 4 * (64 + 8 * 50)
