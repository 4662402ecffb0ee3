"""What a mirror is asked for first, with what is known of the others. Pure."""

from __future__ import annotations

from ...protocol.intervals import Span
from ..schedule.openings import JURY, OPENING_BYTES, first_sample, opening
from .state import Round, Serves, State

#: What strategies with a plan of their own ask for.
_PROBE_BYTES = 16 << 10


def ask(state: State, lane: int) -> tuple[Span | None, Span | None]:
    """A sample to compare first (None: no need), and what to ask for (None: the whole file)."""
    mirror = state.mirror_of(lane)
    count = sum(1 for _ in state.alive)
    if mirror.serves is Serves.LAST_RESORT:
        return None, None
    step = OPENING_BYTES if state.options.strategy == "adaptive" else _PROBE_BYTES
    span = opening(lane, count, state.options.block_bytes or step)
    if count < JURY:
        return None, span
    # These can tell which of them has another copy, so a sample comes before anything else.
    rounds = state.samples.rounds
    if not rounds:
        rounds.append(Round(*first_sample(state.random)))
    rounds[0].jury.heard.add(mirror.number)
    return (rounds[0].start, rounds[0].end), span
