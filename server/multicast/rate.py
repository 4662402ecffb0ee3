"""How fast a session may send: the configured rate, bent to its worst acceptable receiver. Pure.

Loss alone says nothing (a radio link loses at any rate). Loss together with a queue that stands on
the way says that the line may be too slow for us: then the session goes down to what that receiver
gets through, and looks whether its loss falls. If it does, the lower rate stays (and comes back
slowly once nobody complains); if not, the loss has other causes, the step is undone, and that
receiver's word on it counts no more. A receiver that does not read as fast as we send says so
itself, before its buffer overflows: it is believed. Where loss and a queue come together, what TCP
would get there (`server.multicast.fair_rate`) is the ceiling. Never below the floor: receivers that
cannot even take that are for unicast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...protocol.session_report import ReceiverReport
from .fair_rate import FairRate, ceiling

#: What the files that wait for another one get together, beside the one that is sent.
_TRICKLE = 0.05


def shares(left: Sequence[int]) -> list[float]:
    """How sessions share the rate, by what the first pass of each has left in bytes; 1 in all.

    The one that has least left goes first, and the others trickle: two files at once would both
    end when the second of them does. Those whose first pass is over repair beside it.
    """
    first = min((size, at) for at, size in enumerate(left) if size)[1] if any(left) else -1
    trickle = _TRICKLE / max(1, sum(1 for size in left if size) - 1)
    weights = [1.0 if not size or at == first else trickle for at, size in enumerate(left)]
    return [weight / sum(weights) for weight in weights]


@dataclass(frozen=True, slots=True)
class RateSettings:
    """`floor_share`: of the configured rate; below it a receiver is told to use unicast.

    A loss is judged over at least `judged_datagrams`; `better_share` of the loss before must be
    left at most for a step down to have helped. `slow_lag_ms` is how long datagrams may wait in a
    receiver's own buffer, where that does not hold twice as much; `slow_loss` the share of them
    that may be lost there.
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


@dataclass(frozen=True, slots=True)
class _StepDown:
    """A step down, and for whom."""

    member: str
    loss: float
    share_before: float
    since: float


