"""The keep-alive budget: what a paused download sends, so that its client does not give up.

Clients run two kinds of clock. A read time-out (pip 15 s, many programs 10 s) is satisfied by any
byte: `interval_s` and `small_bytes`. A speed limit counts bytes of the body: curl and what stands
on it (dnf, librepo) give up once their mean over the last 5 s was below the limit for 15 or 30 s in
a row. One burst of more than 5 s of the usual limit (1 000 bytes/s) starts that clock anew, at half
the cost of an even trickle. Programs that are not known to count bytes get bursts less often.

A token bucket pays for bursts. The longer a download has had none, the less must be left in the
bucket, so bursts come less often for all alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: The weight of a download in the background beside others (`policies.preemption`). Such a download
#: is not silent either.
BACKGROUND_WEIGHT = 1.0 / 8.0


@dataclass(frozen=True, slots=True)
class KeepAliveTuning:
    """Sizes are bytes, times seconds. The programs' clocks are those of the module's docstring."""

    #: A paused download sends something this often: below half of the shortest read time-out.
    interval_s: float = 4.0
    #: The least that reaches a program: a TLS record of its own or a small segment.
    small_bytes: int = 128
    #: More than 5 s of 1 000 bytes/s.
    burst_bytes: int = 5_500
    #: A burst is due: below curl's 15 s.
    due_s: float = 12.0
    #: The same for programs that are known to count bytes. It leaves with the keep-alive bytes of
    #: 8 s: one that is due after 12 s leaves after 16 s, as those come a moment early.
    counted_due_s: float = 7.5
    #: A burst must come now, if the line bears it: below dnf's 30 s.
    must_s: float = 24.0
    #: Most programs have given up by now, so others come first.
    late_s: float = 30.0
    #: How full the bucket must be for a burst that is just due.
    full_for_due: float = 0.4
    #: The same for programs that are not known to count bytes, and for late ones.
    full_for_others: float = 0.6
    #: All paused downloads together take no more of the line.
    line_part: float = 0.06
    #: What the bucket holds, in seconds of that part.
    bucket_s: float = 2.0
    #: Downloads may be paused out of their turn until they would take this part of the line ...
    paused_part: float = 0.015
    #: ... at this rate each, above what keeps a program alive,
    paused_bytes_s: float = 1024.0
    #: or on a slow line at a lower rate, so that this many may be paused.
    paused_least: int = 24
    #: No rate is taken to be lower than this.
    least_bytes_s: float = 64.0
    #: Waiting downloads may have their first bytes until what keeps them alive takes this part.
    first_bytes_part: float = 0.03

    def alive_bytes_s(self, *, counts: bool) -> float:
        """The mean rate of a download that is kept alive."""
        due_s = self.counted_due_s if counts else self.due_s
        return self.burst_bytes / due_s + self.small_bytes / self.interval_s


KEEP_ALIVE = KeepAliveTuning()


def _paused_bytes_s(rate_bytes_s: float) -> float:
    """What a paused download counts as, on a line of this rate."""
    slow = KEEP_ALIVE.paused_part * rate_bytes_s / KEEP_ALIVE.paused_least
    return min(KEEP_ALIVE.paused_bytes_s, max(KEEP_ALIVE.least_bytes_s, slow))


def most_paused(rate_bytes_s: float) -> float:
    """How many paused downloads a line of this rate bears; not a whole number."""
    return KEEP_ALIVE.paused_part * rate_bytes_s / _paused_bytes_s(rate_bytes_s)


def most_with_first_bytes(rate_bytes_s: float) -> float:
    """How many waiting downloads may have their first bytes; not a whole number."""
    return KEEP_ALIVE.first_bytes_part * rate_bytes_s / KEEP_ALIVE.alive_bytes_s(counts=True)


def kept_alive_bytes_s(rate_bytes_s: float, paused: int, ran_bytes: float = 0.0) -> float:
    """The mean rate of each of `paused` downloads whose programs are not known to count bytes.

    A last run that brought as much as a burst was one: the next run comes before the next burst.
    """
    if ran_bytes >= KEEP_ALIVE.burst_bytes:
        return KEEP_ALIVE.small_bytes / KEEP_ALIVE.interval_s
    alive = min(KEEP_ALIVE.alive_bytes_s(counts=False), _paused_bytes_s(rate_bytes_s))
    return min(alive, KEEP_ALIVE.line_part * rate_bytes_s / max(1, paused))


class KeepAliveBudget:
    """How much a paused download may send now. The caller says when, and what it has sent.

    `rate_bytes_s` is infinite while it is not known what the line carries.
    """

    def __init__(self, now: float) -> None:
        self._at_s = now
        self._rate = self._left = math.inf
        #: When a burst of a program that is not known to count is due.
        self._due_s = KEEP_ALIVE.due_s

    def fill(self, rate_bytes_s: float, now: float) -> None:
        """Time has passed on a line of this rate."""
        part = KEEP_ALIVE.line_part * rate_bytes_s
        if math.isinf(self._left) or math.isinf(part):
            self._left = KEEP_ALIVE.bucket_s * part
        self._left = min(self._holds(part), self._left + part * max(0.0, now - self._at_s))
        self._rate, self._at_s = part, now
        beside = _paused_bytes_s(rate_bytes_s) - KEEP_ALIVE.small_bytes / KEEP_ALIVE.interval_s
        self._due_s = max(KEEP_ALIVE.due_s, KEEP_ALIVE.burst_bytes / beside)

    @staticmethod
    def _holds(part_bytes_s: float) -> float:
        """What the bucket holds: four bursts at least."""
        return max(KEEP_ALIVE.bucket_s * part_bytes_s, 4.0 * KEEP_ALIVE.burst_bytes)

    def interval_s(self, paused: int) -> float:
        """How often each of `paused` downloads sends something."""
        return max(KEEP_ALIVE.interval_s, paused * KEEP_ALIVE.small_bytes / (0.5 * self._rate))

    def share(self, since_burst_s: float, *, counts: bool) -> int:
        """What a download may send, by the time since its last burst (infinite: it had none).

        `counts`: its program is known to count bytes.
        """
        tuning = KEEP_ALIVE
        if since_burst_s < (tuning.counted_due_s if counts else self._due_s):
            return tuning.small_bytes
        if math.isinf(self._left):
            return tuning.burst_bytes
        full = min(tuning.full_for_due, max(0.0, (tuning.must_s - since_burst_s) / tuning.due_s))
        if not counts or tuning.late_s < since_burst_s < math.inf:
            full = tuning.full_for_others
        enough = max(tuning.burst_bytes, full * self._holds(self._rate))
        return tuning.burst_bytes if self._left >= enough else tuning.small_bytes

    @property
    def bears_burst(self) -> bool:
        """Whether there is enough for one more."""
        return self._left >= KEEP_ALIVE.burst_bytes

    def spend(self, count: int) -> None:
        """Pay for bytes that were sent."""
        self._left -= count
