"""How many bytes a socket lets gather before it tells that it can be read (SO_RCVLOWAT). Pure.

A thousand packets a second cost less when ten of them are read at a time. The kernel counts
them, so no timer is needed and nothing else is late; and it tells at once what fills the window.
"""

from __future__ import annotations

from typing import NamedTuple


class ThresholdTuning(NamedTuple):
    """How many bytes may gather before the program is woken."""

    #: The bytes of this time at the measured rate are read at once.
    gathered_s: float = 0.008
    #: A rate is measured over this time.
    measured_s: float = 0.04
    #: A socket buffer of the usual first size is then half empty.
    most_bytes: int = 48 << 10
    #: Below two packets there is nothing to gain.
    least_bytes: int = 4 << 10


TUNING = ThresholdTuning()


class ReadThreshold:
    """One connection's. Call `took` for what was read, `calm` about each `TUNING.gathered_s`."""

    def __init__(self) -> None:
        self._rate_bytes_s = 0.0
        self._counted_bytes = 0
        self._since_s: float | None = None
        self._read = False

    def took(self, count: int, now: float) -> None:
        """`count` bytes were read at `now` (s)."""
        self._read = True
        if self._since_s is None:
            self._since_s, self._counted_bytes = now, 0
            return
        self._counted_bytes += count
        elapsed_s = now - self._since_s
        if elapsed_s >= TUNING.measured_s:
            self._rate_bytes_s = self._counted_bytes / elapsed_s
            self._since_s, self._counted_bytes = now, 0

    def calm(self) -> bool:
        """Whether nothing was read since the last call: then what is there is read at once, and
        the rate is measured anew."""
        calm, self._read = not self._read, False
        if calm:
            self._rate_bytes_s, self._since_s = 0.0, None
        return calm

    def threshold_bytes(self, sure_bytes: int) -> int:
        """The least that is worth a call, at most `sure_bytes`, which are certain to come."""
        wish = min(int(self._rate_bytes_s * TUNING.gathered_s), TUNING.most_bytes, sure_bytes)
        return wish if wish >= TUNING.least_bytes else 1
