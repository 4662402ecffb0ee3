"""Small rules of a download, each by itself: votes, lease connections, patience."""

from __future__ import annotations

from pathlib import Path as FilePath
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_network import VirtualNetwork

from tidegate.client.fetch import connections, planning, sampling
from tidegate.client.fetch.acceptance import keep_fastest_whole_answer
from tidegate.client.fetch.actions import Action, Connect, Disconnect, Fail
from tidegate.client.fetch.content import BodyReceiver, CulpritSearch
from tidegate.client.fetch.decide import decide
from tidegate.client.fetch.download import RateLimit
from tidegate.client.fetch.events import (
    AnswerReceived,
    ConnectionSilent,
    Findings,
    RetryDue,
    StatusReceived,
)
from tidegate.client.fetch.faults import outvoted, revive, size_differs, start_over
from tidegate.client.fetch.options import Options
from tidegate.client.fetch.report import Rates, make_result, remember
from tidegate.client.fetch.state import (
    MirrorPause,
    MirrorState,
    Round,
    SampleVote,
    Serves,
    State,
    WholeAnswer,
)
from tidegate.client.net.answers import Body
from tidegate.client.net.errors import AccessRefused, DownloadFailed, NetworkProblem, WaitedTooLong
from tidegate.client.net.retry import FailureReason, Granted, Refused
from tidegate.client.net.urls import parse
from tidegate.client.schedule.model import Path
from tidegate.client.schedule.segments import SegmentMap
from tidegate.client.storage.piece_writer import Pieces, PieceWriter, RingStorage


def state_of(mirrors: int, now: float = 0.0) -> State:
    """A download from so many mirrors, each with one connection; nothing has come."""
    state = State(Options(), Random(1), now, lambda host: None)
    for number in range(mirrors):
        state.add(parse(f"https://m{number}.example/f"), listed=True)
    return state


def disconnected(actions: list[Action]) -> list[int]:
    return [action.lane for action in actions if isinstance(action, Disconnect)]


# -- votes --------------------------------------------------------------------------------------


def voted(*answers: bytes) -> SampleVote:
    vote = SampleVote()
    for mirror, data in enumerate(answers):
        vote.add(mirror, data)
    return vote


@pytest.mark.parametrize(
    ("answers", "convicted"),
    [
        ((), []),
        ((b"a",), []),
        ((b"a", b"b"), []),
        ((b"a", b"a", b"a"), []),
        ((b"a", b"b", b"a"), [1]),
        ((b"a", b"b", b"c"), []),
        # As many say one thing as another: nobody is convicted.
        ((b"a", b"b", b"a", b"b"), []),
        ((b"a", b"b", b"b", b"b"), [0]),
        ((b"a", b"a", b"b", b"c"), []),
        ((b"a", b"a", b"b", b"c", b"a"), [2, 3]),
    ],
)
def test_a_vote_convicts_by_more_than_half_of_three_or_more(
    answers: tuple[bytes, ...], convicted: list[int]
) -> None:
    assert voted(*answers).minority() == convicted


@given(st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=9))
def test_fewer_are_convicted_than_agree(answers: list[bytes]) -> None:
    convicted = voted(*answers).minority()
    assert 2 * len(convicted) < max(1, len(answers))
    assert len({data for mirror, data in enumerate(answers) if mirror not in convicted}) <= (
        1 if convicted else 3
    )


@pytest.mark.parametrize(
    ("answers", "among", "differ"),
    [
        ((b"a", b"b"), [0, 1], [1]),
        ((b"a", b"b", b"b"), [0, 1, 2], [0]),
        ((b"a", b"b", b"b"), [0, 1], [1]),
        ((b"a", b"a"), [0, 1], []),
        ((), [0, 1], []),
    ],
)
def test_where_nobody_else_answers_most_are_believed_and_else_the_first(
    answers: tuple[bytes, ...], among: list[int], differ: list[int]
) -> None:
    assert voted(*answers).differing_from_first(among) == differ


