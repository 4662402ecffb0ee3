from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.estimate.shorter_load import _MEMORY_S, ShorterLoad


def test_only_shorter_downloads_overtake() -> None:
    overtaking = ShorterLoad()
    for size in (1_000, 1_000_000, 50_000_000):
        overtaking.note(size, 0.0)
    assert overtaking.rate_below(900) == 0.0
    assert overtaking.rate_below(10_000) == pytest.approx(1_000 / _MEMORY_S)
    assert overtaking.rate_below(10_000_000) == pytest.approx(1_001_000 / _MEMORY_S)


def test_a_steady_stream_counts_at_its_rate_and_an_old_one_no_more() -> None:
    overtaking = ShorterLoad()
    for second in range(1_000):
        overtaking.note(500, float(second))
    assert overtaking.rate_below(10_000) == pytest.approx(500.0, rel=0.02)
    overtaking.note(1, 1_000.0 + 20 * _MEMORY_S)
    assert overtaking.rate_below(10_000) < 0.1


@given(st.lists(st.integers(0, 1 << 60), max_size=50), st.integers(0, 1 << 60))
def test_any_sizes_are_counted_once(sizes: list[int], probe: int) -> None:
    overtaking = ShorterLoad()
    for size in sizes:
        overtaking.note(size, 0.0)
    assert 0.0 <= overtaking.rate_below(probe) * _MEMORY_S <= sum(sizes) * (1 + 1e-9)
