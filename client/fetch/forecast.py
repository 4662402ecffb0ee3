"""Says early in a download how long it should take, by the model, to be compared later. Pure.

From remembered rates when all mirrors are known, else from the first second's.
"""

from __future__ import annotations

from ..schedule import model
from ..schedule.segments import UNKNOWN_SIZE
from .state import State

#: Mirrors are measured for so long before the model is asked, if they are all strangers.
_MEASURE_S = 0.75


def at_start(state: State, left_bytes: int, now: float) -> None:
    """The size is known; perhaps all mirrors are too."""
    paths = [mirror.remembered for mirror in state.mirrors if mirror.remembered is not None]
    if len(paths) < len(state.mirrors) or left_bytes <= 0 or state.size_bytes == UNKNOWN_SIZE:
        return
    _predict(state, left_bytes, paths, now, "from earlier downloads", standing=False)


def tick(state: State, now: float) -> None:
    """Measure for a moment, then predict the rest."""
    board, first_s = state.board, state.first_byte_s
    if state.predicted.made or board is None or first_s is None:
        return
    if now - first_s < _MEASURE_S or state.size_bytes == UNKNOWN_SIZE:
        return
    state.predicted.made = True
    paths = []
    for lane in board.lanes.values():
        rate = lane.rate(now)
        if lane.blocks and rate is not None and rate > 1.0:
            paths.append(model.Path(lane.rtt_s, rate))
    left = board.wanted.total
    if paths and left > 0:
        _predict(state, left, paths, now, "from the first second", standing=True)


def _predict(
    state: State,
    left_bytes: int,
    paths: list[model.Path],
    now: float,
    source: str,
    *,
    standing: bool,
) -> None:
    predicted = state.predicted
    predicted.made = True
    block = max(model.least_block(path) for path in paths)
    rest_s = model.predict_s(left_bytes, paths, block, standing=standing)
    predicted.seconds = now - state.began_s + rest_s
    count = model.useful(left_bytes, paths, block)
    predicted.lines.append(f"model: {source}, {count} of {len(paths)} mirrors pay")
