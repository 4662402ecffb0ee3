from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_mirrors import Line, Mirror, run, steady

from tidegate.client.schedule.meter import Meter
from tidegate.client.schedule.segments import Segment, SegmentMap

MBIT = 1e6 / 8
SIZE = 24 << 20
MAPS: dict[str, Callable[[int], SegmentMap]] = {
    "adaptive": lambda size: SegmentMap([(0, size)], first_bytes=64),
    "aligned": lambda size: SegmentMap([(0, size)], first_bytes=64, align=100),
}
moves = st.lists(
    st.tuples(
        st.sampled_from(
            ["join", "leave", "ask", "bytes", "bytes", "end", "time", "want", "fill", "limit"]
        ),
        st.integers(0, 2),
        st.integers(0, 999),
    ),
    max_size=80,
)


@settings(max_examples=100)
@given(st.sampled_from(sorted(MAPS)), st.integers(1, 1000), moves)
def test_any_interleaving_ends_with_every_byte(
    name: str, size: int, turns: list[tuple[str, int, int]]
) -> None:
    segments = MAPS[name](size)
    got = [0] * size
    now = 0.0

    def arrive(block: Segment, count: int) -> None:
        count = min(count, block.end - block.position)
        for at in range(block.position, block.position + count):
            got[at] += 1
        segments.received(block, count, now)

    def live(lane: int) -> list[Segment]:
        return segments.lanes[lane].blocks if lane in segments.lanes else []

    for what, lane, amount in turns:
        if what == "join":
            segments.join(lane, now, rtt_s=amount / 1e4)
        elif what == "leave":
            segments.leave(lane, now)
        elif what == "ask" and lane in segments.lanes and segments.lanes[lane].present:
            block = segments.ask(lane, now)
            assert block is None or block.end > block.position
        elif what == "bytes" and live(lane):
            arrive(live(lane)[0], amount + 1)
        elif what == "end" and live(lane):
            segments.ended(live(lane)[0], now)
        elif what == "time":
            now += amount / 500
        elif what == "want" and amount < size:
            segments.want(amount, min(size, amount + 20))
            for at in range(amount, min(size, amount + 20)):
                got[at] = 0
        elif what == "fill" and amount < size:
            segments.filled(amount, min(size, amount + 20))
            for at in range(amount, min(size, amount + 20)):
                got[at] += 1
        elif what == "limit":
            segments.limit = amount
        for block in segments.stopped():
            assert not block.live
        for owned, wanted in itertools.product(segments.lanes.values(), segments.wanted):
            assert all(b.position < b.end for b in owned.blocks)
            assert wanted[0] < wanted[1]
        under_way = {
            at for x in segments.lanes.values() for b in x.blocks for at in range(b.position, b.end)
        }
        free = {at for a, b in segments.free for at in range(a, b)}
        missing = {at for a, b in segments.wanted for at in range(a, b)}
        assert free <= missing
        assert missing <= free | under_way
    segments.limit = None
    for lane in range(3):
        segments.leave(lane, now)
    segments.join(7, now)
    for _ in range(2000):
        if segments.done:
            break
        now += 0.01
        block = segments.ask(7, now)
        for one in list(segments.lanes[7].blocks):
            arrive(one, 1000)
    assert segments.done
    assert all(got)


def mirrors(*mbits: float, rtt_s: float = 0.0) -> list[Mirror]:
    return [Mirror(steady(rate * MBIT), rtt_s) for rate in mbits]


def ratio(segments: SegmentMap, them: list[Mirror], optimum_s: float) -> float:
    took = run(segments, them)
    waste = sum(m.sent_bytes for m in them) - SIZE
    assert waste <= 0.02 * SIZE
    return took / optimum_s


@pytest.mark.parametrize("order", list(itertools.permutations((40.0, 20.0, 10.0, 5.0)))[::5])
@pytest.mark.parametrize("rtt_s", [0.0, 0.04, 0.2])
def test_unequal_mirrors_in_any_order_end_together(order: tuple[float, ...], rtt_s: float) -> None:
    optimum_s = SIZE / (75 * MBIT)
    bound = 1.03 + 4 * rtt_s / optimum_s
    assert ratio(SegmentMap([(0, SIZE)]), mirrors(*order, rtt_s=rtt_s), optimum_s) < bound


def test_a_long_line_is_not_left_without_work_while_its_window_opens() -> None:
    # By satellite: TCP alone, never idle, would need 6.9 s; blocks of half a second made it 11.2.
    them = mirrors(40, 20, 10, 5, rtt_s=0.6)
    for number, mirror in enumerate(them):
        mirror.window_bytes = 10 * 1448
        mirror.opening = (number << 17, (number + 1) << 17)
    assert run(SegmentMap([(0, SIZE)]), them) < 9.5


