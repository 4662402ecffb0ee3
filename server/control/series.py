"""The series that are recorded: what the history keeps and the charts show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .vitals import Vitals

#: What is recorded (docs/admin.md says what each is), and what of it is growth per second.
SERIES = (
    *("small_active", "large_active", "paused", "waiting", "ready", "held", "connections"),
    *("goodput_bytes_s", "offers", "admitted", "completed", "refused", "errors", "last_wait_s"),
    *("last_wait_p90_s", "eta_within_p90", "eta_median_error", "multicast_receivers"),
)
#: The last one is what previews replay small files by.
RECORDED = (*SERIES, "admitted_small")
_RATES = frozenset({"offers", "admitted", "completed", "refused", "errors", "admitted_small"})


@dataclass(frozen=True, slots=True)
class Series:
    """Series on one time axis; a missing value is None."""

    t: tuple[float, ...]
    series: Mapping[str, tuple[float | None, ...]]


class Sampler:
    """Looks at the server's figures; counters become growth per second from the second look on."""

    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals
        self._last: tuple[float, Mapping[str, Any]] | None = None

    def look(self, at_s: float) -> dict[str, float]:
        """Every series that has a value now."""
        figures, last = self._vitals.figures(), self._last
        self._last = at_s, figures
        found = {name: figures[name] for name in RECORDED if name not in _RATES}
        if last is not None and at_s > last[0]:
            for name in _RATES:
                grown = figures[f"{name}_total"] - last[1][f"{name}_total"]
                # A counter that fell has begun anew.
                found[name] = max(0, grown) / (at_s - last[0])
        return {n: float(v) for n, v in found.items() if v is not None and math.isfinite(v)}

    def grown(self, name: str) -> int:
        """By how much a counter has grown since the last look."""
        if self._last is None:
            return 0
        total = f"{name}_total"
        return int(max(0, self._vitals.figures()[total] - self._last[1][total]))
