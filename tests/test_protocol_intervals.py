from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.protocol.intervals import IntervalSet

pairs = st.tuples(st.integers(0, 40), st.integers(0, 40))
moves = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 40)), max_size=30)


@settings(max_examples=100)
@given(moves, st.integers(0, 40), st.integers(0, 40), st.lists(pairs, max_size=6))
def test_spans_behave_like_a_set_of_numbers(
    turns: list[tuple[bool, int, int]], start: int, end: int, more: list[tuple[int, int]]
) -> None:
    spans = IntervalSet()
    model: set[int] = set()
    for add, low, high in turns:
        before = set(model)
        if add:
            model |= set(range(low, high))
            assert spans.add(low, high) == len(model) - len(before)
        else:
            model -= set(range(low, high))
            assert spans.remove(low, high) == len(before) - len(model)
        assert spans.total == len(model)
        flat = [n for a, b in spans for n in range(a, b)]
        assert flat == sorted(model)
        assert all(b < c for (_, b), (c, _) in zip(list(spans), list(spans)[1:], strict=False))
    asked = set(range(start, end))
    assert [n for a, b in spans.holes(start, end) for n in range(a, b)] == sorted(asked - model)
    assert [n for a, b in spans.within(start, end) for n in range(a, b)] == sorted(asked & model)
    assert spans.covers(start, end) == (asked <= model)
    assert spans.overlaps(start, end) == bool(asked & model)
    reach = start
    while reach in model:
        reach += 1
    assert spans.reach(start) == reach
    others = {n for low, high in more for n in range(low, high)}
    assert spans.total_with(more) == len(model | others)
    assert spans.total == len(model)
