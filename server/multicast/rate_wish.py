"""What one receiver can take of a session's rate, by its reports. Pure.

Loss alone says nothing (a radio link loses at any rate). Loss together with a queue on the way says
that the line may be too slow: then the receiver wishes for what it gets through. If the session
follows and the loss falls, the wish stays, and rises slowly once there are no complaints. If the
loss does not fall, it has other causes: the wish is undone, and such loss counts no more. A
receiver that does not read as fast as the session sends says so itself, before its buffer
overflows. Where loss and a queue come together, what TCP would get there
(`server.multicast.fair_rate`) is the ceiling.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.session_report import ReceiverReport
from .fair_rate import ALIKE, FairRate

#: A session whose rate is this close to a wish has followed it.
_FOLLOWED = 1.05


@dataclass(frozen=True, slots=True)
class RateSettings:
    """`floor_share`: of the configured rate; below it a receiver is told to use unicast.

    A loss is judged over at least `judged_datagrams`; `better_share` of the loss before must be
    left at most for a step down to have helped. `slow_lag_ms` is how long datagrams may wait in a
    receiver's own buffer, where that does not hold twice as much; `slow_loss` the share of them
    that may be lost there. A receiver that says nothing for `quiet_s` misses nothing.
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


@dataclass(frozen=True, slots=True)
class _StepDown:
    """A wish for less, and the loss that it should help."""

    loss: float
    share_before: float


