"""Who runs, who gets what others leave, and when the next probe is over."""

from __future__ import annotations

import math
from random import Random
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.in_order import InOrder
from tidegate.policies.capacity import Capacity
from tidegate.policies.contract import Job
from tidegate.policies.leases import Lease, LeasePool
from tidegate.policies.preemption import PREEMPTION, Preemption
from tidegate.policies.registry import make_policy
from tidegate.policies.running import Running
from tidegate.policies.settings import PolicySettings


class Walked:
    """A lease that stands for itself."""


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0.0, 0.4)), max_size=30), st.floats(0, 9))
def test_the_next_probe_to_end_is_the_soonest_of_all(
    probes: list[tuple[int, float]], later_s: float
) -> None:
    leases = [cast(Lease, Walked()) for _ in range(6)]
    preemption = Preemption(LeasePool(), Running(Capacity()))
    now = 0.0
    began: dict[int, float] = {}
    for number, gap_s in probes:
        now += gap_s
        preemption.probe(leases[number], now)
        began[number] = now
    now += later_s
    ends = [since_s + PREEMPTION.probe_s for since_s in began.values()]
    expected = min((end if end > now else now + PREEMPTION.probe_s for end in ends), default=None)
    assert preemption.next_s(now) == expected


@given(st.integers(1, 7), st.booleans())
def test_a_probe_lasts_until_it_is_known_whether_the_server_held_its_client_back(
    unknown: int, held_back: bool
) -> None:
    """By its first look a slow one was taken for a typical one, and paused for too long."""
    capacity = Capacity()
    capacity.observe(1e5, link_busy=True, more_wanted=True, line_bytes_s=1e5, downloads=30)
    busy, other = (
        Lease(number, Job("busy", f"/{number}", 10**6, 10**6, rate_bytes_s=1e6), 0.0, None, True)
        for number in (2, 3)
    )
    lease = Lease(1, Job("slow", "/f", 10**6, 10**6), 0.0, None, True)
    order = InOrder(capacity)
    order.preemption.probe(lease, 0.0)
    for look in range(1, unknown + 1):
        capacity.measured(lease, 2_000.0, None)
        assert lease.cap_bytes_s == math.inf
        paused, _ = order.choose((busy, other, lease), 0.25 * look)
        assert not paused
    capacity.measured(lease, 2_000.0, held_back)
    # One that the server let have no more is known to be no slower; the other is as slow as seen.
    assert lease.cap_is_floor == held_back
    typical = capacity.typical_client_bytes_s
    assert capacity.speed(lease) == (typical if held_back else 2_000.0)
    assert order.choose((busy, other, lease), 2.0) == ((lease.id,), ())


def test_a_client_that_is_seen_to_be_fast_needs_no_second_look() -> None:
    capacity = Capacity()
    capacity.observe(1e7, link_busy=True, more_wanted=True, line_bytes_s=1e7, downloads=30)
    lease = Lease(1, Job("fast", "/f", 10**9, 10**9), 0.0, None, True)
    capacity.measured(lease, 4e6, None)
    assert capacity.speed(lease) == 5e6


@pytest.mark.parametrize("is_floor", [False, True])
def test_a_network_beyond_its_part_takes_nothing_from_a_client_that_may_be_faster(
    is_floor: bool,
) -> None:
    """A newcomer seems as slow as its share beside the attacker, who then filled the line."""
    capacity, pool = Capacity(), LeasePool()
    capacity.observe(1e6, link_busy=True, more_wanted=True, line_bytes_s=1e6)
    order = InOrder(capacity, pool)
    first, other, last = (
        pool.open(Job("c", f"/{number}", 10**6, 10**6, rate_bytes_s=1e5), 0.0, None, True)
        for number in range(3)
    )
    first.cap_is_floor, last.yields = is_floor, True
    order.choose((first, other, last), 0.1)
    assert pool.background.keys() == ({last.id} if is_floor else set())


@given(st.lists(st.floats(1_000.0, 80_000.0), min_size=1, max_size=40), st.data())
def test_those_before_the_last_that_fills_the_line_never_have_less_than_they_take(
    speeds: list[float], data: st.DataObject
) -> None:
    """The last, and some beyond, stand behind; one that is measured does not; the rest pauses."""
    line = 100_000.0
    capacity, pool = Capacity(), LeasePool()
    capacity.observe(line, link_busy=True, more_wanted=True, line_bytes_s=line)
    order = InOrder(capacity, pool)
    leases = [
        pool.open(Job("c", f"/{number}", 10**6, 10**6, rate_bytes_s=speed), 0.0, None, True)
        for number, speed in enumerate(speeds)
    ]
    probed = data.draw(st.sets(st.sampled_from(leases), max_size=3))
    for lease in probed:
        order.preemption.probe(lease, 0.0)
    order.choose(leases, 0.1)
    behind, ahead = pool.background_changes()
    assert not ahead
    assert set(behind) == pool.background.keys() == {one.id for one in leases if one.background}
    before, fills = 0.0, (1.0 - 1e-9) * line
    for lease in leases:
        assert lease.paused == (before >= 1.2 * fills and lease not in probed)
        in_front = before == 0.0 or before + lease.cap_bytes_s < fills or lease in probed
        assert lease.background == (not lease.paused and not in_front)
        before += lease.cap_bytes_s
    # Alone, the last comes to the front.
    last = leases[-1]
    order.choose([last], 5.0)
    behind, ahead = pool.background_changes()
    assert not last.background
    assert not behind
    assert pool.background_changes() == ((), ())


