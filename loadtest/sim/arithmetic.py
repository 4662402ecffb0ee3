"""Means and quantiles of columns of figures; nan stands for "there is none"."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """nan of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def quantile(ordered: Sequence[float], q: float) -> float:
    """Interpolated linearly between ascending values; nan of nothing."""
    if not ordered:
        return math.nan
    below, part = divmod((len(ordered) - 1) * q, 1.0)
    low = ordered[int(below)]
    return low + part * (ordered[int(below) + 1] - low) if part else low
