from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_mirrors import Mirror, run, steady

from tidegate.client.schedule.model import (
    Path,
    choose,
    head_s,
    least_block,
    predict_s,
    ramp_s,
    useful,
)
from tidegate.client.schedule.segments import Segment, SegmentMap

MBIT = 1e6 / 8
SIZE = 24 << 20


class EqualBlocks(SegmentMap):
    """Equal blocks, one at a time to a lane: what the model was made for."""

    def ask(self, lane: int, now: float) -> Segment | None:
        own, span = self.lanes[lane], self.free.first()
        if own.blocks or span is None:
            return None
        return self._hand(own, span[0], min(span[1], span[0] + self._first), now)


paths = st.lists(st.builds(Path, st.floats(0, 0.5), st.floats(1e3, 1e9)), min_size=1, max_size=6)


@pytest.mark.parametrize(("block_kib", "measured_s"), [(32, 46.0), (128, 17.6), (512, 12.5)])
def test_blocks_without_early_asking_cost_a_round_trip_each(
    block_kib: int, measured_s: float
) -> None:
    """Measured on a 20 Mb/s line with 40 ms round trip; the model is right within a tenth."""
    path = Path(0.04, 20 * MBIT * 1448 / 1514)
    predicted_s = predict_s(SIZE, [path], block_kib << 10, early=False)
    assert predicted_s == pytest.approx(measured_s, rel=0.1)


@pytest.mark.parametrize("rtt_s", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("count", [100, 400])
def test_the_model_agrees_with_equal_blocks_in_virtual_time(rtt_s: float, count: int) -> None:
    mbits = (40.0, 20.0, 10.0)
    them = [Mirror(steady(rate * MBIT), rtt_s) for rate in mbits]
    took_s = run(EqualBlocks([(0, SIZE)], first_bytes=SIZE // count), them)
    ways = [Path(rtt_s, rate * MBIT) for rate in mbits]
    predicted_s = predict_s(SIZE, ways, SIZE // count, early=False, standing=True)
    assert took_s == pytest.approx(predicted_s, rel=0.1)


def test_asking_early_hides_the_round_trip() -> None:
    path = Path(0.2, 1e6)
    slow_s = predict_s(SIZE, [path], 100_000, early=False, standing=True)
    fast_s = predict_s(SIZE, [path], 100_000, standing=True)
    assert fast_s == pytest.approx(SIZE / 1e6, rel=0.01)
    assert slow_s - fast_s == pytest.approx(0.2 * SIZE / 100_000, rel=0.01)


def test_slow_start_costs_nothing_on_a_short_line_and_much_on_a_long_one() -> None:
    assert ramp_s(Path(0.0, 1e9)) == 0
    assert ramp_s(Path(0.01, 1e6)) == 0
    assert ramp_s(Path(0.1, 1e8)) > 0.5
    assert head_s(Path(0.1, 1e5)) == pytest.approx(0.2)


@settings(max_examples=100)
@given(st.integers(1, 1 << 32), paths, st.integers(1 << 12, 1 << 24), st.booleans())
def test_more_mirrors_never_take_longer(
    size: int, ways: list[Path], block: int, early: bool
) -> None:
    whole = predict_s(size, ways, block, early=early)
    assert whole <= predict_s(size, ways[:-1], block, early=early) * (1 + 1e-9)
    assert whole >= size / sum(p.rate_bytes_s for p in ways) * (1 - 1e-9)
    assert math.isfinite(whole)


def test_a_mirror_that_brings_nothing_is_left_out() -> None:
    ways = [Path(0.01, 5e6), Path(0.01, 4e6), Path(0.3, 1e3)]
    plan = choose(SIZE, ways, [1 << n for n in range(14, 24)])
    assert plan.mirrors == (0, 1)
    assert useful(SIZE, ways, 1 << 18) == 2
    with pytest.raises(ValueError, match="no mirrors"):
        choose(SIZE, [], [1])


def test_a_long_round_trip_asks_for_longer_blocks() -> None:
    sizes = [1 << n for n in range(14, 24)]
    near = choose(SIZE, [Path(0.001, 1e6)], sizes, early=False)
    far = choose(SIZE, [Path(0.2, 1e6)], sizes, early=False)
    assert far.block_bytes > near.block_bytes
    assert least_block(Path(0.2, 1e6)) == 200_000
    assert least_block(Path(0.0, 1e4)) == 27_800
