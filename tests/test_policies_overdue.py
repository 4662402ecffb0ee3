"""Which waiting clients start, when, and what a start means."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.policies import cells
from tidegate.loadtest.sim.metrics import measure, session_times
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.workloads import File, Visitor, Workload
from tidegate.policies.contract import Admit, Job, Wait
from tidegate.policies.overdue import OVERDUE, Overdue
from tidegate.policies.registry import make_policy
from tidegate.policies.settings import PolicySettings

MB = 1_000_000
LINK, CLIENT = 4.0 * MB, 0.25 * MB


class Crowd:
    """A link of 4 MB/s under Fair; sixteen of the clients, who come at once, could fill it."""

    def __init__(self, count: int, apart: int = MB // 40, network: tuple[str, ...] = ()) -> None:
        self.network = network
        known = PolicySettings(slots=4, reserve_small=1, bandwidth_bytes_s=LINK)
        self.policy = make_policy("fair", known, random.Random(1))
        self.now = 0.0
        self.left: dict[int, float] = {}
        self.running: set[int] = set()
        self.told: dict[str, tuple[float, float]] = {}
        self.ends: dict[str, tuple[float, float, float]] = {}
        self.started: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        #: How long each stood still after its start.
        self.stood_s: dict[str, float] = {}
        self.owner: dict[int, str] = {}
        for number in range(count):
            self.ask(f"c{number}", MB + number * apart)

    def ask(self, client: str, size: int) -> None:
        job = self.job(client, size, rate_bytes_s=CLIENT)
        self.answer(job, self.policy.offer(job, self.now))
        self.settle()

    def job(self, client: str, size: int, **more: float) -> Job:
        return Job(client, "file", size, size, present=True, network=self.network, **more)

    def answer(self, job: Job, decision: object) -> None:
        if isinstance(decision, Wait):
            assert decision.estimate is not None
            self.told.setdefault(job.client, (self.now, decision.estimate.expected_s))
            done = decision.estimate.done
            assert done is not None
            self.ends.setdefault(job.client, (self.now, done.expected_s, done.p90_s))
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
                job = self.job(row.client, row.size_bytes)
                self.answer(job, self.policy.offer(job, self.now, ticket))

    def live(self, until: float) -> None:
        """In steps of 50 ms; the link is shared alike."""
        while self.now < until and (self.left or len(self.started) < len(self.told)):
            rate = min(CLIENT, LINK / max(1, len(self.running)))
            for lease in sorted(self.running):
                self.left[lease] -= 0.05 * rate
                self.policy.progress(lease, self.now, max(0, int(self.left[lease])), rate)
            for lease in self.left.keys() - self.running:
                client = self.owner[lease]
                self.stood_s[client] = self.stood_s.get(client, 0.0) + 0.05
            self.now += 0.05
            for lease in [lease for lease in self.running if self.left[lease] <= 0.0]:
                del self.left[lease]
                self.ended[self.owner[lease]] = self.now
                self.running.discard(lease)
                self.policy.release(lease, self.now, True)
            self.policy.observe(rate * len(self.running), rate < CLIENT, self.now)
            self.settle()


@pytest.mark.parametrize("apart", [0, MB // 40], ids=["one file", "many files"])
@pytest.mark.parametrize("network", [(), ("10.2.1.7", "10.2.1.0/24")], ids=["all", "one network"])
def test_a_start_means_that_the_download_runs_to_its_end(
    apart: int, network: tuple[str, ...]
) -> None:
    """A browser that has left its waiting page for a stalled download knows nothing."""
    crowd = Crowd(150, apart, network)
    crowd.live(1_000.0)
    assert len(crowd.ended) == 150
    # The first sixteen begin before the shorter ones have come.
    stalled = [stood_s for stood_s in crowd.stood_s.values() if stood_s > 10.0]
    assert len(stalled) <= 16
    # Twice as many as fill the line may be about to be seen.
    at_once = Counter(round(started_s, 1) for started_s in crowd.started.values())
    assert max(at_once.values()) <= 32


@pytest.mark.parametrize("apart", [0, MB // 40], ids=["one file", "many files"])
def test_ends_are_told_and_come_by_their_bound(apart: int) -> None:
    crowd = Crowd(150, apart)
    crowd.live(1_000.0)
    kept = [crowd.ended[client] <= at + p90_s for client, (at, _, p90_s) in crowd.ends.items()]
    off = [
        abs(crowd.ended[client] - at - done_s) / (crowd.ended[client] - at)
        for client, (at, done_s, _) in crowd.ends.items()
    ]
    assert len(kept) > 100
    assert sum(kept) >= 0.85 * len(kept)
    # Nobody can know that no more will come: as many again are expected.
    assert statistics.median(off) <= 0.5


def test_an_end_is_told_of_a_download_whose_last_byte_was_sent() -> None:
    crowd = Crowd(1)
    crowd.live(1.0)
    [lease] = crowd.left
    crowd.policy.progress(lease, crowd.now, 0, CLIENT)
    done = crowd.policy.done(lease, crowd.now)
    assert done is not None
    assert 0.0 < done.expected_s <= done.p90_s < 1.0


def test_a_client_that_reads_nothing_makes_no_end_late() -> None:
    """Its bytes counted in full, so the ends of all after it were told four times too late."""
    days = [cells.figures("idle readers of one network", seeds=(seed,)) for seed in range(1, 6)]
    assert statistics.median(day.end_error for day in days) < 1.0


@pytest.mark.parametrize("cell", ["artefacts, 2/3", "browsers and curls, one file"])
def test_ends_by_ticket_come_by_their_bound(cell: str) -> None:
    told = cells.figures(cell, "ticket")
    assert told.end_within >= 0.85
    assert told.end_error <= 0.25


def test_the_bound_of_an_end_by_ticket_follows_that_of_its_start() -> None:
    """It was a guess, 2.3 times the end: minutes beside a download of one."""
    policy = make_policy("ticket", PolicySettings(slots=2, reserve_small=1), random.Random(1))
    begun = policy.offer(Job("first", "/f", 60 * MB, 60 * MB), 0.0)
    assert isinstance(begun, Admit)
    policy.progress(begun.lease, 10.0, 50 * MB, MB)
    for number in range(7):
        answer = policy.offer(Job(f"c{number}", "/f", 60 * MB, 60 * MB, present=True), 10.0)
    assert isinstance(answer, Wait)
    start = answer.estimate
    assert start is not None
    assert start.done is not None
    own_s = start.done.expected_s - start.expected_s
    assert own_s == pytest.approx(60.0, rel=0.1)
    assert start.p90_s + own_s <= start.done.p90_s <= 1.6 * (start.p90_s + own_s)


def test_a_waiting_download_starts_once_its_slack_is_used_up() -> None:
    """Shorter ones come for ever; without admission it would be done in their midst."""
    crowd = Crowd(0)
    for number in range(400):
        if number == 40:
            crowd.ask("long", 4 * MB)
        crowd.ask(f"c{number}", MB)
        crowd.live(crowd.now + 0.2)
    assert "long" in crowd.told
    assert "long" in crowd.ended
    # Without its guard it starts 12 s after it asked.
    assert crowd.started["long"] - crowd.told["long"][0] < 5.0
    assert crowd.stood_s.get("long", 0.0) < 1.0


def test_a_client_that_left_is_not_called() -> None:
    crowd = Crowd(150)
    gone = [client for client in crowd.told if client not in crowd.started][::2]
    for ticket in [row.number for row in crowd.policy.tickets() if row.client in gone]:
        crowd.policy.withdraw(ticket, crowd.now)
    crowd.live(1_000.0)
    assert not crowd.started.keys() & set(gone)
    assert len(crowd.ended) == 150 - len(gone)


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
    assert 0.2 <= min(long) <= max(long) <= 0.8
    # It may be without slack before its turn, which is told.
    assert max(retry for retry, told in waits if told <= 35.0) <= 5.0


@pytest.mark.parametrize("rate_bytes_s", [1e6, 1e8])
def test_polling_clients_of_a_narrow_link_are_told_what_comes(rate_bytes_s: float) -> None:
    """Each could take the link, or a fifth of it, for itself, and more come than it can carry.

    The queue grows for 450 s: the shorter half alone fills the line. A day differs from the next by
    4 points, so four are judged together.
    """
    days = [_growing(seed, rate_bytes_s) for seed in range(1, 5)]
    assert min(day["eta_told"] for day in days) > 10
    mean = {name: statistics.mean(day[name] for day in days) for name in days[0]}
    assert mean["eta_within_p90"] > 0.74
    assert mean["attempts"] < 5.5
    assert mean["end_within_p90"] > 0.74
    assert mean["end_median_error"] < 0.2


def _growing(seed: int, rate_bytes_s: float) -> dict[str, float]:
    rng = random.Random(seed)
    visitors = tuple(
        Visitor(f"c{number}", 1.5 * (number + rng.random()), rate_bytes_s, (File("file", size),))
        for number, size in enumerate((30 * MB, 20 * MB) * 150)
    )
    workload = Workload("narrow", 1, visitors, 5.0 * MB, 20_000)
    scenario = Scenario("fair", 6, 2, bandwidth_bytes_s=5.0 * MB, hold=False, tick_s=0.25)
    return measure(workload, scenario.conditions(workload), scenario.simulate(workload))


def polled(seed: int) -> dict[str, float]:
    """200 clients for one file that come back as they are told; about six fill the line."""
    rng = random.Random(seed)
    visitors = tuple(
        Visitor(f"c{number}", at_s, rng.uniform(0.4, 1.6) * MB, (File("file", 20 * MB),))
        for number, at_s in enumerate(sorted(rng.uniform(0.0, 300.0) for _ in range(200)))
    )
    workload = Workload("polled", seed, visitors, 6.0 * MB, 20_000)
    scenario = Scenario("fair", 30, 2, bandwidth_bytes_s=6.0 * MB, hold=False, tick_s=0.25)
    return measure(workload, scenario.conditions(workload), scenario.simulate(workload))


@pytest.mark.parametrize("seed", [1, 2])
def test_who_comes_back_as_told_has_its_turn_before_those_who_come_later(seed: int) -> None:
    """Any client that asked as the line had use went first: told 14 s, it started after 117."""
    figures = polled(seed)
    assert figures["eta_within_p90"] >= 0.85
    assert figures["eta_median_error"] <= 0.25
    assert figures["end_within_p90"] >= 0.85
    assert figures["end_median_error"] <= 0.2


def test_browsers_and_programs_like_curl_have_their_turns_in_one_order() -> None:
    """First bytes made curls go before all browsers, who had the file after three times as long."""
    crowd = cells.CELLS["browsers and curls, one file"].workload(1)
    scenario = Scenario("fair", 30, 6, bandwidth_bytes_s=5.0 * MB, tick_s=0.25)
    tally = scenario.simulate(crowd)
    times = session_times(tally, len(crowd.visitors))
    browsers, curls = statistics.mean(times[::2]), statistics.mean(times[1::2])
    assert 0.8 <= browsers / curls <= 1.25
    figures = measure(crowd, scenario.conditions(crowd), tally)
    assert figures["eta_within_p90"] >= 0.85
    assert figures["end_within_p90"] >= 0.85
    assert figures["end_median_error"] <= 0.15


def test_who_would_come_back_waits_in_its_request_while_its_turn_is_near() -> None:
    """Sixteen with 0.25 MB/s each fill the line; the first of them is done in a second."""
    settings = PolicySettings(slots=40, reserve_small=1, bandwidth_bytes_s=LINK)
    policy = make_policy("fair", settings, random.Random(1))
    policy.observe(LINK, True, 0.0, LINK)
    first = [
        policy.offer(Job(f"first{number}", "/f", MB, MB, rate_bytes_s=CLIENT), 0.0)
        for number in range(16)
    ]
    for number, begun in enumerate(first):
        assert isinstance(begun, Admit)
        policy.progress(begun.lease, 1.0, MB // 4 if number == 0 else MB, CLIENT)
    policy.observe(LINK, True, 1.0, LINK)
    policy.advance(1.0)
    here = policy.offer(Job("here", "/f", MB, MB, present=True), 1.0)
    assert isinstance(here, Wait)
    assert here.hold_s == 0.0
    jobs = [Job(f"c{number}", "/f", 2 * MB, 2 * MB) for number in range(100)]
    news = [policy.offer(job, 1.0) for job in jobs]
    # A newcomer waits for its turn only if that is nearer than any return.
    assert [new for new in news if isinstance(new, Wait) and new.hold_s > 0.0] == []
    others = [
        policy.offer(job, 1.0 + new.retry_after_s, new.ticket)
        for job, new in zip(jobs, news, strict=True)
        if isinstance(new, Wait)
    ]
    holds_s = [other.hold_s for other in others if isinstance(other, Wait)]
    assert len(holds_s) == 100
    assert holds_s[0] > 0.0
    assert holds_s[-1] == 0.0


class Slack:
    """Waiting tickets whose slack a test sets."""

    def __init__(self, count: int) -> None:
        self.here = [True] * count
        self.slack_s = [100.0] * count
        table = SimpleNamespace(
            rows={}, present=self.here, number=range(count), key=range(count), size=[MB] * count
        )
        admission: Any = SimpleNamespace(
            queue=SimpleNamespace(table=table),
            is_large=lambda size: True,
            row=lambda number: number,
        )
        self.overdue = Overdue(admission, lambda row, now: self.slack_s[row])
        for row in range(count):
            self.overdue.waits(row, 0.0)


CHANGES = st.tuples(
    st.integers(0, 4),
    st.sampled_from([-1.0, 0.0, 1.0, 50.0]),
    st.sampled_from([True] * 4 + [False]),
)


@given(st.lists(CHANGES, max_size=30))
def test_whoever_has_had_no_slack_for_a_while_is_found_whatever_it_had_before(
    changes: list[tuple[int, float, bool]],
) -> None:
    """The slack of those that wait grows, too: others that come slow the virtual sharing down."""
    tickets, now = Slack(5), 0.0
    for number, slack_s, here in changes:
        tickets.slack_s[number], tickets.here[number] = slack_s, here
        tickets.overdue.waits(number, now)
        now += OVERDUE.most_look_s
        found = tickets.overdue.first(now)
        assert found is None or (tickets.here[found] and tickets.slack_s[found] <= 0.0)
    for row in range(5):
        tickets.here[row] = True
        tickets.overdue.waits(row, now)
    for expected in range(5):
        tickets.slack_s[expected:] = [-1.0] * (5 - expected)
        now += 2.0 * OVERDUE.most_look_s
        assert tickets.overdue.first(now) == expected
        tickets.slack_s[expected] = 100.0
