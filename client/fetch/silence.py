"""How long a mirror may be silent before it is taken for dead, or for one that stalls. Pure."""

from __future__ import annotations

from . import faults
from .actions import Action, Connect, HangUp
from .events import Silent
from .state import Depth, Mirror, State

#: Silence that is too long on a connection with several requests, until one was answered.
_TRYING_S = 0.3
#: What a narrow line's queue may hold: a mirror's bytes may stand behind so many of others.
_QUEUE_BYTES = 64 << 10
#: A packet or more comes in this time from a mirror that sends at all.
SHORT_S = 0.2


def judge(state: State, event: Silent, now: float) -> list[Action]:
    """A lane has been silent for longer than `SHORT_S`."""
    mirror = state.mirror_of(event.lane)
    trying = event.crowded and mirror.depth is not Depth.ONE
    if trying and event.silent_s > _trying_s(state, mirror, event, now):
        # Some servers stall on a request that is sent while another is under way.
        mirror.depth = Depth.ONE
        return [HangUp(event.lane), Connect(event.lane)]
    if event.silent_s <= _patience_s(state, mirror, event, now):
        return []
    text = "it sent nothing for a while"
    return [HangUp(event.lane), *faults.failed(state, event.lane, text, False, now)]


def connect_timeout_s(state: State, mirror: Mirror) -> float:
    """How long a connection may take to stand: shorter while others work."""
    limit_s = state.options.timeout_s
    return min(limit_s, 10.0) if _not_alone(state, mirror) else limit_s


def _not_alone(state: State, mirror: Mirror) -> bool:
    return any(state.helps(other) and other is not mirror for other in state.mirrors)


def _trying_s(state: State, mirror: Mirror, event: Silent, now: float) -> float:
    """How long silence may last where several requests are under way: shorter while the
    mirror has not shown that it can do that."""
    patience_s = _patience_s(state, mirror, event, now)
    if mirror.depth is Depth.SEVERAL:
        return patience_s
    return min(patience_s, _TRYING_S + 4 * event.rtt_s + _queue_s(state, now))


def _queue_s(state: State, now: float) -> float:
    """How long a queue in front of us takes to pass, at the rate at which all arrives."""
    if state.first_byte_s is None:
        return 0.0
    seconds = max(0.1, now - state.first_byte_s)
    return _QUEUE_BYTES * seconds / max(1, state.received_bytes())


def _patience_s(state: State, mirror: Mirror, event: Silent, now: float) -> float:
    """How long the mirror may be silent: long if it is the only one, else about a second."""
    limit_s = state.options.timeout_s
    if not _not_alone(state, mirror):
        return limit_s
    known = state.board.lanes.get(event.lane) if state.board is not None else None
    rate = known.last_rate if known is not None else None
    # Four packets' time at the rate last seen, so that slow is not taken for dead.
    slow_s = 6000 / rate if rate is not None and rate > 1.0 else 0.0
    slow_s = max(state.options.stall_s, slow_s) + _queue_s(state, now)
    return min(limit_s, slow_s + 2 * event.rtt_s)