class RateControl:
    """The rate of one session in bytes per second."""

    def __init__(
        self,
        configured_bytes_s: float,
        settings: RateSettings | None = None,
        datagram_bytes: int = 1500,
    ) -> None:
        self._datagram_bytes = datagram_bytes
        #: What TCP would get on the way to each member, and when it last told.
        self._fair: dict[str, FairRate] = {}
        self._told_at: dict[str, float] = {}
        self._settings = settings or RateSettings()
        self._configured = configured_bytes_s
        self._share = 1.0
        self._changed_at = float("-inf")
        self._trial: _StepDown | None = None
        #: What each member had been sent and had received at its last judged report.
        self._counts: dict[str, tuple[int, int, int]] = {}
        self._lags: dict[str, int] = {}
        #: The share that receivers can read, who cannot read all, and since when it is so.
        self._readable = 1.0
        self._slow: set[str] = set()
        self._readable_at = float("-inf")
        #: Losses that a slower rate did not help.
        self._hopeless: dict[str, float] = {}

    @property
    def floor_bytes_s(self) -> float:
        """The least this session goes down to."""
        return self._configured * self._settings.floor_share

    def configure(self, configured_bytes_s: float) -> None:
        """The share of the line this session may use changed."""
        self._configured = configured_bytes_s

    def acceptable(self, declared_bytes_s: float) -> bool:
        """Whether a receiver of that rate can be in the session at all."""
        return declared_bytes_s >= self.floor_bytes_s

    def rate_bytes_s(self, slowest_declared_bytes_s: float) -> float:
        """What to send at now."""
        wanted = min(self._configured * self._share * self._readable, slowest_declared_bytes_s)
        return max(min(wanted, self.ceiling_bytes_s), self.floor_bytes_s)

    @property
    def ceiling_bytes_s(self) -> float:
        """What TCP would get on the most congested ways to members; inf without congestion."""
        return ceiling(fair.datagrams_s for fair in self._fair.values()) * self._datagram_bytes

    def report(self, report: ReceiverReport, now: float, rtt_s: float | None = None) -> None:
        """A receiver tells how many datagrams there were so far, and how many it got.

        `rtt_s`: how long ago the last one it saw was sent; None if nobody knows.
        """
        settings, member = self._settings, report.member
        before = self._counts.get(member, (0, 0, 0))
        sent = report.expected - before[0]
        if sent < settings.judged_datagrams:
            return
        self._counts[member] = (report.expected, report.received, report.overruns)
        lost_there = max(0, report.overruns - before[2]) / sent
        loss = max(0.0, 1 - (report.received - before[1]) / sent)
        self._follow_reader(report, lost_there, now)
        seconds = now - self._told_at.get(member, now)
        self._told_at[member] = now
        # What it loses at any rate, or by its own fault, is no congestion.
        excused = lost_there or self._lost_anyway(member, loss)
        lost = 0 if excused else round(loss * sent)
        fair = self._fair.setdefault(member, FairRate())
        fair.report(sent, lost, seconds, report.queue_ms, rtt_s)
        if now - self._changed_at < settings.step_every_s or lost_there >= settings.slow_loss:
            return
        if self._trial is not None:
            self._judge(self._trial, member, loss, now)
        elif self._complains(member, loss, report.queue_ms):
            share = max(settings.floor_share, self._share * max(0.5, 1 - loss))
            if share < self._share:
                self._trial = _StepDown(member, loss, self._share, now)
                self._change(share, now)
        elif self._share < 1.0:
            self._change(min(1.0, self._share + settings.recover_share), now)

    def forget(self, member: str) -> None:
        """The receiver is gone."""
        self._counts.pop(member, None)
        self._fair.pop(member, None)
        self._told_at.pop(member, None)
        self._hopeless.pop(member, None)
        self._lags.pop(member, None)
        self._slow.discard(member)
        if self._trial is not None and self._trial.member == member:
            self._trial = None

    def _follow_reader(self, report: ReceiverReport, lost_there: float, now: float) -> None:
        """Slow down for a receiver that falls behind; as soon as nobody does, speed up again."""
        settings, member = self._settings, report.member
        catching_up = report.lag_ms < 0.9 * self._lags.get(member, 0)
        self._lags[member] = report.lag_ms
        since = now - self._readable_at
        # A slower rate takes no work off a busy host: it only keeps its buffer from filling.
        most_lag_ms = max(settings.slow_lag_ms, report.room_ms // 2)
        if lost_there >= settings.slow_loss or report.lag_ms >= most_lag_ms:
            self._slow.add(member)
            if since >= settings.step_every_s and (lost_there or not catching_up):
                share = self._readable * max(0.5, settings.slow_share - lost_there)
                # Lag alone may come from other work on that host, which a slower rate cannot help.
                floor = settings.floor_share if lost_there else settings.lag_floor_share
                self._readable, self._readable_at = max(floor, share), now
            return
        if report.lag_ms < most_lag_ms / 2:
            self._slow.discard(member)
        if self._readable < 1 and not self._slow and since >= settings.faster_every_s:
            share = min(1.0, self._readable / settings.slow_share)
            self._readable, self._readable_at = share, now

    def _complains(self, member: str, loss: float, queue_ms: int) -> bool:
        settings = self._settings
        known = 1.5 * self._hopeless.get(member, 0.0)
        return loss >= max(settings.congested_loss, known) and (
            queue_ms >= settings.congested_queue_ms
        )

    def _lost_anyway(self, member: str, loss: float) -> bool:
        """Whether it loses no more than what a slower rate did not help.

        A radio's loss is steady. Where a download on the same line took what the step down left,
        loss soon falls far below what was noted, and the note with it.
        """
        known = self._hopeless.get(member)
        if known is None:
            return False
        if loss <= 1.5 * known:
            self._hopeless[member] = known + (0.2 if loss < known else 0.1) * (loss - known)
            return True
        return False

    def _judge(self, trial: _StepDown, member: str, loss: float, now: float) -> None:
        if member != trial.member:
            return
        self._trial = None
        if loss > self._settings.better_share * trial.loss:
            self._hopeless[member] = max(loss, trial.loss)
            self._change(trial.share_before, now)

    def _change(self, share: float, now: float) -> None:
        self._share = share
        self._changed_at = now
