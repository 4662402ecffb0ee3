"""What keeps the client of a paused download from giving up, and how little of the line that takes.

Two kinds of clock run at clients. A read time-out (pip 15 s, many programs 10 s) wants any byte: a
*sip* every 4 s. A speed limit wants bytes of the body: curl and what stands on it (dnf, librepo)
give up once their mean over the last 5 s was below it for 15 or 30 s in a row. So not an even
trickle but a *burst* of more than 5 s of the usual limit, 1 000 bytes/s, every 12 s starts their
clock anew, at half the cost. Programs that are not known to count get them rarer on a slow line.

All upkeep together takes no more than a stated part of the line. Bursts are paid from a bucket that
fills at that rate: the longer ago a download's last burst is, the less must be left in it, so they
come rarer for all alike, up to every 28 s; programs that count body bytes go before others. Sips
come rarer only where they alone would take half of it.
"""

from __future__ import annotations

import math

#: A download in the background, see `policies.preemption`, gets such a part of the share of another
#: while those want all: it is not silent either.
BACKGROUND_PART = 1.0 / 8.0
#: How often a paused download sends something, and how much; a burst.
SIP_S, SIP_BYTES, BURST_BYTES = 4.0, 128, 5_500
#: A burst is due after the first of these; after the second it must come if the line can bear it;
#: after the third it is too late for most programs, seconds.
_DUE_S, _MUST_S, _LATE_S = 12.0, 24.0, 30.0
#: How full the bucket must be for a burst that is just due, and for one of a program that is not
#: known to count, or that came too late.
_FULL_FOR_DUE, _FULL_FOR_OTHERS = 0.4, 0.6
#: All upkeep together takes this part of the line at most, and the bucket holds so many seconds.
MOST_PART, _BUCKET_S = 0.06, 2.0
#: As many may be paused out of their turn as take this part of the line at 1 024 bytes/s each, or
#: a few on a slow line;
_PART, _EACH_BYTES_S, _LEAST_BYTES_S, _FEW = 0.015, 1024.0, 64.0, 24
#: and as many downloads may be opened that only wait as take this part with what keeps them alive.
_OPENED_PART = 0.03
_ALIVE_BYTES_S = BURST_BYTES / _DUE_S + SIP_BYTES / SIP_S


def _each_bytes_s(rate_bytes_s: float) -> float:
    return min(_EACH_BYTES_S, max(_LEAST_BYTES_S, _PART * rate_bytes_s / _FEW))


def most_paused(rate_bytes_s: float) -> float:
    """How many paused downloads a line of this rate bears; not a whole number."""
    return _PART * rate_bytes_s / _each_bytes_s(rate_bytes_s)


def most_opened(rate_bytes_s: float) -> float:
    """How many may be opened besides that wait for their turn; not a whole number."""
    return _OPENED_PART * rate_bytes_s / _ALIVE_BYTES_S


def kept_alive_bytes_s(rate_bytes_s: float, paused: int) -> float:
    """What each of so many paused downloads gets in the mean, on a line of this rate.

    Of programs that are not known to count bytes.
    """
    alive = min(_ALIVE_BYTES_S, _each_bytes_s(rate_bytes_s))
    return min(alive, MOST_PART * rate_bytes_s / max(1, paused))


class UpkeepBudget:
    """How much a paused download may send now, so that all together keep to their part.

    The caller says when, and what was sent, first by others that pay from the same bucket; and
    `rate_bytes_s` is infinite where nobody knows the line.
    """

    __slots__ = ("_at_s", "_due_s", "_left", "_rate")

    def __init__(self, now: float) -> None:
        self._at_s = now
        self._rate = self._left = math.inf
        #: After how long a burst is due of a program that is not known to count.
        self._due_s = _DUE_S

    def fill(self, rate_bytes_s: float, now: float) -> None:
        """Time has passed on a line of this rate."""
        part = MOST_PART * rate_bytes_s
        if math.isinf(self._left) or math.isinf(part):
            self._left = _BUCKET_S * part
        most = max(_BUCKET_S * part, 4.0 * BURST_BYTES)
        self._left = min(most, self._left + part * max(0.0, now - self._at_s))
        self._rate, self._at_s = part, now
        self._due_s = max(_DUE_S, BURST_BYTES / (_each_bytes_s(rate_bytes_s) - SIP_BYTES / SIP_S))

    def sip_s(self, paused: int) -> float:
        """How often each of so many sends something."""
        return max(SIP_S, paused * SIP_BYTES / (0.5 * self._rate))

    def share(self, since_burst_s: float, *, counts: bool) -> int:
        """What one whose last burst was so long ago may send; infinite: it never had any."""
        if since_burst_s < (_DUE_S if counts else self._due_s):
            return SIP_BYTES
        if math.isinf(self._left):
            return BURST_BYTES
        full = min(_FULL_FOR_DUE, max(0.0, (_MUST_S - since_burst_s) / _DUE_S))
        late = counts and _LATE_S < since_burst_s < math.inf
        if late or not counts:
            full = _FULL_FOR_OTHERS
        enough = max(BURST_BYTES, full * max(_BUCKET_S * self._rate, 4.0 * BURST_BYTES))
        return BURST_BYTES if self._left >= enough else SIP_BYTES

    def spend(self, count: int) -> None:
        """So much was sent."""
        self._left -= count
