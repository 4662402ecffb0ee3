from __future__ import annotations

import random

import pytest

from tidegate.policies.contract import Admit, Job
from tidegate.policies.laws.reputation import _REMEMBERED, Reputation
from tidegate.policies.registry import make_policy
from tidegate.policies.settings import PolicySettings

BIG = 10_000_000


@pytest.mark.parametrize("name", ["fcfs", "reserve", "ticket", "fair", "adaptive"])
def test_who_lets_slots_idle_away_keeps_each_next_one_half_as_long(name: str) -> None:
    settings = PolicySettings(slots=4, reserve_small=0, lease_idle_s=40.0)
    policy = make_policy(name, settings, random.Random(1))
    now, kept = 0.0, []

    def ask(file: str, remaining: int) -> float:
        nonlocal now
        answer = policy.offer(Job("c", file, BIG, BIG), now)
        assert isinstance(answer, Admit)
        policy.detach(answer.lease, now, remaining)
        began = now
        while policy.leases():
            wake_at = policy.advance(now).wake_at
            assert wake_at is None or wake_at > now or not policy.leases()
            now = max(now, wake_at or now)
        return now - began

    for visit in range(4):
        kept.append(ask(f"f{visit}", BIG))
    assert kept == [10.0, 5.0, 2.5, 1.25]
    assert ask("in earnest", BIG // 2) == 40.0, "who takes something is waited for"
    answer = policy.offer(Job("c", "whole", BIG, BIG), now)
    assert isinstance(answer, Admit)
    policy.release(answer.lease, now, True)
    assert ask("again", BIG) == 10.0, "a finished download makes good"


def test_memory_of_idlers_is_bounded() -> None:
    idlers = Reputation()
    for client in range(_REMEMBERED + 5):
        idlers.idled(str(client))
    assert idlers.times("4") == 0
    assert idlers.times("5") == 1
    # The one that idled longest ago is forgotten, not the one that was seen first.
    idlers.idled("5")
    idlers.idled("one more")
    assert (idlers.times("5"), idlers.times("6")) == (2, 0)
    for _ in range(100):
        idlers.idled("x")
    # Nothing gets worse any more.
    assert idlers.times("x") == 8
    idlers.used("x")
    idlers.used("never seen")
    assert idlers.times("x") == 0
