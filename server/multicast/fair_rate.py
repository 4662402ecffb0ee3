"""What a TCP flow would get on the way to one receiver: the ceiling of a session's rate. Pure.

TCP's throughput equation on the mean interval between loss events and the round trip (RFC 5348, 3.1
and 5.4; for multicast RFC 4654). A loss event is a round trip in which more datagrams were lost
while a queue stood on the way than are lost without one: that is a radio's loss, and no reason to
yield.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable

#: Of the last loss intervals, newest first (RFC 5348, 5.4).
_WEIGHTS = (1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2)
#: The least growth of the one-way delay in an interval that counts as a queue.
_QUEUE_MS = 10
#: Reports count losses, not events. A full queue loses several at once, of a paced session more
#: than of TCP, and then none until TCP has grown again: so many round trips lie between two events.
#: With this number one Reno flow gets 49 to 60 % beside a session (virtual time, tests).
_EVENT_RTTS = 8
#: Receivers that miss nothing report seldom, and what was lost meanwhile came in some events: of so
#: many losses at least, and so much further apart than two must be, on the average. (One loss an
#: event, as close as can be, gave TCP 0.45 to 0.75 of the line.)
_EVENT_LOSSES, _USUAL_GAP = 2, 1.5
#: A radio's loss is what the last reports without a queue agree on, if there were enough of them:
#: beside TCP some have losses of a queue that did not last. Of so many reports at least and at
#: most, and how many deviations more is no chance.
_FEW, _REPORTS, _DEVIATIONS = 3, 8, 3.0
#: So many reports in a row that saw a queue make one that stands.
_SURE = 2
#: How much of a new queue is believed, and the least round trip that is reckoned with.
_NEW_QUEUE, _LEAST_RTT_S = 0.2, 0.01
#: Of so many reports the fastest says how long the way is without its queue: the others waited in
#: hosts, which a TCP flow beside the session does not.
_FASTEST_OF = 150
#: Ways whose rates differ by no more are equally congested, as far as so few losses can tell.
ALIKE = 1.5


def tcp_datagrams_s(loss_rate: float, rtt_s: float) -> float:
    """TCP's rate at a rate of loss events and a round trip (RFC 5348, 3.1; t_RTO is 4 R)."""
    if loss_rate <= 0:
        return math.inf
    p = min(1.0, loss_rate)
    once = math.sqrt(2 * p / 3)
    timeout = 12 * math.sqrt(3 * p / 8) * p * (1 + 32 * p**2)
    return 1 / (rtt_s * (once + timeout))


def loss_rate_at(datagrams_s: float, rtt_s: float) -> float:
    """The rate of loss events at which TCP gets that much."""
    low, high = 1e-9, 1.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (
            (middle, high) if tcp_datagrams_s(middle, rtt_s) > datagrams_s else (low, middle)
        )
    return high


class FairRate:
    """Of one receiver; fed by its reports."""

    def __init__(self) -> None:
        #: The way without its queue, and the queue.
        self._rtt_s: float | None = None
        self._ways_s: deque[float] = deque(maxlen=_FASTEST_OF)
        self._queue_s = 0.0
        #: The shares lost while no queue stood, newest last.
        self._usual: deque[float] = deque(maxlen=_REPORTS)
        #: So many reports in a row have seen a queue.
        self._standing = 0
        self._intervals: deque[float] = deque(maxlen=len(_WEIGHTS))
        #: Datagrams and seconds since the last loss event.
        self._since = self._since_s = 0.0

    @property
    def datagrams_s(self) -> float:
        """The most to send; inf while no congestion was seen."""
        if not self._intervals or self._rtt_s is None:
            return math.inf
        open_too = _mean([self._since, *self._intervals])
        return tcp_datagrams_s(1 / max(1.0, _mean(self._intervals), open_too), self._rtt_s)

    def report(
        self, sent: int, lost: int, seconds: float, queue_ms: int, rtt_s: float | None
    ) -> None:
        """So many datagrams were sent in that time, so many of them lost.

        `queue_ms` is the queue's share of the way, `rtt_s` how long the newest one and the report
        took, waits in hosts included.
        """
        queue_s = queue_ms / 1000
        if rtt_s is not None:
            known = self._queue_s if self._ways_s else queue_s
            self._queue_s = known + _NEW_QUEUE * (queue_s - known)
            self._ways_s.append(rtt_s - queue_s)
            self._rtt_s = max(_LEAST_RTT_S, min(self._ways_s) + self._queue_s)
        self._since_s += seconds
        lost = self._for_the_queue(sent, lost, queue_ms)
        if self._rtt_s is None or not lost or seconds <= 0:
            self._since += sent
            return
        if not self._intervals:
            # The first: as if TCP had had half of what came (RFC 5348, 6.3.1).
            came_s = (sent - lost) / seconds
            self._intervals.append(1 / loss_rate_at(max(1.0, came_s / 2), self._rtt_s))
            self._since = self._since_s = 0.0
            return
        self._since += sent
        apart_s = _EVENT_RTTS * self._rtt_s
        if self._since_s >= apart_s:
            events = max(1, int(min(lost / _EVENT_LOSSES, seconds / (_USUAL_GAP * apart_s))))
            self._intervals.extendleft([self._since / events] * events)
            self._since = self._since_s = 0.0

    def _for_the_queue(self, sent: int, lost: int, queue_ms: int) -> int:
        """How many of those that were lost a queue is to blame for."""
        if queue_ms < _QUEUE_MS:
            self._usual.append(lost / sent)
            self._standing = 0
            return 0
        self._standing += 1
        if self._standing < _SURE and not self._intervals:
            # A host that was busy for a moment sees a queue once; one that stands is seen again.
            return 0
        if len(self._usual) < _FEW:
            return lost
        usual = statistics.median_low(self._usual) * sent
        if self._standing >= _SURE:
            # Where a queue always stands, nobody knows what is lost without one.
            self._usual.popleft()
        return lost if lost > usual + _DEVIATIONS * math.sqrt(usual) else 0


def _mean(intervals: Iterable[float]) -> float:
    pairs = list(zip(intervals, _WEIGHTS, strict=False))
    return sum(size * weight for size, weight in pairs) / sum(weight for _, weight in pairs)