def fetching(mirrors: int, size_bytes: int = 10_000_000) -> State:
    """All mirrors have answered, and none has told a mark or a date."""
    state = state_of(mirrors)
    state.size_bytes, state.segments = size_bytes, SegmentMap([(0, size_bytes)])
    for mirror in state.mirrors:
        mirror.answered = True
    return state


@pytest.mark.parametrize(("mirrors", "left"), [(2, [0]), (3, [0, 1, 2])])
def test_only_of_two_that_differ_the_second_is_left_out(mirrors: int, left: list[int]) -> None:
    state = fetching(mirrors)
    state.samples.rounds.append(Round(0, 1))
    for mirror, data in zip(state.mirrors, (b"a", b"b", b"c"), strict=False):
        sampling.sample_received(state, mirror.lanes[0], 0, data)
    assert [mirror.number for mirror in state.alive] == left


@pytest.mark.parametrize(
    ("dates", "places"), [((None, None), 16), (("a", "a"), 0), (("a", "b"), 16), ((None, "a"), 16)]
)
def test_copies_are_compared_all_over_unless_they_bear_one_date(
    dates: tuple[str | None, ...], places: int
) -> None:
    state = fetching(len(dates))
    for mirror, date in zip(state.mirrors, dates, strict=True):
        mirror.modified = date
    sampling.tick(state)
    assert state.samples.doubtful == places


def test_half_of_the_places_are_compared_by_a_quarter_of_the_download() -> None:
    state = fetching(2)
    sampling.tick(state)
    assert len(state.samples.later) == 15, "the first one at once"
    assert state.segments is not None
    state.segments.filled(0, state.size_bytes // 4)
    sampling.tick(state)
    assert len(state.samples.later) == 7


def test_a_whole_file_waits_half_a_second_for_samples() -> None:
    state = fetching(2)
    one = Round(0, 1)
    one.votes.asked.add(1)
    state.samples.rounds.append(one)
    waits = [sampling.should_wait(state, frozenset({1}), now) for now in (10.0, 10.4, 10.6)]
    assert waits == [True, True, False]


# -- connections of a lease ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allowed", "kept"), [(None, [0, 1, 2, 3]), (1, [2]), (2, [0, 2]), (3, [0, 1, 2])]
)
def test_a_lease_keeps_as_many_connections_as_it_allows(
    allowed: int | None, kept: list[int]
) -> None:
    """The one that was told stays, and the oldest of the others."""
    state = state_of(1)
    mirror = state.mirrors[0]
    while len(mirror.lanes) < 4:
        state.lane(mirror)
    first = mirror.lanes[0]
    lanes = [lane - first for lane in mirror.lanes]
    assert lanes == [0, 1, 2, 3]
    told = StatusReceived(mirror.lanes[2], Granted(None, allowed), 0.0)
    gone = disconnected(decide(state, told, 0.0))
    assert [lane - first for lane in mirror.lanes] == kept
    assert sorted(lane - first for lane in gone) == [one for one in lanes if one not in kept]


# -- patience -----------------------------------------------------------------------------------


def test_bytes_that_queue_on_a_narrow_line_are_waited_for() -> None:
    """At 8 kB/s the 64 KiB before a slow mirror's bytes take 8 s; at 8 MB/s no time."""
    lost = {}
    for rate_bytes_s in (8e3, 8e6):
        state = state_of(2)
        state.first_byte_s = 0.0
        state.mirrors[0].counts.received_bytes = int(10.0 * rate_bytes_s)
        lane = state.mirrors[1].lanes[0]
        silent_s = state.options.stall_s + 4.0
        event = ConnectionSilent(lane, silent_s, 0.01, False)
        lost[rate_bytes_s] = lane in disconnected(decide(state, event, 10.0))
    assert lost == {8e3: False, 8e6: True}


