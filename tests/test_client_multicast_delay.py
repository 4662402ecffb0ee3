"""A queue that stands is told from bursts, busy receivers and drifting clocks."""

from __future__ import annotations

from client.multicast.delay import DelayWatch


def test_only_growth_that_all_samples_of_an_interval_show_counts() -> None:
    watch = DelayWatch()
    for delay in (5_000, 90_000, 7_000):
        watch.add(delay, 0.0)
    assert watch.standing_us() == 0
    for delay in (60_000, 55_000, 300_000):
        watch.add(delay, 1.0)
    assert watch.standing_us() == 50_000
    assert watch.standing_us() == 0


def test_clocks_may_be_anywhere_and_wrap() -> None:
    watch = DelayWatch()
    watch.add((1 << 32) - 1000, 0.0)
    watch.standing_us()
    watch.add(4_000, 1.0)
    assert watch.standing_us() == 5_000


def test_a_drifting_clock_is_not_a_queue_for_ever() -> None:
    watch = DelayWatch()
    for second in range(600):
        watch.add(1_000_000 + 100 * second, float(second))
        assert watch.standing_us() <= 6_200