def test_mirrors_that_swap_their_rates_are_followed() -> None:
    them = mirrors(0, 20, 10, 0)
    them[0].rate = lambda t: (40 if t < 2 else 5) * MBIT
    them[3].rate = lambda t: (5 if t < 2 else 40) * MBIT
    assert ratio(SegmentMap([(0, SIZE)]), them, SIZE / (75 * MBIT)) < 1.05


@pytest.mark.parametrize("bad", [0, 1, 2, 3])
@pytest.mark.parametrize("at_s", [0.5, 2.0, 2.5])
@pytest.mark.parametrize("end", [0.0, None])
def test_a_mirror_that_stalls_or_dies_costs_little(
    bad: int, at_s: float, end: float | None
) -> None:
    mbits = [40.0, 20.0, 10.0, 5.0]
    them = mirrors(*mbits)
    rate = mbits[bad] * MBIT
    them[bad].rate = lambda t: rate if t < at_s else end
    optimum_s = at_s + (SIZE - 75 * MBIT * at_s) / (75 * MBIT - rate)
    assert ratio(SegmentMap([(0, SIZE)]), them, optimum_s) < 1.10


def test_a_mirror_that_comes_late_is_used() -> None:
    them = mirrors(40, 20, 10, 5)
    them[0].busy_until_s = 2.0
    optimum_s = 2 + (SIZE - 35 * MBIT * 2) / (75 * MBIT)
    assert ratio(SegmentMap([(0, SIZE)]), them, optimum_s) < 1.05


def test_one_mirror_gets_the_whole_file_in_one_block() -> None:
    segments = SegmentMap([(0, SIZE)])
    segments.join(0, 0.0)
    block = segments.ask(0, 0.0)
    assert block is not None
    assert (block.start, block.end) == (0, SIZE)


def test_a_slow_mirror_takes_nothing_it_would_end_last() -> None:
    segments = SegmentMap([(0, 1 << 20)])
    segments.join(0, 0.0, hint=10e6)
    segments.join(1, 0.0, hint=1e3)
    assert segments.ask(0, 0.0) is not None
    assert segments.ask(1, 0.0) is None


def test_an_answer_that_runs_on_is_used_when_nobody_else_took_what_follows() -> None:
    segments = SegmentMap([(0, SIZE)], first_bytes=1000)
    segments.join(0, 0.0)
    segments.join(1, 0.0)
    block = segments.claim(0, 0, SIZE, 0.0)
    segments.received(block, 1000, 0.1)
    segments.received(block, 100_000, 1.0)
    other = segments.ask(1, 1.0)
    assert other is not None
    assert block.end == other.start
    segments.leave(1, 2.0)
    segments.received(block, block.end - block.position, 3.0)
    assert not block.live
    assert segments.carry_on(block, 3.0)
    assert block.end == SIZE
    segments.received(block, block.end - block.position, 4.0)
    assert segments.done
    assert not segments.carry_on(block, 4.0)


