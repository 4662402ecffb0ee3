from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.client.schedule.model import Path, choose, head_s, least_block, predict_s, ramp_s

SIZE = 24 << 20


paths = st.lists(st.builds(Path, st.floats(0, 0.5), st.floats(1e3, 1e9)), min_size=1, max_size=6)


def test_slow_start_costs_nothing_on_a_short_line_and_much_on_a_long_one() -> None:
    assert ramp_s(Path(0.0, 1e9)) == 0
    assert ramp_s(Path(0.01, 1e6)) == 0
    assert ramp_s(Path(0.1, 1e8)) > 0.5
    assert head_s(Path(0.1, 1e5)) == pytest.approx(0.2)


@settings(max_examples=100)
@given(st.integers(1, 1 << 32), paths, st.integers(1 << 12, 1 << 24))
def test_more_mirrors_never_take_longer(size: int, ways: list[Path], block: int) -> None:
    whole = predict_s(size, ways, block)
    assert whole <= predict_s(size, ways[:-1], block) * (1 + 1e-9)
    assert whole >= size / sum(p.rate_bytes_s for p in ways) * (1 - 1e-9)
    assert math.isfinite(whole)


def test_a_mirror_that_brings_nothing_is_left_out() -> None:
    ways = [Path(0.01, 5e6), Path(0.01, 4e6), Path(0.3, 1e3)]
    assert choose(SIZE, ways, 1 << 18).mirrors == (0, 1)
    with pytest.raises(ValueError, match="no mirrors"):
        choose(SIZE, [], 1)


def test_whole_files_at_once_take_no_longer_than_headers_do() -> None:
    path = Path(0.2, 1e6)
    assert predict_s(SIZE, [path], 100_000, standing=True) == pytest.approx(SIZE / 1e6, rel=0.01)


def test_a_long_round_trip_asks_for_longer_blocks() -> None:
    assert least_block(Path(0.2, 1e6)) == 200_000
    assert least_block(Path(0.0, 1e4)) == 27_800
