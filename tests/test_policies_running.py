from __future__ import annotations

import math
import random
from collections.abc import Iterable
from itertools import accumulate, count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.capacity import Capacity
from tidegate.policies.contract import Admit, Job, TicketState, Wait
from tidegate.policies.fair import FairPolicy
from tidegate.policies.leases import Lease, LeasePool
from tidegate.policies.preemption import PREEMPTION, Preemption
from tidegate.policies.registry import make_policy
from tidegate.policies.running import Running
from tidegate.policies.settings import PolicySettings

LINES = ("", "b")


def lease(number: int, key: int, left: int, speed: int) -> Lease:
    job = Job(f"c{number}", "/f", left, left, rate_bytes_s=speed, line=LINES[number % 2])
    one = Lease(number, job, 0.0, None, True)
    one.key, one.speed_bytes_s = float(key), float(speed)
    return one


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "connection", "reorder", "stale", "ask"]),
        st.integers(0, 5),
        st.integers(1, 9),
        st.integers(1, 9),
    ),
    max_size=40,
)


@given(steps=STEPS)
@settings(max_examples=300, deadline=None)
def test_order_and_sums_are_those_of_a_sorted_list(steps: list[tuple[str, int, int, int]]) -> None:
    capacity = Capacity()
    capacity.observe(20.0, link_busy=True, more_wanted=True, line_bytes_s=20.0)
    running = Running(capacity)
    running.reorder()
    model: list[Lease] = []
    for number, (step, key, left, speed) in enumerate(steps, 1):
        if step == "add":
            model.append(lease(number, key, left, speed))
            running.add(model[-1])
        elif step == "remove" and model:
            running.remove(model.pop(key % len(model)))
        elif step == "connection" and model:
            one = model[key % len(model)]
            one.connections = left % 3
            one.line = LINES[speed % 2]
            running.touch(one)
        elif step in ("reorder", "stale"):
            running.stale = True
        if running.stale and step != "stale":
            for one in model:
                one.key = float(key + one.id % 3)
            running.reorder()
        if running.stale:
            continue
        order = sorted(model, key=lambda one: (one.key, one.id))
        assert running.in_order() == order
        assert len(running) == len(order)
        if step != "ask":
            continue
        for client in {one.client for one in order}:
            own = [one.speed_bytes_s for one in order if one.client == client]
            assert running.speed_of(client) == sum(own)
        before = [one for one in order if one.key < key]
        taken = running.taken_before(key, left, 20.0)
        # Until the line has carried all of it, each takes what its client can.
        until_s = (taken + left) / 20.0
        takes = [min(one.remaining_bytes, until_s * one.speed_bytes_s) for one in before]
        assert taken == pytest.approx(sum(takes), abs=5.0)
        assert running.left_before(key) == sum(one.remaining_bytes for one in before)
        assert running.left_before(math.inf) == sum(one.remaining_bytes for one in order)
        for line in LINES:
            on = [one for one in order if one.line == line and one.connections]
            filled = running.filled(line)
            sums = list(accumulate(one.speed_bytes_s for one in on))
            full = [one.key for one, total in zip(on, sums, strict=True) if total >= 20.0]
            assert filled.filled_at == (full[0] if full else math.inf)
            assert filled.is_full == bool(full)
            if key < filled.filled_at:
                taken = sum(one.speed_bytes_s for one in on if one.key <= key)
                assert filled.before(key) == taken
            before = [one for one in on if one.key < key]
            room_s = running.room_in_s(line, key, 20.0)
            left = [one for one in before if one.remaining_bytes > room_s * one.speed_bytes_s]
            assert sum(one.speed_bytes_s for one in left) < 20.0
            done = sum(one.remaining_bytes for one in before if one not in left)
            if room_s:
                assert sum(one.speed_bytes_s for one in before) >= 20.0
                # The last that ends, or all that ended at the speed of the line.
                ends = {one.remaining_bytes / one.speed_bytes_s for one in before}
                assert room_s in ends or room_s <= done / 20.0


def test_all_are_looked_at_in_turn() -> None:
    running = Running(Capacity())
    for number in range(1, 8):
        running.add(lease(number, 1, 1, 1))
    assert len(running.some(3)) == 7
    running.reorder()
    looks = [[one.id for one in running.some(3)] for _ in range(4)]
    assert looks == [[1, 2, 3], [4, 5, 6], [7], [1, 2, 3]]


#: What happens, to which of those that run, and how much of it.
HAPPENS = st.lists(
    st.tuples(
        st.sampled_from(
            ["start", "open", "end", "connection", "line", "seen", "look", "demand", "time"]
        ),
        st.integers(0, 40),
        st.integers(1, 9),
    ),
    max_size=60,
)


