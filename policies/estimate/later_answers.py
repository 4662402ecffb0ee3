"""A later answer: the first one and a new forecast, each as sure as it is.

A forecast moves with each client that comes. The first answer counts beside it until the forecast
is the surer one, or the time has passed that was told.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from ..contract import Estimate
from .calibrator import DEVIATIONS, FLOOR


def later_answer(first: Estimate, passed_s: float, forecast: Estimate) -> Estimate:
    """Both weighted by the inverse square of how unsure they are.

    `first` was told `passed_s` ago; without a bound above 0 it does not count.
    """
    if first.p90_s <= 0.0:
        return forecast
    left = _left(first, passed_s)
    was_unsure_s = left.p90_s - left.expected_s
    is_unsure_s = max(1e-3, forecast.p90_s - forecast.expected_s)
    part = was_unsure_s**2 / (was_unsure_s**2 + is_unsure_s**2)
    expected_s = left.expected_s + part * (forecast.expected_s - left.expected_s)
    bound_s = expected_s + min(was_unsure_s, is_unsure_s)
    # However much time has passed in vain.
    most_s = max(first.p90_s, forecast.p90_s)
    return Estimate(min(expected_s, most_s), min(bound_s, most_s))


def _left(first: Estimate, passed_s: float) -> Estimate:
    """What the first answer says after `passed_s` in vain: its times are taken as log-normal."""
    middle, normal = math.log(first.expected_s), NormalDist()
    deviation = max(FLOOR, math.log(first.p90_s) - middle) / DEVIATIONS
    later = normal.cdf((middle - math.log(max(1e-3, passed_s))) / deviation)

    def left_s(part: float) -> float:
        beyond = normal.inv_cdf(max(1e-12, part * later))
        return max(0.0, math.exp(middle - beyond * deviation) - passed_s)

    return Estimate(left_s(0.5), left_s(normal.cdf(-DEVIATIONS)))
