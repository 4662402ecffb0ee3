"""The download's one decision: what happened, and what is to be done about it. Pure.

`decide` changes the state and returns actions; it does no I/O, so whole downloads can be played
in tests. What belongs together stands in a module: faults, planning, silence, widening, whole
answers, samples, what an answer's head means, the end.
"""

from __future__ import annotations

from . import (
    acceptance,
    ending,
    faults,
    forecast,
    planning,
    sampling,
    silence,
    whole_answers,
    widening,
)
from .actions import Action, Connect, HangUp, Settle, Wake
from .events import (
    Answered,
    BrokeOff,
    Doubted,
    Due,
    Event,
    MirrorsFound,
    Opened,
    OutsideFile,
    Passed,
    PiecesWrong,
    PlaceReady,
    Redirected,
    RoomLacking,
    Said,
    Sampled,
    Scanty,
    SessionJoined,
    SessionLeft,
    ShortEnd,
    Silent,
    Started,
    Tick,
    Unfinished,
    Vouched,
    Whole,
    WholeBegan,
    WholeEnded,
    WrongBytes,
)
from .faults import EMPTY
from .state import DownloadPhase, MirrorState, State


def decide(state: State, event: Event, now: float) -> list[Action]:
    """What to do, in this order; nothing once the download is over."""
    if state.over:
        return []
    actions = _decide(state, event, now)
    if state.board is not None:
        state.board.expected = state.expected_lanes()
    return actions


def _decide(state: State, event: Event, now: float) -> list[Action]:
    match event:
        case Tick():
            return _tick(state, now)
        case Silent():
            return silence.judge(state, event, now)
        case Answered():
            return acceptance.answered(state, event, now)
        case Said():
            return faults.told(state, event.lane, event.answer, event.at_s, now)
        case BrokeOff():
            return faults.broke(state, event, now)
        case Scanty():
            return faults.scanty(state, event.lane, now)
        case Due():
            return faults.due(state, event.mirror, event.until, now)
        case Redirected():
            return faults.redirected(state, event.lane, event.location)
        case OutsideFile():
            return faults.outside(state, event)
        case Sampled():
            return sampling.testified(state, event.lane, event.start, event.data)
        case Passed():
            return sampling.passed(state, event.lane, event.position, event.data)
        case WrongBytes():
            return faults.convict(state, state.mirrors[event.mirror], event.text)
        case Unfinished():
            return faults.unfinished(state, event.lane)
        case PiecesWrong():
            return ending.pieces_wrong(state, event)
        case Whole():
            return ending.whole(state, event, now)
        case Doubted():
            return ending.doubted(state, event.mirror)
        case WholeBegan():
            return whole_answers.begin(state, event.lane, now)
        case _:
            return _note(state, event, now)


def _note(state: State, event: Event, now: float) -> list[Action]:
    """Events that say how things stand."""
    match event:
        case Started():
            return _start(state, event, now)
        case Opened():
            return sampling.opened(state, event)
        case PlaceReady():
            return _ready(state, event, now)
        case Vouched():
            state.vouched = True
        case WholeEnded():
            whole_answers.end(state, event.lane)
        case ShortEnd():
            return _short_end(state, event)
        case RoomLacking():
            return faults.room_lacking(state, event)
        case MirrorsFound():
            return acceptance.mirrors_found(state, event.findings, state.size_bytes, now)
        case SessionJoined():
            return _session_joined(state, event.mirror)
        case SessionLeft():
            return _session_left(state, event.mirror)
    return []


def _short_end(state: State, event: ShortEnd) -> list[Action]:
    mirror = state.mirror_of(event.lane)
    if event.size_bytes == 0 and faults.doubts_empty(state, mirror):
        actions = faults.empty(state, mirror)
        return actions if state.over else [*actions, *faults.start_over(state, mirror, EMPTY)]
    state.size_bytes = event.size_bytes
    return [Settle(event.size_bytes), Wake()]


def _start(state: State, event: Started, now: float) -> list[Action]:
    state.promised_bytes = event.promised_bytes
    planning.choose(state, event.promised_bytes or 0, now)
    first = [mirror.lanes[0] for mirror in state.mirrors]
    for mirror in state.mirrors:
        for _ in range((state.options.connections or 1) - 1):
            state.lane(mirror)
    return [Connect(lane) for lane in first]


def _ready(state: State, event: PlaceReady, now: float) -> list[Action]:
    state.phase = DownloadPhase.FETCHING
    state.size_bytes, state.vouched = event.size_bytes, event.vouched
    if len(state.mirrors) > 1 and not event.pieces:
        sampling.choose(state)
    forecast.at_start(state, event.size_bytes - event.have_bytes, now)
    return [Connect(lane) for mirror in state.mirrors for lane in mirror.lanes]


def _session_joined(state: State, number: int) -> list[Action]:
    """What is under way from that mirror comes by multicast."""
    mirror, board = state.mirrors[number], state.board
    mirror.state = MirrorState.RECEIVING
    lanes = board.lanes if board is not None else {}
    return [HangUp(lane) for lane in mirror.lanes if lane in lanes and lanes[lane].blocks]


def _session_left(state: State, number: int) -> list[Action]:
    mirror = state.mirrors[number]
    if mirror.state is MirrorState.RECEIVING:
        mirror.state = MirrorState.READY
    if state.board is not None:
        state.board.floor = 0
    return [*(Connect(lane) for lane in mirror.lanes), Wake()]


def _tick(state: State, now: float) -> list[Action]:
    if state.board is None or state.phase is not DownloadPhase.FETCHING:
        return []
    forecast.tick(state, now)
    return [
        *widening.tick(state, now),
        *planning.tick(state, now),
        *whole_answers.tick(state, now),
        *sampling.tick(state),
    ]