@given(crowd=st.integers(0, 12), steps=HAPPENS)
@settings(max_examples=400, deadline=None)
def test_who_runs_after_each_change_is_who_would_run_if_all_were_looked_at(
    crowd: int, steps: list[tuple[str, int, int]]
) -> None:
    """The few for whom it may have changed are looked at; the whole order says the same."""
    pool, capacity = LeasePool(), Capacity()
    running = Running(capacity)
    preemption = Preemption(pool, running)
    running.reorder()
    now, rate, names = 0.0, 20.0, count()
    probing: dict[Lease, float] = {}

    def start(key: int, speed: int, *, probes: bool) -> None:
        line = LINES[key % 2]
        one = pool.open(Job(f"c{next(names)}", "/f", 9, 9, line=line), now, None, True)
        one.key, one.speed_bytes_s = float(key), float(speed)
        running.add(one)
        if probes:
            preemption.probe(one, now)
            probing[one] = now
        else:
            one.opened = True
        preemption.add(one)

    def decide() -> None:
        capacity.observe(rate, link_busy=True, more_wanted=True, line_bytes_s=rate)
        before = {one.id for one in pool.leases.values() if one.paused}
        pause, resume = preemption.choose(now)
        runs: set[int] = set()
        behind: set[int] = set()
        left = dict.fromkeys(LINES, 1.2 * rate)
        first = set(LINES)
        for one in running.in_order():
            over = PREEMPTION.probe_s if one.cap_bytes_s < math.inf else 4.0 * PREEMPTION.probe_s
            probes = one in probing and now < probing[one] + over
            if left[one.line] > 1e-6 or probes:
                runs.add(one.id)
                left[one.line] -= one.speed_bytes_s if one.connections else 0.0
                last = one.connections and left[one.line] <= 0.2 * rate + 1e-6
                if last and one.line not in first and not probes:
                    behind.add(one.id)
                if one.connections:
                    first.discard(one.line)
            if one in probing and not probes:
                del probing[one]
        paused = set(pool.leases) - runs
        assert {one.id for one in pool.leases.values() if one.paused} == paused
        assert set(pause) == paused - before
        assert set(resume) == before - paused
        assert pool.background.keys() == behind
        assert behind == {one.id for one in pool.leases.values() if one.background}
        assert pool.paused == len(paused)
        assert preemption.count == sum(not pool.leases[one].opened for one in paused)

    for number in range(crowd):
        start(3 * number % 10, 3, probes=number % 3 > 0)
    decide()
    for what, which, much in steps:
        leases = list(pool.leases.values())
        one = leases[which % len(leases)] if leases else None
        if what in ("start", "open"):
            start(which, much, probes=what == "start")
        elif what == "look":
            for each in leases[::2]:
                each.key, each.speed_bytes_s = float(each.id * much % 11), float(much)
            running.reorder()
        elif what == "demand":
            rate = 8.0 * much
            running.reorder()
        elif what == "time":
            now += 0.25 * much
        elif one is None:
            continue
        elif what == "end":
            running.remove(one)
            preemption.remove(one)
            probing.pop(one, None)
            pool.close(one)
        elif what == "connection":
            one.connections = much % 2
            running.touch(one)
        elif what == "line":
            # A request of this download has come to that machine.
            one.connections, one.line = one.connections + 1, LINES[much % 2]
            running.touch(one)
        else:
            one.cap_bytes_s = 5.0
        decide()


def of_many(many: int) -> tuple[AdmissionPolicy, float]:
    """Fair with so many downloads on a line that was just found, a third of them paused."""
    line = 1e4 * many
    settings = PolicySettings(slots=2 * many, slots_max=2 * many, reserve_small=0)
    policy, now = make_policy("fair", settings, random.Random(1)), 1_000.0
    for number in range(many):
        size = 1_000_000 + 1_000 * number
        assert isinstance(policy.offer(Job(f"c{number}", "/f", size, size), now), Admit)
    now += 5.0
    for lease in policy.leases():
        policy.progress(lease.lease, now, lease.remaining_bytes - 1_000, 1.5e4)
    policy.observe(line, True, now, line)
    policy.advance(now)
    return policy, now


def test_a_look_at_thousands_is_done_in_pieces_and_comes_to_what_one_look_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, now = of_many(3_000)
    pieces: list[int] = []
    set_keys = FairPolicy._set_keys

    def counted(fair: FairPolicy, leases: Iterable[Lease]) -> None:
        leases = list(leases)
        pieces.append(len(leases))
        set_keys(fair, leases)

    monkeypatch.setattr(FairPolicy, "_set_keys", counted)
    # What was before all others has ten bytes left now: its turn has come.
    last = policy.leases()[-1]
    assert last.paused
    policy.progress(last.lease, now, 10, 1.5e4)
    resumed: set[int] = set()
    for look in range(16):
        policy.observe(3e7, True, now, 3e7)
        resumed.update(policy.advance(now).resume)
        now += 0.2
        if look == 2:
            # One ends, and one comes, meanwhile.
            policy.release(policy.leases()[0].lease, now, True)
            policy.offer(Job("late", "/f", 5_000_000, 5_000_000), now)
    assert last.lease in resumed
    assert max(pieces) <= 200
    assert sum(pieces) >= 2_999
    running = [one for one in policy.leases() if not one.paused]
    assert sum(one.rate_bytes_s for one in running) >= 3e7 - 1.5e4


def test_thousands_become_ready_and_run_out_a_few_at_a_time() -> None:
    few = PolicySettings(slots=30, reserve_small=0, ticket_ttl_s=100.0)
    policy = make_policy("ticket", few, random.Random(1))
    now, size = 1_000.0, 1_000_000
    policy.close(True)
    for number in range(5_000):
        answer = policy.offer(Job(f"c{number}", "/f", size, size), now)
        assert isinstance(answer, Wait)
    many = few.model_copy(update={"slots": 3_000})
    policy = make_policy("ticket", many, random.Random(1), policy)
    ready = policy.snapshot(now).ready
    while ready < 3_000:
        advance = policy.advance(now)
        before, ready = ready, policy.snapshot(now).ready
        assert before < ready <= before + 200
        assert advance.wake_at is not None
        assert now < advance.wake_at <= now + 0.1 or ready == 3_000
        now = advance.wake_at

    now += 1e6
    over: set[int] = set()
    while len(over) < 3_000:
        advance = policy.advance(now)
        assert 0 < len(advance.expired) <= 200
        over.update(advance.expired)
        assert advance.wake_at is not None
        assert now < advance.wake_at <= now + 0.1 or len(over) == 3_000
        now = advance.wake_at
    ended = policy.ticket(next(iter(over)))
    assert ended is not None
    assert ended.state is TicketState.EXPIRED