@pytest.mark.parametrize(("rtt_s", "is_lost"), [(0.1, True), (0.5, False)])
def test_two_round_trips_are_added_to_a_mirrors_patience(rtt_s: float, is_lost: bool) -> None:
    state = state_of(2)
    lane = state.mirrors[1].lanes[0]
    event = ConnectionSilent(lane, state.options.stall_s + 0.6, rtt_s, False)
    assert (lane in disconnected(decide(state, event, 10.0))) == is_lost


@pytest.mark.parametrize(("mirrors", "timeout_s"), [(1, 30.0), (2, 10.0)])
def test_beside_others_a_mirror_has_ten_seconds_to_connect(mirrors: int, timeout_s: float) -> None:
    state = state_of(mirrors)
    assert connections.connect_timeout_s(state, state.mirrors[0]) == timeout_s


def test_only_the_pause_that_counts_ends_a_wait() -> None:
    state = state_of(1)
    mirror = state.mirrors[0]
    mirror.state, mirror.pause = MirrorState.WAITING, MirrorPause(20.0, "busy")
    assert decide(state, RetryDue(0, 10.0), 10.0) == []
    assert mirror.state is MirrorState.WAITING
    assert decide(state, RetryDue(0, 20.0), 20.0) == [Connect(mirror.lanes[0])]


# -- mirrors that fail --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        ((FailureReason.NOT_FOUND, FailureReason.REFUSED), AccessRefused),
        ((FailureReason.REFUSED, FailureReason.NOT_FOUND), AccessRefused),
        ((FailureReason.NETWORK, FailureReason.NOT_FOUND), NetworkProblem),
        ((FailureReason.NETWORK, FailureReason.WAITED_TOO_LONG), WaitedTooLong),
    ],
)
def test_of_several_reasons_the_user_hears_the_one_that_can_be_helped(
    reasons: tuple[FailureReason, ...], told: type[DownloadFailed]
) -> None:
    state = state_of(len(reasons))
    found: list[Action] = []
    for mirror, reason in zip(state.mirrors, reasons, strict=True):
        answer = Refused(reason, "no")
        found = decide(state, StatusReceived(mirror.lanes[0], answer, 0.0), 0.0)
    assert [type(one.problem) for one in found if isinstance(one, Fail)] == [told]


@pytest.mark.parametrize(("told", "is_outvoted"), [(1, False), (2, True)])
def test_one_mirror_beyond_the_end_outvotes_nobody(told: int, is_outvoted: bool) -> None:
    state = state_of(3)
    for mirror in state.mirrors[1 : 1 + told]:
        mirror.beyond, mirror.size_bytes = True, 100
    assert outvoted(state, state.mirrors[0], 200) == is_outvoted


@pytest.mark.parametrize(
    ("told", "alive"),
    [
        ([(1, 200), (0, 100)], [0]),
        ([(0, 100), (1, 200)], [0]),
        ([(0, 100), (1, 200), (2, 200)], [1, 2]),
    ],
    ids=["the first mirror answers later", "the first mirror answers first", "most are others"],
)
@pytest.mark.parametrize("serves", [Serves.PARTS, Serves.WHOLE])
def test_most_mirrors_tell_the_size_and_at_a_tie_the_first(
    told: list[tuple[int, int]], alive: list[int], serves: Serves
) -> None:
    (number, size), *others = told
    state = fetching(len(told), size)
    for mirror in state.mirrors:
        mirror.serves = serves
    state.mirrors[number].size_bytes = size
    for number, size in others:
        size_differs(state, state.mirrors[number], size)
    assert [mirror.number for mirror in state.alive] == alive


def test_a_download_starts_over_three_times_and_then_fails() -> None:
    state = fetching(2)
    failed = [
        any(isinstance(action, Fail) for action in start_over(state, state.mirrors[0], "changed"))
        for _ in range(4)
    ]
    assert failed == [False, False, False, True]


# -- which mirrors are asked --------------------------------------------------------------------


