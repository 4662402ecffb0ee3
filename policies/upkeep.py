"""What keeps the client of a paused download from giving up: a few bytes every few seconds.

pip waits 15 s for a byte, many programs 10 s; curl's and dnf's speed limit is 1 000 bytes/s. So a
paused download gets 4 KiB every 4 s, ahead of all others. On a line so slow that two dozen of these
would cost too much of it they get less, which no longer satisfies a speed limit, but every read
time-out. As many may be paused as the line bears.
"""

from __future__ import annotations

#: How often a paused download sends something.
TRICKLE_S = 4.0
_MOST_BYTES, _LEAST_BYTES = 4096, 256
#: All of them together take this part of the line; so many there may be on any line.
_PART, _FEW = 0.015, 24


def trickle_bytes(rate_bytes_s: float) -> int:
    """What one paused download sends each time, on a line of this rate (infinite: unknown)."""
    each = _PART * rate_bytes_s * TRICKLE_S / _FEW
    return _MOST_BYTES if each >= _MOST_BYTES else max(_LEAST_BYTES, int(each))


def most_paused(rate_bytes_s: float) -> float:
    """How many paused downloads the line bears; not a whole number."""
    return _PART * rate_bytes_s * TRICKLE_S / trickle_bytes(rate_bytes_s)
