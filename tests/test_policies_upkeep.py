"""What keeps paused downloads alive, and what that costs."""

from __future__ import annotations

import math
import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.contract import Admit, Job, Wait
from policies.leases import LeasePool
from policies.preemption import PROBE_S, Preemption
from policies.registry import make_policy
from policies.settings import PolicySettings
from policies.upkeep import (
    BURST_BYTES,
    MOST_PART,
    SIP_S,
    UpkeepBudget,
    kept_alive_bytes_s,
    most_opened,
    most_paused,
)

#: What the common speed limits are: bytes a second, the mean of so many seconds.
LIMIT_BYTES_S, MEAN_S = 1_000.0, 5.0


class SpeedLimit:
    """A client that gives up once the mean of its last 5 s was too low for so long."""

    def __init__(self, now: float) -> None:
        self.got: deque[tuple[float, int]] = deque()
        self.fine_s = now
        self.longest_s = self.longest_silence_s = 0.0
        self.heard_s = now
        self.burst_s = -math.inf

    def take(self, now: float, count: int) -> None:
        self.longest_silence_s = max(self.longest_silence_s, now - self.heard_s)
        self.heard_s = now
        self.got.append((now, count))

    def look(self, now: float) -> None:
        while self.got and self.got[0][0] <= now - MEAN_S:
            self.got.popleft()
        if sum(count for _, count in self.got) >= LIMIT_BYTES_S * MEAN_S:
            self.fine_s = now
        self.longest_s = max(self.longest_s, now - self.fine_s)


def kept_alive(rate: float, counting: int, others: int) -> tuple[list[SpeedLimit], int]:
    """So many paused downloads for three minutes on one budget; and what all took."""
    budget = UpkeepBudget(0.0)
    clients = [SpeedLimit(0.0) for _ in range(counting + others)]
    chance = random.Random(counting)
    due = [(chance.uniform(0.0, SIP_S), number) for number in range(len(clients))]
    taken = 0
    for step in range(1, 1801):
        now = 0.1 * step
        budget.fill(rate, now)
        sip_s = budget.sip_s(len(clients))
        for place, (due_s, number) in enumerate(due):
            client = clients[number]
            if due_s <= now:
                count = budget.share(now - client.burst_s, counts=number < counting)
                budget.spend(count)
                taken += count
                client.burst_s = now if count >= BURST_BYTES else client.burst_s
                client.take(now, count)
                due[place] = now + sip_s, number
            client.look(now)
    return clients, taken


@given(st.floats(1e4, 1e9), st.integers(0, 40), st.integers(0, 40))
def test_upkeep_takes_no_more_than_its_part_of_the_line(
    rate: float, counting: int, others: int
) -> None:
    _, taken = kept_alive(rate, counting, others)
    assert taken <= MOST_PART * rate * (180.0 + 2.0) + 5 * BURST_BYTES
    assert kept_alive_bytes_s(rate, 40) * 40 <= MOST_PART * rate * 1.001


@pytest.mark.parametrize(
    ("counting", "others", "least_s"), [(20, 20, 15.0), (100, 300, 15.0), (450, 50, 30.0)]
)
def test_who_counts_bytes_lives_on(counting: int, others: int, least_s: float) -> None:
    clients, _ = kept_alive(2.5e6, counting, others)
    assert max(client.longest_s for client in clients[:counting]) < least_s
    assert max(client.longest_silence_s for client in clients) <= SIP_S + 0.2


@given(st.floats(1e3, 1e11))
def test_places_cost_a_small_part_of_the_line(rate: float) -> None:
    together = most_paused(rate) + most_opened(rate)
    assert together * kept_alive_bytes_s(rate, 1) <= 0.125 * rate
    if rate >= 2e6:
        assert together * kept_alive_bytes_s(rate, 1) <= 0.0451 * rate


def test_who_counts_bytes_is_opened_before_its_turn_and_has_its_turn_later() -> None:
    policy = make_policy("fair", PolicySettings(bandwidth_bytes_s=1e6), random.Random(1))
    line = 1e6

    def settle(now: float) -> tuple[list[int], list[int]]:
        policy.observe(line, True, now, line)
        advance = policy.advance(now)
        return list(advance.call), list(advance.pause)

    def ask(name: str, size: int, now: float, *, counts: bool) -> Admit | Wait:
        network = (f"{name}/32", "10.1.1/24") if name.startswith("c") else ()
        job = Job(name, "f", size, size, present=True, counts_body=counts, network=network)
        decision = policy.offer(job, now)
        assert isinstance(decision, Admit | Wait)
        return decision

    policy.observe(line, True, 0.0, line)
    # Those that run take the line, and as many are paused as it bears.
    tickets: dict[int | None, str] = {}
    for number in range(200):
        decision = ask(f"r{number}", 10_000_000, 0.01 * number, counts=False)
        tickets[decision.ticket] = f"r{number}"
        settle(0.01 * number)
    for number in range(200):
        decision = ask(f"c{number}", 20_000_000, 10.0, counts=True)
        assert isinstance(decision, Wait)
        tickets[decision.ticket] = f"c{number}"
    opened: list[int] = []
    for step in range(40):
        now = 17.0 + 0.05 * step
        for _ in range(50):
            called = [ticket for ticket in settle(now)[0] if ticket in tickets]
            if not called:
                break
            for ticket in called:
                name = tickets[ticket]
                size = 20_000_000 if name.startswith("c") else 10_000_000
                decision = ask(name, size, now, counts=name.startswith("c"))
                if isinstance(decision, Admit) and name.startswith("c"):
                    opened.append(decision.lease)
                    assert now >= 18.0
    # Half of the openings may be of one network of strangers.
    assert 0.5 * most_opened(line) <= len(opened) < 0.5 * most_opened(line) + 1.0
    paused = {view.lease for view in policy.leases() if view.paused}
    assert paused >= set(opened)
    # When all others have ended, it is their turn.
    for view in policy.leases():
        if view.lease not in opened:
            policy.release(view.lease, 30.0, True)
    policy.observe(line, True, 30.0, line)
    assert set(policy.advance(30.0).resume) & set(opened)


def test_a_probe_lasts_until_the_speed_has_been_seen_but_not_for_ever() -> None:
    pool, preemption = LeasePool(), Preemption()
    seen, unseen = (pool.open(Job(name, "f", 9, 9), 0.0, None, True) for name in ("a", "b"))
    preemption.probe(seen, 0.0)
    preemption.probe(unseen, 0.0)
    seen.cap_bytes_s = 5.0

    def paused(now: float) -> tuple[int, ...]:
        return preemption.choose((seen, unseen), 0.0, 1.0, 1.0, now)[0]

    assert paused(0.9 * PROBE_S) == ()
    assert preemption.next_s(0.9 * PROBE_S) == PROBE_S
    assert paused(PROBE_S) == (seen.id,)
    assert paused(2.0 * PROBE_S) == ()
    assert paused(60.0) == (unseen.id,)
    assert preemption.count == 2
    assert preemption.next_s(60.0) is None
