"""What a client is believed to take: no more than it was seen to read."""

from __future__ import annotations

import pytest

from bench.policies import lab
from tidegate.policies.capacity import CAPACITY, Capacity
from tidegate.policies.contract import Job
from tidegate.policies.leases import Lease
from tidegate.policies.reading import RATE, RunningRate

STEP_S = 0.25


def floor_after(reads_bytes_s: float, line_bytes_s: float, runs: list[float]) -> float:
    """What a client is believed to take after such runs, with 8 s pauses between.

    It cannot be told whether the line holds it back.
    """
    capacity, rate = Capacity(), RunningRate()
    capacity.configure(None)
    capacity.observe(line_bytes_s, True, True, line_bytes_s, 10)
    lease = Lease(1, Job("c", "f", 10**8, 10**8), 0.0, None, True)
    for run_s in runs:
        # Its kernel takes bytes as fast as the line brings them until it is full.
        room = float(RATE.ahead_bytes)
        rate.resume()
        for _ in range(int(run_s / STEP_S)):
            arrived = min(line_bytes_s * STEP_S, room + reads_bytes_s * STEP_S)
            room += reads_bytes_s * STEP_S - arrived
            rate.look(arrived, STEP_S)
            capacity.measured(lease, rate.client_bytes_s(None), None)
    assert lease.cap_is_floor
    return lease.cap_bytes_s


@pytest.mark.parametrize("runs", [[0.5], [0.25], [0.5, 0.5, 0.5], [4.0]])
@pytest.mark.parametrize("reads_bytes_s", [400_000.0, 500_000.0, 1_000_000.0])
def test_what_a_kernel_takes_ahead_makes_no_speed(reads_bytes_s: float, runs: list[float]) -> None:
    """The first half second made a floor 2 to 4 times too high, which a pause kept."""
    assert floor_after(reads_bytes_s, 2_000_000.0, runs) <= 2.4 * reads_bytes_s


def test_a_client_without_such_a_kernel_is_believed_after_half_a_megabyte() -> None:
    rate, took = RunningRate(), 0.0
    while took < 2 * RATE.ahead_bytes + 10 * RATE.smoothing_s * 200_000.0:
        rate.look(200_000.0 * STEP_S, STEP_S)
        took += 200_000.0 * STEP_S
    assert rate.bytes_s == pytest.approx(200_000.0)
    assert rate.client_bytes_s(None) == pytest.approx(rate.client_bytes_s(False), rel=0.01)


def test_a_client_is_believed_at_once_where_it_is_known_who_limits_it() -> None:
    """Half of it under a known cap cost 5 % of the mean of Experiment 1 at a load of 100 %."""
    rate = RunningRate()
    rate.look(50_000.0, STEP_S)
    assert rate.client_bytes_s(False) == rate.client_bytes_s(True) == 200_000.0
    assert 0.0 < rate.client_bytes_s(None) < 200_000.0


@pytest.mark.parametrize(
    ("small_bytes_s", "left_bytes_s"),
    [(0.0, 1_000_000.0), (300_000.0, 700_000.0), (900_000.0, CAPACITY.large_part * 1_000_000.0)],
)
def test_large_downloads_have_what_small_ones_leave_of_the_line(
    small_bytes_s: float, left_bytes_s: float
) -> None:
    capacity, line_bytes_s = Capacity(), 1_000_000.0
    capacity.observe(line_bytes_s, True, True, line_bytes_s)
    looks = int(10.0 * CAPACITY.small_s / STEP_S)
    for look in range(looks):
        # They come in batches.
        capacity.small_took(int(2 * (look % 2) * STEP_S * small_bytes_s))
        capacity.observe_small(look * STEP_S)
    assert capacity.large_bytes_s == pytest.approx(left_bytes_s, rel=0.05)
    # None comes any more.
    for look in range(looks):
        capacity.observe_small((looks + look) * STEP_S)
    assert capacity.large_bytes_s == pytest.approx(line_bytes_s, rel=0.01)


