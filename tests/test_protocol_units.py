"""Units: what people write is what the code computes with."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.protocol.units import (
    BadUnit,
    bound_of,
    exact_duration,
    exact_rate,
    exact_size,
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
    split_duration,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1234", 1234),
        ("20KB", 20_000),
        ("20k", 20_000),
        ("20 kB", 20_000),
        ("20KiB", 20_480),
        ("4MiB", 4 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("1B", 1),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "rate_bytes_s"),
    [
        ("100Mbit", 12_500_000),
        ("100Mbit/s", 12_500_000),
        ("100Mbps", 12_500_000),
        ("8bit", 1),
        ("1Gbit", 125_000_000),
        ("12.5MB/s", 12_500_000),
        ("1MiB/s", 2**20),
        ("5000B/s", 5000),
    ],
)
def test_rates(text: str, rate_bytes_s: int) -> None:
    assert parse_rate(text) == rate_bytes_s


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        ("15m", 900.0),
        ("1.5h", 5400.0),
        ("7d", 604800.0),
        ("250ms", 0.25),
    ],
)
def test_durations(text: str, duration_s: float) -> None:
    assert parse_duration(text) == pytest.approx(duration_s)


@pytest.mark.parametrize(
    "text", ["", "KB", "-1", "1XB", "1e5", "ten", "1 0", "20bit", "20Mbit", "1\n2"]
)
def test_a_bad_size_says_so(text: str) -> None:
    with pytest.raises(BadUnit, match="is not a size; write it like"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "Mbit", "1 Xbit", "fast"])
def test_a_bad_rate_says_so(text: str) -> None:
    with pytest.raises(BadUnit, match="is not a rate; write it like"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["40", "40.5", " 0 "])
def test_a_rate_without_a_unit_is_refused_with_what_may_have_been_meant(text: str) -> None:
    with pytest.raises(BadUnit, match=rf"has no unit: write {float(text):g}Mbit"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["", "soon", "1 fortnight"])
def test_a_bad_duration_says_so(text: str) -> None:
    with pytest.raises(BadUnit, match="is not a duration; write it like"):
        parse_duration(text)


@given(st.text(max_size=12))
def test_garbage_never_crashes(text: str) -> None:
    for parse in (parse_size, parse_rate, parse_duration):
        try:
            assert parse(text) >= 0
        except BadUnit:
            continue


@given(st.floats(min_value=0, max_value=1e15))
def test_a_formatted_size_reads_back_within_its_digits(size_bytes: float) -> None:
    assert parse_size(format_size(size_bytes)) == pytest.approx(size_bytes, rel=0.06, abs=1)


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0, "0 s"),
        (45, "45 s"),
        (840, "14 min"),
        (7500, "2 h 5 min"),
        (7200, "2 h"),
        (9e5, "10 d"),
        (89.6, "2 min"),
    ],
)
def test_durations_are_written_for_people(duration_s: float, text: str) -> None:
    assert format_duration(duration_s) == text


def test_rates_are_written_in_bits() -> None:
    assert format_rate(12_500_000) == "100 Mbit/s"
    assert format_rate(1_000_000) == "8.0 Mbit/s"


@given(st.floats(0.0, 1e7))
@example(89.5)
@example(172_790.0)
def test_a_bound_as_it_is_written_is_no_shorter_and_hardly_longer(duration_s: float) -> None:
    seconds = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
    written = split_duration(bound_of(duration_s))
    told_s = sum(count * seconds[unit] for unit, count in written)
    assert told_s == bound_of(duration_s)
    assert duration_s <= told_s < duration_s + (60 if duration_s < 172_800 - 60 else 86_400)


def test_a_bound_is_told_in_seconds_below_a_minute_and_a_half() -> None:
    assert [bound_of(duration_s) for duration_s in (61.2, 88.1, 89.1)] == [62, 89, 120]


@given(st.integers(0, 1 << 45))
def test_an_exact_size_reads_back(size_bytes: int) -> None:
    assert parse_size(exact_size(size_bytes)) == size_bytes


@given(st.floats(0, 1e12))
def test_an_exact_rate_or_duration_reads_back(value: float) -> None:
    rate, duration = exact_rate(value), exact_duration(value)
    assert (float(rate) if rate[-1].isdigit() else parse_rate(rate)) == value
    assert (float(duration) if duration[-1].isdigit() else parse_duration(duration)) == value


def test_exact_texts_are_short() -> None:
    assert [exact_size(n) for n in (0, 256_000, 65_536, 1234)] == ["0B", "256kB", "64KiB", "1234B"]
    assert [exact_rate(n) for n in (5e6, 4.2e6, 0.5)] == ["40Mbit", "33.6Mbit", "0.5"]
    assert [exact_duration(n) for n in (45, 300, 86_400, 0.05)] == ["45s", "5m", "1d", "0.05s"]
