"""The live side of finding the line: what it takes for arrived."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs

from tests.fakes import FakeTransfer
from tidegate.policies.bottleneck import Bottleneck, LineOrders, Sample
from tidegate.policies.contract import Admit, Job
from tidegate.server.admission.downloads import Delivery, LeasedDownload
from tidegate.server.admission.line import LineKeeper
from tidegate.server.files.pacer import Pacer
from tidegate.server.files.transfer import BodyPlan
from tidegate.server.http.unarrived import UnarrivedAnswers


class Way:
    """A connection with an answer on its way to a client."""

    def __init__(self, queued: int) -> None:
        self.queued, self.bodies_bytes = queued, 0

    def queued_bytes(self) -> int:
        return self.queued


class Body:
    """A body without a lease that was handed over whole."""

    def __init__(self, flying: int) -> None:
        self.flying = flying

    def flying_bytes(self) -> int:
        return self.flying


def test_an_answer_that_was_sent_whole_arrives_as_the_line_carries_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted at once, a few small files made the line's goodput leap, and it was never found."""
    seen: list[tuple[int, int]] = []

    class Recorder(Bottleneck):
        def observe(
            self, now: float, acked: int, flying: int, held: bool, samples: Sequence[Sample]
        ) -> LineOrders:
            seen.append((acked, flying))
            return super().observe(now, acked, flying, held, samples)

    monkeypatch.setattr("tidegate.server.admission.line.Bottleneck", Recorder)
    answers = UnarrivedAnswers()
    pacer = Pacer(Clock())
    keeper = LineKeeper(pacer, None, answers)
    crowd: list[LeasedDownload] = []
    keeper.tick(0.0, crowd, 0)
    assert not answers.wanted, "without a crowd nobody wants to know"
    way = Way(200_000)
    answers.wanted = True
    pacer.charge(200_000)
    answers.add(way)
    found = []
    for number, left in enumerate((200_000, 120_000, 40_000, 0)):
        way.queued = left
        found.append(answers.flying_bytes(0.0, wanted=True))
        answers.add(way)
        keeper.tick(1.0 + number, crowd, 0)
        answers.add(way)
    assert found == [200_000, 120_000, 40_000, 0]
    assert seen[1:] == [(200_000 - left, left) for left in found]


def test_answers_are_counted_once_and_not_with_bodies_of_senders() -> None:
    answers = UnarrivedAnswers()
    answers.wanted = True
    ways = [Way(1_000) for _ in range(700)]
    for way in ways + ways:
        answers.add(way)
    assert answers.flying_bytes(0.0, wanted=True) == 500 * 1_000
    ways[0].bodies_bytes = 9_000
    ways[1].queued = 0
    assert answers.flying_bytes(0.0, wanted=True) == 498 * 1_000
    body = Body(70_000)
    answers.add_body(ways[2], body.flying_bytes)
    assert answers.flying_bytes(0.0, wanted=True) == 497 * 1_000 + 70_000
    body.flying = 0
    assert answers.flying_bytes(0.0, wanted=True) == 497 * 1_000
    assert answers.flying_bytes(0.0, wanted=False) == 497 * 1_000
    answers.add_body(ways[3], Body(5).flying_bytes)
    assert answers.flying_bytes(0.0, wanted=True) == 0


def test_downloads_that_lose_packets_together_show_the_line() -> None:
    """A router on the way dropped most of what was sent, and the line was unknown for 16 s."""
    pacer = Pacer(Clock())
    keeper = LineKeeper(pacer, None)
    crowd = []
    for number in range(6):
        size = 10**8
        job = Job(f"192.0.2.{number}#x", "/f", size, size)
        download = LeasedDownload(Admit(number), job, None, 0.0)
        plan = BodyPlan(200, (), ((0, size),), size)
        delivery = Delivery(download, plan, lambda one, go_on: go_on(), lambda one: None)
        delivery.transfer = body = FakeTransfer(delivery, size)
        body.blocked = True
        # Some always have none under way that was lost.
        body.lost = number != 0
        download.join(delivery)
        crowd.append((download, body))
    for tick in range(8):
        assert keeper.line_bytes_s == math.inf
        for download, _ in crowd:
            download.look()
        keeper.looked(0.25 * tick, [download for download, _ in crowd])
        keeper.tick(0.25 * tick, [download for download, _ in crowd], 0)
        if keeper.line_bytes_s < math.inf:
            break
        for _, body in crowd:
            body.send(50_000)
            pacer.charge(50_000)
    assert keeper.line_bytes_s == pytest.approx(6 * 50_000 / 0.25)
    # What has just begun is kept back by TCP, and its client may take far more.
    newcomer, body = crowd[0]
    assert keeper.held_back(newcomer) is None
    body.slow_start = True
    newcomer.look()
    assert keeper.held_back(newcomer) is True


def test_a_finder_that_fails_leaves_the_line_unknown_and_the_tick_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One exception kept all that a tick does after it from happening, tick after tick."""
    made: list[Bottleneck] = []

    class Failing(Bottleneck):
        def __init__(self, ceiling_bytes_s: float | None = None) -> None:
            super().__init__(ceiling_bytes_s)
            made.append(self)

        def observe(
            self, now: float, acked: int, flying: int, held: bool, samples: Sequence[Sample]
        ) -> LineOrders:
            if len(made) == 1:
                raise ZeroDivisionError
            return LineOrders(5e5)

    monkeypatch.setattr("tidegate.server.admission.line.Bottleneck", Failing)
    pacer = Pacer(Clock(), 1.0)
    keeper = LineKeeper(pacer, 1e6)
    with capturedLogs() as logged:
        keeper.tick(0.0, [], 0)
    assert [event["log_level"] for event in logged] == [LogLevel.critical]
    assert pacer.bandwidth_bytes_s == 1.0, "the bound that was configured counts from the start"
    keeper.tick(0.25, [], 0)
    assert pacer.bandwidth_bytes_s == 5e5
    assert made[1].ceiling_bytes_s == 1e6
