from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.client.net.retry import (
    POLITE,
    Answer,
    Failed,
    FailureReason,
    GiveUp,
    Granted,
    HoldOn,
    Refused,
    RetryAfter,
    RetryPolicy,
    RetryState,
    SendNow,
    WaitUntil,
)


def visit(manners: RetryPolicy = POLITE) -> RetryState:
    found = RetryState(manners, Random(1), 0.0)
    assert found.begin() == SendNow()
    return found


def test_a_ticket_is_shown_at_every_later_attempt() -> None:
    one = visit()
    assert one.headers() == [("Tidegate-Wait", "ticket")]
    one.answered(0.0, RetryAfter(10, ticket="abc", place=3))
    assert one.headers() == [("Tidegate-Wait", "turn"), ("Tidegate-Ticket", "abc")]
    assert one.place == 3
    assert one.waits
    one.answered(12.0, Granted("lease", 4))
    assert not one.waits
    assert ("Tidegate-Ticket", "lease") in one.headers()
    assert one.waited_s == 12.0


def test_a_client_without_tickets_sends_and_keeps_none() -> None:
    one = visit(RetryPolicy(tickets=False))
    one.answered(0.0, RetryAfter(1, ticket="abc"))
    assert one.headers() == []


def test_a_refused_ticket_is_dropped_and_asked_for_afresh_once() -> None:
    one = visit()
    one.answered(0.0, RetryAfter(1, ticket="old"))
    bad = Refused(FailureReason.REFUSED, "the ticket has expired", ticket_fault=True)
    assert one.answered(1.0, bad) == SendNow()
    assert one.ticket is None
    assert isinstance(one.answered(1.0, bad), GiveUp)


def test_a_new_ticket_may_be_lost_as_well() -> None:
    one = visit()
    bad = Refused(FailureReason.REFUSED, "the ticket is of no use", ticket_fault=True)
    for number in range(5):
        one.answered(float(number), RetryAfter(1, ticket=f"ticket {number}"))
        assert one.answered(number + 0.5, bad) == SendNow()


def test_admitted_clients_hold_on_within_the_lease() -> None:
    assert visit().answered(1.0, Granted(None, 2)) == HoldOn(2)


def test_failures_back_off_and_end() -> None:
    one = visit(RetryPolicy(jitter=0.0, max_failures=4))
    waits = []
    now = 0.0
    for _ in range(3):
        action = one.answered(now, Failed("reset"))
        assert isinstance(action, WaitUntil)
        waits.append(action.at - now)
        now = action.at
    assert waits == [1.0, 2.0, 4.0]
    assert one.answered(now, Failed("reset")) == GiveUp(FailureReason.NETWORK, "reset")


def test_busy_without_a_time_never_ends_the_visit() -> None:
    one = visit(RetryPolicy(max_failures=3))
    for turn in range(20):
        assert isinstance(one.answered(turn * 100.0, RetryAfter()), WaitUntil)


def test_a_server_that_has_answered_may_be_away_for_longer() -> None:
    """It may be starting again: pauses grow to a minute, and that for several minutes."""
    one = visit(RetryPolicy(jitter=0.0, max_failures=3, max_failures_answered=9))
    one.answered(0.0, Granted())
    now = 0.0
    for _ in range(8):
        action = one.answered(now, Failed("connection refused"))
        assert isinstance(action, WaitUntil)
        now = action.at
    assert now == 1 + 2 + 4 + 8 + 16 + 32 + 60 + 60
    assert isinstance(one.answered(now, Failed("connection refused")), GiveUp)


def test_at_once_again_and_again_is_not_a_loop() -> None:
    one = visit(RetryPolicy(jitter=0.0))
    now, waits = 0.0, []
    for told in [0.0, 0.0, 0.0, 0.1, None, 5.0, 0.0, None, None]:
        action = one.answered(now, RetryAfter(told))
        assert isinstance(action, WaitUntil)
        waits.append(action.at - now)
        now = action.at
    assert waits == [0.0, 0.5, 1.0, 2.0, 16.0, 5.0, 0.0, 2.0, 4.0]


@given(st.integers(1, 12), st.sampled_from([None, 0.0]))
def test_after_a_start_it_backs_off_as_at_first(times: int, told_s: float | None) -> None:
    """A lease that is lost later is no reason to wait a minute."""
    waits = []
    one = visit()
    for turn in range(2):
        now = 1_000.0 * turn
        for _ in range(times):
            action = one.answered(now, RetryAfter(told_s))
            assert isinstance(action, WaitUntil)
            waits.append(action.at - now)
        one.answered(now, Granted())
    for first, second in zip(waits[:times], waits[times:], strict=True):
        assert abs(first - second) <= POLITE.jitter * max(first, second)


def test_a_client_that_will_not_wait_says_so_at_once() -> None:
    action = visit(RetryPolicy(max_wait_s=20, jitter=0)).answered(0.0, RetryAfter(30))
    assert isinstance(action, GiveUp)
    assert action.reason is FailureReason.WAITED_TOO_LONG


def test_a_client_that_will_not_wait_says_its_place_and_not_what_the_server_advises() -> None:
    busy = RetryAfter(30, "ticket", 4, text="You are number 4; come back with this ticket in 30 s")
    action = visit(RetryPolicy(max_wait_s=20, jitter=0)).answered(0.0, busy)
    assert isinstance(action, GiveUp)
    told = "place 4 in the queue; the next chance is 30 s away, past the limit of 20 s in all"
    assert action.text == told


def test_waits_count_together_against_the_limit() -> None:
    one = visit(RetryPolicy(max_wait_s=20, jitter=0))
    assert isinstance(one.answered(0.0, RetryAfter(15)), WaitUntil)
    assert isinstance(one.answered(15.0, RetryAfter(6)), GiveUp)
    again = visit(RetryPolicy(max_wait_s=20, jitter=0))
    again.answered(0.0, RetryAfter(15))
    again.answered(15.0, Granted(None, None))
    assert isinstance(again.answered(100.0, RetryAfter(6)), GiveUp), "another file of the visit"


def test_the_impolite_come_back_when_they_please() -> None:
    one = visit(RetryPolicy(own_retry_s=15.0, jitter=0.0))
    assert one.answered(0.0, RetryAfter(60)) == WaitUntil(
        15.0, "the server is busy", RetryAfter(60)
    )


answers: st.SearchStrategy[Answer] = st.one_of(
    st.builds(Granted, st.none() | st.text(max_size=3), st.none() | st.integers(1, 9)),
    st.builds(RetryAfter, st.none() | st.floats(0, 1e4), st.none() | st.text(max_size=3)),
    st.builds(Failed, st.just("x")),
    st.builds(Refused, st.sampled_from(FailureReason), st.just("no"), st.booleans()),
)


@settings(max_examples=100)
@given(st.lists(answers, max_size=30), st.integers())
def test_nobody_comes_back_before_they_were_told_to(turns: list[Answer], seed: int) -> None:
    one = RetryState(POLITE, Random(seed), 0.0)
    one.begin()
    now = 0.0
    for answer in turns:
        action = one.answered(now, answer)
        if isinstance(action, WaitUntil):
            if isinstance(answer, RetryAfter) and answer.retry_after_s is not None:
                assert action.at >= now + answer.retry_after_s
            assert action.at >= now
            now = action.at
            one.begin()
