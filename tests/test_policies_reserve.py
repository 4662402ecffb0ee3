from __future__ import annotations

import math
import random
from typing import Any

import pytest

from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.contract import Admit, Job, Reason, Refuse, Wait
from tidegate.policies.registry import make_policy, readers_of
from tidegate.policies.room import Room
from tidegate.policies.settings import PolicySettings

LARGE, SMALL = 1_000_000, 1_000


def job(client: str, size: int) -> Job:
    return Job(client, f"file-{size}", size, size)


def make(name: str, **changes: Any) -> AdmissionPolicy:
    return make_policy(name, PolicySettings.model_validate(changes), random.Random(1))


def test_fcfs_gives_every_slot_to_those_who_ask_and_tells_the_rest_to_try_again() -> None:
    policy = make("fcfs", slots=2, reserve_small=1)
    first = policy.offer(job("a", LARGE), 0.0)
    assert isinstance(first, Admit)
    assert isinstance(policy.offer(job("b", LARGE), 0.0), Admit)
    assert policy.offer(job("c", SMALL), 1.0) == Wait(15.0)
    assert not policy.admit_small(1, 1.0)
    policy.release(first.lease, 2.0, True)
    assert policy.admit_small(1, 2.0)
    assert isinstance(policy.offer(job("d", LARGE), 2.0), Admit)


@pytest.mark.parametrize("name", ["fcfs", "reserve"])
def test_no_brief_body_overtakes_those_who_were_sent_away(name: str) -> None:
    policy = make(name, slots=1, reserve_small=0, busy_retry_s=10.0)
    assert policy.can_admit_single_write(0.0)
    first = policy.offer(job("a", LARGE), 0.0)
    assert isinstance(first, Admit)
    assert isinstance(policy.offer(job("b", LARGE), 1.0), Wait)
    policy.release(first.lease, 2.0, True)
    assert not policy.admit_single_write(2.0)
    assert policy.admit_single_write(20.0)  # "b" did not come back


def test_reserve_keeps_the_last_slots_for_small_jobs() -> None:
    policy = make("reserve", slots=3, reserve_small=1, come_back_s=30.0)
    for client in "ab":
        assert isinstance(policy.offer(job(client, LARGE), 0.0), Admit)
    assert policy.offer(job("c", LARGE), 0.0) == Wait(30.0)
    assert isinstance(policy.offer(job("d", SMALL), 0.0), Admit)
    assert policy.offer(job("e", SMALL), 0.0) == Wait(15.0)
    seen = policy.snapshot(0.0)
    assert (seen.large_active, seen.small_active, seen.large_slots) == (2, 1, 2)


