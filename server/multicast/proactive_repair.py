"""What receivers must lack of blocks that ended too late for a report. Pure.

Waiting for the reports would leave the line idle, and everybody's last decoding with it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from statistics import NormalDist

#: Blocks that ended so long ago at most may have reports on their way.
RECENT_S = 0.1
#: Blocks that end so long before the pass does at most get their repair unasked.
_ENDING_S = 0.25
#: Nobody should lack anything with this probability.
_SURE = 0.9
_MOST_LOSS = 0.5


def surely_enough(k: int, loss: float, receivers: int) -> int:
    """Repair symbols after which all of `receivers` have K symbols of a block, most likely."""
    if loss <= 0 or receivers < 1:
        return 0
    loss = min(_MOST_LOSS, loss)
    deviations = NormalDist().inv_cdf(1 - (1 - _SURE) / receivers)
    # Losses are skewed where few are expected (Cornish and Fisher's first term).
    skewed = max(0.0, deviations**2 - 1) / 6
    return math.ceil((k + deviations * math.sqrt(k * loss) + skewed) / (1 - loss)) - k


def at_least(k: int, loss: float) -> int:
    """Repair symbols that the worst receiver lacks on average: hardly any is too much."""
    loss = min(_MOST_LOSS, max(0.0, loss))
    return int(k * loss / (1 - loss))


class EndedBlocks:
    """The blocks whose source went out lately."""

    def __init__(self, blocks: int) -> None:
        self._count = blocks
        self._blocks: deque[tuple[int, float]] = deque()
        self._before: float | None = None

    def add(self, block: int, now: float) -> bool:
        """Its last source symbol was handed out; whether the pass is about to end.

        Then it should get its repair unasked, so that receivers have decoded it by the end.
        """
        self._blocks.append((block, now))
        while self._blocks[0][1] < now - RECENT_S:
            self._blocks.popleft()
        before, self._before = self._before, now
        return before is not None and (self._count - 1 - block) * (now - before) < _ENDING_S

    def since(self, then: float) -> Iterator[int]:
        """The blocks that ended at `then` or later."""
        return (block for block, at in self._blocks if at >= then)