class RateWish:
    """Of one receiver, as shares of the configured rate; 1: all of it."""

    def __init__(
        self,
        settings: RateSettings,
        datagram_bytes: int = 1500,
        declared_bytes_s: float = float("inf"),
    ) -> None:
        self._settings = settings
        self._datagram_bytes = datagram_bytes
        #: The most that the receiver said it can take.
        self.declared_bytes_s = declared_bytes_s
        #: What TCP would get on the way to it.
        self._fair = FairRate()
        #: What it gets through.
        self._share = 1.0
        self._changed_at = float("-inf")
        self._trial: _StepDown | None = None
        #: Whether its last report complained of loss and a queue.
        self._is_congested = False
        #: What had been sent, received and lost in its own buffer at the last judged report.
        self._counts = (0, 0, 0)
        #: When it last told, and the session's share of the rate then.
        self._told_at: float | None = None
        self._session_share = 0.0
        #: The loss that a slower rate did not help.
        self._hopeless: float | None = None
        #: What it can read, and whether it reads too slowly now.
        self._readable = 1.0
        self._readable_at = float("-inf")
        self._lag_ms = 0
        self._is_slow = False
        #: The share that it lost in its own buffer by its last report.
        self._lost_there = 0.0

    @property
    def is_less(self) -> bool:
        """Whether it has reported that it can take less; that may rise again."""
        return self._share < 1.0 or self._readable < 1.0

    def share(self, configured_bytes_s: float) -> float:
        """The share of the configured rate that it can take."""
        declared = self.declared_bytes_s / configured_bytes_s
        return max(self._settings.floor_share, min(self._share * self._readable, declared))

    def fair_share(self, configured_bytes_s: float) -> float:
        """The share of the configured rate that TCP would get on the way to it; 1 at most."""
        fair = self._fair.datagrams_s * self._datagram_bytes / configured_bytes_s
        return max(self._settings.floor_share, min(1.0, fair))

    def bearable_share(self, configured_bytes_s: float) -> float:
        """The most that it can be sent without harm to it, to its line or to the other members.

        Fair rates are guesses, a lag alone loses nothing, and what it lost before is over.
        """
        congested = self._share if self._is_congested else 1.0
        read = self._session_share * (1 - self._lost_there) if self._lost_there else 1.0
        declared = self.declared_bytes_s / configured_bytes_s
        return min(congested, read, declared, ALIKE * self.fair_share(configured_bytes_s))

    def report(
        self, report: ReceiverReport, now: float, session_share: float, rtt_s: float | None = None
    ) -> None:
        """It tells how many datagrams there were so far, and how many it got.

        `session_share` is the session's share of the configured rate, `rtt_s` how long ago the last
        datagram that the receiver saw was sent; None if nobody knows.
        """
        settings, before = self._settings, self._counts
        sent = report.expected - before[0]
        if sent < settings.judged_datagrams:
            return
        self._counts = (report.expected, report.received, report.overruns)
        lost_there = self._lost_there = max(0, report.overruns - before[2]) / sent
        loss = max(0.0, 1 - (report.received - before[1]) / sent)
        self._follow_reader(report, lost_there, now)
        seconds = now - self._told_at if self._told_at is not None else 0.0
        # Outvoted, it was sent more than it wished for: at the rate of its last report, or of now.
        sent_share = max(self._share, session_share, self._session_share)
        self._told_at, self._session_share = now, session_share
        # What it loses at any rate, or by its own fault, is no congestion.
        excused = lost_there or self._lost_anyway(loss)
        self._fair.report(
            sent, 0 if excused else round(loss * sent), seconds, report.queue_ms, rtt_s
        )
        self._is_congested = self._complains(loss, report.queue_ms)
        if now - self._changed_at < settings.step_every_s or lost_there >= settings.slow_loss:
            return
        trial = self._trial
        if trial is not None and session_share <= _FOLLOWED * self._share:
            self._judge(trial, loss, now)
        elif self._is_congested:
            share = max(settings.floor_share, sent_share * max(0.5, 1 - loss))
            if trial is not None or share < self._share:
                self._trial = trial or _StepDown(loss, self._share)
                self._change(share, now)
        else:
            self._trial = None
            self._rise(now)

    def others_reported(self, now: float) -> None:
        """Others told something. A receiver that misses nothing seldom does, so it wants more."""
        if self._told_at is not None and now - self._told_at >= self._settings.quiet_s:
            self._trial = None
            self._rise(now)
            self._read_faster(now)

    def _rise(self, now: float) -> None:
        if self._share < 1.0 and now - self._changed_at >= self._settings.step_every_s:
            self._change(min(1.0, self._share + self._settings.recover_share), now)

    def _follow_reader(self, report: ReceiverReport, lost_there: float, now: float) -> None:
        """Wish for less while it falls behind, and for more as soon as it does not."""
        settings = self._settings
        catching_up = report.lag_ms < 0.9 * self._lag_ms
        self._lag_ms = report.lag_ms
        # A slower rate takes no work off a busy host: it only keeps its buffer from filling.
        most_lag_ms = max(settings.slow_lag_ms, report.room_ms // 2)
        if lost_there >= settings.slow_loss or report.lag_ms >= most_lag_ms:
            self._is_slow = True
            is_due = now - self._readable_at >= settings.step_every_s
            if is_due and (lost_there or not catching_up):
                share = self._readable * max(0.5, settings.slow_share - lost_there)
                # Lag alone may come from other work on that host, which a slower rate cannot help.
                floor = settings.floor_share if lost_there else settings.lag_floor_share
                self._readable, self._readable_at = max(floor, share), now
            return
        if report.lag_ms < most_lag_ms / 2:
            self._is_slow = False
        self._read_faster(now)

    def _read_faster(self, now: float) -> None:
        settings = self._settings
        is_due = now - self._readable_at >= settings.faster_every_s
        if self._readable < 1.0 and not self._is_slow and is_due:
            self._readable, self._readable_at = min(1.0, self._readable / settings.slow_share), now

    def _complains(self, loss: float, queue_ms: int) -> bool:
        settings = self._settings
        known = 1.5 * (self._hopeless or 0.0)
        return loss >= max(settings.congested_loss, known) and (
            queue_ms >= settings.congested_queue_ms
        )

    def _lost_anyway(self, loss: float) -> bool:
        """Whether it loses no more than what a slower rate did not help.

        A radio's loss is steady. Where a download on the same line took what the step down left,
        loss soon falls far below what was noted, and the note with it.
        """
        known = self._hopeless
        if known is None or loss > 1.5 * known:
            return False
        self._hopeless = known + (0.2 if loss < known else 0.1) * (loss - known)
        return True

    def _judge(self, trial: _StepDown, loss: float, now: float) -> None:
        self._trial = None
        if loss > self._settings.better_share * trial.loss:
            self._hopeless = max(loss, trial.loss)
            self._change(trial.share_before, now)

    def _change(self, share: float, now: float) -> None:
        self._share = share
        self._changed_at = now
