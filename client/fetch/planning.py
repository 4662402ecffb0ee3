"""The model's use: which known mirrors are worth a connection, and how long a download should take.

A small file from a near mirror is complete before a far one has answered: such a mirror stands by.
It is called when another leaves, or when the download takes longer than planned. A mirror without
a measured rate never stands by. The forecast is compared with the measured time at the end. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from ..schedule import model
from ..schedule.segments import UNKNOWN_SIZE
from .actions import Action, Connect
from .state import Mirror, MirrorState, State


class PlanTuning(NamedTuple):
    """When the plan has failed, and how long the model measures."""

    #: All mirrors are called after this many times the planned time
    late_factor: float = 1.5
    #: plus this.
    late_s: float = 0.3
    #: The choice of mirrors does not depend on the length of blocks.
    block_bytes: int = 256 << 10
    #: Unknown mirrors are measured this long before the forecast.
    measure_s: float = 0.75


TUNING = PlanTuning()


def choose_mirrors(state: State, left_bytes: int, now: float) -> None:
    """Before connections are opened, when the size is known."""
    if not 0 < left_bytes < UNKNOWN_SIZE:
        return
    mirrors = list(state.alive)
    paths = [mirror.remembered for mirror in mirrors if mirror.remembered is not None]
    if len(paths) < len(mirrors) or len(paths) < 2:
        return
    plan = model.choose(left_bytes, paths, min(TUNING.block_bytes, left_bytes))
    idle = [mirror for place, mirror in enumerate(mirrors) if place not in plan.mirrors]
    for mirror in idle:
        mirror.state = MirrorState.STANDBY
    state.planned_until_s = now + plan.seconds * TUNING.late_factor + TUNING.late_s
    used = len(mirrors) - len(idle)
    text = f"plan: {used} of {len(mirrors)} mirrors, {plan.seconds:.2f} s"
    names = ", ".join(mirror.url.text for mirror in idle)
    state.forecast.append(text + (f"; standing by: {names}" if idle else ""))


def mirror_found(state: State, mirror: Mirror, size_bytes: int, now: float) -> None:
    """A mirror was learnt of while the download runs: does it pay to open it?"""
    path = mirror.remembered
    if path is None:
        return
    left = state.segments.wanted.total if state.segments is not None else size_bytes
    used = [
        other.remembered
        for other in state.mirrors
        if other is not mirror and state.usable(other) and other.remembered is not None
    ]
    if not used or left >= UNKNOWN_SIZE >> 1:
        return
    block = min(TUNING.block_bytes, max(1, left))
    without_s = model.predict_s(left, used, block)
    with_s = model.predict_s(left, [*used, path], block)
    if with_s > without_s * (1 - model.TUNING.worth):
        mirror.state = MirrorState.STANDBY
        state.planned_until_s = now + without_s * TUNING.late_factor + TUNING.late_s
        state.forecast.append(f"plan: {mirror.url.text} would not make it shorter, stands by")


def call_all(state: State) -> list[Action]:
    """The plan has failed: a mirror left or waits, or it takes too long."""
    state.planned_until_s = None
    waiting = [mirror for mirror in state.mirrors if mirror.state is MirrorState.STANDBY]
    for mirror in waiting:
        mirror.state = MirrorState.READY
    return [Connect(lane) for mirror in waiting for lane in mirror.lanes]


def forecast_at_start(state: State, left_bytes: int, now: float) -> None:
    """The size is known; perhaps all mirrors are too."""
    paths = [mirror.remembered for mirror in state.mirrors if mirror.remembered is not None]
    if len(paths) < len(state.mirrors) or left_bytes <= 0 or state.size_bytes == UNKNOWN_SIZE:
        return
    _predict(state, left_bytes, paths, now, "from earlier downloads", standing=False)


def forecast_rest(state: State, now: float) -> None:
    """Measure for a moment, then predict the rest."""
    segments, first_s = state.segments, state.first_byte_s
    if state.forecast_made or segments is None or first_s is None:
        return
    if now - first_s < TUNING.measure_s or state.size_bytes == UNKNOWN_SIZE:
        return
    state.forecast_made = True
    paths = []
    for lane in segments.lanes.values():
        rate = lane.rate(now)
        if lane.blocks and rate is not None and rate > 1.0:
            paths.append(model.Path(lane.rtt_s, rate))
    left = segments.wanted.total
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
    state.forecast_made = True
    block = max(model.least_block(path) for path in paths)
    rest_s = model.predict_s(left_bytes, paths, block, standing=standing)
    state.predicted_s = now - state.began_s + rest_s
    count = len(model.choose(left_bytes, paths, block).mirrors)
    state.forecast.append(f"model: {source}, {count} of {len(paths)} mirrors pay")
