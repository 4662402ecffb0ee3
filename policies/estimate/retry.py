"""What a waiting client is told about its return.

Coming back before that return gains nothing: the answer is the same, later each time, and the next
return is later. While many newcomers never return, they are asked to show themselves soon.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from ..contract import Wait
from ..settings import PolicySettings


@dataclass(frozen=True, slots=True)
class RetryTuning:
    """When clients are told to return, and how long answers to early visits are kept back."""

    #: Clients are told to return after this part of the expected wait. One that comes too early is
    #: told again. One that comes too late leaves a slot empty. With 0.8 and 0.9 (simulated, 30+6,
    #: 20 seeds) the mean session on a release day of Pareto sizes is 11.7 and 12.2 s, the median
    #: error of told times 17 and 11 %.
    early: float = 0.9
    #: Polite clients may be late by this part of a ready ticket's time to live: they add a little
    #: to their return, so that they do not come all at once. The second bound is in seconds.
    unpunctual: float = 0.12
    most_unpunctual_s: float = 6.0
    #: While many new clients never return, they are told to come within this part of the longest
    #: time.
    check_in: float = 0.2
    #: The answer to an early visit is kept back longer each time, at most this many times the
    #: first, and no longer than most clients wait for an answer, seconds.
    slowest: int = 5
    slowest_s: float = 25.0


RETRY = RetryTuning()


def longest_return_s(settings: PolicySettings) -> float:
    """The longest return that a client without early visits is told."""
    if settings.come_back_s is not None:
        return max(1.0, math.ceil(settings.come_back_s))
    return max(1.0, math.ceil(settings.retry_max_s * (1.0 + settings.retry_jitter)))


class RetryAdvice:
    """Come-back times by the settings, with jitter."""

    def __init__(self, settings: PolicySettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng

    def retry_s(self, slot_s: float, check_in: bool) -> float:
        """In whole seconds, as it is told (RFC 9110, 10.2.3): an earlier visit gains nothing.

        `slot_s` is when a slot is likely to be there; `check_in` asks for an early first return.
        """
        settings = self._settings
        if settings.come_back_s is not None:
            return float(max(1, math.ceil(settings.come_back_s)))
        early = RETRY.early * slot_s
        if check_in:
            early = min(early, RETRY.check_in * settings.retry_max_s)
        retry = min(settings.retry_max_s, max(settings.retry_min_s, early))
        return float(max(1, math.ceil(retry * (1.0 + settings.retry_jitter * self._rng.random()))))

    def penalty_s(self, early_visits: int) -> float:
        """What the early visits of a ticket add to its next promised return."""
        settings = self._settings
        extra = max(0, early_visits - settings.early_polls_free)
        return float(min(settings.early_penalty_max_s, extra * settings.early_penalty_s))

    def slowly(self, wait: Wait, times: int) -> Wait:
        """Keep the answer back, longer each time; never beyond the return that it tells."""
        slowly_s = self._settings.early_answer_s * min(times, RETRY.slowest)
        slowly_s = min(slowly_s, RETRY.slowest_s, wait.retry_after_s)
        if slowly_s <= 0.0:
            return wait
        return replace(wait, answer_after_s=slowly_s)

    def unpunctual_s(self) -> float:
        """How late a polite client may be."""
        return min(RETRY.most_unpunctual_s, RETRY.unpunctual * self._settings.ticket_ttl_s)
