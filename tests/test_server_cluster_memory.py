"""What the workers of a machine share without a word: its cap, and connections by address."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock

from tests.test_server_pacer import Taker, run
from tidegate.policies.keep_alive import KEEP_ALIVE
from tidegate.server.cluster.common_memory import CommonCounts, CommonLine, CommonMemory
from tidegate.server.files.pacer import Pacer, Share

CAP = 2_000_000.0


def _processes(clock: Clock, *rates: list[float]) -> tuple[list[Pacer], list[list[Taker]]]:
    memory = CommonMemory(len(rates))
    pacers = [Pacer(clock, CAP, CommonLine(memory, row)) for row in range(len(rates))]
    takers = []
    for pacer, own in zip(pacers, rates, strict=True):
        # Processes do not tick in step.
        clock.advance(0.003)
        takers.append([Taker(pacer, clock, rate) for rate in own])
        for taker in takers[-1]:
            taker.ready()
    return pacers, takers


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any))
@settings(max_examples=30)
def test_the_downloads_of_all_processes_share_the_cap_as_those_of_one(counts: list[int]) -> None:
    clock = Clock()
    _, takers = _processes(clock, *([1e9] * count for count in counts))
    run(clock, [taker for own in takers for taker in own], 5)
    sent = [taker.sent for own in takers for taker in own]
    assert sum(sent) == pytest.approx(CAP * 5, rel=0.08)
    assert min(sent) >= 0.8 * CAP * 5 / len(sent)
    assert max(sent) <= 1.25 * CAP * 5 / len(sent)


def test_what_one_process_does_not_use_the_others_have_at_once() -> None:
    clock = Clock()
    _, [slow, quick] = _processes(clock, [100_000.0] * 3, [1e9])
    run(clock, [*slow, *quick], 4)
    assert quick[0].sent == pytest.approx(4 * (CAP - 300_000), rel=0.1)
    for taker in slow:
        assert taker.sent == pytest.approx(400_000, rel=0.1)


def test_a_process_that_paid_for_answers_is_not_starved_by_one_that_was_idle() -> None:
    """The idle one saw no debt, sent all that the line earned, and the other's debt stayed."""
    clock = Clock()
    [idle, busy], [_, [slow]] = _processes(clock, [], [1_000_000.0])
    run(clock, [slow], 5)
    busy.charge(300_000)
    late = [Taker(pacer, clock, 1e9) for pacer in (idle, busy)]
    for taker in late:
        taker.ready()
    before = idle.sent_bytes_total + busy.sent_bytes_total
    run(clock, [slow, *late], 5)
    assert [taker.sent for taker in late] == pytest.approx([5 * CAP / 3] * 2, rel=0.2)
    sent = idle.sent_bytes_total + busy.sent_bytes_total - before
    assert sent == pytest.approx(5 * CAP, rel=0.08)


def test_a_process_that_stands_still_takes_nothing_along() -> None:
    clock = Clock()
    memory = CommonMemory(2)
    CommonLine(memory, 1).tell(0, 20)
    pacer = Pacer(clock, CAP, CommonLine(memory, 0))
    taker = Taker(pacer, clock, 1e9)
    taker.ready()
    run(clock, [taker], 4)
    assert taker.sent == pytest.approx(4 * CAP, rel=0.1)


def test_paused_downloads_of_all_processes_are_kept_alive_out_of_one_allowance() -> None:
    clock = Clock()
    pacers, _ = _processes(clock, [], [], [], [])
    paused: list[Taker] = []

    def pause(pacer: Pacer, count: int, seconds: float) -> float:
        """What all get while so many more are paused."""
        for _ in range(count):
            paused.append(Taker(pacer, clock, 1e9, Share(counts_body=True)))
            paused[-1].pause()
        before = sum(taker.sent for taker in paused)
        run(clock, [], seconds)
        return sum(taker.sent for taker in paused) - before

    # The first has been alone at it for long when the others come.
    at_most = KEEP_ALIVE.line_part * CAP
    assert pause(pacers[0], 500, 60) <= at_most * 62 + KEEP_ALIVE.burst_bytes
    for pacer in pacers[1:3]:
        pause(pacer, 100, 0.0)
    taken = pause(pacers[3], 100, 60)
    assert 0.8 * at_most * 60 <= taken <= at_most * 62 + 4 * KEEP_ALIVE.burst_bytes
    for taker in paused[500:]:
        times = [60.0, *taker.trickles, clock.seconds()]
        assert max(b - a for a, b in pairwise(times)) < 2.0 * KEEP_ALIVE.interval_s


def test_a_process_that_is_started_again_goes_on_with_the_sum() -> None:
    memory = CommonMemory(2)
    other = CommonLine(memory, 0)
    before = CommonLine(memory, 1)
    before.tell(5_000, 3)
    before.tell_kept(7, 300)
    again = CommonLine(memory, 1)
    assert (other.sent_bytes(), other.waiting(), other.kept()) == (5_000, 0, (0, 300))
    again.tell(10, 1)
    again.tell_kept(2, 5)
    assert (other.sent_bytes(), other.waiting(), other.kept()) == (5_010, 1, (2, 305))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=60))
@settings(max_examples=50)
def test_connections_are_counted_over_all_processes(came: list[tuple[int, int]]) -> None:
    memory = CommonMemory(3)
    rows = [CommonCounts(memory, row) for row in range(3)]
    for row, who in came:
        rows[row].add(f"192.0.2.{who}")
    for who in range(6):
        expected = sum(one == who for _, one in came)
        assert [row.of(f"192.0.2.{who}") for row in rows] == [expected] * 3
    # A worker dies with its connections; the others stay counted.
    rows[1] = CommonCounts(memory, 1)
    for who in range(6):
        assert rows[0].of(f"192.0.2.{who}") == sum(row != 1 and one == who for row, one in came)
    for row, who in came:
        if row != 1:
            rows[row].remove(f"192.0.2.{who}")
    assert [rows[2].of(f"192.0.2.{who}") for who in range(6)] == [0] * 6


def test_ten_thousand_others_hardly_raise_the_count_of_one() -> None:
    memory = CommonMemory(2)
    rows = [CommonCounts(memory, row) for row in range(2)]
    for n in range(10_000):
        rows[n % 2].add(f"10.{n >> 8}.{n & 255}.1")
    found = [rows[0].of(f"192.0.{n >> 8}.{n & 255}") for n in range(1000)]
    assert sum(one > 0 for one in found) < 80
    assert max(found) <= 3
