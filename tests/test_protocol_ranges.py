"""Ranges are read as RFC 9110 says, joined where close, and never reach outside the file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.protocol.errors import BadRange
from tidegate.protocol.ranges import (
    BOUNDS,
    ContentRange,
    format_range,
    join_ranges,
    multipart_pieces,
    parse_content_range,
    parse_range,
)

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "vectors" / "http_fields.json").read_text("utf-8")
)
RANGE_LISTS = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(1, 3000)).map(lambda p: (p[0], p[0] + p[1])),
    min_size=1,
    max_size=20,
)


@pytest.mark.parametrize(("value", "size", "expected"), VECTORS["ranges"])
def test_range_fields_are_read(value: str, size: int, expected: Any) -> None:
    if expected == "unsatisfiable":
        with pytest.raises(BadRange) as caught:
            parse_range(value, size)
        assert caught.value.status == 416
        assert str(size) in str(caught.value)
    else:
        found = parse_range(value, size)
        assert found == (None if expected is None else [tuple(pair) for pair in expected])


def test_ranges_are_joined_over_eighty_bytes_and_not_over_more() -> None:
    assert join_ranges([(0, 10), (90, 95)]) == [(0, 95)]
    assert join_ranges([(0, 10), (91, 95)]) == [(0, 10), (91, 95)]


@given(RANGE_LISTS)
@settings(max_examples=100)
def test_joining_loses_no_byte_and_leaves_nothing_close(ranges: list[tuple[int, int]]) -> None:
    joined = join_ranges(ranges)
    asked = {byte for start, end in ranges for byte in range(start, end)}
    given_bytes = {byte for start, end in joined for byte in range(start, end)}
    assert asked <= given_bytes
    ordered = sorted(joined)
    assert all(b[0] > a[1] + 80 for a, b in itertools.pairwise(ordered))
    assert join_ranges(joined) == joined
    # In the order in which they were asked for (RFC 9110, 15.3.7.2).
    first = [next(at for at, one in enumerate(ranges) if a <= one[0] < b) for a, b in joined]
    assert first == sorted(first)


@given(RANGE_LISTS)
@settings(max_examples=100)
def test_what_is_asked_is_what_is_read(ranges: list[tuple[int, int]]) -> None:
    assert parse_range(format_range(ranges), 10_000) == join_ranges(ranges)


@given(st.text(alphabet="bytes=0123456789-, \t+x", max_size=60), st.integers(0, 2000))
@settings(max_examples=100)
def test_no_field_reaches_outside_the_file(value: str, size: int) -> None:
    try:
        ranges = parse_range("bytes=" + value, size)
    except BadRange:
        return
    for start, end in ranges or []:
        assert 0 <= start < end <= size


def test_a_flood_of_ranges_gets_the_whole_file_instead() -> None:
    many = ",".join(f"{1000 * i}-{1000 * i}" for i in range(BOUNDS.parts + 1))
    assert parse_range("bytes=" + many, 10**6) is None
    assert parse_range("bytes=" + ",".join(["0-"] * (BOUNDS.asked + 1)), 10**6) is None
    assert parse_range("bytes=" + ",".join(["0-"] * BOUNDS.asked), 10**6) == [(0, 10**6)]
    assert parse_range("bytes=" + "9" * 5000 + "-", 10) is None


@pytest.mark.parametrize(("value", "expected"), VECTORS["content_ranges"])
def test_content_ranges_are_read_and_written(value: str, expected: list[int] | None) -> None:
    found = parse_content_range(value)
    if expected is None:
        assert found is None
    else:
        assert found == ContentRange(*expected)
        assert str(found) == value


@given(RANGE_LISTS)
@settings(max_examples=50)
def test_a_multipart_body_is_as_long_as_it_says(ranges: list[tuple[int, int]]) -> None:
    pieces, total = multipart_pieces(ranges, 10_000, "text/plain", "b0")
    sizes = [len(p) if isinstance(p, bytes) else p[1] - p[0] for p in pieces]
    assert sum(sizes) == total
    assert [p for p in pieces if not isinstance(p, bytes)] == ranges
    assert pieces[-1] == b"\r\n--b0--\r\n"