def test_slow_clients_that_still_run_count_as_much_as_fast_ones_that_are_done() -> None:
    """Ends alone made 250 clients seem as fast as the line, of which seven in ten were slow."""
    capacity = Capacity()
    capacity.configure(None)
    capacity.observe(1e6, False, True, 1e6, 100)
    for number in range(10):
        speed_bytes_s = 1e6 if number < 3 else 1e4
        lease = Lease(number, Job(f"c{number}", "f", 10**6, 10**6), 0.0, None, True)
        for look in range(4):
            lease.took(10**6 - 100_000 * look)
            capacity.measured(lease, speed_bytes_s, False)
        if number < 3:
            capacity.learn(lease)
    assert capacity.typical_client_bytes_s == pytest.approx(1e6**0.3 * 1e4**0.7)
    # The deviation of the logarithms is the root of 0.3 * 0.7 of their distance.
    slower = 1e6**0.3 * 1e4**0.7 / 100.0 ** (0.5 * 0.21**0.5)
    assert capacity.slower_client_bytes_s == pytest.approx(slower)


def test_what_the_kernel_of_an_idle_reader_takes_is_no_speed() -> None:
    """Live 300 idle readers made all clients seem slow, and cost 40 people +81 %."""
    capacity = Capacity()
    capacity.configure(None)
    capacity.observe(1e6, False, True, 1e6, 1_000)
    usual = Lease(0, Job("c", "f", 10**7, 10**7), 0.0, None, True)
    for look in range(4):
        usual.took(10**7 - 250_000 * look)
        capacity.measured(usual, 1e6, False)
    for number in range(1, 301):
        idle = Lease(number, Job(f"i{number}", "f", 10**9, 10**9), 0.0, None, True)
        for look in range(3):
            idle.took(10**9 - 2_000 * look)
            capacity.measured(idle, 4_000.0, False)
    assert capacity.typical_client_bytes_s == pytest.approx(1e6)


@pytest.mark.parametrize(("line_bytes_s", "guess_bytes_s"), [(1e6, 250_000.0), (1e8, 1_000_000.0)])
def test_a_client_is_taken_for_a_quarter_of_a_slow_line_before_any_was_seen(
    line_bytes_s: float, guess_bytes_s: float
) -> None:
    configured, found = Capacity(), Capacity()
    configured.configure(line_bytes_s)
    found.observe(line_bytes_s, True, True, line_bytes_s, 10)
    for capacity in (configured, found):
        assert capacity.typical_client_bytes_s == pytest.approx(guess_bytes_s)
        lease = Lease(1, Job("c", "f", 10**8, 10**8), 0.0, None, True)
        capacity.measured(lease, 0.02 * line_bytes_s, False)
        capacity.configure(2.0 * line_bytes_s)
        assert capacity.typical_client_bytes_s == pytest.approx(0.02 * line_bytes_s), "one was seen"


def test_a_burst_at_a_new_server_is_near_the_ideal() -> None:
    """It took 1.19 of the shortest first when the first clients were taken for slow ones."""
    crowd = lab.burst(1)
    told_bytes_s = 0.98 * crowd.bandwidth_bytes_s
    assert lab.simulated("fair", crowd, told_bytes_s) <= 1.13 * lab.ideal(crowd, ())


def test_a_client_that_is_held_back_is_taken_for_as_fast_as_the_others_were_seen_to_be() -> None:
    """It stayed at the guess of before: in a burst at 380 Mbit/s 45 ran at once instead of 6."""
    capacity = Capacity()
    capacity.observe(40_000_000.0, True, True, 40_000_000.0, 40)
    held, *others = [Lease(one, Job(f"c{one}", "f", 9, 9), 0.0, None, True) for one in range(9)]
    capacity.measured(held, 500_000.0, True)
    assert capacity.speed(held) == pytest.approx(CAPACITY.first_client_bytes_s)
    for other in others:
        capacity.measured(other, 8_000_000.0, False)
    assert capacity.speed(held) == pytest.approx(8_000_000.0)
    # No more is sure than before.
    assert held.cap_is_floor
    assert held.cap_bytes_s == pytest.approx(CAPACITY.first_client_bytes_s)
