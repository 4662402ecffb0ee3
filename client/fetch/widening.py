"""Gives mirrors more connections where `client.schedule.trials` finds that it helps. Pure."""

from __future__ import annotations

from ..schedule.segments import UNKNOWN_SIZE, SegmentMap
from ..schedule.trials import Add, Reading
from .actions import Action, Connect, LetGo
from .state import Mirror, Serves, State

#: More than this to one server is not polite, whatever it brings.
_MOST_LANES = 4
_EVERY_S = 0.1


def tick(state: State, now: float) -> list[Action]:
    """Open connections on trial, close those that do not pay."""
    board, widened = state.board, state.widened
    if board is None or state.size_bytes >= UNKNOWN_SIZE:
        return []
    if now < widened.next_s or not _wanted(state):
        return []
    widened.next_s = now + _EVERY_S
    actions = _retire(state, board)
    readings = {
        mirror.number: Reading(mirror.counts.received_bytes, _lanes(state, mirror), _most(mirror))
        for mirror in state.mirrors
        if state.usable(mirror) and mirror.answered and mirror.serves is Serves.PARTS
    }
    for step in widened.trials.tick(now, readings, board.wanted.total):
        mirror = state.mirrors[step.mirror]
        if isinstance(step, Add):
            actions += [Connect(state.lane(mirror)) for _ in range(step.count)]
        else:
            for lane in mirror.lanes[-step.count :]:
                board.retire(lane)
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
    return _MOST_LANES if told is None else min(_MOST_LANES, told)


def _retire(state: State, board: SegmentMap) -> list[Action]:
    actions: list[Action] = []
    for lane in sorted(state.widened.retiring):
        known = board.lanes.get(lane)
        mirror = state.mirror_of(lane)
        if lane not in mirror.lanes:
            state.widened.retiring.discard(lane)
        elif known is None or not known.blocks:
            state.widened.retiring.discard(lane)
            mirror.lanes.remove(lane)
            actions.append(LetGo(lane))
    return actions
