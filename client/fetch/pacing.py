"""Reading no faster than the user allows (--limit-rate), nor than a reader in order takes it."""

from __future__ import annotations

from collections.abc import Callable

from ..net.network import Network
from ..schedule.segments import Segment, SegmentMap

#: An answer that runs past the reader's window is held back this far before its edge.
_MARGIN_BYTES = 1 << 20
_BURST_S = 0.1


class RateLimit:
    """`hold(True)` stops all reading, `hold(False)` lets it go on."""

    def __init__(
        self, network: Network, rate_bytes_s: float | None, hold: Callable[[bool], None]
    ) -> None:
        self._network = network
        self._rate = rate_bytes_s
        self._hold = hold
        self._allowance = 0.0
        self._allowed_s = network.now()
        self.held = False

    def spend(self, count: int, now: float) -> None:
        """So many bytes have arrived: read no further until they are within the limit."""
        rate = self._rate
        if rate is None:
            return
        earned = self._allowance + (now - self._allowed_s) * rate
        self._allowance = min(earned, rate * _BURST_S) - count
        self._allowed_s = now
        if self._allowance < 0 and not self.held:
            self.held = True
            self._hold(True)
            self._network.call_later(-self._allowance / rate, self._release)

    def _release(self) -> None:
        self.held = False
        self._hold(False)


def runs_over(board: SegmentMap, block: Segment) -> bool:
    """Whether a block comes so near the edge of the reader's window that it should be held."""
    limit = board.limit
    if limit is None:
        return False
    return block.live and block.position + _MARGIN_BYTES > limit and block.end > limit


def may_go_on(board: SegmentMap, lane: int) -> bool:
    """Whether a lane that was held has room again before the edge of the reader's window."""
    limit = board.limit
    if limit is None:
        return True
    blocks = board.lanes[lane].blocks
    return all(b.position + _MARGIN_BYTES <= limit or b.end <= limit for b in blocks)
