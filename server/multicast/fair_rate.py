"""Estimates TCP's rate on the path to one receiver: the ceiling of a session's rate. Pure.

TCP's throughput equation with the mean interval between loss events and the round-trip time (RFC
5348, 3.1 and 5.4; for multicast RFC 4654). A loss event is a round trip with a queue on the path in
which more datagrams are lost than without a queue: loss without a queue is a radio's.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FairRateTuning:
    """The tuning of `FairRate`.

    `event_rtts` and `event_losses` with `usual_gap` were chosen by the share of one Reno flow
    beside a session: 49 to 60 % of the line (virtual time, tests). One loss an event at the least
    distance gave it 45 to 75 %.
    """

    #: Weights of the last loss intervals, newest first (RFC 5348, 5.4).
    weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2)
    #: The least growth of the one-way delay that counts as a queue.
    queue_ms: int = 10
    #: The least number of round trips between two loss events. Reports count losses: a full queue
    #: loses several datagrams at once, and then none until TCP has grown again.
    event_rtts: int = 8
    #: Losses of a report that covers a longer time are split into events of at least this many ...
    event_losses: int = 2
    #: ... and at this distance, in least distances.
    usual_gap: float = 1.5
    #: A radio's loss is the median of this many reports without a queue, at least ...
    least_reports: int = 3
    #: ... and at most. Some of them have losses of a queue that did not last.
    most_reports: int = 8
    #: More loss than a radio's by this many standard deviations is no chance.
    deviations: float = 3.0
    #: After this many reports in a row with a queue the queue is a standing one.
    standing_reports: int = 2
    #: The weight of a new queue in the moving average.
    new_queue: float = 0.2
    least_rtt_s: float = 0.01
    #: The fastest of this many reports has the delay without a queue: others waited in hosts, where
    #: TCP would not.
    fastest_of: int = 150


_TUNING = FairRateTuning()


def tcp_datagrams_s(loss_rate: float, rtt_s: float) -> float:
    """TCP's rate at a rate of loss events and a round-trip time (RFC 5348, 3.1; t_RTO is 4 R)."""
    if loss_rate <= 0:
        return math.inf
    p = min(1.0, loss_rate)
    once = math.sqrt(2 * p / 3)
    timeout = 12 * math.sqrt(3 * p / 8) * p * (1 + 32 * p**2)
    return 1 / (rtt_s * (once + timeout))


def loss_rate_at(datagrams_s: float, rtt_s: float) -> float:
    """The rate of loss events at which TCP has this rate: the inverse of `tcp_datagrams_s`."""
    low, high = 1e-9, 1.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (
            (middle, high) if tcp_datagrams_s(middle, rtt_s) > datagrams_s else (low, middle)
        )
    return high


class FairRate:
    """TCP's rate on the path to one receiver, by its reports."""

    def __init__(self) -> None:
        #: The round-trip time with the queue.
        self._rtt_s: float | None = None
        #: Round-trip times without the queue, of the last reports.
        self._delays_s: deque[float] = deque(maxlen=_TUNING.fastest_of)
        self._queue_s = 0.0
        #: Loss shares of reports without a queue, newest last.
        self._usual: deque[float] = deque(maxlen=_TUNING.most_reports)
        #: The number of last reports in a row with a queue.
        self._standing = 0
        self._intervals: deque[float] = deque(maxlen=len(_TUNING.weights))
        #: Datagrams and seconds since the last loss event.
        self._since = self._since_s = 0.0

    @property
    def datagrams_s(self) -> float:
        """TCP's rate; inf before the first loss event."""
        if not self._intervals or self._rtt_s is None:
            return math.inf
        open_too = _mean([self._since, *self._intervals])
        return tcp_datagrams_s(1 / max(1.0, _mean(self._intervals), open_too), self._rtt_s)

    def report(
        self, sent: int, lost: int, seconds: float, queue_ms: int, rtt_s: float | None
    ) -> None:
        """Add a report: `lost` of the `sent` datagrams were lost in this time.

        `queue_ms` is the queueing delay. `rtt_s` is the age of the newest datagram that the
        receiver saw, waits in hosts included.
        """
        queue_s = queue_ms / 1000
        if rtt_s is not None:
            known = self._queue_s if self._delays_s else queue_s
            self._queue_s = known + _TUNING.new_queue * (queue_s - known)
            self._delays_s.append(rtt_s - queue_s)
            self._rtt_s = max(_TUNING.least_rtt_s, min(self._delays_s) + self._queue_s)
        self._since_s += seconds
        lost = self._lost_in_queue(sent, lost, queue_ms)
        if self._rtt_s is None or not lost or seconds <= 0:
            self._since += sent
            return
        if not self._intervals:
            # The first interval: as if TCP had received half of the goodput (RFC 5348, 6.3.1).
            goodput_s = (sent - lost) / seconds
            self._intervals.append(1 / loss_rate_at(max(1.0, goodput_s / 2), self._rtt_s))
            self._since = self._since_s = 0.0
            return
        self._since += sent
        apart_s = _TUNING.event_rtts * self._rtt_s
        if self._since_s >= apart_s:
            in_time = seconds / (_TUNING.usual_gap * apart_s)
            events = max(1, int(min(lost / _TUNING.event_losses, in_time)))
            self._intervals.extendleft([self._since / events] * events)
            self._since = self._since_s = 0.0

    def _lost_in_queue(self, sent: int, lost: int, queue_ms: int) -> int:
        """The part of `lost` that was lost in a queue: all or none."""
        if queue_ms < _TUNING.queue_ms:
            self._usual.append(lost / sent)
            self._standing = 0
            return 0
        self._standing += 1
        if self._standing < _TUNING.standing_reports and not self._intervals:
            # A busy host sees a queue once; a standing queue is seen again.
            return 0
        if len(self._usual) < _TUNING.least_reports:
            return lost
        usual = statistics.median_low(self._usual) * sent
        if self._standing >= _TUNING.standing_reports:
            # Under a standing queue the known loss without a queue becomes invalid.
            self._usual.popleft()
        return lost if lost > usual + _TUNING.deviations * math.sqrt(usual) else 0


def _mean(intervals: Iterable[float]) -> float:
    pairs = list(zip(intervals, _TUNING.weights, strict=False))
    return sum(size * weight for size, weight in pairs) / sum(weight for _, weight in pairs)
