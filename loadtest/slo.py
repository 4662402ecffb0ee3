"""Objectives of a load test: `p95_wait_small<2s` read, checked, and put in words. Pure."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..protocol.errors import ProtocolError
from ..protocol.units import parse_duration, parse_size

_RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}


def _bound(text: str) -> float:
    if text.endswith("%"):
        return float(text[:-1]) / 100.0
    return float(parse_size(text)) if text.endswith("B") else parse_duration(text)


@dataclass(frozen=True, slots=True)
class Objective:
    """One figure and the bound that it must keep."""

    text: str
    figure: str
    relation: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Read `figure<bound`; a bound is a number, a duration (`2s`), a size or a percentage.

        Raises ValueError with what is wrong and what would be right.
        """
        match = re.fullmatch(r"\s*([a-z][a-z0-9_]*)\s*(<=|>=|==|<|>)\s*(\S+)\s*", text)
        if match is None:
            raise ValueError(f"{text!r} is no objective; write for example p95_wait_small<2s")
        figure, relation, bound = match.groups()
        try:
            return cls(text.strip(), figure, relation, _bound(bound))
        except (ProtocolError, ValueError) as error:
            raise ValueError(f"{text!r}: {error}") from None

    def untried(self, figures: Mapping[str, float]) -> bool:
        """Whether it is about promises, and no client had to wait for one."""
        none = figures.get("promises") == 0 and figures.get("queued") == 0
        return self.figure == "eta_within_p90" and none

    def verdict(self, figures: Mapping[str, float]) -> str | None:
        """None when kept or untried, else one sentence. A figure that was never seen is a miss."""
        if self.untried(figures):
            return None
        if self.figure not in figures:
            known = ", ".join(sorted(figures)) or "nothing"
            return f"{self.text}: nothing was measured under that name (measured: {known})"
        value = figures[self.figure]
        if _RELATIONS[self.relation](value, self.bound):
            return None
        return f"{self.text}: measured {value:.4g}"


def misses(objectives: Iterable[Objective], figures: Mapping[str, float]) -> list[str]:
    """What was missed, in words; the first rule always holds: something must have finished."""
    found = [verdict for o in objectives if (verdict := o.verdict(figures)) is not None]
    if not figures.get("finished"):
        found.insert(0, "no download finished")
    return found
