"""A client that takes a place or a slot and does nothing with it holds nobody else up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.contract import Admit, Job, Wait
from tidegate.policies.estimate.no_shows import NO_SHOWS, NoShows
from tidegate.policies.registry import make_policy
from tidegate.policies.settings import PolicySettings

LARGE = 1_000_000


def make(name: str = "ticket", **changes: Any) -> AdmissionPolicy:
    fields: dict[str, Any] = {"slots": 1, "reserve_small": 0, **changes}
    return make_policy(name, PolicySettings.model_validate(fields), random.Random(1))


def ask(policy: AdmissionPolicy, client: str, now: float) -> Admit | Wait:
    answer = policy.offer(Job(client, "file", LARGE, LARGE), now)
    assert isinstance(answer, Admit | Wait), answer
    return answer


def wait(policy: AdmissionPolicy, client: str, now: float) -> Wait:
    answer = ask(policy, client, now)
    assert isinstance(answer, Wait), answer
    return answer


def at_a_steady_pace(policy: AdmissionPolicy) -> None:
    """One client runs, at 10 kB/s, with all of its file still to come."""
    first = ask(policy, "first", 0.0)
    assert isinstance(first, Admit)
    policy.progress(first.lease, 0.0, LARGE, 10_000.0)
    policy.advance(0.0)


def test_newcomers_are_believed_until_some_stay_away() -> None:
    newcomers = NoShows()
    assert newcomers.shows == 1.0
    newcomers.told(1, 10.0)
    newcomers.told(2, 20.0)
    newcomers.check(9.9)
    assert not newcomers.doubtful
    newcomers.check(10.0)
    assert newcomers.doubtful
    assert newcomers.shows == pytest.approx(3 / 4)
    newcomers.seen(2)
    assert newcomers.shows > 3 / 4
    newcomers.seen(1)
    assert newcomers.shows == pytest.approx(1.0), "late, but it came after all"
    newcomers.seen(1)
    newcomers.seen(99)
    assert newcomers.shows == pytest.approx(1.0), "only first returns of the watched count"


def test_a_crowd_of_newcomers_is_watched_by_a_sample_of_bounded_size() -> None:
    newcomers = NoShows()
    for round_ in range(5):
        for number in range(10_000):
            newcomers.told(10_000 * round_ + number, 100.0 * round_ + 1.0)
        assert len(newcomers._due) == NO_SHOWS.watched
        newcomers.check(100.0 * round_ + 1.0)
        assert len(newcomers._late) == NO_SHOWS.watched
        assert not newcomers._order
    assert newcomers.shows < 0.1


def test_a_ticket_whose_owner_is_overdue_sends_nobody_away() -> None:
    policy = make(retry_jitter=0.0, retry_max_s=1_000.0, ready_list=1)
    at_a_steady_pace(policy)
    for client in "abcd":
        wait(policy, client, 0.0)
    policy.advance(0.0)
    behind = wait(policy, "e", 0.0)
    assert behind.estimate is not None
    policy.advance(900.0)
    later = wait(policy, "f", 900.0)
    assert later.estimate is not None
    assert later.estimate.expected_s < 0.6 * behind.estimate.expected_s


def test_while_many_never_return_newcomers_are_asked_to_show_themselves_soon() -> None:
    policy = make(retry_jitter=0.0, retry_max_s=300.0)
    at_a_steady_pace(policy)
    for ghost in range(10):
        told = wait(policy, f"ghost{ghost}", 0.0)
    policy.advance(0.0)
    assert wait(policy, "early", 0.0).retry_after_s > 60.0
    now = told.retry_after_s + 40.0
    policy.advance(now)
    for client in range(12):
        told = wait(policy, f"later{client}", now)
    assert told.retry_after_s == 60.0
    now += 60.0
    policy.advance(now)
    again = wait(policy, "later11", now)
    assert again.retry_after_s != 60.0, "it has shown itself: now it is told all of its wait"


def test_who_idled_slots_away_is_not_counted_as_work_ahead() -> None:
    def last_of(idler: str) -> float:
        policy = make(retry_jitter=0.0, lease_idle_s=20.0)
        for client in ("idler", "first"):
            answer = ask(policy, client, 0.0)
            if isinstance(answer, Admit) and client == "idler":
                policy.detach(answer.lease, 0.0, LARGE)
                policy.advance(30.0)
        first = ask(policy, "first", 30.0)
        assert isinstance(first, Admit)
        policy.progress(first.lease, 30.0, LARGE, 10_000.0)
        policy.advance(30.0)
        wait(policy, idler, 30.0)
        policy.advance(31.0)
        told = wait(policy, "last", 31.0).estimate
        assert told is not None
        return told.expected_s

    assert last_of("idler") < 0.6 * last_of("stranger")


@pytest.mark.parametrize("name", ["fcfs", "reserve", "ticket", "fair", "adaptive"])
def test_a_slot_is_not_kept_by_asking_and_hanging_up_again_and_again(name: str) -> None:
    policy = make(name, lease_idle_s=20.0)
    first = ask(policy, "hoarder", 0.0)
    assert isinstance(first, Admit)
    now, lost = 0.0, ()
    while not lost:
        policy.detach(first.lease, now, LARGE - 1)
        assert now < 7.0, "a quarter of lease_idle_s, and it used it for nothing"
        now += 1.0
        lost = policy.advance(now).idled_out
        if not lost:
            assert isinstance(ask(policy, "hoarder", now), Admit)
    assert lost == (first.lease,)


def test_a_slow_line_that_breaks_often_keeps_its_slot() -> None:
    policy = make(lease_idle_s=20.0)
    first = ask(policy, "slow", 0.0)
    assert isinstance(first, Admit)
    remaining, now = LARGE, 0.0
    for _ in range(20):
        now += 4.0
        remaining -= 4_000
        policy.detach(first.lease, now, remaining)
        now += 3.0
        assert policy.advance(now).idled_out == ()
        joined = ask(policy, "slow", now)
        assert isinstance(joined, Admit)
        assert joined.joined


def test_answers_to_those_who_ask_again_and_again_come_ever_later_but_never_too_late() -> None:
    policy = make(come_back_s=30.0, early_polls_free=1, early_answer_s=2.0, early_penalty_s=0.0)
    ask(policy, "first", 0.0)
    wait(policy, "rude", 0.0)
    answers = [wait(policy, "rude", 1.0) for _ in range(8)]
    assert [answer.answer_after_s for answer in answers] == [0, 2, 4, 6, 8, 10, 10, 10]
    assert {answer.retry_after_s for answer in answers} == {29.0}
    assert wait(policy, "rude", 27.0).answer_after_s == 3.0


def test_each_promise_to_a_rapid_poller_is_later_by_what_it_has_earned() -> None:
    policy = make(come_back_s=30.0, early_polls_free=0, early_penalty_max_s=15.0)
    ask(policy, "first", 0.0)
    wait(policy, "rude", 0.0)
    for _ in range(4):
        wait(policy, "rude", 1.0)
    assert wait(policy, "rude", 40.0).retry_after_s == 30.0 + 4.0
    for _ in range(40):
        wait(policy, "rude", 41.0)
    assert wait(policy, "rude", 100.0).retry_after_s == 30.0 + 15.0
    wait(policy, "polite", 100.0)
    assert wait(policy, "polite", 130.0).retry_after_s == 30.0
