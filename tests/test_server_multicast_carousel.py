"""Sender and receivers joined in memory: whatever the link does, every file is right."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.multicast_link import KEY, Link, simulate
from tidegate.protocol.fec import BlockLayout, FecParameters, scheme_for
from tidegate.protocol.packet import PacketFlag, PacketSealer
from tidegate.protocol.session import ReceiverReport
from tidegate.server.multicast.carousel import Carousel
from tidegate.server.multicast.repair import surely_enough
from tidegate.server.multicast.schedule_steps import CarouselSettings, Mark, Phase, Run
from tidegate.server.multicast.symbols import ObjectChanged, SymbolSource

DATA = random.Random(5).randbytes(300_001)


def small(name: str, group: int = 0, parity: int = 0) -> FecParameters:
    return FecParameters(name, 256, 64, group, parity)


links = st.builds(
    Link,
    loss=st.floats(0, 0.35),
    duplicate=st.floats(0, 0.3),
    reorder=st.floats(0, 0.3),
    corrupt=st.floats(0, 0.1),
    forge=st.floats(0, 0.1),
    joins_at_s=st.floats(0, 0.2),
)


@given(
    fec=st.sampled_from(
        [
            small("raptorq"),
            small("xor", 8, 8),
            small("none"),
            small("raptorq", 0, 4),
        ]
    ),
    peers=st.lists(links, min_size=1, max_size=4),
    size=st.integers(0, len(DATA)),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_any_link_ends_in_a_correct_file_or_a_clean_fall_back(fec, peers, size, seed):
    data = DATA[:size]
    outcome = simulate(
        data, fec, peers, seed, CarouselSettings(parity=fec.parity), rate_bytes_s=2e6
    )
    assert outcome.carousel.finished
    for peer in outcome.peers:
        receiver = peer.receiver
        if receiver is None:
            continue  # the session was over before this one came
        if receiver.finished:
            assert bytes(peer.output) == data
            continue
        assert receiver.given_up
        for block in receiver.missing_blocks():
            first = receiver.layout.offset(block)
            end = first + receiver.layout.length(block)
            peer.output[first:end] = data[first:end]
        assert bytes(peer.output) == data


@pytest.mark.parametrize("loss", [0.01, 0.05, 0.10, 0.30])
def test_eight_receivers_all_get_the_file_within_the_bars(loss):
    data = random.Random(7).randbytes(12 * 736 * 1424)
    fec = FecParameters("raptorq", 1424, 736)
    outcome = simulate(data, fec, [Link(loss=loss)] * 8, seed=1)
    assert all(bytes(peer.output) == data for peer in outcome.peers)
    bars = {0.01: 1.085, 0.05: 1.14, 0.10: 1.21, 0.30: 1.64}
    assert outcome.ratio(len(data)) <= bars[loss]


@pytest.mark.parametrize(("loss", "group"), [(0.01, 32), (0.05, 16), (0.10, 8)])
def test_xor_repair_costs_what_theory_says(loss, group):
    data = random.Random(8).randbytes(2 << 20)
    fec = FecParameters("xor", 512, 512, group, 512 // group)
    settings_ = CarouselSettings(parity=512 // group)
    outcome = simulate(data, fec, [Link(loss=loss)] * 8, seed=1, settings=settings_)
    stay = 1 - loss
    theory = 1 + 1 / group + 8 * ((group + 1) * loss - 1 + stay ** (group + 1)) / group
    assert all(bytes(peer.output) == data for peer in outcome.peers)
    assert outcome.symbols * 512 / len(data) <= theory * 1.05


def test_a_receiver_ten_times_slower_is_sent_to_unicast_and_the_others_do_not_wait():
    data = random.Random(9).randbytes(4 << 20)
    peers = [Link(loss=0.02), Link(rate_share=0.1), Link(loss=0.02)]
    outcome = simulate(data, FecParameters("raptorq", 1024, 256), peers, rate_bytes_s=1.5e6)
    fast, slow, other = outcome.peers
    assert bytes(fast.output) == bytes(other.output) == data
    assert slow.receiver.given_up == "the sender asked this receiver to use unicast"
    assert outcome.wire_bytes < 1.3 * len(data)


def test_one_leaving_without_a_word_holds_nobody_up_for_long():
    peers = [Link(loss=0.05), Link(loss=0.05, leaves_at_s=0.05)]
    outcome = simulate(DATA, small("raptorq"), peers)
    assert bytes(outcome.peers[0].output) == DATA
    assert outcome.seconds < 6


def test_one_joining_late_gets_the_rest_without_a_second_pass_of_everything():
    data = random.Random(9).randbytes(1 << 20)
    peers = [Link(), Link(joins_at_s=0.06)]
    outcome = simulate(data, FecParameters("raptorq", 1024, 64), peers, rate_bytes_s=5e6)
    assert all(bytes(peer.output) == data for peer in outcome.peers)
    assert outcome.wire_bytes < 1.5 * len(data)


CROWD = random.Random(9).randbytes(1 << 20)


def last_on_time(peers: list[Link], on_time: int, name: str = "raptorq", group: int = 0) -> float:
    """When the last of those on time was done, all being served; a pass takes 1.7 s."""
    fec = FecParameters(name, 1024, 256, group)
    outcome = simulate(CROWD, fec, peers, rate_bytes_s=0.65e6)
    assert all(bytes(peer.output) == CROWD for peer in outcome.peers if peer.receiver)
    return max(peer.done_at_s for peer in outcome.peers[:on_time])


@pytest.mark.parametrize("loss", [0.01, 0.05])
@pytest.mark.parametrize(("name", "group"), [("raptorq", 0), ("none", 0)])
def test_those_on_time_are_not_held_up_by_those_who_come_late(loss, name, group):
    on_time = [Link(loss=loss)] * 4
    alone = last_on_time(on_time, 4, name, group)
    two = [Link(loss=loss, joins_at_s=0.6)] * 2
    assert last_on_time(on_time + two, 4, name, group) <= 1.05 * alone
    stream = [Link(loss=loss, joins_at_s=0.2 + 0.25 * number) for number in range(12)]
    assert last_on_time(on_time + stream, 4, name, group) <= 1.05 * alone


def test_who_joins_again_and_again_and_lies_costs_those_on_time_nothing():
    """Joins by the hundred from one address, each with a terrible loss and a want of everything."""

    def run(attacked: bool) -> tuple[int, float]:
        layout = BlockLayout(400_000, 100, 100)
        carousel = Carousel(layout, scheme_for(small("raptorq")), CarouselSettings(lead_s=0), 0.0)
        carousel.join("a", 0.0)
        now, sequence, sent = 0.0, 0, 0
        while "a" in carousel.receivers:
            now += 0.001
            step = carousel.next_step(now, 16)
            sequence += len(step.symbols) if isinstance(step, Run) else isinstance(step, Mark)
            sent += isinstance(step, Run)
            if attacked and carousel.phase is not Phase.CLOSED and round(now * 1000) % 5 == 0:
                name = f"x{now}"
                carousel.join(name, now, "192.0.2.66")
                wants = dict.fromkeys(range(layout.blocks), 60)
                lie = ReceiverReport(name, "receiving", 0, sequence - 1, 1000, 400, counts=wants)
                carousel.report(lie, now)
            if isinstance(step, Mark):
                # A lacked one symbol of each block after the first pass, and has it after more.
                missing = dict.fromkeys(range(layout.blocks), 1) if sequence < 4030 else {}
                state = "receiving" if missing else "done"
                report = ReceiverReport("a", state, 0, sequence - 1, 4000, 3960, counts=missing)
                carousel.report(report, now)
        return carousel.pass_number, now

    alone, attacked = run(False), run(True)
    assert attacked[1] <= 1.05 * alone[1]


def test_a_stream_of_late_ones_is_served_once_those_on_time_are_done():
    stream = [Link(loss=0.02, joins_at_s=0.4 * number) for number in range(1, 8)]
    outcome = simulate(
        CROWD,
        FecParameters("raptorq", 1024, 256),
        [Link(loss=0.02)] * 2 + stream,
        rate_bytes_s=1.3e6,
    )
    assert all(peer.receiver is None or peer.receiver.finished for peer in outcome.peers)
    assert outcome.wire_bytes < 5 * len(CROWD)


def test_sender_killed_midway_is_noticed():
    outcome = simulate(DATA, small("raptorq"), [Link()], rate_bytes_s=5e5, killed_at_s=0.3)
    peer = outcome.peers[0]
    assert peer.receiver.given_up == "datagrams stopped for 2 s"
    left = sum(map(peer.receiver.layout.length, peer.receiver.missing_blocks()))
    assert 0 < left < len(DATA)


def test_a_receiver_cut_off_from_the_group_is_told_by_silence():
    outcome = simulate(DATA, small("raptorq"), [Link(loss=1.0)])
    assert outcome.peers[0].receiver.given_up is not None
    assert not any(outcome.peers[0].output)


def test_sender_work_does_not_grow_with_the_cohort():
    def sent(receivers: int) -> int:
        outcome = simulate(DATA, small("raptorq"), [Link(loss=0.02)] * receivers)
        assert all(bytes(peer.output) == DATA for peer in outcome.peers)
        return outcome.symbols

    assert sent(40) < 1.1 * sent(2)


def test_blocks_that_verify_wrong_are_dropped_and_collected_again():
    """A member of the group who knows the key can spoil a block, but never the file."""
    sealer, spoilt = PacketSealer(KEY), []

    def tamper(datagram: bytes, rng: random.Random) -> bytes:
        if len(spoilt) < 3 and len(datagram) > 48 and rng.random() < 0.01:
            spoilt.append(datagram)
            payload = bytes(len(datagram) - 48)
            return datagram[:32] + sealer.tag(datagram[:32], payload) + payload
        return datagram

    outcome = simulate(DATA, small("raptorq"), [Link(loss=0.01)], tamper=tamper)
    receiver = outcome.peers[0].receiver
    assert len(spoilt) == 3
    assert 1 <= receiver.counters.bad_blocks <= 3
    assert bytes(outcome.peers[0].output) == DATA


# --- the state machine by itself -----------------------------------------------------------------

LAYOUT = BlockLayout(100_000, 100, 100)


def make(**more) -> Carousel:
    return Carousel(LAYOUT, scheme_for(small("raptorq")), CarouselSettings(**more), now=0.0)


def drain(carousel: Carousel, now: float) -> list[Run | Mark]:
    steps = []
    while (step := carousel.next_step(now, 16)) is not None:
        steps.append(step)
        if isinstance(step, Mark):
            break
    return steps


def symbols(steps) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for step in steps:
        if isinstance(step, Run):
            found.setdefault(step.block, []).extend(step.symbols)
    return found


def test_nothing_is_sent_before_the_lead_or_the_last_join():
    carousel = make(lead_s=1.0)
    carousel.join("a", 0.0)
    carousel.join("b", 0.0)
    assert carousel.next_step(0.5, 16) is None
    assert carousel.wake_at == 1.0
    carousel.report(ReceiverReport("a", "joined"), 0.5)
    assert carousel.next_step(0.5, 16) is None
    carousel.report(ReceiverReport("b", "joined"), 0.6)
    assert isinstance(carousel.next_step(0.6, 16), Run)


def test_wants_are_joined_by_maximum_and_a_later_want_adds_the_difference():
    carousel = make(lead_s=0)
    for name in "abc":
        carousel.join(name, 0.0)
    first = drain(carousel, 0.0)
    assert symbols(first) == {block: list(range(100)) for block in range(10)}
    assert first[-1] == Mark(0, PacketFlag.LAST_IN_PASS)
    carousel.report(ReceiverReport("a", "receiving", 0, 999, counts={3: 5, 4: 2}), 0.1)
    carousel.report(ReceiverReport("b", "receiving", 0, 999, counts={3: 4}), 0.1)
    assert symbols(drain(carousel, 0.1)) == {3: [100, 101, 102, 103, 104], 4: [100, 101]}
    carousel.report(ReceiverReport("c", "receiving", 0, 999, counts={3: 7}), 0.11)
    assert symbols(drain(carousel, 0.11)) == {3: [105, 106]}
    assert carousel.pass_number == 2


def test_what_was_sent_after_the_report_is_not_sent_again():
    carousel = make(lead_s=0)
    carousel.join("a", 0.0)
    carousel.join("b", 0.0)
    drain(carousel, 0.0)
    carousel.report(ReceiverReport("a", "receiving", 0, 999, counts={3: 5}), 0.1)
    drain(carousel, 0.1)
    # 1000 datagrams of source and a mark: the five are 1001 to 1005; b has seen two of them.
    carousel.report(ReceiverReport("b", "receiving", 1, 1002, counts={3: 4}), 0.12)
    assert symbols(drain(carousel, 0.3)) == {3: [105]}


def test_repair_goes_between_the_source_while_the_pass_runs():
    carousel = make(lead_s=0)
    carousel.join("a", 0.0)
    for _ in range(20):
        carousel.next_step(0.0, 16)
    carousel.report(ReceiverReport("a", "receiving", 0, 250, counts={0: 3}), 0.1)
    step = carousel.next_step(0.1, 16)
    assert (step.block, list(step.symbols)) == (0, [100, 101, 102])
    assert carousel.next_step(0.1, 16).symbols[0] < 100


def test_named_symbols_are_joined_and_not_repeated_while_on_their_way():
    settings_ = CarouselSettings(lead_s=0)
    carousel = Carousel(LAYOUT, scheme_for(small("none")), settings_, 0.0)
    carousel.join("a", 0.0)
    carousel.join("b", 0.0)
    drain(carousel, 0.0)
    carousel.report(ReceiverReport("a", "receiving", 0, 999, symbols={2: 0b1010}), 0.1)
    carousel.report(ReceiverReport("b", "receiving", 0, 999, symbols={2: 0b0110}), 0.1)
    assert symbols(drain(carousel, 0.1)) == {2: [1, 2, 3]}
    carousel.report(ReceiverReport("a", "receiving", 0, 1001, symbols={2: 0b1010}), 0.12)
    assert symbols(drain(carousel, 0.3)) == {2: [1]}


def test_nearly_a_whole_block_is_met_by_its_source_after_the_pass():
    carousel = make(lead_s=0)
    carousel.join("a", 0.0)
    carousel.next_step(0.0, 16)
    carousel.report(ReceiverReport("a", "receiving", 0, 15, counts={0: 90}), 0.1)
    rest = drain(carousel, 0.1)
    assert rest[0].symbols[0] == 16
    assert symbols(rest[-9:])[0][-100:] == list(range(100))


def test_a_stranger_and_a_stale_report_change_nothing():
    carousel = make(lead_s=0)
    carousel.join("a", 0.0)
    drain(carousel, 0.0)
    assert carousel.report(ReceiverReport("x", "receiving", 0, 999, counts={0: 9}), 0.1) == "closed"
    assert (
        carousel.report(ReceiverReport("a", "receiving", 0, 999, counts={77: 9}), 0.1) == "continue"
    )
    assert symbols(drain(carousel, 0.2)) == {}


def test_a_member_that_forges_sequence_numbers_does_not_silence_the_others_wants():
    """One forged datagram far ahead used to make every report count as of the future: unheard."""
    carousel = make(lead_s=0)
    carousel.join("a", 0.0)
    drain(carousel, 0.0)
    carousel.report(ReceiverReport("a", "receiving", 0, 1 << 30, counts={0: 9}), 0.1)
    assert len(symbols(drain(carousel, 0.2))[0]) == 9


def test_what_was_not_sent_yet_is_not_repaired():
    """A receiver that claimed to lack the whole file at its beginning had it sent twice."""
    carousel = make(lead_s=0)
    carousel.join("a", 0.0)
    carousel.next_step(0.0, 100)
    wants = dict.fromkeys(range(10), 100)
    carousel.report(ReceiverReport("a", "receiving", 0, 1 << 30, counts=wants), 0.01)
    sent = [step for step in drain(carousel, 0.02) if isinstance(step, Run)]
    assert {step.block for step in sent if step.symbols[0] >= 100} <= {0, 1}


def test_a_member_that_never_has_enough_cannot_keep_the_line_busy():
    carousel = make(lead_s=0)
    carousel.join("a", 0.0)
    now, sent = 0.0, -1
    while carousel.phase is not Phase.CLOSED:
        now += 0.3
        sent += sum(len(s.symbols) if isinstance(s, Run) else 1 for s in drain(carousel, now))
        wants = dict.fromkeys(range(10), 100)
        carousel.report(ReceiverReport("a", "receiving", 0, sent % 2**32, counts=wants), now)
    assert sent < 6 * 1000


def test_without_a_return_channel_the_passes_are_fixed():
    carousel = make(lead_s=0, fixed_passes=3, repair=False, parity=10)
    steps = drain(carousel, 0.0)
    assert symbols(steps)[0] == list(range(110)) * 3
    assert steps[-1].flags & PacketFlag.CLOSE_SESSION


def test_three_marks_close_the_session():
    carousel = make(lead_s=0)
    carousel.join("a", 0.0)
    drain(carousel, 0.0)
    assert carousel.report(ReceiverReport("a", "done"), 0.1) == "closed"
    marks = 0
    now = 0.1
    while not carousel.finished:
        marks += isinstance(carousel.next_step(now, 16), Mark)
        now += 0.05
    assert marks == 3


def test_a_file_that_shrinks_stops_the_session():
    source = SymbolSource(LAYOUT, scheme_for(small("none")), lambda at, n: b"short")
    with pytest.raises(ObjectChanged):
        source.payloads(0, [0])


def test_the_last_blocks_get_what_reported_losses_predict_without_being_asked_for():
    layout = BlockLayout(64 * 100 * 4, 64, 100)
    carousel = Carousel(
        layout, scheme_for(FecParameters("raptorq", 64, 100)), CarouselSettings(), 0
    )
    carousel.join("a", 0.0)
    steps = []
    now = 1.0
    while len(steps) < 350:
        steps += carousel.next_step(now, 50).symbols
    carousel.report(
        ReceiverReport(
            "a", "receiving", 0, sequence=299, expected=300, received=270, counts={0: 10}
        ),
        now,
    )
    rest = []
    while not isinstance(step := carousel.next_step(now + 1, 500), Mark):
        rest.append((step.block, step.symbols[0], len(step.symbols)))
    # The blocks that ended long ago: the average; the last, of which no report can be here: enough.
    last = surely_enough(100, 0.1, 1)
    assert 11 < last < 20
    assert rest == [(0, 100, 10), (3, 50, 50), (3, 100, last), (2, 100, 11), (1, 100, 11)]


@pytest.mark.parametrize("receivers", [1, 8, 40])
@pytest.mark.parametrize("loss", [0.01, 0.1, 0.3])
def test_what_is_foreseen_is_enough_for_all_nine_times_in_ten(loss, receivers):
    rng = random.Random(3)
    k = 200
    symbols_sent = k + surely_enough(k, loss, receivers)
    rounds = 3000 // receivers
    good = sum(
        all(sum(rng.random() >= loss for _ in range(symbols_sent)) >= k for _ in range(receivers))
        for _ in range(rounds)
    )
    assert 0.75 <= good / rounds <= 1


# --- gathering -----------------------------------------------------------------------------------


def gathering() -> Carousel:
    return make(needed=3, gather_s=10.0, lead_s=1.0, settle_s=0.01, most_settle_s=0.05)


def test_nothing_is_sent_until_enough_are_there_and_then_they_are_told_at_once():
    carousel = gathering()
    carousel.join("a", 0.0)
    carousel.join("b", 4.0)
    for name in "ab":
        carousel.report(ReceiverReport(name, "joined"), 4.1)
    assert carousel.next_step(5.0, 16) is None
    assert carousel.wake_at == 10.0
    assert carousel.waiting
    carousel.join("c", 6.0)
    assert not carousel.waiting
    # Those who fetch by unicast meanwhile leave off, though the third has yet to join.
    assert carousel.next_step(6.0, 16) == Mark(0, 0)
    assert carousel.next_step(6.0, 16) is None
    carousel.report(ReceiverReport("c", "joined"), 6.1)
    assert isinstance(carousel.next_step(6.1, 16), Run)


def test_too_few_by_the_end_of_the_window_are_told_that_it_is_off():
    carousel = gathering()
    carousel.join("a", 0.0)
    step = carousel.next_step(10.0, 16)
    assert isinstance(step, Mark)
    assert step.flags & PacketFlag.CLOSE_SESSION
    assert carousel.waiting


def test_who_is_done_by_unicast_is_waited_for_no_more():
    carousel = gathering()
    carousel.join("a", 0.0)
    carousel.join("b", 0.0)
    carousel.report(ReceiverReport("a", "done"), 1.0)
    carousel.join("c", 2.0)
    assert carousel.waiting
    carousel.report(ReceiverReport("b", "done"), 3.0)
    carousel.report(ReceiverReport("c", "done"), 3.0)
    assert isinstance(carousel.next_step(3.0, 16), Mark)
    assert carousel.phase is Phase.CLOSED
