"""Estimates the share of a session's rate that one receiver can receive, by its reports. Pure.

- Loss alone is not congestion: a radio link loses at any rate.
- After loss together with a queue on the path the receiver wishes for its goodput. If the session
  follows and the loss falls, the wish stays, and rises slowly while there is no congestion. If the
  loss does not fall, the wish is undone, and that much loss is ignored from then on.
- A receiver that reads too slowly reports its lag before its buffer overflows.
- With loss and a queue, TCP's rate on that path (`FairRate`) is the ceiling.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ...protocol.session import ReceiverReport


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
    """TCP's rate on the path to one receiver, by its reports: the ceiling of a session's rate.

    TCP's throughput equation with the mean interval between loss events and the round-trip time
    (RFC 5348, 3.1 and 5.4; for multicast RFC 4654). A loss event is a round trip with a queue on
    the path in which more is lost than without a queue: loss without a queue is a radio's.
    """

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


@dataclass(frozen=True, slots=True)
class RateSettings:
    """The tuning of `RateWish`. Shares are of the configured rate.

    - `floor_share`: a receiver that can receive less is sent to unicast.
    - `congested_loss`, `congested_queue_ms`: a report with both is a sign of congestion.
    - `judged_datagrams`: the least number over which a loss is judged.
    - `better_share`: a step down helped if at most this share of the loss is left.
    - `slow_lag_ms`: the longest lag in a receiver's own buffer, unless that holds twice as much.
    - `slow_loss`: the highest share of datagrams lost in that buffer.
    - `lag_floor_share`: the lowest wish because of lag without loss.
    - `slow_share`: the factor of one step for a slow reader.
    - `faster_every_s`, `step_every_s`, `recover_share`: the pace at which wishes change.
    - `quiet_s`: a receiver without a report for this time misses nothing.
    - `datagram_bytes`: what TCP's rate in datagrams is taken to carry.
    - `alike`: paths whose fair rates differ by at most this factor count as equally congested: the
      estimates are of few losses.
    """

    floor_share: float = 0.25
    congested_loss: float = 0.05
    congested_queue_ms: int = 35
    judged_datagrams: int = 200
    better_share: float = 0.6
    slow_lag_ms: int = 500
    lag_floor_share: float = 0.5
    slow_loss: float = 0.01
    slow_share: float = 0.8
    faster_every_s: float = 0.2
    step_every_s: float = 0.5
    recover_share: float = 0.05
    quiet_s: float = 1.0
    datagram_bytes: int = 1500
    alike: float = 1.5


TUNING = RateSettings()


@dataclass(frozen=True, slots=True)
class _StepDown:
    """A lowered wish, and the loss that it should reduce."""

    loss: float
    share_before: float


class RateWish:
    """The wish of one receiver, as a share of the configured rate; 1: all of it."""

    def __init__(self, declared_bytes_s: float = float("inf")) -> None:
        #: The highest rate that the receiver declared in its request.
        self.declared_bytes_s = declared_bytes_s
        #: TCP's rate on the path to it.
        self._fair = FairRate()
        #: What its path can carry.
        self._share = 1.0
        self._changed_at = float("-inf")
        self._trial: _StepDown | None = None
        #: Whether its last report was a sign of congestion.
        self._is_congested = False
        #: Datagrams sent, received and lost in its own buffer at the last judged report.
        self._counts = (0, 0, 0)
        #: The time of its last report, and the session's share of the rate then.
        self._reported_at: float | None = None
        self._session_share = 0.0
        #: The loss that a lower rate did not reduce.
        self._constant_loss: float | None = None
        #: What its program can read, and whether it reads too slowly now.
        self._readable = 1.0
        self._readable_at = float("-inf")
        self._lag_ms = 0
        self._is_slow = False
        #: The share lost in its own buffer at its last report.
        self._lost_there = 0.0

    @property
    def is_less(self) -> bool:
        """Whether its wish was lowered, and may rise again."""
        return self._share < 1.0 or self._readable < 1.0

    def share(self, configured_bytes_s: float) -> float:
        """The share of the configured rate that it can receive."""
        declared = self.declared_bytes_s / configured_bytes_s
        return max(TUNING.floor_share, min(self._share * self._readable, declared))

    def fair_share(self, configured_bytes_s: float) -> float:
        """The share of the configured rate that TCP would get on its path; 1 at most."""
        fair = self._fair.datagrams_s * TUNING.datagram_bytes / configured_bytes_s
        return max(TUNING.floor_share, min(1.0, fair))

    def bearable_share(self, configured_bytes_s: float) -> float:
        """The highest share that harms neither it, nor its line, nor the other members.

        It is looser than `share`: fair rates are estimates, and lag alone loses nothing.
        """
        congested = self._share if self._is_congested else 1.0
        read = self._session_share * (1 - self._lost_there) if self._lost_there else 1.0
        declared = self.declared_bytes_s / configured_bytes_s
        return min(congested, read, declared, TUNING.alike * self.fair_share(configured_bytes_s))

    def report(
        self, report: ReceiverReport, now: float, session_share: float, rtt_s: float | None = None
    ) -> None:
        """Add a report.

        `session_share` is the session's present share of the configured rate. `rtt_s` is the age of
        the last datagram that the receiver saw; None if it is not known.
        """
        before = self._counts
        sent = report.expected - before[0]
        if sent < TUNING.judged_datagrams:
            return
        self._counts = (report.expected, report.received, report.overruns)
        lost_there = self._lost_there = max(0, report.overruns - before[2]) / sent
        loss = max(0.0, 1 - (report.received - before[1]) / sent)
        self._follow_reader(report, lost_there, now)
        seconds = now - self._reported_at if self._reported_at is not None else 0.0
        # If it was outvoted, the session sent more than it wished for.
        sent_share = max(self._share, session_share, self._session_share)
        self._reported_at, self._session_share = now, session_share
        # Loss in its own buffer, or at any rate, is not congestion.
        excused = lost_there or self._is_constant(loss)
        self._fair.report(
            sent, 0 if excused else round(loss * sent), seconds, report.queue_ms, rtt_s
        )
        self._is_congested = self._shows_congestion(loss, report.queue_ms)
        if now - self._changed_at < TUNING.step_every_s or lost_there >= TUNING.slow_loss:
            return
        trial = self._trial
        # A session has followed a wish when its rate is at most this factor above it.
        if trial is not None and session_share <= 1.05 * self._share:
            self._judge(trial, loss, now)
        elif self._is_congested:
            share = max(TUNING.floor_share, sent_share * max(0.5, 1 - loss))
            if trial is not None or share < self._share:
                self._trial = trial or _StepDown(loss, self._share)
                self._change(share, now)
        else:
            self._trial = None
            self._rise(now)

    def others_reported(self, now: float) -> None:
        """Raise the wish of a receiver that had nothing to report for `quiet_s`."""
        if self._reported_at is not None and now - self._reported_at >= TUNING.quiet_s:
            self._trial = None
            self._rise(now)
            self._read_faster(now)

    def _rise(self, now: float) -> None:
        if self._share < 1.0 and now - self._changed_at >= TUNING.step_every_s:
            self._change(min(1.0, self._share + TUNING.recover_share), now)

    def _follow_reader(self, report: ReceiverReport, lost_there: float, now: float) -> None:
        """Lower the wish while its lag grows, and raise it afterwards."""
        catching_up = report.lag_ms < 0.9 * self._lag_ms
        self._lag_ms = report.lag_ms
        # A lower rate does not help a busy host; it only keeps its buffer from overflowing.
        most_lag_ms = max(TUNING.slow_lag_ms, report.room_ms // 2)
        if lost_there >= TUNING.slow_loss or report.lag_ms >= most_lag_ms:
            self._is_slow = True
            is_due = now - self._readable_at >= TUNING.step_every_s
            if is_due and (lost_there or not catching_up):
                share = self._readable * max(0.5, TUNING.slow_share - lost_there)
                # Lag alone may come from other work on that host, which a lower rate cannot help.
                floor = TUNING.floor_share if lost_there else TUNING.lag_floor_share
                self._readable, self._readable_at = max(floor, share), now
            return
        if report.lag_ms < most_lag_ms / 2:
            self._is_slow = False
        self._read_faster(now)

    def _read_faster(self, now: float) -> None:
        is_due = now - self._readable_at >= TUNING.faster_every_s
        if self._readable < 1.0 and not self._is_slow and is_due:
            self._readable, self._readable_at = min(1.0, self._readable / TUNING.slow_share), now

    def _shows_congestion(self, loss: float, queue_ms: int) -> bool:
        known = 1.5 * (self._constant_loss or 0.0)
        return loss >= max(TUNING.congested_loss, known) and (queue_ms >= TUNING.congested_queue_ms)

    def _is_constant(self, loss: float) -> bool:
        """Whether the loss is at most what a lower rate did not reduce.

        A radio's loss is steady. If another download caused the loss, it soon falls far below the
        known value, which is lowered with it.
        """
        known = self._constant_loss
        if known is None or loss > 1.5 * known:
            return False
        self._constant_loss = known + (0.2 if loss < known else 0.1) * (loss - known)
        return True

    def _judge(self, trial: _StepDown, loss: float, now: float) -> None:
        self._trial = None
        if loss > TUNING.better_share * trial.loss:
            self._constant_loss = max(loss, trial.loss)
            self._change(trial.share_before, now)

    def _change(self, share: float, now: float) -> None:
        self._share = share
        self._changed_at = now
