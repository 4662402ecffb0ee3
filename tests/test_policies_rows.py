"""Rows are found by number as a dict finds them, whatever comes and goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.policies.contract import ELSEWHERE
from tidegate.policies.queue.table import RowsByNumber

#: Of a few pages, of their edges, and of nodes without a leader.
NUMBERS = st.one_of(
    st.integers(0, 300),
    st.sampled_from([127, 128, 1_000_000, ELSEWHERE - 1]),
    st.integers(ELSEWHERE, ELSEWHERE + 3),
)


@given(st.lists(st.tuples(NUMBERS, st.booleans()), max_size=60))
def test_it_holds_what_a_dict_would_hold(steps: list[tuple[int, bool]]) -> None:
    rows, model = RowsByNumber(), dict[int, int]()
    for row, (number, comes) in enumerate(steps):
        if comes and number not in model:
            rows[number] = model[number] = row
        elif not comes and number in model:
            assert rows.pop(number) == model.pop(number)
        assert rows.get(number) == model.get(number)
        assert (number in rows) == (number in model)
        assert (number + 1 in rows) == (number + 1 in model)
        assert len(rows) == len(model)
    assert dict(rows.items()) == model
    assert sorted(rows.values()) == sorted(model.values())
    assert all(rows[number] == row for number, row in model.items())


def test_pages_of_tickets_that_are_over_are_given_back() -> None:
    rows = RowsByNumber()
    for number in range(10_000):
        rows[number] = number
        if number >= 100:
            rows.pop(number - 100)
    assert len(rows) == 100
    assert len(rows._pages) <= 2


def test_a_number_that_never_was_has_no_row() -> None:
    rows = RowsByNumber()
    rows[5] = 1
    for number in (-1, 4, 6, 1 << 40, ELSEWHERE, 1 << 63):
        assert rows.get(number) is None
        for ask in (rows.__getitem__, rows.pop):
            try:
                ask(number)
            except KeyError:
                continue
            raise AssertionError(f"{number} was found")
