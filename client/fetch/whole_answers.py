"""Mirrors that send only the whole file: which of their answers is kept. Pure.

Such an answer begins at the start of the file and cannot be steered. One of them is worth keeping,
the fastest that runs: mirrors that serve parts work from the far end towards it. While several run
side by side, each writes what the others have not; after a moment the fastest stays.
"""

from __future__ import annotations

from ..schedule.segments import Lane
from . import faults
from .actions import Action, Steer
from .state import Mirror, Serves, State, WholeAnswer

#: So long the answers run side by side, from the first byte of the last of them.
_COMPARE_S = 0.25
#: Or until one has brought this much.
_COMPARE_BYTES = 2 << 20
#: Where the others have, or are being sent, more of the file than this, it would come twice.
_TWICE_SHARE = 0.1


def welcome(state: State, mirror: Mirror) -> bool:
    """Whether a whole answer from this mirror could be of use now."""
    board = state.board
    if board is None or not state.others(mirror):
        return True
    # Those that may turn out alike are not counted; they are compared, and the fastest stays.
    lanes = [
        lane for lane in board.lanes.values() if state.mirrors[lane.mirror].serves is Serves.PARTS
    ]
    size = state.size_bytes
    return size - board.wanted.total + sum(map(Lane.left, lanes)) <= _TWICE_SHARE * size


def begin(state: State, lane: int, now: float) -> list[Action]:
    """The body of a whole answer follows; it has the block if none runs yet."""
    steering = not state.whole
    state.whole[lane] = WholeAnswer(lane, now, steering)
    return [Steer(lane, 0)] if steering else []


def end(state: State, lane: int) -> None:
    """What this lane brought is over, or broken off."""
    state.whole.pop(lane, None)


def tick(state: State, now: float) -> list[Action]:
    """Keep the fastest, once it is known; without any mirror at work, begin another answer."""
    running = list(state.whole.values())
    if not running:
        idle = not any(state.helps(mirror) and not mirror.resting for mirror in state.mirrors)
        return faults.revive(state) if idle else []
    actions: list[Action] = []
    if len(running) > 1:
        youngest_s = now - max(answer.began_s for answer in running)
        most_bytes = max(answer.position for answer in running)
        if youngest_s < _COMPARE_S and most_bytes < _COMPARE_BYTES:
            return []
        best = max(running, key=lambda answer: answer.rate(now))
        for answer in running:
            if answer is not best:
                mirror = state.mirror_of(answer.lane)
                actions += faults.drop(state, mirror, "another one sends the whole file faster")
        running = [best]
    for answer in running:
        if not answer.steering and not state.over:
            # It ran beside the one that had the block, which is gone.
            answer.steering = True
            actions.append(Steer(answer.lane, answer.position))
    return actions
