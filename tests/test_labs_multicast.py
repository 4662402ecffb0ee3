"""The arithmetic of the multicast lab."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from bench.multicast.bench import TrialRow
from bench.multicast.lab import table
from bench.multicast.network import bursts_of_loss


@pytest.mark.parametrize(("share", "mean"), [(0.05, 10.0), (0.05, 100.0), (0.2, 3.0)])
def test_bursts_are_as_long_and_as_frequent_as_asked_for(share: float, mean: float) -> None:
    found = [list(bursts_of_loss(share, mean, Random(seed))) for seed in range(20)]
    lengths = [last - first + 1 for spans in found for first, last in spans]
    assert sum(lengths) / (20 * 65536) == pytest.approx(share, rel=0.15)
    assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.15)
    for spans in found:
        assert all(one[1] < two[0] for one, two in pairwise(spans))


def test_a_run_that_failed_is_said_in_the_table() -> None:
    rows = [TrialRow("ours", 0, 8, 8, 1.06, 3.0), TrialRow("ours", 0, 7, 8, 1.06, 90.0)]
    assert "1.060, 3.00 s (1 of 2 failed)" in table(rows, [0], ["ours"])
    assert "failed" in table(rows[1:], [0], ["ours"])
