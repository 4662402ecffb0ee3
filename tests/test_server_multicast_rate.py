"""The rate bends to a line that is too slow, and only to that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidegate.protocol.session import ReceiverReport
from tidegate.server.multicast.rate import RateControl, shares

RATE = 12_500_000.0


class Cohort:
    """Reports every 0.2 s from members whose loss is a function of the rate."""

    def __init__(self, control: RateControl) -> None:
        self.control = control
        self.now = 0.0
        self.lag_ms = 0
        self.counts: dict[str, list[int]] = {}
        self.rates: list[float] = []

    def run(self, seconds: float, **losses: Callable[[float], tuple[float, int]]) -> float:
        for _ in range(int(seconds / 0.2)):
            self.now += 0.2
            rate = self.control.rate_bytes_s
            self.rates.append(rate)
            for member, judge in losses.items():
                loss, queue_ms = judge(rate)
                if member not in self.counts:
                    self.control.join(member, (member,))
                count = self.counts.setdefault(member, [0, 0])
                datagrams = int(rate * 0.2 / 1500)
                count[0] += datagrams
                count[1] += round(datagrams * (1 - loss))
                report = ReceiverReport(
                    member, "receiving", 0, 0, *count, queue_ms=queue_ms, lag_ms=self.lag_ms
                )
                self.control.report(report, self.now)
        return self.control.rate_bytes_s


def alone() -> RateControl:
    control = RateControl(RATE)
    control.join("a")
    return control


def line(limit: float) -> Callable[[float], tuple[float, int]]:
    """A line with a queue: what is too much is lost."""
    return lambda rate: (max(0.0, 1 - limit / rate), 50 if rate > limit else 0)


def radio(loss: float, queue_ms: int = 0) -> Callable[[float], tuple[float, int]]:
    """Loses as much at any rate."""
    return lambda rate: (loss, queue_ms)


def test_a_slow_line_brings_the_rate_down_to_what_it_carries() -> None:
    cohort = Cohort(RateControl(RATE))
    cohort.run(20, slow=line(8e6), slower=line(8e6), fast=radio(0.0))
    late = cohort.rates[50:]
    assert 6.5e6 < sum(late) / len(late) < 9.5e6


def test_a_lossy_link_alone_changes_nothing() -> None:
    cohort = Cohort(RateControl(RATE))
    assert cohort.run(10, a=radio(0.2), b=radio(0.0, 100)) == RATE


def test_a_loss_that_a_slower_rate_does_not_help_is_believed_once() -> None:
    cohort = Cohort(RateControl(RATE))
    assert cohort.run(20, a=radio(0.2, 100)) == RATE
    slowed = sum(rate < RATE for rate in cohort.rates)
    assert 0 < slowed <= 5


def test_it_comes_back_when_the_line_is_free_again() -> None:
    cohort = Cohort(RateControl(RATE))
    cohort.run(10, a=line(6e6))
    assert cohort.run(20, a=radio(0.0)) == RATE


def test_members_that_miss_nothing_and_say_nothing_want_all_again() -> None:
    cohort = Cohort(RateControl(RATE))
    assert cohort.run(5, a=line(6e6), b=line(6e6)) < 0.7 * RATE
    assert cohort.run(20, c=radio(0.0)) == RATE


def test_there_is_a_floor() -> None:
    control = RateControl(RATE)
    cohort = Cohort(control)
    assert cohort.run(30, a=line(1e6)) >= control.floor_bytes_s
    assert not control.acceptable(1e6)
    for declared, rate in ((1e6, control.floor_bytes_s), (5e6, 5e6)):
        control = RateControl(RATE)
        control.join("a", declared_bytes_s=declared)
        assert control.rate_bytes_s == rate


def test_one_who_left_no_longer_holds_a_trial() -> None:
    control = RateControl(RATE)
    cohort = Cohort(control)
    cohort.run(0.8, a=line(6e6))
    control.forget("a")
    assert cohort.run(10, b=radio(0.0)) == RATE


def test_a_receiver_that_cannot_read_so_fast_is_believed_before_it_loses_anything():
    cohort = Cohort(RateControl(RATE))
    cohort.lag_ms = 520
    slowed = cohort.run(2.0, slow=radio(0.0))
    assert RATE / 2 <= slowed < 0.7 * RATE
    assert cohort.run(20.0, slow=radio(0.0)) == RATE / 2
    cohort.lag_ms = 10
    assert cohort.run(4.0, slow=radio(0.0)) == RATE


def test_a_receiver_whose_buffer_holds_more_is_not_slowed_down_for():
    for room_ms, lag_ms, slowed in ((1760, 860, False), (1760, 900, True), (45, 300, False)):
        control = alone()
        report = ReceiverReport("a", "receiving", 0, 0, 900, 900, lag_ms=lag_ms, room_ms=room_ms)
        control.report(report, 0.2)
        assert (control.rate_bytes_s < RATE) is slowed


def test_what_a_receiver_loses_in_its_own_buffer_slows_the_session_down():
    control = alone()
    control.report(ReceiverReport("a", "receiving", 0, 0, 1000, 950, overruns=0), 0.2)
    assert control.rate_bytes_s == RATE
    control.report(ReceiverReport("a", "receiving", 0, 0, 2000, 1900, overruns=50), 0.4)
    assert control.rate_bytes_s == RATE * 0.75


def test_a_receiver_that_catches_up_is_given_the_time():
    control = alone()
    for step, lag_ms in enumerate((600, 1600, 1200, 900, 640, 520, 100)):
        seen = 1000 * (step + 1)
        control.report(
            ReceiverReport("a", "receiving", 0, 0, seen, seen, lag_ms=lag_ms), 0.6 * step
        )
        if step == 1:
            assert control.rate_bytes_s < RATE
            lowest = control.rate_bytes_s
    assert control.rate_bytes_s > lowest


# --- several sessions ----------------------------------------------------------------------------


@pytest.mark.parametrize(("slow_s", "leaves"), [(2.0, False), (4.0, True)])
def test_a_member_leaves_once_the_rate_has_been_too_high_for_seconds_on_end(
    slow_s: float, leaves: bool
) -> None:
    """Another download on its line may take half of it now and then."""
    cohort = Cohort(RateControl(RATE))
    others = {f"m{number}": radio(0.0) for number in range(12)}
    left = False
    for _ in range(4):
        for seconds, judge in ((slow_s, line(RATE / 2)), (2.0, radio(0.0))):
            for _ in range(int(seconds / 0.2)):
                assert cohort.run(0.2, one=judge, **others) == RATE
                left = left or cohort.control.is_too_fast_for("one", cohort.now)
    assert left == leaves


def test_one_file_after_the_other() -> None:
    assert shares([7]) == [1.0]
    assert shares([]) == []
    first, second = shares([5_000, 9_000])
    assert (round(first, 2), round(second, 2)) == (0.95, 0.05)
    # Equal ones, too: the one that began first.
    assert shares([5_000, 5_000]) == [first, second]
    # A first pass that is over repairs beside the next one.
    assert shares([0, 9_000]) == [0.5, 0.5]
    assert [round(share, 2) for share in shares([0, 9_000, 5_000])] == [0.49, 0.02, 0.49]


def mean_end_s(sizes: list[int], share: Callable[[list[int]], list[float]]) -> float:
    """When files end on the average, at 1 000 bytes a second."""
    left, now, ends = list(sizes), 0.0, [0.0] * len(sizes)
    while any(left):
        now += 0.1
        running = [at for at, size in enumerate(left) if size]
        for at, part in zip(running, share([left[at] for at in running]), strict=True):
            left[at] = max(0, left[at] - round(100 * part))
            ends[at] = ends[at] or (now if not left[at] else 0.0)
    return sum(ends) / len(ends)


def test_several_files_end_sooner_on_the_average_and_the_last_no_later() -> None:
    def equal(left: list[int]) -> list[float]:
        return [1 / len(left)] * len(left)

    assert mean_end_s([10_000] * 2, shares) < 0.8 * mean_end_s([10_000] * 2, equal)
    assert mean_end_s([10_000] * 6, shares) < 0.64 * mean_end_s([10_000] * 6, equal)
    assert mean_end_s([2_000, 30_000], shares) <= 1.02 * mean_end_s([2_000, 30_000], equal)