def test_help_for_one_long_answer_comes_from_its_far_end() -> None:
    segments = SegmentMap([(0, SIZE)])
    segments.join(0, 0.0)
    whole = segments.ask(0, 0.0)
    assert whole is not None
    now = 0.0
    for _ in range(10):
        now += 0.1
        segments.received(whole, 100_000, now)
    segments.join(1, now)
    for _ in range(6):
        block = segments.ask(1, now)
        assert block is not None
        assert block.start >= whole.end
        for _ in range(5):
            now += 0.1
            segments.received(block, (block.end - block.start) // 5, now)
        if block.live:
            segments.received(block, block.end - block.position, now)
    assert whole.live
    assert whole.end > SIZE - (4 << 20)
    assert segments.stopped() == []


def test_a_fast_mirror_that_closes_after_each_answer_is_asked_for_more_each_time() -> None:
    """Its answers are over before their rate can be told."""
    segments = SegmentMap([(0, 10 * SIZE)])
    segments.expected = 2
    segments.join(1, 0.0)
    assert segments.ask(1, 0.0) is not None
    now, sizes = 0.0, []
    for _ in range(4):
        segments.join(0, now, single=True)
        block = segments.ask(0, now)
        assert block is not None
        sizes.append(block.end - block.start)
        now += 0.01
        segments.received(block, sizes[-1], now)
        segments.leave(0, now)
    assert sizes[1] >= 2 * sizes[0]
    assert sizes[3] >= 8 * sizes[0]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("size", [128 << 10, 512 << 10])
@pytest.mark.parametrize("kbit", [56, 128])
def test_a_narrow_line_of_the_client_is_not_filled_with_what_nobody_wants(
    count: int, size: int, kbit: int
) -> None:
    """Whatever is broken off there has filled the queue in front of the line already."""
    them = mirrors(*[10.0] * count, rtt_s=0.1)
    for number, one in enumerate(them):
        if number * (128 << 10) < size and count > 1:
            one.opening = (number << 17, min(size, number + 1 << 17))
    line = Line(kbit * 125)
    took = run(SegmentMap([(0, size)]), them, 300.0, 30.0, line)
    assert line.passed_bytes + line.queued_bytes <= 1.02 * size
    assert took <= 1.05 * size / line.rate + 0.3


def test_a_dozen_connections_over_one_thin_line_end_without_much_waste() -> None:
    size, line = 2 << 20, Line(512 * 125)
    them = mirrors(*[10.0] * 12, rtt_s=0.1)
    for number, one in enumerate(them):
        one.connected_s = 0.1 if number < 4 else 0.2
        one.opening = (number << 17, number + 1 << 17) if number < 4 else None
    took = run(SegmentMap([(0, size)]), them, 300.0, 30.0, line)
    assert line.passed_bytes + line.queued_bytes <= 1.03 * size
    assert took <= 1.06 * size / line.rate


@pytest.mark.parametrize("rates", [(80, 5, 5, 5), (40, 20, 10, 5), (100, 1)])
@pytest.mark.parametrize("at_s", [0.5, 1.0, 1.5])
def test_a_fast_mirror_that_turns_slow_late_is_relieved(
    rates: tuple[float, ...], at_s: float
) -> None:
    them = mirrors(*rates)
    first, last = rates[0] * MBIT, rates[-1] * MBIT
    them[0].rate = lambda t: first if t < at_s else last
    them[-1].rate = lambda t: last if t < at_s else first
    assert ratio(SegmentMap([(0, SIZE)]), them, SIZE / (sum(rates) * MBIT)) < 1.08


def test_on_a_long_line_that_turns_out_faster_the_next_block_is_asked_for_earlier() -> None:
    segments = SegmentMap([(0, SIZE)])
    for lane in (0, 1):
        segments.join(lane, 0.0, hint=1e6, rtt_s=0.1)
    block = segments.ask(0, 0.0)
    assert block is not None
    told_at = block.ask_at
    for turn in range(1, 6):
        segments.received(block, 20_000, turn / 100)
    assert block.ask_at < told_at


def test_an_answer_that_goes_on_gets_no_more_than_its_mirror_brings() -> None:
    segments = SegmentMap([(0, SIZE)], first_bytes=1000)
    for lane in (0, 1):
        segments.join(lane, 0.0)
    block = segments.claim(0, 0, SIZE, 0.0)
    segments.shorten(1000)
    segments.received(block, 1000, 0.01)
    assert segments.carry_on(block, 0.01)
    assert 1000 < block.end < SIZE // 100


def test_a_connection_has_two_requests_at_once_and_never_a_third() -> None:
    segments = SegmentMap([(0, SIZE)], first_bytes=1000)
    for lane in (0, 1):
        segments.join(lane, 0.0)
    asked = [segments.ask(0, 0.0) for _ in range(3)]
    assert [block is not None for block in asked] == [True, True, False]


def test_two_lanes_do_not_cut_each_other_off_before_an_answer() -> None:
    """Each took what the other had asked for second, in every round trip, for ever."""
    segments = SegmentMap([(0, 12_000)])
    segments.expected = 2
    for lane in (0, 1):
        segments.join(lane, 0.0, rtt_s=0.048)
        segments.lanes[lane].last_rate = 57_000.0
        # What it has brought before.
        segments.lanes[lane].meter.total_bytes = 300_000
    segments.claim(0, 0, 8_000, 0.0)
    segments.claim(0, 8_000, 12_000, 0.0)
    segments.received(segments.claim(1, 0, 1, 0.0), 1, 0.0)
    assert segments.ask(1, 0.04) is None
    assert segments.stopped() == []


def test_what_came_before_a_rest_counts_in_no_rate() -> None:
    meter = Meter()
    meter.start(0.0)
    for tenth in range(3):
        meter.add(1_000_000, tenth / 10)
    assert meter.rate(0.2) == pytest.approx(10e6)
    meter.rest()
    assert meter.rate(0.25) is None
    meter.start(0.3)
    for tenth in range(3):
        meter.add(1_000, 0.3 + tenth / 10)
    assert meter.rate(0.5) == pytest.approx(10e3)
