"""Whether a queue stands on the way: what all delays of an interval agree on. Pure."""

from __future__ import annotations

from ...protocol.packet import newer

MASK = 0xFFFFFFFF


class DelayWatch:
    """How much longer than the shortest the way has become, lasting, not now and then.

    Like CoDel (RFC 8289, 3.1) it takes the least of an interval: bursts and busy receivers raise
    some samples, a full queue raises all; a few tell nothing, and wait for more. The shortest is
    forgotten after a minute at most, since two hosts' clocks drift apart by a few milliseconds in
    that time.
    """

    forget_s = 30.0
    least_samples = 4

    def __init__(self) -> None:
        self._base: list[int | None] = [None, None]
        self._turned_at: float | None = None
        self._least: int | None = None
        self._samples = 0

    def add(self, delay_us: int, now: float) -> None:
        """A sample, modulo 2^32."""
        if self._turned_at is None or now - self._turned_at > self.forget_s:
            self._turned_at = now
            self._base = [self._base[1], None]
        self._base[1] = self._less(self._base[1], delay_us)
        self._least = self._less(self._least, delay_us)
        self._samples += 1

    def standing_us(self) -> int:
        """The growth that all samples show since it was last said; 0 while they are few."""
        if self._samples < self.least_samples:
            return 0
        base, least = self._base[1], self._least
        self._least, self._samples = None, 0
        if base is None or least is None:
            return 0
        if self._base[0] is not None:
            base = self._less(self._base[0], base)
        return (least - base) & MASK

    @staticmethod
    def _less(left: int | None, right: int) -> int:
        return right if left is None or newer(left, right, 32) else left
