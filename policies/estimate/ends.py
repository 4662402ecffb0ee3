"""Told ends: when the last byte arrives, its 90 % bound, and how honest both have been.

The policy forecasts an end from the schedule that decides (`Policy.ticket_end_s`,
`Policy.lease_end_s`). What forecasts turned out to be corrects the next ones, and what told ends
were missed by makes the bound, as for told starts (`calibrator`).
"""

from __future__ import annotations

from ..contract import Estimate
from .calibrator import Calibrator, WaitBounds
from .judged import Judged

#: How much later than told (logarithm, by order) nearly all ends are before any was seen, of
#: clients that wait here: a rush that has just begun goes on for an unknown time. With half
#: of it 67 to 88 % of ends come within their bound in the cells of `bench.policies.cells`.
_HERE = (1.0, 0.9, 0.8, 0.7, 0.6)
#: The same of clients that come back: their turn may pass while they are away.
_AWAY = (1.2, 1.1, 1.0, 0.9, 0.8)
#: An end is told as no sooner than this, seconds.
_SOONEST_S = 0.25


class ToldEnds:
    """Learns from each download that was told its end."""

    __slots__ = ("_away", "_here", "_small", "judged")

    def __init__(self) -> None:
        # Small jobs last for a moment; clients that are away start when they come back.
        self._small = Calibrator(), WaitBounds(_HERE)
        self._here = Calibrator(), WaitBounds(_HERE)
        self._away = Calibrator(), WaitBounds(_AWAY)
        self.judged = Judged()

    def _of(self, small: bool, away: bool) -> tuple[Calibrator, WaitBounds]:
        return self._small if small else self._away if away else self._here

    def state(self, raw_s: float, *, small: bool, away: bool) -> Estimate:
        """What is told of an end that the schedule puts `raw_s` ahead."""
        calibrator, bounds = self._of(small, away)
        base_s = max(raw_s, _SOONEST_S)
        told_s = base_s * calibrator.centre(base_s)
        return Estimate(told_s, told_s * bounds.beyond(told_s))

    def ended(
        self, raw_s: float, told: Estimate, took_s: float, now: float, *, small: bool, away: bool
    ) -> None:
        """A download is whole `took_s` after its end was told first."""
        calibrator, bounds = self._of(small, away)
        self._judge(bounds, told, took_s <= told.p90_s, now)
        self.judged.error(told.expected_s, took_s)
        bounds.learn(told.expected_s, took_s, now)
        calibrator.learn(max(raw_s, _SOONEST_S), took_s)

    def broken(self, told: Estimate, now: float, *, small: bool, away: bool) -> None:
        """A download is over without its last byte, later than its bound."""
        self._judge(self._of(small, away)[1], told, False, now)

    def _judge(self, bounds: WaitBounds, told: Estimate, kept: bool, now: float) -> None:
        self.judged.bound(kept=kept)
        bounds.held(kept, told.expected_s, now)
