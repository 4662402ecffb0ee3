"""Told ends: when the last byte arrives, its 90 % bound, and how honest both have been.

The policy forecasts an end from the schedule that decides (`Policy.ticket_end`,
`Policy.lease_end`). What forecasts turned out to be corrects the next ones, and what told ends
were missed by makes the bound, as for told starts (`calibrator`).
"""

from __future__ import annotations

from typing import NamedTuple

from ..contract import Estimate
from .calibrator import DEVIATIONS, Calibrator, WaitBounds
from .judged import Judged

#: How much later than told (logarithm, by order) nearly all ends are at least.
_LATER = (0.05,) * 5
#: An end is told as no sooner than this, seconds.
_SOONEST_S = 0.25


class EndForecast(NamedTuple):
    """When a last byte arrives, seconds from now, before calibration.

    `unsure` is its standard deviation as a part of it, while nothing was learnt.
    """

    end_s: float
    unsure: float
    #: How long after its start the end is at least, after calibration.
    own_s: float = 0.0
    #: The bound is no sooner: when it ends if its client is a slow one.
    slow_s: float = 0.0

    def after(self, start: Estimate) -> EndForecast:
        """The same of a download that is told this start.

        Its bound is beyond that of the start: all that come before it may be slower than usual.
        """
        end_s = start.expected_s + self.end_s
        late = (start.p90_s - start.expected_s) / DEVIATIONS / end_s
        return EndForecast(end_s, late + self.unsure, self.end_s)


class Unsure(NamedTuple):
    """How unsure a start or end is by what comes before it: of many downloads, each weighs little.

    In the cells of `bench.policies.cells` without an attacker 87 to 100 % of the ends are within
    their bounds, which are 1.4 to 3.8 times the told time in the median.
    """

    #: With as many downloads of its size before it or fewer; what it never falls below.
    until: float
    few: float
    always: float

    def of(self, own_part: float) -> float:
        """`own_part` of all bytes up to its end are its own."""
        return self.always + self.few * min(1.0, self.until * own_part)


#: While shorter ones that come overtake.
OVERTAKEN = Unsure(15.0, 1.6, 0.1)
#: While none does.
IN_TURN = Unsure(12.0, 0.8, 0.15)


def unsure_of(stretched: float, through: int, wanted: int) -> float:
    """Of a time after which the line has carried `through` bytes, `wanted` of which are its own.

    With those that overtake it will have carried `stretched`.
    """
    return (OVERTAKEN if stretched > through else IN_TURN).of(wanted / max(1, through))


class ToldEnds:
    """Learns from each download that was told its end."""

    __slots__ = ("_away", "_here", "_small", "judged")

    def __init__(self) -> None:
        # Small jobs last for a moment; clients that are away start when they come back.
        self._small = Calibrator(), WaitBounds(_LATER)
        self._here = Calibrator(), WaitBounds(_LATER)
        self._away = Calibrator(), WaitBounds(_LATER)
        self.judged = Judged()

    def _of(self, small: bool, away: bool) -> tuple[Calibrator, WaitBounds]:
        return self._small if small else self._away if away else self._here

    def estimate(self, raw: EndForecast, *, small: bool, away: bool) -> Estimate:
        """What is told of an end that the schedule forecasts."""
        calibrator, bounds = self._of(small, away)
        base_s = max(raw.end_s, _SOONEST_S)
        told_s = base_s * calibrator.centre(base_s)
        return Estimate(told_s, max(raw.slow_s, told_s * bounds.beyond(told_s, raw.unsure)))

    def ended(
        self,
        raw_s: float,
        told: Estimate,
        took_s: float,
        as_told_s: float,
        now: float,
        *,
        small: bool,
        away: bool,
    ) -> None:
        """A download is whole `took_s` after its end was told first."""
        calibrator, bounds = self._of(small, away)
        self._judge(bounds, told, took_s <= told.p90_s, now)
        self.judged.error(told.expected_s, took_s)
        bounds.learn(told.expected_s, took_s, now)
        calibrator.learn(max(raw_s, _SOONEST_S), as_told_s, now)

    def broken(self, told: Estimate, now: float, *, small: bool, away: bool) -> None:
        """A download is over without its last byte, later than its bound."""
        self._judge(self._of(small, away)[1], told, False, now)

    def _judge(self, bounds: WaitBounds, told: Estimate, kept: bool, now: float) -> None:
        self.judged.bound(kept=kept)
        bounds.held(kept, told.expected_s, now)
