"""How many bytes a socket lets gather before it tells that it can be read (SO_RCVLOWAT). Pure.

A thousand packets a second cost less when ten of them are read at a time. The kernel counts
them, so nobody sleeps and nothing else is late; and it tells at once what fills the window.
"""

from __future__ import annotations

#: What comes in this time at the rate of late is read at once.
_GATHERED_S = 0.008
#: A rate is measured over so long.
_MEASURED_S = 0.04
#: A socket of the size that systems give one at first is still half empty then.
_MOST_BYTES = 48 << 10
#: Below two packets there is nothing to gain.
_LEAST_BYTES = 4 << 10


class ReadThreshold:
    """One connection's. Call `took` for what was read, `calm` about each `_GATHERED_S`."""

    def __init__(self) -> None:
        self._rate_bytes_s = 0.0
        self._counted_bytes = 0
        self._since_s: float | None = None
        self._read = False

    def took(self, count: int, now: float) -> None:
        """So many bytes were read at `now` (s)."""
        self._read = True
        if self._since_s is None:
            self._since_s, self._counted_bytes = now, 0
            return
        self._counted_bytes += count
        elapsed_s = now - self._since_s
        if elapsed_s >= _MEASURED_S:
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
        wish = min(int(self._rate_bytes_s * _GATHERED_S), _MOST_BYTES, sure_bytes)
        return wish if wish >= _LEAST_BYTES else 1
