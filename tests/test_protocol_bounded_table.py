"""A bounded table against the plainest one that could be written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.protocol.bounded_table import BoundedTable

STEPS = st.lists(st.tuples(st.sampled_from(["put", "use", "get", "pop"]), st.integers(0, 6)))


@given(steps=STEPS, capacity=st.integers(1, 5))
def test_it_keeps_what_was_used_last_and_tells_of_the_others(
    steps: list[tuple[str, int]], capacity: int
) -> None:
    gone: list[int] = []
    table: BoundedTable[int, int] = BoundedTable(capacity, gone.append)
    plain: list[tuple[int, int]] = []
    dropped = []
    for at, (step, key) in enumerate(steps):
        known = dict(plain).get(key)
        rest = [row for row in plain if row[0] != key]
        if step == "put":
            table[key] = at
            plain = [*rest, (key, at)]
            if len(plain) > capacity:
                dropped.append(plain.pop(0)[1])
        elif step == "use":
            assert table.use(key) == known
            plain = plain if known is None else [*rest, (key, known)]
        elif step == "get":
            assert table.get(key) == known
        else:
            assert table.pop(key, None) == known
            plain = rest
        assert list(table.items()) == plain
        assert gone == dropped
