"""What mirrors are asked for before the size of the file is known. Pure."""

from __future__ import annotations

from client.fetch.sampling import SAMPLE_BYTES
from client.fetch.state import Round, Serves, State

Asked = tuple[int, int]
#: What each of several mirrors is asked for.
_OPENING_BYTES = 128 << 10
#: So many mirrors can tell which of them has another copy.
_JURY = 3
#: What strategies with a plan of their own ask for.
_PROBE_BYTES = 16 << 10


def ask(state: State, lane: int) -> tuple[Asked | None, Asked | None]:
    """A sample to compare first (None: no need), and what to ask for (None: the whole file)."""
    mirror = state.mirror_of(lane)
    count = sum(1 for _ in state.alive)
    if mirror.serves is Serves.LAST_RESORT or count == 1:
        return None, None
    step = _OPENING_BYTES if state.options.strategy == "adaptive" else _PROBE_BYTES
    step = state.options.block_bytes or step
    opening = (lane * step, (lane + 1) * step)
    if count < _JURY:
        return None, opening
    # These can tell which of them has another copy, so a sample comes before anything else.
    rounds = state.samples.rounds
    if not rounds:
        at = state.random.randrange(_OPENING_BYTES - SAMPLE_BYTES)
        rounds.append(Round(at, at + SAMPLE_BYTES))
    rounds[0].jury.heard.add(mirror.number)
    return (rounds[0].start, rounds[0].end), opening
