"""Whole downloads played through `decide`, without network, file or clock."""

from __future__ import annotations

import ast
import inspect
import pathlib
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidegate.client.fetch.actions import (
    AcceptBody,
    Action,
    AssignFrom,
    Connect,
    Disconnect,
    Distrust,
    Fail,
    FindCulprit,
    FinishFile,
    OpenOutput,
    ScheduleRetry,
    SetSize,
    StartOver,
)
from tidegate.client.fetch.decide import decide
from tidegate.client.fetch.events import (
    AnswerReceived,
    Break,
    BytesComplete,
    ConnectionLost,
    ConnectionOpened,
    ConnectionSilent,
    Event,
    Findings,
    FirstByte,
    OutputReady,
    PiecesWrong,
    RangeOutsideFile,
    Redirected,
    ReplacementStarted,
    RetryDue,
    SampleReceived,
    SessionJoined,
    SessionLeft,
    Started,
    StatusReceived,
    Tick,
    UnsizedAnswerEnded,
    UnsizedAnswerLost,
    WholeAnswerBegan,
    WholeAnswerEnded,
)
from tidegate.client.fetch.options import Options
from tidegate.client.fetch.state import (
    DownloadPhase,
    Mirror,
    MirrorState,
    SampleVote,
    Serves,
    State,
)
from tidegate.client.net.answers import Body
from tidegate.client.net.retry import Failed, FailureReason, Granted, Refused, RetryAfter
from tidegate.client.net.urls import parse
from tidegate.client.schedule.model import Path
from tidegate.client.schedule.segments import UNKNOWN_SIZE, SegmentMap

SIZE = 3_000_000


