from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.policies.queue.deadlines import Deadlines

STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([None, 0.0, 1.0, 2.0, 3.0, math.inf])),
    max_size=40,
)


@given(STEPS, st.floats(0.0, 4.0), st.floats(0.0, 4.0))
@settings(max_examples=100)
def test_deadlines_move_and_each_comes_once(
    steps: list[tuple[int, float | None]], low: float, high: float
) -> None:
    deadlines, model = Deadlines(), dict[int, float]()
    for number, deadline in steps:
        if deadline is None:
            deadlines.drop(number)
            model.pop(number, None)
        else:
            deadlines.set(number, deadline)
            model[number] = deadline
        finite = sorted((at, number) for number, at in model.items() if at < math.inf)
        assert deadlines.next() == (finite[0][0] if finite else None)
        between = {number for at, number in finite if low <= at <= high}
        assert set(deadlines.between(low, high)) == between
        assert deadlines.count(low, high) == len(between)
    due = [number for at, number in finite if at <= low] if steps else []
    assert deadlines.take_due(low, 2) == due[:2]
    assert deadlines.take_due(low, 9) == due[2:]
    assert deadlines.take_due(low, 9) == []