@given(st.lists(st.floats(1_000.0, 80_000.0), min_size=1, max_size=30))
def test_no_download_that_has_begun_stands_still_for_10_s(speeds: list[float]) -> None:
    """The largest stood still until all others were done."""
    capacity, pool = Capacity(), LeasePool()
    line = 100_000.0
    capacity.observe(line, link_busy=True, more_wanted=True, line_bytes_s=line)
    order = InOrder(capacity, pool)
    leases = [
        pool.open(Job("c", f"/{number}", 10**6, 10**6, rate_bytes_s=speed), 0.0, None, True)
        for number, speed in enumerate(speeds)
    ]
    for tick in range(160):
        now = 0.25 * tick
        order.choose(leases, now)
        paused = [lease for lease in leases if lease.paused]
        assert all(now - lease.stopped_s < PREEMPTION.longest_pause_s for lease in paused)
        assert order.preemption.count >= len(paused) == pool.paused
        wake_s = order.preemption.next_s(now)
        assert wake_s is None or wake_s > now
        # What they get in their turns changes no order: fast ones would overtake slow ones.
        for lease in leases:
            if lease.stood_back_bytes and not lease.paused:
                lease.took(lease.remaining_bytes - 1_000)
            assert lease.rank_bytes == 10**6


def test_who_was_shown_no_page_sees_progress_while_shorter_ones_run() -> None:
    """Six browsers came while the line was unknown. Four had next to nothing for 20 s."""
    settings = PolicySettings(slots=20, small_below_bytes=1)
    fair = make_policy("fair", settings, Random(1))
    line, sizes = 100_000.0, range(4_000_000, 10_000_000, 1_000_000)
    leases = [
        fair.offer(Job(f"c{number}", "/f", size, size, present=number == 5), 0.0).lease
        for number, size in enumerate(sizes)
    ]
    ran_s, still_s, longest_s = [0.0] * 6, [0.0] * 6, [0.0] * 6
    paused: set[int] = set()
    for tick in range(160):
        now = 0.25 * tick
        for lease in leases:
            fair.progress(lease, now, 3_000_000, 100_000.0, True)
        fair.observe(line, True, now, line)
        step = fair.advance(now)
        paused = (paused | set(step.pause)) - set(step.resume)
        for number, lease in enumerate(leases):
            stands = lease in paused
            still_s[number] = still_s[number] + 0.25 if stands else 0.0
            longest_s[number] = max(longest_s[number], still_s[number])
            ran_s[number] += 0.25 * (not stands)
    assert max(longest_s[:5]) <= PREEMPTION.unwarned_pause_s + 0.5
    assert min(ran_s[:5]) >= 0.1 * 40
    # A program that waits in its request looks at no progress.
    assert longest_s[5] >= PREEMPTION.longest_pause_s - 0.5


def test_few_clients_without_a_page_have_a_turn_before_all_others_do() -> None:
    """Each of these turns takes a second of the line from the download that would be done first."""
    capacity, pool = Capacity(), LeasePool()
    capacity.observe(1e5, link_busy=True, more_wanted=True, line_bytes_s=1e5)
    order = InOrder(capacity, pool)
    leases = [
        pool.open(Job("c", f"/{number}", 10**6, 10**6, rate_bytes_s=1e5), 0.0, None, True)
        for number in range(30)
    ]
    early: set[int] = set()
    most = 0
    for tick in range(int(4 * PREEMPTION.longest_pause_s)):
        pause, resume = order.choose(leases, 0.25 * tick)
        early = (early | set(resume)) - set(pause)
        most = max(most, len(early))
    assert most == PREEMPTION.unwarned_at_once


def test_another_policy_lets_nobody_stand_behind() -> None:
    settings = PolicySettings(bandwidth_bytes_s=100_000.0, small_below_bytes=1)
    fair = make_policy("fair", settings, Random(1))
    fair.observe(100_000.0, True, 0.0, 100_000.0)
    for number in range(4):
        job = Job(f"c{number}", "/f", 10**6, 10**6, rate_bytes_s=80_000.0)
        fair.offer(job, 0.0)
    assert fair.advance(0.1).behind == ()
    behind = fair.advance(1.0).behind
    assert behind
    ticket = make_policy("ticket", settings, Random(1), previous=fair)
    assert ticket.advance(1.1).ahead == behind
    assert ticket.advance(1.2).ahead == ()
