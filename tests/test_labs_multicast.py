"""The lab's arithmetic: paper E's findings come out of its replay, the sender's work is flat."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from bench.multicast.bench import TrialRow
from bench.multicast.lab import table
from bench.multicast.network import bursts_of_loss
from bench.multicast.paper_table import CLIENTS, mean, multicast_bytes
from bench.multicast.sender_cpu import measure


@pytest.mark.parametrize("kind", ["small", "large"])
def test_more_clients_mean_less_waiting_more_multicast_and_fewer_bytes(kind: str) -> None:
    cells = [mean(clients, 2, kind, paper=True, seeds=4) for clients in CLIENTS]
    assert [c.pa_s for c in cells] == sorted((c.pa_s for c in cells), reverse=True)
    assert [c.pb for c in cells] == sorted(c.pb for c in cells)
    assert [c.pc for c in cells] == sorted((c.pc for c in cells), reverse=True)


def test_ten_clients_and_small_files_save_what_the_paper_says() -> None:
    both = [mean(10, threshold, "small", paper=True, seeds=6).pc for threshold in (2, 3)]
    assert all(0.5 < pc < 0.7 for pc in both)


def test_our_rules_wait_less_than_the_papers_in_every_cell() -> None:
    for clients in (2, 6, 10):
        for threshold in (2, 3, 4):
            theirs = mean(clients, threshold, "small", paper=True, seeds=3)
            ours = mean(clients, threshold, "small", paper=False, seeds=3)
            assert ours.pa_s < theirs.pa_s
            assert ours.pa_s <= 15.3


def test_the_papers_packets_carry_an_eighth_of_parity() -> None:
    assert multicast_bytes(8 * 1024) == 9 * 1036


def test_more_receivers_send_more_reports_but_hardly_more_bytes() -> None:
    few, many = measure(2, mib=4), measure(100, mib=4)
    assert few.sent_ratio < many.sent_ratio < 1.08 * few.sent_ratio
    assert few.reports < many.reports


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