def test_while_no_slot_is_free_nobody_counts_the_small_that_are_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For each of 5 000 that waited, all were counted: a third of a core, at every tick."""
    policy = make("ticket", slots=1, reserve_small=0)
    assert isinstance(policy.offer(job("a", LARGE), 0.0), Admit)
    for number in range(50):
        wait = policy.offer(job(f"client {number}", SMALL), 1.0)
        assert isinstance(wait, Wait)
        assert wait.ticket is not None
        policy.present(wait.ticket, 1.0)
    counted: list[float] = []
    count = Room.owed_to_small

    def owed(room: Room, now: float, before: float = math.inf, most: float = math.inf) -> float:
        counted.append(before)
        return count(room, now, before, most)

    monkeypatch.setattr(Room, "owed_to_small", owed)
    for tick in range(4):
        policy.advance(1.25 + 0.25 * tick)
    assert not counted


def test_connections_of_one_download_ride_on_one_lease_up_to_the_bound() -> None:
    policy = make("fcfs", slots=2, reserve_small=0, connections_per_lease=2)
    first = policy.offer(job("a", LARGE), 0.0)
    assert isinstance(first, Admit)
    assert policy.offer(job("a", LARGE), 0.0) == Admit(first.lease, None, joined=True)
    refusal = policy.offer(job("a", LARGE), 0.0)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is Reason.TOO_MANY_CONNECTIONS


def test_nobody_joins_a_download_that_has_every_byte() -> None:
    """Its last connection may linger for a minute: a used ticket would start it anew meanwhile."""
    policy = make("fcfs", slots=2, reserve_small=0, connections_per_lease=4)
    first = policy.offer(job("a", LARGE), 0.0)
    assert isinstance(first, Admit)
    assert policy.offer(job("a", LARGE), 1.0) == Admit(first.lease, None, joined=True)
    policy.detach(first.lease, 2.0, 0)
    refusal = policy.offer(job("a", LARGE), 3.0)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is Reason.TOO_MANY_CONNECTIONS


@pytest.mark.parametrize("name", ["fcfs", "reserve"])
def test_tickets_of_an_earlier_policy_keep_no_slot_that_stands_idle(name: str) -> None:
    old = make("ticket", slots=1, reserve_small=0)
    first = old.offer(job("a", LARGE), 0.0)
    assert isinstance(first, Admit)
    assert isinstance(old.offer(job("b", LARGE), 0.0), Wait)
    settings = PolicySettings(slots=1, reserve_small=0)
    policy = make_policy(name, settings, random.Random(1), previous=old)
    policy.release(first.lease, 1.0, True)
    policy.advance(1.0)
    assert isinstance(policy.offer(job("c", LARGE), 1.0), Wait)
    policy.advance(1.6)
    assert isinstance(policy.offer(job("c", LARGE), 1.6), Admit)
    assert isinstance(policy.offer(job("b", LARGE), 1.7), Wait), "its place is kept"
    assert policy.holds("b", f"file-{LARGE}")


def test_a_lease_without_connections_lasts_its_idle_time_and_no_longer() -> None:
    policy = make("fcfs", slots=1, reserve_small=0, lease_idle_s=20.0)
    first = policy.offer(job("a", LARGE), 0.0)
    assert isinstance(first, Admit)
    policy.detach(first.lease, 5.0, LARGE - LARGE // 10)
    assert policy.advance(5.0).wake_at == 25.0
    again = policy.offer(job("a", LARGE), 10.0)
    assert again == Admit(first.lease, None, joined=True)
    assert policy.advance(30.0).idled_out == ()
    policy.detach(first.lease, 31.0, 400)
    assert policy.advance(51.0).idled_out == (first.lease,)
    assert isinstance(policy.offer(job("b", LARGE), 51.0), Admit)


def test_who_asks_and_hangs_up_at_once_holds_a_slot_for_a_moment_only() -> None:
    policy = make("fcfs", slots=1, reserve_small=0, lease_idle_s=20.0)
    ghost = policy.offer(job("ghost", LARGE), 0.0)
    assert isinstance(ghost, Admit)
    policy.detach(ghost.lease, 1.0, LARGE - 1)
    assert policy.advance(1.0).wake_at == 6.0
    slow = policy.offer(job("ghost", LARGE), 3.0)
    assert isinstance(slow, Admit)
    policy.detach(slow.lease, 13.0, LARGE - 2)
    assert policy.advance(13.0).wake_at == 22.0, "used for 11 s, without a connection for 2"


def test_switching_the_policy_keeps_every_download() -> None:
    old = make("fcfs", slots=2, reserve_small=0)
    first = old.offer(job("a", LARGE), 0.0)
    assert isinstance(first, Admit)
    old.offer(job("b", LARGE), 0.0)
    new = make_policy(
        "reserve", PolicySettings(slots=2, reserve_small=1), random.Random(1), previous=old
    )
    assert len(new.leases()) == 2
    assert isinstance(new.offer(job("c", LARGE), 1.0), Wait)
    new.release(first.lease, 2.0, True)
    assert isinstance(new.offer(job("c", LARGE), 2.0), Wait)
    assert isinstance(new.offer(job("c", SMALL), 2.0), Admit)


def test_an_unknown_policy_is_named_with_those_that_exist() -> None:
    with pytest.raises(KeyError, match=r"lottery.*fcfs"):
        make("lottery")


def test_settings_that_contradict_each_other_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="leaves no slot"):
        PolicySettings(slots=6, reserve_small=6)


def test_every_setting_says_its_unit_its_readers_and_what_it_does() -> None:
    for name, field in PolicySettings.model_fields.items():
        extra = field.json_schema_extra
        assert isinstance(extra, dict), name
        assert extra["unit"], name
        assert readers_of(name), name
        assert field.description, name
