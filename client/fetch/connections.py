"""A mirror's connections: how long one may be silent, and where more of them help. Pure."""

from __future__ import annotations

from typing import NamedTuple

from ..schedule.segments import UNKNOWN_SIZE, SegmentMap
from ..schedule.trials import Add, Reading
from . import faults
from .actions import Action, Connect, Disconnect, ReleaseConnection
from .events import ConnectionSilent
from .state import Depth, Mirror, Serves, State


class ConnectionTuning(NamedTuple):
    """When a silent connection is given up, and how many one mirror gets."""

    #: Bound on silence with several requests under way, until one was answered.
    crowded_s: float = 0.3
    #: A narrow line's queue may hold this much of other mirrors' bytes.
    queue_bytes: int = 64 << 10
    #: A mirror that sends at all sends a packet within this time.
    least_s: float = 0.2
    #: More connections to one server are not polite.
    most_lanes: int = 4
    #: Trials of further connections are looked at this often.
    trial_step_s: float = 0.1


TUNING = ConnectionTuning()


def connection_silent(state: State, event: ConnectionSilent, now: float) -> list[Action]:
    """A lane has been silent for longer than `TUNING.least_s`."""
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
    return min(patience_s, TUNING.crowded_s + 4 * event.rtt_s + _queue_s(state, now))


def _queue_s(state: State, now: float) -> float:
    """How long a queue in front of us takes to pass, at the rate at which all arrives."""
    if state.first_byte_s is None:
        return 0.0
    seconds = max(0.1, now - state.first_byte_s)
    return TUNING.queue_bytes * seconds / max(1, state.received_bytes())


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


def try_more_connections(state: State, now: float) -> list[Action]:
    """Open connections on trial, close those that do not pay."""
    segments, widened = state.segments, state.widened
    if segments is None or state.size_bytes >= UNKNOWN_SIZE:
        return []
    if now < widened.next_s or not _wanted(state):
        return []
    widened.next_s = now + TUNING.trial_step_s
    actions = _retire(state, segments)
    readings = {
        mirror.number: Reading(mirror.counts.received_bytes, _lanes(state, mirror), _most(mirror))
        for mirror in state.mirrors
        if state.usable(mirror) and mirror.answered and mirror.serves is Serves.PARTS
    }
    for step in widened.trials.tick(now, readings, segments.wanted.total):
        mirror = state.mirrors[step.mirror]
        if isinstance(step, Add):
            actions += [Connect(state.lane(mirror)) for _ in range(step.count)]
        else:
            for lane in mirror.lanes[-step.count :]:
                segments.retire(lane)
                widened.retiring.add(lane)
        verb = "try" if isinstance(step, Add) else "give up"
        text = f"{verb} {step.count} more to {mirror.url.text}"
        widened.lines.append(f"connections: after {now - state.began_s:.1f} s, {text}")
    return actions


def _wanted(state: State) -> bool:
    options = state.options
    return (
        options.connections is None
        and options.strategy == "adaptive"
        and options.block_bytes is None
        and options.limit_bytes_s is None
        and not state.in_order
    )


def _lanes(state: State, mirror: Mirror) -> int:
    return sum(lane not in state.widened.retiring for lane in mirror.lanes)


def _most(mirror: Mirror) -> int:
    told = mirror.lease_connections
    return TUNING.most_lanes if told is None else min(TUNING.most_lanes, told)


def _retire(state: State, segments: SegmentMap) -> list[Action]:
    actions: list[Action] = []
    for lane in sorted(state.widened.retiring):
        known = segments.lanes.get(lane)
        mirror = state.mirror_of(lane)
        if lane not in mirror.lanes:
            state.widened.retiring.discard(lane)
        elif known is None or not known.blocks:
            state.widened.retiring.discard(lane)
            mirror.lanes.remove(lane)
            actions.append(ReleaseConnection(lane))
    return actions
