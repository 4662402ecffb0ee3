"""What mirrors are asked for before the size of the file is known. Pure."""

from __future__ import annotations

from random import Random

from ...protocol.intervals import Span

#: What each of several mirrors is asked for.
OPENING_BYTES = 128 << 10
#: How much is compared at a place of the file.
SAMPLE_BYTES = 256
#: So many mirrors can tell which of them has another copy.
JURY = 3


def opening(lane: int, count: int, step: int = OPENING_BYTES) -> Span | None:
    """What connection `lane` to one of `count` mirrors asks for; None: the whole file."""
    return None if count == 1 else (lane * step, (lane + 1) * step)


def first_sample(random: Random) -> Span:
    """What `JURY` mirrors or more are asked for before anything else, to compare it."""
    at = random.randrange(OPENING_BYTES - SAMPLE_BYTES)
    return at, at + SAMPLE_BYTES