@pytest.mark.parametrize(("size_bytes", "asked"), [((1 << 20) - 1, 1), (1 << 20, 16)])
def test_an_answer_adds_mirrors_to_a_large_file_up_to_sixteen(size_bytes: int, asked: int) -> None:
    state = state_of(1)
    named = tuple(parse(f"https://n{number}.example/f") for number in range(20))
    body = Body(0, size_bytes, size_bytes, True, '"tag"', Granted())
    event = AnswerReceived(state.mirrors[0].lanes[0], None, body, 0.0, findings=Findings(named))
    found = decide(state, event, 0.0)
    assert len(state.mirrors) == asked
    assert sum(isinstance(action, Connect) for action in found) == asked - 1


def test_the_fastest_of_the_mirrors_without_ranges_is_called_back() -> None:
    state = state_of(3)
    for mirror, received_bytes in zip(state.mirrors, (100, 300, 200), strict=True):
        mirror.serves = Serves.WHOLE
        mirror.counts.received_bytes, mirror.counts.busy_s = received_bytes, 1.0
    assert revive(state) == [Connect(state.mirrors[1].lanes[0])]


@pytest.mark.parametrize("seconds", [0.0, 0.2, 0.3, 5.0])
@pytest.mark.parametrize("most_bytes", [0, 1 << 20, 3 << 20])
def test_of_two_whole_answers_the_faster_stays_once_time_or_bytes_tell_it(
    seconds: float, most_bytes: int
) -> None:
    state = fetching(2)
    state.whole = {
        0: WholeAnswer(0, 100.0, True, most_bytes // 2),
        1: WholeAnswer(1, 100.0, False, most_bytes),
    }
    keep_fastest_whole_answer(state, 100.0 + seconds)
    is_told = seconds >= 0.25 or most_bytes >= 2 << 20
    left = [mirror.number for mirror in state.mirrors if mirror.dropped is None]
    assert left == ([0, 1] if not is_told else [1] if most_bytes else [0])


@pytest.mark.parametrize(("come_bytes", "stays"), [(500_000, True), (2_000_000, False)])
def test_a_whole_answer_that_would_bring_over_a_tenth_twice_is_not_taken(
    come_bytes: int, stays: bool
) -> None:
    state = fetching(2)
    state.mirrors[0].serves, state.mirrors[1].answered = Serves.PARTS, False
    assert state.segments is not None
    state.segments.wanted.remove(0, come_bytes)
    body = Body(0, 10_000_000, 10_000_000, True, None, Granted())
    decide(state, AnswerReceived(state.mirrors[1].lanes[0], 0, body, 0.0), 0.0)
    told = state.mirrors[1].dropped
    assert told is None if stays else told is not None and "whole file" in told


# -- wrong bytes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("differences", "order"),
    [({}, [0, 1, 2]), ({(0, 2): 3, (1, 2): 1}, [2, 0, 1])],
    ids=["no sample differed", "samples differed"],
)
def test_after_samples_whole_shares_are_replaced_the_most_accused_first(
    differences: dict[tuple[int, int], int], order: list[int]
) -> None:
    state, share = fetching(3), 100_000
    writer = PieceWriter(RingStorage(3 * share), 3 * share)
    for number in range(3):
        writer.write_at(number * share, bytes(share), number)
    segments, search = SegmentMap([]), CulpritSearch(state.mirrors, writer)
    writer.differences.update(differences)
    steps = []
    while (number := search.next(segments)) is not None:
        steps.append((number, segments.wanted.total))
        for start, end in list(segments.wanted):
            writer.write_at(start, bytes(end - start), (number + 1) % 3)
            segments.filled(start, end)
    assert [number for number, _ in steps] == [0, 1, 2, *order]
    assert all(wanted < share // 2 for _, wanted in steps[:3])
    assert all(wanted > share // 2 for _, wanted in steps[3:])


@pytest.mark.parametrize(
    ("differences", "culprits"),
    [({(0, 2): 3, (0, 1): 1}, {0}), ({(0, 2): 1, (1, 2): 0}, {0}), ({(0, 2): 1, (1, 2): 1}, set())],
    ids=["one", "one that differed and one that did not", "two"],
)
def test_only_where_one_mirror_differed_it_is_named(
    differences: dict[tuple[int, int], int], culprits: set[int]
) -> None:
    """The samples were replaced and the digest is right: whose bytes were wrong?"""
    writer = PieceWriter(RingStorage(100), 100)
    search = CulpritSearch(fetching(3).mirrors, writer)
    writer.differences.update(differences)
    search.name_culprit()
    assert writer.culprits == culprits


def test_of_a_liar_all_is_missing_again_but_the_pieces_that_were_right() -> None:
    writer = PieceWriter(RingStorage(300), 300)
    writer.write_at(0, bytes(250), 1)
    writer.write_at(250, bytes(50), 0)
    writer.use_pieces(Pieces(100, "sha-256", (b"", b"", b"")), checked=[0])
    segments = SegmentMap([])
    BodyReceiver(fetching(2), writer, segments, Mock()).distrust(1)
    assert list(segments.wanted) == [(100, 250)]
    assert list(writer.have) == [(0, 100), (250, 300)]
    assert writer.culprits == {1}


# -- plans --------------------------------------------------------------------------------------


def test_a_found_mirror_is_compared_with_others_and_not_with_itself() -> None:
    """It stands by where it would not make a small file shorter; beside strangers nobody knows."""
    path = Path(0.3, 1e9)
    for others, expected in ((None, MirrorState.READY), (path, MirrorState.STANDBY)):
        state = state_of(2)
        state.mirrors[0].remembered, state.mirrors[1].remembered = others, path
        planning.mirror_found(state, state.mirrors[1], 1_000, 0.0)
        assert state.mirrors[1].state is expected


def test_the_rest_is_foretold_once_it_was_measured_for_a_moment() -> None:
    state = fetching(1)
    state.first_byte_s, state.size_bytes = 10.0, 1_000
    planning.forecast_rest(state, 10.7)
    assert not state.forecast_made
    planning.forecast_rest(state, 10.8)
    assert state.forecast_made


def test_lanes_of_mirrors_that_stand_by_or_are_suspected_share_no_work() -> None:
    state = state_of(3)
    assert state.expected_lanes() == 3
    state.mirrors[1].state, state.suspect = MirrorState.STANDBY, 2
    assert state.expected_lanes() == 1


# -- rates --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("received_bytes", "busy_s", "is_kept"),
    [(16 << 10, 0.1, True), ((16 << 10) - 1, 9.0, False), (1 << 30, 0.05, False)],
)
def test_a_rate_is_kept_where_neither_bytes_nor_time_were_few(
    tmp_path: FilePath, received_bytes: int, busy_s: float, is_kept: bool
) -> None:
    state = state_of(1)
    counts = state.mirrors[0].counts
    counts.received_bytes, counts.busy_s = received_bytes, busy_s
    remember(state, Rates(tmp_path))
    assert any(tmp_path.iterdir()) == is_kept


def test_a_pause_earns_a_tenth_of_a_second_at_most() -> None:
    held: list[bool] = []
    network = VirtualNetwork({})
    limit = RateLimit(network, 1_000.0, held.append)
    limit.spend(100, 60.0)
    assert held == []
    limit.spend(1, 60.0)
    assert held == [True]


@pytest.mark.parametrize(("by_peers", "verified"), [(1_000, "pieces"), (999, "length")])
def test_a_file_that_peers_brought_is_right_by_its_pieces(by_peers: int, verified: str) -> None:
    """It was told as "no digest known"; each piece had been checked."""
    state = State(Options(), Random(1), 0.0, lambda host: None)
    state.end_marked = True
    content = SimpleNamespace(target=SimpleNamespace(path=None), resumed_bytes=0)
    writer = SimpleNamespace(digest=None, pieces=None, size_bytes=1_000, culprits=())
    peers = SimpleNamespace(received_bytes=by_peers, report=tuple)
    words: Any = (state, content, writer, None, peers, 1.0)
    assert make_result(*words).verified == verified
