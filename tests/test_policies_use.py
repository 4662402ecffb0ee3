"""Use it or lose it, claims that are charged, and times that stay sensible."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.contract import Admit, Job, Wait
from tidegate.policies.registry import make_policy
from tidegate.policies.settings import PolicySettings

BIG = 50_000_000


def make(name: str = "ticket", **changes: Any) -> AdmissionPolicy:
    fields: dict[str, Any] = {"slots": 3, "reserve_small": 0, **changes}
    return make_policy(name, PolicySettings.model_validate(fields), random.Random(1))


def job(client: str, size: int = BIG, **fields: Any) -> Job:
    return Job(client, f"file{size}", size, fields.pop("remaining", size), **fields)


def run(policy: AdmissionPolicy, rates: dict[int, float], start: float, end: float) -> list[int]:
    """Leases take these rates, in quarters of a second; returns who was called."""
    left = {view.lease: view.remaining_bytes for view in policy.leases()}
    called: list[int] = []
    now = start
    while now < end:
        now += 0.25
        for lease, rate in rates.items():
            left[lease] -= int(0.25 * rate)
            policy.progress(lease, now, left[lease], rate)
        policy.observe(sum(rates.values()), False, now)
        called += policy.advance(now).call
    return called


@pytest.mark.parametrize("bandwidth", [None, 20e6])
def test_stalled_readers_hold_no_slot_while_others_wait(bandwidth: float | None) -> None:
    policy = make(bandwidth_bytes_s=bandwidth)
    stalled = {}
    for client in "abc":
        answer = policy.offer(job(client), 0.0)
        assert isinstance(answer, Admit)
        stalled[answer.lease] = 250.0
    policy.advance(0.0)
    waiting = policy.offer(job("honest", present=True), 1.0)
    assert isinstance(waiting, Wait)
    assert waiting.ticket in run(policy, stalled, 1.0, 5.0), "as nobody waited when they began"
    run(policy, stalled, 5.0, 25.0)
    seen = policy.snapshot(25.0)
    assert seen.slotless == 3
    assert seen.large_active == 3, "their downloads go on"


@pytest.mark.parametrize("bandwidth", [None, 20e6])
def test_stalled_readers_spoil_nobodys_told_time(bandwidth: float | None) -> None:
    policy = make(bandwidth_bytes_s=bandwidth)
    stalled = {}
    for client in "abc":
        answer = policy.offer(job(client, 8 * BIG), 0.0)
        assert isinstance(answer, Admit)
        stalled[answer.lease] = 1e6
    for second in range(1, 19):
        # Then what is smoothed falls by seven eighths in a second.
        stalled = dict.fromkeys(stalled, max(1e-9, 1e6 * 0.125 ** max(0, second - 3)))
        run(policy, stalled, float(second), second + 1.0)
        told = policy.offer(job(f"new{second}", 8 * BIG), second + 1.0)
        if isinstance(told, Admit):
            assert second > 10, "they have lost their slots"
            return
        assert isinstance(told, Wait)
        assert told.estimate is not None
        if second >= 8:
            # Their slots are free in 20 s; those before it need 400 s at an unknown pace.
            assert told.place == second
            assert told.estimate.expected_s < 40.0 + 800.0 * ((second - 1) // 3), second


@pytest.mark.parametrize("knocks", [1, 10])
def test_slots_of_stalled_readers_that_left_go_to_the_first_that_knock(knocks: int) -> None:
    policy = make()
    stalled = {}
    for client in "abc":
        answer = policy.offer(job(client), 0.0)
        assert isinstance(answer, Admit)
        stalled[answer.lease] = 1e-9
    waiting = {}
    for second in range(1, 10):
        rates = dict.fromkeys(stalled, 1e6) if second <= 3 else stalled
        run(policy, rates, float(second), second + 1.0)
        told = policy.offer(job(f"new{second}"), second + 1.0)
        assert isinstance(told, Wait)
        waiting[f"new{second}"] = told.ticket
    for _ in range(knocks):
        assert isinstance(policy.offer(job("new1"), 10.0, waiting["new1"]), Wait)
    for lease in stalled:
        policy.release(lease, 10.0, False)
    run(policy, {}, 10.0, 11.0)
    assert isinstance(policy.offer(job("new1"), 11.0, waiting["new1"]), Admit)
    assert isinstance(policy.offer(job("new2"), 11.0, waiting["new2"]), Admit)
    assert isinstance(policy.offer(job("newcomer"), 11.0), Admit), "the others stay away"


def test_a_download_that_takes_its_share_keeps_its_slot() -> None:
    policy = make(bandwidth_bytes_s=3e6)
    used = {}
    for client in "abc":
        answer = policy.offer(job(client), 0.0)
        assert isinstance(answer, Admit)
        used[answer.lease] = 200_000.0
    assert isinstance(policy.offer(job("next", present=True), 1.0), Wait)
    assert run(policy, used, 1.0, 60.0) == []
    assert policy.snapshot(60.0).slotless == 0


@settings(max_examples=30)
@given(round_trip_s=st.floats(0.01, 0.6), asks_s=st.floats(0.0, 10.0))
def test_who_starts_slowly_over_a_long_path_keeps_the_slot(
    round_trip_s: float, asks_s: float
) -> None:
    """TCP begins with ten packets and doubles them at each round trip; others come meanwhile."""
    policy = make(bandwidth_bytes_s=5e6)
    slow = []
    for client in "abc":
        answer = policy.offer(job(client), 0.0)
        assert isinstance(answer, Admit)
        slow.append(answer.lease)
    policy.advance(0.0)
    left, window, due_s, rate, now = BIG, 14_480.0, round_trip_s, 0.0, 0.0
    asked = False
    while now < asks_s + 4.0:
        now += 0.25
        taken = 0.0
        while due_s <= now:
            taken += window
            window, due_s = min(2.0 * window, 400_000.0 * round_trip_s), due_s + round_trip_s
        left = max(BIG // 2, left - int(taken))
        rate += (4.0 * taken - rate) * 0.5
        for lease in slow:
            policy.progress(lease, now, left, rate)
        policy.observe(3.0 * rate, False, now)
        if not asked and now >= asks_s:
            asked = isinstance(policy.offer(job("next", present=True), now), Wait)
        policy.advance(now)
    assert asked
    assert policy.snapshot(now).slotless == 0


@settings(max_examples=20)
@given(count=st.integers(1, 5), quiet_s=st.integers(4, 9))
def test_who_lost_the_slot_at_the_start_gets_the_next_in_order(count: int, quiet_s: int) -> None:
    policy = make(slots=count, bandwidth_bytes_s=3e6)
    early = [policy.offer(job(f"early{number}"), 0.0) for number in range(count)]
    late = [policy.offer(job(f"late{number}", present=True), 1.0) for number in range(2 * count)]
    lost = [answer.lease for answer in early if isinstance(answer, Admit)]
    called = run(policy, dict.fromkeys(lost, 0.0), 1.0, float(quiet_s))
    assert set(called) == {told.ticket for told in late[:count] if isinstance(told, Wait)}
    held = []
    for number in range(count):
        told = late[number]
        assert isinstance(told, Wait)
        started = policy.offer(job(f"late{number}", present=True), float(quiet_s), told.ticket)
        assert isinstance(started, Admit)
        held.append(started.lease)
    now = float(quiet_s)
    while sum(view.paused for view in policy.leases()) < count and now < 40.0:
        assert run(policy, dict.fromkeys(lost + held, 600_000.0), now, now + 0.25) == []
        now += 0.25
    resumed: list[int] = []
    for lease in held:
        policy.release(lease, now, True)
        step = policy.advance(now)
        assert step.call == (), "who waits comes after those that lost their slots"
        resumed += step.resume
    assert resumed == lost


def test_a_lease_without_slot_that_wakes_up_waits_for_the_next_free_one() -> None:
    policy = make(slots=1, bandwidth_bytes_s=3e6)
    first = policy.offer(job("a"), 0.0)
    assert isinstance(first, Admit)
    waiting = policy.offer(job("b", present=True), 1.0)
    assert isinstance(waiting, Wait)
    called = run(policy, {first.lease: 10.0}, 1.0, 25.0)
    assert waiting.ticket in called
    second = policy.offer(job("b", present=True), 25.0, waiting.ticket)
    assert isinstance(second, Admit)
    third = policy.offer(job("c", present=True), 25.0)
    assert isinstance(third, Wait)
    rates = {first.lease: 500_000.0, second.lease: 500_000.0}
    run(policy, rates, 25.0, 36.0)
    assert {view.client for view in policy.leases() if view.paused} == {"a"}
    policy.release(second.lease, 36.5, True)
    step = policy.advance(36.5)
    assert step.resume == (first.lease,)
    assert step.call == (), "the one that lost its slot comes first"


@pytest.mark.parametrize("name", ["ticket", "fair", "adaptive"])
def test_no_time_is_told_that_is_not_finite_and_sensible(name: str) -> None:
    settings = PolicySettings(slots=3, reserve_small=0, bandwidth_bytes_s=1e6)
    policy = make_policy(name, settings, random.Random(1))
    rates = {}
    for number in range(300):
        answer = policy.offer(job(f"c{number}", 5_000_000_000), 0.0)
        if isinstance(answer, Admit):
            rates[answer.lease] = 1e-9
    for now in (1.0, 30.0, 100.0, 1_000.0):
        for lease, rate in rates.items():
            if any(view.lease == lease for view in policy.leases()):
                policy.progress(lease, now, 5_000_000_000, rate)
        policy.observe(0.0, False, now)
        policy.advance(now)
        answer = policy.offer(job(f"late{now}", 5_000_000_000), now)
        if isinstance(answer, Wait):
            assert answer.estimate is not None
            assert 0 < answer.estimate.expected_s <= answer.estimate.p90_s
            assert answer.estimate.p90_s <= 20 * settings.retry_max_s
            assert answer.retry_after_s <= 1.1 * settings.retry_max_s


def test_a_claim_to_want_little_moves_nobody_to_the_front() -> None:
    policy = make("fair", slots=4, slots_max=4, bandwidth_bytes_s=1e6)
    for number in range(4):
        policy.offer(job(f"run{number}", 900_000), 0.0)
    honest = policy.offer(job("honest", 2_000_000), 1.0)
    liar = policy.offer(job("liar", 2_000_000, remaining=1), 1.0)
    assert isinstance(honest, Wait)
    assert isinstance(liar, Wait)
    assert honest.place is not None
    assert liar.place is not None
    assert honest.place < liar.place


def test_what_was_really_delivered_counts_for_a_resume() -> None:
    policy = make("fair", slots=4, slots_max=4, bandwidth_bytes_s=1e6, lease_idle_s=5.0)
    first = policy.offer(job("a", 2_000_000), 0.0)
    assert isinstance(first, Admit)
    policy.progress(first.lease, 1.0, 500_000, 1e6)
    policy.detach(first.lease, 2.0, 500_000)
    assert policy.advance(8.0).idled_out == (first.lease,)
    for number in range(4):
        policy.offer(job(f"run{number}", 400_000), 9.0)
    whole = policy.offer(job("whole", 900_000), 9.0)
    resumed = policy.offer(job("a", 2_000_000, remaining=500_000), 9.0)
    assert isinstance(whole, Wait)
    assert isinstance(resumed, Wait)
    # Both are told the same time, so their places are those of their requests; the order is not.
    order = [row.number for row in policy.tickets()]
    assert order.index(resumed.ticket or 0) < order.index(whole.ticket or 0)


@pytest.mark.parametrize("bandwidth", [None, 1e6])
def test_a_ready_ticket_that_knocks_while_a_slot_is_idle_starts(bandwidth: float | None) -> None:
    policy = make(slots=1, bandwidth_bytes_s=bandwidth)
    first = policy.offer(job("a"), 0.0)
    assert isinstance(first, Admit)
    asked = [policy.offer(job(client), 0.0) for client in "bc"]
    policy.advance(0.0)
    policy.release(first.lease, 1.0, True)
    policy.advance(1.0)
    policy.advance(3.0)
    second = asked[1]
    assert isinstance(second, Wait)
    due = policy.offer(job("c"), second.retry_after_s, second.ticket)
    assert isinstance(due, Admit), "the first in line is away, and its slot stood idle"


IDLE_BYTES_S = 250.0


def seconds_until_called(idlers: list[tuple[str, ...]], slots: int = 1) -> float:
    """How long one waits who comes last, beside idle readers each of that network."""
    policy = make(slots=slots, bandwidth_bytes_s=1e6, slots_max=2_000)
    jobs: dict[int, Job] = {}
    rates: dict[int, float] = {}
    for number, network in enumerate(idlers):
        asked = job(f"i{number}", present=True, network=network)
        answer = policy.offer(asked, 0.0)
        if isinstance(answer, Admit):
            rates[answer.lease] = IDLE_BYTES_S
        else:
            assert isinstance(answer, Wait)
            assert answer.ticket is not None
            jobs[answer.ticket] = asked
    honest = policy.offer(job("honest", present=True, network=("198.51.100.0/24",)), 0.0)
    assert isinstance(honest, Wait)
    now = 0.0
    while now < 600.0:
        called = run(policy, rates, now, now + 0.25)
        now += 0.25
        if honest.ticket in called:
            return now
        for ticket in called:
            started = policy.offer(jobs[ticket], now, ticket)
            assert isinstance(started, Admit)
            rates[started.lease] = IDLE_BYTES_S
    raise AssertionError("never")


def test_idle_readers_of_one_network_cost_one_look_not_one_each() -> None:
    assert seconds_until_called([("192.0.2.0/24",)] * 40) <= 3.5


def test_who_sits_behind_the_address_of_an_idle_reader_starts_after_one_other() -> None:
    policy = make(slots=1, bandwidth_bytes_s=1e6)
    shared = ("192.0.2.0/24",)
    idle = policy.offer(job("idle", network=shared), 0.0)
    assert isinstance(idle, Admit)
    waiting = [
        policy.offer(job(name, present=True, network=network), 0.0)
        for name, network in (
            ("neighbour", shared),
            ("first", ("198.51.100.0/24",)),
            ("second", ("203.0.113.0/24",)),
        )
    ]
    tickets = [answer.ticket for answer in waiting if isinstance(answer, Wait)]
    assert len(tickets) == 3
    assert run(policy, {idle.lease: IDLE_BYTES_S}, 0.0, 4.0)[:1] == tickets[1:2]
    first = policy.offer(job("first", network=("198.51.100.0/24",)), 4.0, tickets[1])
    assert isinstance(first, Admit)
    run(policy, {first.lease: 1e6}, 4.0, 8.0)
    policy.release(first.lease, 8.0, True)
    assert policy.advance(8.0).call == (tickets[0],)


def test_a_botnet_of_idle_readers_is_tried_the_more_at_once_the_more_of_it_there_are() -> None:
    """In turn 300 of them would have a slot for 900 s."""
    many = [(f"10.0.{number}.0/24",) for number in range(300)]
    assert seconds_until_called(many) < 120.0
    assert seconds_until_called(many, slots=10) < 15.0


def test_two_idle_readers_change_nothing_for_the_slots_of_others() -> None:
    policy = make(slots=20, bandwidth_bytes_s=1e6)
    rates = {}
    for number in range(20):
        answer = policy.offer(job(f"c{number}", network=(f"10.0.{number}.0/24",)), 0.0)
        assert isinstance(answer, Admit)
        rates[answer.lease] = IDLE_BYTES_S if number < 2 else 50e3
    policy.offer(job("next", present=True, network=("198.51.100.0/24",)), 0.0)
    run(policy, rates, 0.0, 4.0)
    assert policy.snapshot(4.0).slotless == 2
    for number in range(10):
        policy.offer(job(f"d{number}", network=(f"10.1.{number}.0/24",)), 4.0)
    assert len(policy.leases()) <= 22


def test_a_network_that_downloads_for_hours_gives_up_half_of_the_slots_once_others_come() -> None:
    """They used to be all its own until its downloads were done."""
    policy = make(slots=8, bandwidth_bytes_s=8e6)
    rates = {}
    for number in range(20):
        answer = policy.offer(job(f"a{number}", 100 * BIG, network=("192.0.2.0/24",)), 0.0)
        if isinstance(answer, Admit):
            rates[answer.lease] = 1e6
    assert len(rates) == 8
    run(policy, rates, 0.0, 20.0)
    assert policy.snapshot(20.0).slotless == 0
    jobs = {}
    for number in range(6):
        asked = job(f"h{number}", present=True, network=(f"10.0.{number}.0/24",))
        answer = policy.offer(asked, 20.0)
        assert isinstance(answer, Wait)
        assert answer.ticket is not None
        jobs[answer.ticket] = asked
    called = run(policy, rates, 20.0, 24.0)
    assert sorted(set(called)) == sorted(jobs)[:4]
    for ticket in sorted(jobs)[:4]:
        started = policy.offer(jobs[ticket], 24.0, ticket)
        assert isinstance(started, Admit)
        rates[started.lease] = 1e6
    for second in range(24, 60):
        run(policy, rates, second, second + 1.0)
        views = {view.client[0]: 0 for view in policy.leases()}
        assert views, "all go on"
        snapshot = policy.snapshot(second + 1.0)
        assert snapshot.large_active == 12
        assert snapshot.slotless == 4


def test_a_server_that_stood_still_takes_nobodys_slot_for_it() -> None:
    """Under load it did: a second's bytes were held against three seconds."""
    policy = make(slots=1, bandwidth_bytes_s=1e6)
    busy = policy.offer(job("busy"), 0.0)
    assert isinstance(busy, Admit)
    policy.offer(job("next", present=True), 0.0)
    policy.progress(busy.lease, 3.5, BIG - 20_000, 1e3)
    assert policy.advance(3.5).call == ()
    assert policy.snapshot(3.5).slotless == 0
