from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate.policies.queue.ranked
from tidegate.policies.queue.ranked import RankedList


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=120))
@settings(max_examples=100)
def test_rank_and_bytes_agree_with_a_sorted_list(steps: list[tuple[int, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tidegate.policies.queue.ranked, "_FULL", 4)
        line, model = RankedList(), dict[tuple[float, int], int]()
        for number, (key, take_out) in enumerate(steps):
            if take_out and model:
                entry = sorted(model)[key % len(model)]
                del model[entry]
                line.remove(*entry)
            else:
                model[(float(key), number)] = key * 10
                line.add(float(key), number, key * 10)
            order = sorted(model)
            assert list(line) == [entry[1] for entry in order]
            assert line.first() == (order[0] if order else None)
            assert len(line) == len(order)
            assert line.total_bytes == sum(model.values())
            for probe in ((float(key), number), (-1.0, 0), (9.0, 0)):
                before = [entry for entry in order if entry < probe]
                assert line.rank(*probe) == len(before)
                assert line.bytes_before(*probe) == sum(model[entry] for entry in before)


def test_many_entries_in_any_order_come_out_in_order() -> None:
    rng, line = random.Random(3), RankedList()
    keys = [rng.random() for _ in range(5_000)]
    for number, key in enumerate(keys):
        line.add(key, number, 1.0)
    assert [keys[number] for number in line] == sorted(keys)
    for number in rng.sample(range(5_000), 4_990):
        line.remove(keys[number], number)
    assert len(line) == 10


def test_taking_out_what_is_not_there_is_a_callers_mistake() -> None:
    line = RankedList()
    line.add(1.0, 1, 0.0)
    with pytest.raises(KeyError):
        line.remove(1.0, 2)


@given(st.lists(st.integers(0, 5000), unique=True, max_size=60), st.integers(0, 70))
def test_a_walk_may_begin_anywhere(numbers: list[int], start: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tidegate.policies.queue.ranked, "_FULL", 4)
        line = RankedList()
        for number in numbers:
            line.add(float(number % 7), number, 1.0)
        assert list(line.numbers_from(start)) == list(line)[start:]


def test_a_walk_passes_whole_blocks() -> None:
    line = RankedList()
    for number in range(5000):
        line.add(0.0, number, 1.0)
    for start in (0, 1023, 1024, 1025, 4999, 5000, 9000):
        assert list(line.numbers_from(start)) == list(range(start, 5000))
