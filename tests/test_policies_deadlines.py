from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.policies.contract import Job
from tidegate.policies.queue.tickets import TicketQueue

STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([None, 0.0, 1.0, 2.0, 3.0, math.inf])),
    max_size=40,
)


@given(STEPS, st.floats(0.0, 4.0), st.floats(0.0, 4.0))
@settings(max_examples=100)
def test_deadlines_move_and_each_comes_once(
    steps: list[tuple[int, float | None]], low: float, high: float
) -> None:
    queue, model = TicketQueue(), dict[int, float]()
    rows = [queue.issue(Job(f"c{one}", "/f", 9, 9), 9, 0.0) for one in range(6)]
    for which, deadline in steps:
        row = rows[which]
        if deadline is None:
            queue.set_present(row, True)
            queue.keep_until(row, 0.0)
            queue.set_present(row, False)
            model.pop(row, None)
        else:
            queue.keep_until(row, deadline)
            model[row] = deadline
        finite = sorted((at, queue.table.number[row]) for row, at in model.items() if at < math.inf)
        assert queue.next_deadline() == (finite[0][0] if finite else None)
        between = [queue.table.rows[number] for at, number in finite if low <= at <= high]
        assert list(queue.running_out(low, high)) == between
        assert queue.count_running_out(low, high) == len(between)
    due = [queue.table.rows[number] for at, number in finite if at <= low] if steps else []
    assert queue.overdue(low, 2) == due[:2]
    assert queue.overdue(low, 9) == due[2:]
    assert queue.overdue(low, 9) == []
