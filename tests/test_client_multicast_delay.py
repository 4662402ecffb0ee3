"""A queue that stands is told from bursts, busy receivers and drifting clocks."""

from __future__ import annotations

from tidegate.client.multicast.receiver import DelayWatch


def test_only_growth_that_all_samples_of_an_interval_show_counts() -> None:
    watch = DelayWatch()
    for delay in (5_000, 90_000, 7_000, 8_000):
        watch.add(delay, 0.0)
    assert watch.standing_us() == 0
    for delay in (60_000, 55_000, 300_000, 90_000):
        watch.add(delay, 1.0)
    assert watch.standing_us() == 50_000
    assert watch.standing_us() == 0


def test_few_samples_wait_for_more() -> None:
    """A receiver that got its core twice between two reports saw a queue in what was only late."""
    watch = DelayWatch()
    for _ in range(4):
        watch.add(5_000, 0.0)
    assert watch.standing_us() == 0
    for delay in (40_000, 60_000):
        watch.add(delay, 1.0)
    assert watch.standing_us() == 0
    for delay in (30_000, 50_000):
        watch.add(delay, 1.2)
    assert watch.standing_us() == 25_000


def test_clocks_may_be_anywhere_and_wrap() -> None:
    watch = DelayWatch()
    for _ in range(4):
        watch.add((1 << 32) - 1000, 0.0)
    watch.standing_us()
    for _ in range(4):
        watch.add(4_000, 1.0)
    assert watch.standing_us() == 5_000


def test_a_drifting_clock_is_not_a_queue_for_ever() -> None:
    watch = DelayWatch()
    for second in range(600):
        for _ in range(4):
            watch.add(1_000_000 + 100 * second, float(second))
        assert watch.standing_us() <= 6_200
