"""Told times that are kept, and the places out of turn."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tidegate.loadtest.sim.metrics import measure
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.workloads import File, Visitor, Workload, exp2
from tidegate.policies.contract import Admit, Job, Wait
from tidegate.policies.estimate.told_times import ToldTimes, due_s
from tidegate.policies.keep_alive import most_paused
from tidegate.policies.registry import make_policy
from tidegate.policies.settings import PolicySettings

MB = 1_000_000
LINK, CLIENT = 4.0 * MB, 0.25 * MB


def test_due_times_lie_around_the_told_one_and_are_spread() -> None:
    parts = [due_s(number, 100.0, 10.0) - 100.0 for number in range(1, 101)]
    assert 9.5 <= min(parts) < 9.6
    assert 10.9 < max(parts) <= 11.0
    in_order = sorted(parts)
    assert max(b - a for a, b in pairwise(in_order)) < 0.05


def test_the_earliest_due_is_first_and_is_noted_once() -> None:
    promises = ToldTimes()
    for number, due in ((1, 30.0), (2, 20.0), (3, 25.0), (2, 20.0)):
        promises.note(number, due, 0.0)
    assert promises.next_s(0.0) == 20.0
    assert promises.next_s(20.0) is None
    taken = []
    while (number := promises.first()) is not None:
        taken.append(number)
        promises.forget_first()
    assert taken == [2, 3, 1]


def test_interval_follows_what_places_took() -> None:
    promises = ToldTimes()
    promises.note(1, 1.0, 0.0)
    for turn in range(1, 200):
        promises.note(turn + 1, 1.0, 0.0)
        promises.taken(turn * 8.0)
    assert abs(promises.interval_s(199 * 8.0) - 8.0) < 0.1
    # Nobody has got one for long: it takes longer than was learnt.
    assert promises.interval_s(199 * 8.0 + 60.0) == 30.0


class Crowd:
    """A link of 4 MB/s under Fair; sixteen of the clients, who come at once, could fill it."""

    def __init__(self, count: int) -> None:
        known = PolicySettings(slots=4, reserve_small=1, bandwidth_bytes_s=LINK)
        self.policy = make_policy("fair", known, random.Random(1))
        self.now = 0.0
        self.left: dict[int, float] = {}
        self.running: set[int] = set()
        self.told: dict[str, tuple[float, float]] = {}
        self.started: dict[str, float] = {}
        self.first_byte: dict[str, float] = {}
        self.owner: dict[int, str] = {}
        for number in range(count):
            self.ask(f"c{number}", MB + number * MB // 40)

    def ask(self, client: str, size: int) -> None:
        job = Job(client, "file", size, size, rate_bytes_s=CLIENT, present=True)
        self.answer(job, self.policy.offer(job, self.now))
        self.settle()

    def answer(self, job: Job, decision: object) -> None:
        if isinstance(decision, Wait):
            assert decision.estimate is not None
            self.told.setdefault(job.client, (self.now, decision.estimate.expected_s))
            return
        assert isinstance(decision, Admit)
        self.started[job.client] = self.now
        self.owner[decision.lease] = job.client
        self.left[decision.lease] = job.remaining_bytes
        self.running.add(decision.lease)

    def settle(self) -> float | None:
        while True:
            step = self.policy.advance(self.now)
            self.running -= set(step.pause)
            self.running |= set(step.resume)
            if not step.call:
                return step.wake_at
            for ticket in step.call:
                row = self.policy.ticket(ticket)
                assert row is not None
                job = Job(row.client, row.file, row.size_bytes, row.size_bytes, present=True)
                self.answer(job, self.policy.offer(job, self.now, ticket))

    def live(self, until: float) -> None:
        """In steps of 50 ms; the link is shared alike."""
        while self.now < until and (self.left or len(self.started) < len(self.told)):
            rate = min(CLIENT, LINK / max(1, len(self.running)))
            for lease in sorted(self.running):
                self.first_byte.setdefault(self.owner[lease], self.now)
                self.left[lease] -= 0.05 * rate
                self.policy.progress(lease, self.now, max(0, int(self.left[lease])), rate)
            self.now += 0.05
            for lease in [lease for lease in self.running if self.left[lease] <= 0.0]:
                del self.left[lease]
                self.running.discard(lease)
                self.policy.release(lease, self.now, True)
            self.policy.observe(rate * len(self.running), rate < CLIENT, self.now)
            self.settle()


@pytest.mark.parametrize("count", [150, 180])
def test_who_was_told_a_time_starts_by_then_or_a_tenth_later(count: int) -> None:
    # So many paused downloads are bearable, and half as many more for the sake of told times.
    bearable = int(most_paused(LINK))
    crowd = Crowd(count)
    crowd.live(1_000.0)
    assert len(crowd.started) == count
    assert len(crowd.told) >= count - bearable - 20
    for client, (at, expected) in crowd.told.items():
        assert crowd.started[client] <= at + 1.1 * expected + 0.06, client


def test_first_bytes_come_as_the_download_starts() -> None:
    crowd = Crowd(150)
    crowd.live(1_000.0)
    assert all(crowd.first_byte[client] - at <= 0.06 for client, at in crowd.started.items())


def test_who_polls_looks_well_before_a_long_wait_is_over() -> None:
    """The last of a rush, spread by a tenth of a long wait, came back to a line long free."""
    settings = PolicySettings(slots=30, bandwidth_bytes_s=MB)
    policy, waits = make_policy("fair", settings, random.Random(1)), []
    policy.observe(MB, True, 0.0, MB)
    for number in range(60):
        now = 0.1 * number
        decision = policy.offer(Job(f"c{number}", "/f", 5 * MB, 5 * MB), now)
        policy.advance(now)
        if isinstance(decision, Wait) and decision.estimate is not None:
            waits.append((decision.retry_after_s, decision.estimate.expected_s))
    long = [retry / told for retry, told in waits if told > 40.0]
    assert len(long) > 20
    assert 0.6 <= min(long) <= max(long) <= 0.8
    # A short one is over by the time of a second visit.
    short = [retry - told for retry, told in waits if told <= 15.0]
    assert max(map(abs, short)) <= 1.0


@pytest.mark.parametrize("rate_bytes_s", [1e6, 1e8])
def test_polling_clients_of_a_narrow_link_start_when_told(rate_bytes_s: float) -> None:
    """Each could take the link, or a fifth of it, for itself, and more come than it can carry."""
    visitors = tuple(
        Visitor(f"c{number}", number * 1.5, rate_bytes_s, (File("file", size),))
        for number, size in enumerate((30 * MB, 20 * MB) * 150)
    )
    workload = Workload("narrow", 1, visitors, 5.0 * MB, 20_000)
    scenario = Scenario("fair", 6, 2, bandwidth_bytes_s=5.0 * MB, hold=False, tick_s=0.25)
    figures = measure(workload, scenario.conditions(workload), scenario.simulate(workload))
    assert figures["eta_told"] > 10
    assert figures["eta_within_p90"] > 0.8
    # The policy sees rates as late and as roughly as a live server does.
    assert figures["eta_median_error"] < 0.45
    assert figures["attempts"] < 3.0


def test_a_poller_whose_return_is_cut_short_keeps_its_place_among_those_told() -> None:
    """Beyond `retry_max_s` a time is told in several visits; those who came since come after."""
    workload, scenario = exp2(0), Scenario("fair", 30, 6, bandwidth=0.3, hold=False)
    figures = measure(workload, scenario.conditions(workload), scenario.simulate(workload))
    assert figures["eta_told"] > 50
    assert figures["eta_within_p90"] >= 0.85
    assert figures["eta_median_error"] <= 0.15


def starts_of(sizes: list[int], apart_s: float, *, present: bool = False) -> list[bool]:
    """Whether each starts as it asks, on a full line that sixteen with 0.25 MB/s each fill."""
    settings = PolicySettings(slots=4, reserve_small=1, bandwidth_bytes_s=LINK)
    policy = make_policy("fair", settings, random.Random(1))
    policy.observe(LINK, True, 0.0, LINK)
    for number in range(16):
        policy.offer(Job(f"first{number}", "/f", MB, MB), 0.0)
    now, started = 10.0, []
    for number, size in enumerate(sizes):
        policy.advance(now)
        job = Job(f"c{number}", "/f", size, size, present=present)
        started.append(isinstance(policy.offer(job, now), Admit))
        now += apart_s
    return started


def test_who_polls_is_not_sent_away_for_a_wait_shorter_than_can_be_told() -> None:
    """Sent away for half a second it was back after three, to a line that had been idle."""
    assert all(starts_of([50 * MB] * 5, 0.01))
    # One that waits in its request loses nothing by half a second.
    assert not all(starts_of([50 * MB] * 5, 0.01, present=True))


def test_those_that_poll_take_no_more_of_the_line_ahead_than_is_spent_on_measuring() -> None:
    started = starts_of([50 * MB] * 1_000, 0.01)
    # In ten seconds: a tenth of what fills the line at any time, and two seconds of that ahead.
    assert 5 <= sum(started) <= (10.0 + 2.0) / 0.5 * 1.6
    assert sum(started[:20]) <= 16
