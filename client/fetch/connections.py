"""How long a mirror's connections may be silent. Pure."""

from __future__ import annotations

from . import faults
from .actions import Action, Connect, Disconnect
from .events import ConnectionSilent
from .state import Depth, Mirror, State

#: A mirror that sends at all sends a packet within this time.
LEAST_SILENCE_S = 0.2


def connection_silent(state: State, event: ConnectionSilent, now: float) -> list[Action]:
    """A lane has been silent for longer than `LEAST_SILENCE_S`."""
    mirror = state.mirror_of(event.lane)
    trying = event.crowded and mirror.depth is not Depth.ONE
    if trying and event.silent_s > _trying_s(state, mirror, event, now):
        # Some servers stall on a request that is sent while another is under way.
        mirror.depth = Depth.ONE
        return [Disconnect(event.lane), Connect(event.lane)]
    if event.silent_s <= _patience_s(state, mirror, event, now):
        return []
    text = "it sent nothing for a while"
    return [Disconnect(event.lane), *faults.failed(state, event.lane, text, False, now)]


def connect_timeout_s(state: State, mirror: Mirror) -> float:
    """How long a connection may take to stand: shorter while others work."""
    limit_s = state.options.timeout_s
    return min(limit_s, 10.0) if _not_alone(state, mirror) else limit_s


def _not_alone(state: State, mirror: Mirror) -> bool:
    return any(state.helps(other) and other is not mirror for other in state.mirrors)


def _trying_s(state: State, mirror: Mirror, event: ConnectionSilent, now: float) -> float:
    """How long silence may last where several requests are under way: shorter while the
    mirror has not shown that it can do that."""
    patience_s = _patience_s(state, mirror, event, now)
    if mirror.depth is Depth.SEVERAL:
        return patience_s
    return min(patience_s, 0.3 + 4 * event.rtt_s + _queue_s(state, now))


def _queue_s(state: State, now: float) -> float:
    """How long a queue in front of us takes to pass, at the rate at which all arrives."""
    if state.first_byte_s is None:
        return 0.0
    seconds = max(0.1, now - state.first_byte_s)
    # A narrow line's queue may hold this much of other mirrors' bytes.
    return (64 << 10) * seconds / max(1, state.received_bytes())


def _patience_s(state: State, mirror: Mirror, event: ConnectionSilent, now: float) -> float:
    """How long the mirror may be silent: long if it is the only one, else about a second."""
    limit_s = state.options.timeout_s
    if not _not_alone(state, mirror):
        return limit_s
    known = state.segments.lanes.get(event.lane) if state.segments is not None else None
    rate = known.last_rate if known is not None else None
    # Four packets' time at the rate last seen, so that slow is not taken for dead.
    slow_s = 6000 / rate if rate is not None and rate > 1.0 else 0.0
    slow_s = max(state.options.stall_s, slow_s) + _queue_s(state, now)
    return min(limit_s, slow_s + 2 * event.rtt_s)
