"""Tickets that were issued elsewhere stand between the numbers of their time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.policies.contract import ELSEWHERE, Job, TicketRow, TicketState
from tidegate.policies.queue.tickets import BACK, TicketQueue
from tidegate.policies.queue.turns import IssueTimes

STEPS = ("issue", "take up", "ready", "ready", "start", "end", "resize", "back", "order")


def _row(number: int, issued_s: float, state: TicketState = TicketState.WAITING) -> TicketRow:
    return TicketRow(number, f"c{number}", "/f", 10**6, 10**6, 1.0, issued_s, state, issued_s)


def _restore(queue: TicketQueue, rows: list[TicketRow], now: float) -> None:
    for row in sorted(rows):
        queue.restore(row, now, now + 501.0, lambda size: True)


@given(
    own=st.lists(st.integers(0, 400), min_size=1, max_size=30).map(sorted),
    others=st.lists(st.integers(0, 500), max_size=20),
    seen_first=st.integers(0, 20),
    between=st.integers(0, 30),
    jump=st.integers(0, 5_000),
)
def test_every_ticket_stands_by_its_time_whenever_it_is_shown(
    own: list[int], others: list[int], seen_first: int, between: int, jump: int
) -> None:
    queue = TicketQueue()
    elsewhere = [_row(ELSEWHERE + n, at / 8.0) for n, at in enumerate(others)]
    _restore(queue, elsewhere[:seen_first], 0.0)
    for n, at in enumerate(own):
        # A new leader leaves a gap in the numbers.
        queue.next_number += jump * (n == len(own) // 2)
        queue.issue(Job(f"own{n}", "/f", 10**6, 10**6), 10**6, at / 8.0)
        if n == between:
            # Shown before the next number is given: those of that moment at the latest.
            early = [row for row in elsewhere[seen_first:] if row.issued_s < at / 8.0]
            _restore(queue, early, at / 8.0)
    for row in elsewhere[seen_first:]:
        _restore(queue, [row], 500.0)
    times = [row.issued_s for row in queue.queue()]
    late = {row.number for row in elsewhere[:seen_first]}
    known = [row.issued_s for row in queue.queue() if row.number not in late]
    assert known == sorted(known)
    assert len(times) == len(own) + len(others)
    # Numbers of others are never taken for one's own.
    assert queue.next_number == len(own) + jump + 1


def test_the_next_queue_has_the_same_order_also_without_what_is_over() -> None:
    """Times were remembered to a quarter of a second from the first number: a place grew by two."""
    queue = TicketQueue()
    rows = [_row(n, 10.0 + n / 16.0) for n in range(1, 8)]
    rows.append(_row(ELSEWHERE + 1, 10.0 + 4.5 / 16.0))
    _restore(queue, rows, 20.0)
    following = TicketQueue()
    _restore(following, rows[2:], 20.0)
    order = [row.number for row in queue.queue()]
    assert order == [1, 2, 3, 4, ELSEWHERE + 1, 5, 6, 7]
    assert [row.number for row in following.queue()] == order[2:]


def test_times_of_a_long_day_are_thinned_and_still_tell_the_order() -> None:
    turns = IssueTimes()
    for number in range(1, 250_001):
        turns.issued(number, number / 2.0)
    early, late = (turns.taken_up(ELSEWHERE + n, at) for n, at in enumerate((1_000.1, 99_000.1)))
    assert abs(early - 2_000) <= 2
    assert 198_000 < late <= 198_001


def test_who_goes_first_after_a_restart_has_no_crowd_before_it() -> None:
    """It was counted as standing far before the head, and its client was told an error."""
    queue = TicketQueue()
    waiting = [_row(n, 1.0) for n in range(1, 9)]
    _restore(queue, [*waiting, _row(9, 1.0, TicketState.STARTED)], 2.0)
    for number in range(3, 9):
        queue.stand_back(queue.table.rows[number])
    first = queue.table.rows[9]
    assert queue.table.key[first] < 0 < BACK
    assert queue.back_before(first) == 0
    assert queue.back_before(queue.table.rows[2]) == 0


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 40)), max_size=60))
def test_what_the_ready_want_before_each_is_never_of_a_moment_before(
    steps: list[tuple[str, int]],
) -> None:
    queue = TicketQueue()
    queue.set_rank(lambda ticket: float(ticket.remaining_bytes))
    rows = queue.table.rows
    for number, (step, at) in enumerate(steps):
        numbers = list(queue.in_order())
        ready = list(queue.ready)
        if step == "issue":
            queue.issue(Job(f"c{number}", "/f", 10**6, at), at, 0.0)
        elif step == "take up":
            row = _row(10_000 + number, 0.0, TicketState.READY)._replace(remaining_bytes=at)
            _restore(queue, [row], 0.0)
        elif step == "ready" and queue.first_waiting() is not None:
            queue.make_ready(queue.first_waiting() or 0, 0.0, 99.0)
        elif step == "start" and ready:
            queue.start(rows[ready[at % len(ready)]], 0.0)
        elif step == "end" and numbers:
            queue.end(rows[numbers[at % len(numbers)]], TicketState.EXPIRED, 0.0)
        elif step == "resize" and numbers:
            queue.resize(rows[numbers[at % len(numbers)]], at)
        elif step == "back" and ready and not queue.stands_back(rows[ready[at % len(ready)]]):
            queue.stand_back(rows[ready[at % len(ready)]])
        elif step == "order":
            queue.set_rank(lambda ticket, by=at: ticket.number % (by + 1))  # type: ignore[misc]
        before = 0
        for one in queue.ready:
            assert queue.ready.bytes_before(queue.table.key[rows[one]], one) == before
            before += queue.table.remaining[rows[one]]
