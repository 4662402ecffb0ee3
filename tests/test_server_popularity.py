"""Counts of files: nothing twice, nothing lost between two writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.server.admission.popularity import Popularity
from tidegate.server.store.records import UsageRecord

COUNTS = st.tuples(
    st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 3), st.integers(0, 10**13)
)


@given(st.lists(st.one_of(COUNTS, st.none()), max_size=40))
def test_every_count_is_taken_exactly_once(steps: list[tuple[str, int, int, int] | None]) -> None:
    tally = Popularity()
    wanted: dict[str, list[int]] = {}
    taken: dict[str, list[int]] = {}

    def take() -> None:
        for record in tally.take(7.0):
            assert record.at_s == 7.0
            row = taken.setdefault(record.file, [0, 0, 0])
            row[0] += record.begun
            row[1] += record.complete
            row[2] += record.sent_bytes

    for step in steps:
        if step is None:
            take()
            continue
        file, *counts = step
        tally.count(file, *counts)
        row = wanted.setdefault(file, [0, 0, 0])
        row[:] = [had + more for had, more in zip(row, counts, strict=True)]
        fresh = tally.pending(file)
        known = taken.get(file, [0, 0, 0])
        assert [had + more for had, more in zip(known, fresh, strict=True)] == row
    take()
    assert taken == wanted
    assert tally.begun_total == sum(row[0] for row in wanted.values())
    assert tally.complete_total == sum(row[1] for row in wanted.values())
    assert tally.take(8.0) == []


def test_memory_is_bounded() -> None:
    tally = Popularity()
    most = 100_000
    for number in range(most + 5):
        tally.count(f"/{number}", 1, 0, 1)
    assert tally.pending(f"/{most}") == (0, 0, 0)
    tally.count("/0", 1, 1, 1)
    assert tally.pending("/0") == (2, 1, 2)
    assert UsageRecord("/1", 1, 0, 1, 3.0) in tally.take(3.0)