class Downloads(RuleBasedStateMachine):
    """Does what a driver does, with lanes that open at once and bytes that need no time."""

    state: State
    failure: Exception | None = None
    now = 0.0

    @initialize(
        count=st.integers(1, 4),
        known=st.booleans(),
        promised=st.booleans(),
        seed=st.integers(0, 9),
        failures=st.integers(1, 4),
    )
    def begin(self, count: int, known: bool, promised: bool, seed: int, failures: int) -> None:
        random = Random(seed)
        path = Path(0.01, 1e6) if known else None
        options = Options(max_failures=failures)
        self.state = State(options, random, self.now, lambda host: path)
        for number in range(count):
            self.state.add(parse(f"https://m{number}.example/f"), listed=True)
        self.open: set[int] = set()
        self.timers: set[tuple[int, float]] = set()
        self.over = False
        self.accepted = False
        self.handle(Started(SIZE if promised else None))
        if promised:
            self.perform(OpenOutput(SIZE))

    def handle(self, event: Event) -> None:
        self.accepted = False
        for action in decide(self.state, event, self.now):
            assert not self.over, "something is to be done after the end"
            self.perform(action)

    def perform(self, action: Action) -> None:
        state = self.state
        match action:
            case Connect(lane):
                mirror = state.mirror_of(lane)
                if lane in self.open or lane not in mirror.lanes or mirror.resting:
                    return
                if state.usable(mirror) and not state.ended:
                    self.open.add(lane)
                    self.join(lane)
            case Disconnect(lane):
                self.close(lane)
            case ScheduleRetry(mirror_number, until):
                assert until >= self.now
                self.timers.add((mirror_number, until))
            case OpenOutput(size):
                assert state.segments is None
                state.segments = SegmentMap([(0, size)] if size else [])
                self.handle(OutputReady(size, 0, False, False))
                for lane in sorted(self.open):
                    self.join(lane)
            case SetSize(size):
                assert state.segments is not None
                state.segments.settle(size)
            case StartOver():
                for lane in sorted(self.open):
                    self.close(lane)
                assert state.segments is None
            case AssignFrom(lane, start):
                assert state.segments is not None
                if lane in self.open:
                    state.segments.claim(lane, start, state.size_bytes, self.now)
            case Distrust():
                if state.segments is not None and state.size_bytes < UNKNOWN_SIZE:
                    state.segments.want(0, state.size_bytes)
            case FindCulprit():
                # One is doubted only while another can give its bytes.
                alive = [mirror.number for mirror in state.alive]
                self.handle(ReplacementStarted(alive[0] if len(alive) > 1 else None))
            case AcceptBody():
                self.accepted = True
            case FinishFile():
                state.phase = DownloadPhase.OVER
                self.over = True
            case Fail(problem):
                assert state.over
                self.failure = problem
                self.over = True

    def join(self, lane: int) -> None:
        mirror = self.state.mirror_of(lane)
        if self.state.segments is not None:
            self.state.segments.join(lane, self.now, mirror=mirror.number, rtt_s=0.01)
            self.handle(ConnectionOpened(lane))

    def close(self, lane: int) -> None:
        self.open.discard(lane)
        if lane in self.state.whole:
            self.handle(WholeAnswerEnded(lane))
        if self.state.segments is not None:
            self.state.segments.leave(lane, self.now)

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.open)), "lane")

    # -- what may happen -----------------------------------------------------------------------

    @precondition(lambda self: self.open and not self.over)
    @rule(
        data=st.data(),
        whole=st.booleans(),
        size=st.sampled_from([SIZE, SIZE, SIZE, 7, 0, None]),
        validator=st.sampled_from(["a", "a", "a", None, "b"]),
        start=st.sampled_from([None, 0, 50_000]),
        off=st.sampled_from([0, 0, 0, 1]),
        connections=st.sampled_from([None, None, 1, 2]),
        found=st.sampled_from([(), ("https://more.example/f",)]),
    )
    def answers(
        self,
        data: st.DataObject,
        whole: bool,
        size: int | None,
        validator: str | None,
        start: int | None,
        off: int,
        connections: int | None,
        found: tuple[str, ...],
    ) -> None:
        lane = self.pick(data)
        whole = whole or start is None
        first = 0 if whole else (start or 0) + off
        body = Body(first, size, size, whole, validator, Granted(None, connections))
        findings = Findings(tuple(parse(url) for url in found))
        self.handle(AnswerReceived(lane, start, body, self.now, findings=findings))
        if self.accepted and not self.over:
            assert self.state.segments is not None
            if whole and lane in self.open and lane not in self.state.whole:
                self.state.segments.leave(lane, self.now)
                self.join(lane)
                self.handle(WholeAnswerBegan(lane))

    @precondition(lambda self: self.open and not self.over)
    @rule(
        data=st.data(),
        answer=st.sampled_from(
            [
                RetryAfter(3.0, "ticket", 4, 5.0),
                RetryAfter(0.0),
                RetryAfter(None),
                Failed("broke"),
                Refused(FailureReason.NOT_FOUND, "gone"),
                Refused(FailureReason.REFUSED, "ticket", ticket_fault=True),
            ]
        ),
    )
    def refuses(self, data: st.DataObject, answer: RetryAfter | Failed | Refused) -> None:
        self.handle(StatusReceived(self.pick(data), answer, self.now))

    @precondition(lambda self: self.open and not self.over)
    @rule(
        data=st.data(),
        served=st.integers(0, 3),
        brought=st.sampled_from([0, 100, 300_000]),
        crowded=st.booleans(),
        permanent=st.booleans(),
    )
    def breaks(
        self, data: st.DataObject, served: int, brought: int, crowded: bool, permanent: bool
    ) -> None:
        lane = self.pick(data)
        self.close(lane)
        self.handle(
            ConnectionLost(lane, Break(served, brought, brought, crowded, permanent), "broke")
        )

    @precondition(lambda self: self.open and not self.over and self.state.segments is not None)
    @rule(data=st.data())
    def stands_again(self, data: st.DataObject) -> None:
        if self.state.size_bytes >= UNKNOWN_SIZE and not self.state.whole:
            self.handle(UnsizedAnswerLost(self.pick(data)))

    @precondition(lambda self: self.open and not self.over)
    @rule(data=st.data(), seconds=st.sampled_from([0.3, 1.0, 2.0, 40.0]), crowded=st.booleans())
    def falls_silent(self, data: st.DataObject, seconds: float, crowded: bool) -> None:
        self.now += seconds
        self.handle(ConnectionSilent(self.pick(data), seconds, 0.01, crowded))

    @precondition(lambda self: self.open and not self.over)
    @rule(data=st.data(), where=st.sampled_from(["/g", "http://plain.example/f", "https://"]))
    def redirects(self, data: st.DataObject, where: str) -> None:
        self.handle(Redirected(self.pick(data), where))

    @precondition(lambda self: self.open and not self.over)
    @rule(
        data=st.data(),
        start=st.sampled_from([None, 0, SIZE + 1]),
        size=st.sampled_from([None, 0, 7, SIZE]),
    )
    def outside(self, data: st.DataObject, start: int | None, size: int | None) -> None:
        self.handle(RangeOutsideFile(self.pick(data), start, size))

    @precondition(lambda self: self.open and not self.over and self.state.segments)
    @rule(data=st.data(), share=st.floats(0.01, 1.0))
    def sends_bytes(self, data: st.DataObject, share: float) -> None:
        segments, lane = self.state.segments, self.pick(data)
        assert segments is not None
        known = segments.lanes.get(lane)
        usable = self.state.usable(self.state.mirror_of(lane))
        block = known.blocks[0] if known is not None and known.blocks else None
        if block is None and usable and self.state.size_bytes < UNKNOWN_SIZE:
            block = segments.ask(lane, self.now)
        if block is not None and block.end > block.position:
            self.now += 0.01
            count = max(1, int((min(block.end, SIZE) - block.position) * share))
            segments.received(block, min(count, block.end - block.position), self.now)
            self.state.mirror_of(lane).counts.received_bytes += count
        for stopped in segments.stopped():
            self.close(stopped.lane)
            self.perform(Connect(stopped.lane))

    @precondition(lambda self: not self.over and self.state.samples.rounds)
    @rule(data=st.data(), word=st.sampled_from([b"same", b"same", b"other"]))
    def gives_a_sample(self, data: st.DataObject, word: bytes) -> None:
        if self.open and self.state.segments is not None:
            place = data.draw(st.sampled_from(self.state.samples.rounds), "place")
            self.handle(SampleReceived(self.pick(data), place.start, word))

    @precondition(lambda self: not self.over and self.state.segments)
    @rule(data=st.data(), culprit=st.booleans())
    def gives_a_wrong_piece(self, data: st.DataObject, culprit: bool) -> None:
        number = data.draw(st.integers(0, len(self.state.mirrors) - 1))
        self.handle(PiecesWrong(((0, 0, 7),), (number,) if culprit else ()))

    @precondition(lambda self: not self.over and self.state.segments and self.state.segments.done)
    @rule(wrong=st.booleans(), drained=st.booleans())
    def is_whole(self, wrong: bool, drained: bool) -> None:
        self.handle(BytesComplete("sha256" if wrong else None, drained, frozenset()))

    @precondition(lambda self: not self.over and self.state.segments)
    @rule(joins=st.booleans())
    def multicast(self, joins: bool) -> None:
        mirror = self.state.mirrors[0]
        if joins and self.state.usable(mirror):
            self.handle(SessionJoined(0))
        elif mirror.state is MirrorState.RECEIVING:
            self.handle(SessionLeft(0))

    @precondition(lambda self: not self.over)
    @rule(seconds=st.sampled_from([0.02, 0.5, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for mirror, until in sorted(self.timers):
            if until <= self.now:
                self.timers.discard((mirror, until))
                if not self.over:
                    self.handle(RetryDue(mirror, until))
        if not self.over:
            self.handle(Tick())

    @precondition(lambda self: self.over)
    @rule()
    def nothing_is_done_after_the_end(self) -> None:
        assert decide(self.state, Tick(), self.now) == []

    # -- what must stay true -------------------------------------------------------------------

    @invariant()
    def every_mirror_makes_sense(self) -> None:
        for mirror in self.state.mirrors if hasattr(self, "state") else []:
            assert (mirror.dropped is not None) == (mirror.state is MirrorState.DROPPED)
            if mirror.state is MirrorState.WAITING:
                assert mirror.pause is not None
                assert (mirror.number, mirror.pause.until) in self.timers or self.over
            if mirror.alive:
                assert mirror.lanes
                assert len(mirror.lanes) <= 4
                assert len(set(mirror.lanes)) == len(mirror.lanes)

    @invariant()
    def it_goes_on_or_it_is_over(self) -> None:
        """No state from which nothing would ever happen again."""
        if not hasattr(self, "state") or self.over:
            return
        state = self.state

        def goes_on(mirror: Mirror) -> bool:
            waits = mirror.state in (MirrorState.WAITING, MirrorState.RECEIVING)
            works = state.usable(mirror) and bool(set(mirror.lanes) & self.open)
            return waits or works

        # A mirror that sent the whole file is called back by the next tick.
        resting = any(mirror.serves is Serves.WHOLE for mirror in state.mirrors)
        assert any(goes_on(mirror) for mirror in state.alive) or resting

    @invariant()
    def no_lane_works_for_a_mirror_that_may_not(self) -> None:
        for lane in self.open if hasattr(self, "state") and not self.over else ():
            mirror = self.state.mirror_of(lane)
            assert mirror.alive
            assert mirror.state is not MirrorState.WAITING

    @invariant()
    def every_wanted_byte_is_free_or_under_way(self) -> None:
        segments = self.state.segments if hasattr(self, "state") else None
        if segments is None:
            return
        under_way = [block for lane in segments.lanes.values() for block in lane.blocks]
        for start, end in segments.wanted:
            covered = sum(b - a for a, b in segments.free.within(start, end))
            if covered < end - start:
                assert under_way


def _goes_well(run: Downloads, lane: int) -> None:
    pass


def _cuts(run: Downloads, lane: int) -> None:
    run.close(lane)
    run.handle(ConnectionLost(lane, Break(0, 0, 0, False, False), "broke"))


def _falls_silent(run: Downloads, lane: int) -> None:
    run.now += 40.0
    run.handle(ConnectionSilent(lane, 40.0, 0.01, False))


@pytest.mark.parametrize("spoil", [_goes_well, _cuts, _falls_silent])
@pytest.mark.parametrize("mirrors", [1, 2])
def test_a_server_whose_size_changes_with_each_answer_is_soon_given_up(
    mirrors: int, spoil: Callable[[Downloads, int], None]
) -> None:
    """It was asked for minutes, and the mirror with the right copy was dropped on its word."""
    run = Downloads()
    run.begin(mirrors, False, False, 1, 5)
    for number in range(100):
        for lane in sorted(run.open):
            if lane in run.open and not run.over:
                fickle = run.state.lane_mirrors[lane] == 0
                size = SIZE + 1 + number if fickle else SIZE
                body = Body(0, 1000, size, False, None, Granted(None, None))
                run.handle(AnswerReceived(lane, 0, body, run.now))
                if fickle and lane in run.open and not run.over:
                    spoil(run, lane)
        if run.over or not run.state.mirrors[0].alive:
            break
        run.time_passes(1.0)
    text = "it tells another size of the file with each answer"
    assert run.now < 130
    assert run.state.mirrors[0].dropped == text if mirrors > 1 else text in str(run.failure)
    assert run.over == (mirrors == 1)


def test_after_a_new_start_a_mirror_that_sent_the_whole_file_is_asked_again() -> None:
    """Neither tells a size, and the answer that had the block ends at once. The other mirror
    rested, as one that sends only whole answers and has, and the download stood still."""
    run = Downloads()
    run.begin(2, False, False, 1, 5)
    for lane in sorted(run.open):
        body = Body(0, None, None, True, None, Granted(None, None))
        run.handle(AnswerReceived(lane, 100, body, run.now))
        run.handle(WholeAnswerBegan(lane))
    run.handle(UnsizedAnswerEnded(0, 0))
    assert run.state.mirrors[0].dropped == "its copy is empty"
    assert not run.state.mirrors[1].resting
    assert run.open == {1}


TestDownloads = Downloads.TestCase
TestDownloads.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, derandomize=True
)


def test_only_decide_changes_the_state() -> None:
    """The driver assigns to no field of a State or a Mirror but these two, set or counted by it."""
    fetch = pathlib.Path(inspect.getfile(State)).parent
    found = []
    for name in ("download", "workers", "content", "multicast_join", "peer_join", "report"):
        for node in ast.walk(ast.parse((fetch / f"{name}.py").read_text("utf-8"))):
            match node:
                case ast.Attribute(value=owner, attr=attr, ctx=ast.Store()):
                    if ast.unparse(owner).rpartition(".")[2].strip("_") in ("state", "mirror"):
                        found.append((attr, name))
    assert sorted(found) == [("in_order", "download"), ("overhead_bytes", "workers")]


def vote(*answers: bytes) -> SampleVote:
    votes = SampleVote()
    for number, data in enumerate(answers):
        votes.add(number, data)
    return votes


def test_a_vote_needs_more_than_half_of_three_or_more() -> None:
    assert vote(b"a", b"a", b"b").minority() == [2]
    assert vote(b"b", b"a", b"a", b"a").minority() == [0]
    assert vote(b"a", b"b").minority() == []
    assert vote(b"a", b"b", b"c").minority() == []
    # Two against two: nothing shows which pair lies.
    assert vote(b"a", b"a", b"b", b"b").minority() == []


def test_at_the_end_a_tie_goes_to_the_mirror_that_the_user_named_first() -> None:
    assert vote(b"a", b"a", b"b", b"b").differing_from_first([0, 1, 2, 3]) == [2, 3]
    assert vote(b"a", b"b").differing_from_first([1, 0]) == [1]
    assert vote(b"b", b"a", b"a").differing_from_first([0, 1, 2]) == [0]
    # Only mirrors that are left count, and one that has not answered does not differ.
    assert vote(b"b", b"a", b"a").differing_from_first([0, 2, 7]) == [2]
    assert SampleVote().differing_from_first([0, 1]) == []


def begun(mirrors: int, **wishes: int) -> State:
    """A download that has just asked its mirrors to connect."""
    state = State(Options(**wishes), Random(0), 0.0, lambda host: None)  # type: ignore[arg-type]
    for number in range(mirrors):
        state.add(parse(f"https://m{number}.example/f"), listed=True)
    decide(state, Started(), 0.0)
    return state


@pytest.mark.parametrize("lane", [0, 2])
@pytest.mark.parametrize("allowed", [1, 2, 4, 9])
def test_a_lease_is_given_no_more_connections_than_it_allows(lane: int, allowed: int) -> None:
    state = begun(1, connections=4)
    granted = StatusReceived(lane, Granted(None, allowed), 0.0)
    closed = [one.lane for one in decide(state, granted, 0.0) if isinstance(one, Disconnect)]
    kept = state.mirrors[0].lanes
    assert lane in kept
    assert len(kept) == min(4, allowed)
    assert sorted([*kept, *closed]) == [0, 1, 2, 3]


@pytest.mark.parametrize(("received_bytes", "given_up"), [(10_000, False), (10_000_000, True)])
def test_on_a_narrow_line_a_mirror_may_wait_behind_the_bytes_of_others(
    received_bytes: int, given_up: bool
) -> None:
    """At 1 kB/s a full queue of 64 KiB passes in a minute; at 1 MB/s in a moment."""
    state = begun(2)
    decide(state, FirstByte(), 0.0)
    state.mirrors[1].counts.received_bytes = received_bytes
    actions = decide(state, ConnectionSilent(0, 5.0, 0.0, False), 10.0)
    assert (Disconnect(0) in actions) == given_up
