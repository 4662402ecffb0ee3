"""The download's one decision: what happened, and what is to be done about it. Pure.

`decide` changes the state and returns actions; it does no I/O, so whole downloads can be played
in tests. Each module has one subject: `acceptance` an answer's head, `faults`, `connections`,
`planning` by the model, `sampling` of copies that may differ.
"""

from __future__ import annotations

from ..net.errors import Corrupt
from . import acceptance, connections, events, faults, planning, sampling
from . import actions as do
from .actions import Action
from .events import Event
from .state import Depth, DownloadPhase, MirrorState, State


def decide(state: State, event: Event, now: float) -> list[Action]:
    """What to do, in this order; nothing once the download is over."""
    if state.over:
        return []
    actions = _decide(state, event, now)
    if state.segments is not None:
        state.segments.expected = state.expected_lanes()
    return actions


def _decide(state: State, event: Event, now: float) -> list[Action]:
    match event:
        case events.Tick():
            return _tick(state, now)
        case events.ConnectionSilent():
            return connections.connection_silent(state, event, now)
        case events.AnswerReceived():
            return acceptance.answer_received(state, event, now)
        case events.StatusReceived():
            return faults.status_received(state, event.lane, event.answer, event.at_s, now)
        case events.ConnectionLost():
            return faults.connection_lost(state, event, now)
        case events.ShortAnswer():
            return faults.short_answer(state, event.lane, now)
        case events.RetryDue():
            return faults.retry_due(state, event.mirror, event.until)
        case events.Redirected():
            return faults.redirected(state, event.lane, event.location)
        case events.RangeOutsideFile():
            return faults.range_outside_file(state, event)
        case events.SampleReceived():
            return sampling.sample_received(state, event.lane, event.start, event.data)
        case events.SamplePassed():
            return sampling.sample_passed(state, event.lane, event.position, event.data)
        case events.UnsizedAnswerLost():
            # The next answer may be of another file.
            text = "its answer ended early and told no size"
            return faults.start_over(state, state.mirror_of(event.lane), text)
        case events.PiecesWrong():
            return _pieces_wrong(state, event)
        case events.BytesComplete():
            return _bytes_complete(state, event, now)
        case events.ReplacementStarted():
            return _replacement_started(state, event.mirror)
        case events.WholeAnswerBegan():
            return acceptance.whole_answer_began(state, event.lane, now)
        case _:
            return _note(state, event, now)


def _note(state: State, event: Event, now: float) -> list[Action]:
    """Events that say how things stand."""
    match event:
        case events.Started():
            return _start(state, event, now)
        case events.ConnectionOpened():
            return sampling.connection_opened(state, event)
        case events.OutputReady():
            return _ready(state, event, now)
        case events.DigestKnown():
            state.vouched = True
        case events.WholeAnswerEnded():
            state.whole.pop(event.lane, None)
        case events.UnsizedAnswerEnded():
            return _short_end(state, event)
        case events.FileTooLarge():
            return faults.file_too_large(state, event)
        case events.MirrorsFound():
            return acceptance.mirrors_found(state, event.findings, state.size_bytes, now)
        case events.SessionJoined():
            return _session_joined(state, event.mirror)
        case events.SessionLeft():
            return _session_left(state, event.mirror)
        case events.ValidatorsKnown():
            for number, validator in event.validators.items():
                mirror = state.mirrors[number]
                mirror.validator = validator
                if event.size_bytes is not None:
                    mirror.size_bytes = event.size_bytes
        case events.FirstByte():
            state.first_byte_s = now
        case events.PipelineAnswered():
            mirror = state.mirror_of(event.lane)
            if mirror.depth is Depth.UNTRIED:
                mirror.depth = Depth.SEVERAL
        case events.FileNamed():
            state.phase = DownloadPhase.CLOSING
        case events.DownloadOver():
            state.phase = DownloadPhase.OVER
    return []


def _short_end(state: State, event: events.UnsizedAnswerEnded) -> list[Action]:
    mirror = state.mirror_of(event.lane)
    if event.size_bytes == 0 and faults.doubts_empty(state, mirror):
        actions = faults.drop_empty(state, mirror)
        return (
            actions
            if state.over
            else [*actions, *faults.start_over(state, mirror, faults.DropReason.EMPTY)]
        )
    state.size_bytes, state.end_marked = event.size_bytes, event.marked
    return [do.SetSize(event.size_bytes), do.Wake()]


