"""Several lines, as of a fleet: each is filled with those that are on it."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.in_order import InOrder
from tidegate.policies.capacity import Capacity
from tidegate.policies.contract import Admit, Job, LineSeen, Wait
from tidegate.policies.leases import Lease
from tidegate.policies.registry import make_policy
from tidegate.policies.settings import PolicySettings

MB = 1_000_000
LINES = st.sampled_from(("a", "b", "c"))


def capacity(**rates: float) -> Capacity:
    """Lines that carry so much, in bytes a second, and are full."""
    found, total = Capacity(), sum(rates.values())
    found.observe(total, link_busy=True, more_wanted=True, line_bytes_s=total)
    found.observe_lines({name: LineSeen(rate, rate, True) for name, rate in rates.items()}, ())
    return found


def lease(number: int, line: str, speed: float) -> Lease:
    job = Job(f"c{number}", "/f", 10 * MB, 10 * MB, rate_bytes_s=speed, line=line)
    return Lease(number, job, 0.0, None, True)


def decided(leases: list[Lease], found: Capacity) -> tuple[int, ...]:
    """Which of these stop."""
    return InOrder(found).choose(leases, 0.0)[0]


@given(st.lists(st.tuples(LINES, st.floats(1e4, 3e6)), max_size=30))
def test_each_line_runs_what_it_would_run_alone(crowd: list[tuple[str, float]]) -> None:
    rates = {"a": 1e6, "b": 2e6, "c": 5e5}
    order = [lease(number, *one) for number, one in enumerate(crowd, 1)]
    paused = decided(order, capacity(**rates))
    for name, rate in rates.items():
        own = [lease(number, *one) for number, one in enumerate(crowd, 1) if one[0] == name]
        alone = Capacity()
        alone.observe(rate, link_busy=True, more_wanted=True, line_bytes_s=rate)
        expected = decided(own, alone)
        assert tuple(n for n in paused if crowd[n - 1][0] == name) == expected


def test_one_line_alone_has_the_same_room_as_one_of_one() -> None:
    alone, one = Capacity(), capacity(a=1e6)
    alone.observe(1e6, link_busy=True, more_wanted=True, line_bytes_s=1e6)
    for line in ("", "a", "elsewhere"):
        assert one.rate_of(line) == alone.rate_of(line) == 1e6
        assert one.demand_of(line) == alone.demand_of(line)
    assert one.demand_bytes_s == alone.demand_bytes_s


def test_an_idle_line_asks_for_more_only_where_somebody_is_kept_waiting() -> None:
    found = capacity(a=1e6, b=1e6)
    for _ in range(5):
        found.observe_lines({name: LineSeen(1e6, 1e5, False) for name in ("a", "b")}, {"a"})
    assert found.demand_of("a") > 1.5e6
    assert found.demand_of("b") == 1e6
    found.observe_lines({"b": LineSeen(1e6, 1e6, True)}, ())
    assert found.demand_of("a") == 2e6, "a line that is gone: what each of the others has"


def test_a_waiting_client_starts_where_there_is_room_and_a_poller_where_it_asks() -> None:
    """Those of a busy line wait, however many, and hold up nobody at an idle one."""
    policy = make_policy("fair", PolicySettings(slots_max=1000), random.Random(1))
    lines = {"a": LineSeen(MB, MB, True), "b": LineSeen(MB, 0.0, False)}
    policy.observe(MB, True, 0.0, 2.0 * MB, lines)
    waiting: dict[int, str] = {}
    for number in range(100):
        job = Job(f"a{number}", "/f", 20 * MB, 20 * MB, rate_bytes_s=MB, present=True, line="a")
        answer = policy.offer(job, 0.0)
        if isinstance(answer, Wait) and answer.ticket is not None:
            waiting[answer.ticket] = job.client
    policy.advance(0.0)
    assert len(waiting) > 50
    later = Job("b", "/f", 900 * MB, 900 * MB, rate_bytes_s=MB, line="b")
    decision = policy.offer(later, 0.1)
    assert isinstance(decision, Admit)
    asked_at_a = Job("d", "/f", 900 * MB, 900 * MB, rate_bytes_s=MB, line="a")
    told = policy.offer(asked_at_a, 0.1)
    assert isinstance(told, Wait)
    policy.release(decision.lease, 0.2, True)
    at_b = Job("d", "/f", 900 * MB, 900 * MB, rate_bytes_s=MB, line="b")
    assert isinstance(policy.offer(at_b, 0.3 + told.retry_after_s, told.ticket), Admit)
