from __future__ import annotations

import math
import random
from itertools import accumulate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import policies.running
from policies.contract import Job, TicketState, Wait
from policies.leases import Lease
from policies.registry import make_policy
from policies.running import Running
from policies.settings import PolicySettings

LINES = ("", "b")


def lease(number: int, key: int, left: int, speed: int) -> Lease:
    job = Job(f"c{number}", "/f", left, left, rate_bytes_s=speed, line=LINES[number % 2])
    one = Lease(number, job, 0.0, None, True)
    one.key = float(key)
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


@pytest.mark.parametrize("many", [0, 5, 100])
@given(steps=STEPS)
@settings(
    max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_order_and_sums_are_those_of_a_sorted_list(
    many: int, monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, int, int, int]]
) -> None:
    monkeypatch.setattr(policies.running, "_MANY", many)
    running = Running(lambda one: one.cap_bytes_s)
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
            running.connected(one)
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
        assert running.left_in_all() == sum(one.remaining_bytes for one in order)
        before = [one for one in order if one.key < key]
        assert running.left_before(key) == sum(one.remaining_bytes for one in before)
        for line in LINES:
            on = [one for one in order if one.line == line]
            taken = [one.cap_bytes_s if one.connections else 0.0 for one in on]
            before = [one for one in on if one.key < key]
            assert running.speed_before(key, line) == sum(taken[: len(before)])
            sums = accumulate(taken)
            first = next((at for at, total in enumerate(sums) if total >= 3 * speed), None)
            filled = math.inf if first is None else on[first].key
            assert running.filled_at(3 * speed, line) == filled


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