def _start(state: State, event: events.Started, now: float) -> list[Action]:
    state.promised_bytes = event.promised_bytes
    planning.choose_mirrors(state, event.promised_bytes or 0, now)
    for mirror in state.mirrors:
        for _ in range((state.options.connections or 1) - 1):
            state.lane(mirror)
    return [do.Connect(mirror.lanes[0]) for mirror in state.mirrors]


def _ready(state: State, event: events.OutputReady, now: float) -> list[Action]:
    state.phase = DownloadPhase.FETCHING
    if event.segments is not None:
        state.segments = event.segments
    state.size_bytes, state.vouched = event.size_bytes, event.vouched
    if len(state.mirrors) > 1 and not event.pieces:
        sampling.choose(state)
    planning.forecast_at_start(state, event.size_bytes - event.have_bytes, now)
    return [do.Connect(lane) for mirror in state.mirrors for lane in mirror.lanes]


def _session_joined(state: State, number: int) -> list[Action]:
    """What is under way from that mirror comes by multicast."""
    mirror, segments = state.mirrors[number], state.segments
    mirror.state = MirrorState.RECEIVING
    lanes = segments.lanes if segments is not None else {}
    return [do.Disconnect(lane) for lane in mirror.lanes if lane in lanes and lanes[lane].blocks]


def _session_left(state: State, number: int) -> list[Action]:
    mirror = state.mirrors[number]
    if mirror.state is MirrorState.RECEIVING:
        mirror.state = MirrorState.READY
    if state.segments is not None:
        state.segments.floor = 0
    return [*(do.Connect(lane) for lane in mirror.lanes), do.Wake()]


def _tick(state: State, now: float) -> list[Action]:
    if state.segments is None or state.phase is not DownloadPhase.FETCHING:
        return []
    planning.forecast_rest(state, now)
    until_s = state.planned_until_s
    return [
        *(planning.call_all(state) if until_s is not None and now > until_s else ()),
        *acceptance.keep_fastest_whole_answer(state, now),
        *sampling.tick(state),
    ]


def _pieces_wrong(state: State, event: events.PiecesWrong) -> list[Action]:
    """Wrong pieces are wanted again; the mirror that gave them is dropped."""
    assert state.segments is not None
    for index, start, end in event.pieces:
        state.segments.want(start, end)
        times = state.wrong_pieces[index] = state.wrong_pieces.get(index, 0) + 1
        if times > 2 * len(state.mirrors) + 1:
            return faults.fail(state, Corrupt(f"piece {index} is wrong on every mirror"))
    actions: list[Action] = []
    for number in event.culprits:
        actions += faults.convict(state, state.mirrors[number], "it gives wrong bytes")
    return actions


def _bytes_complete(state: State, event: events.BytesComplete, now: float) -> list[Action]:
    """Every byte is here: mend it, wait a moment, or finish."""
    if event.wrong_digest is not None:
        # A reader of in-order output has not had the last bytes yet, and will not get them.
        return _mend(state, event.wrong_digest)
    if not event.drained:
        return []
    asked = sampling.request_remaining(state)
    if asked or sampling.should_wait(state, event.working, now):
        return asked
    settled = sampling.settle_votes(state)
    if not settled and (first := sampling.unheard_first(state)) is not None:
        state.notes.append(f"{first.url.text} sent nothing of its copy, which may be another one")
    return settled or [do.FinishFile()]


def _mend(state: State, digest: str) -> list[Action]:
    if not state.in_order and state.others(state.mirrors[0]):
        return [do.FindCulprit()]
    if asked := faults.ask_outvoted(state):
        return asked
    several = len(state.mirrors) > 1
    who = "; the mirrors agree on it, so the checksum may be wrong" if several else ""
    names = "the file" if several else state.mirrors[0].url.text
    text = f"{names} arrived whole but does not have the expected {digest}{who}"
    return faults.fail(state, Corrupt(text))


def _replacement_started(state: State, number: int | None) -> list[Action]:
    """That mirror's bytes are being replaced by others'."""
    state.suspect = number
    if number is None:
        text = "the mirrors agree, but the file does not have the expected digest"
        return faults.ask_outvoted(state) or faults.fail(state, Corrupt(text))
    return [
        *(do.Disconnect(lane) for lane in state.mirrors[number].lanes),
        *(do.Connect(lane) for mirror in state.mirrors for lane in mirror.lanes),
        do.Wake(),
    ]
