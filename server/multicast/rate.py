"""How fast a session may send: the configured rate, bent to its worst acceptable receiver. Pure.

Loss alone says nothing (a radio link loses at any rate); loss together with a growing one-way
delay says that a queue on the way is full. Then the session goes down to what that receiver gets
through, never below the floor; without such reports it comes back, slowly. Receivers that cannot
even take the floor are for unicast.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RateSettings:
    """`floor_share`: of the configured rate; below it a receiver is told to use unicast."""

    floor_share: float = 0.25
    congested_loss: float = 0.05
    congested_queue_ms: int = 20
    step_every_s: float = 0.5
    recover_share: float = 0.05


class RateControl:
    """The rate of one session in bytes per second."""

    def __init__(self, configured_bytes_s: float, settings: RateSettings | None = None) -> None:
        self._settings = settings or RateSettings()
        self._configured = configured_bytes_s
        self._share = 1.0
        self._changed_at = float("-inf")

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
        wanted = min(self._configured * self._share, slowest_declared_bytes_s)
        return max(wanted, self.floor_bytes_s)

    def report(self, loss: float, queue_ms: int, now: float) -> None:
        """A receiver tells how it fares."""
        settings = self._settings
        if now - self._changed_at < settings.step_every_s:
            return
        if loss >= settings.congested_loss and queue_ms >= settings.congested_queue_ms:
            self._share = max(settings.floor_share, self._share * max(0.5, 1 - loss))
        elif self._share < 1.0:
            self._share = min(1.0, self._share + settings.recover_share)
        else:
            return
        self._changed_at = now
