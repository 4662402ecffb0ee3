"""What slots that strangers were given lately came to: how far the next of them count.

Use it or lose it takes a slot back after some seconds, so a botnet of idle readers, each from a
network of its own, holds all slots for as many times these seconds as it has networks for each
slot. Nothing tells its members from honest newcomers before they start. So the downloads of
strangers that have not shown yet whether they use their slot are *on trial*, and count only as far
as those before them did: where nine of ten lately used nothing, ten on trial count as one. The more
idlers there are, the more of them are tried at once, and the sooner all are known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstUseTuning:
    """How the latest strangers tell of the next ones."""

    #: Half of what is remembered is forgotten in this time, seconds.
    half_s: float = 20.0
    #: Clients that are imagined to have used their slot: one idler changes nothing.
    prior: float = 1.0
    #: One on trial counts as this part of a slot at least.
    least: float = 1.0 / 32.0


FIRST_USE = FirstUseTuning()


class FirstUses:
    """How many of the strangers' slots were used lately."""

    def __init__(self) -> None:
        self._used = self._wasted = 0.0
        self._noted_s = 0.0

    def note(self, now: float, *, used: bool) -> None:
        """A stranger has shown whether its slot is used."""
        fading = self._fading(now)
        self._used = self._used * fading + used
        self._wasted = self._wasted * fading + (not used)
        self._noted_s = now

    def doubted(self, on_trial: int, now: float) -> int:
        """How many of the slots on trial are taken not to be used."""
        wasted = self._wasted * self._fading(now)
        if wasted < 1.0:
            return 0
        used = self._used * self._fading(now) + FIRST_USE.prior
        counts = max(FIRST_USE.least, used / (used + wasted))
        return on_trial - math.ceil(on_trial * counts - 0.5)

    def _fading(self, now: float) -> float:
        return math.exp2(-max(0.0, now - self._noted_s) / FIRST_USE.half_s)
