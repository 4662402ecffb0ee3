"""The last hour of samples in memory, for the charts that everybody looks at first.

Pure: the recorder adds what it samples and, once after a start, what the database still has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from server.store.records import SampleRecord


class Recent:
    """Samples of the last `kept_s` seconds by series; memory is bounded by `most` moments."""

    def __init__(self, kept_s: float, most: int) -> None:
        self._kept_s = kept_s
        self._moments: deque[tuple[float, Mapping[str, float]]] = deque(maxlen=most)
        self.whole = False

    def add(self, at_s: float, values: Mapping[str, float]) -> None:
        """One sample of every series."""
        self._moments.append((at_s, values))
        while self._moments[0][0] < at_s - self._kept_s:
            self._moments.popleft()

    def complete(self, earlier: Iterable[SampleRecord]) -> None:
        """Put what was sampled before this run in front; from now on the hour is `whole`."""
        own_s = self._moments[0][0] if self._moments else float("inf")
        before: dict[float, dict[str, float]] = {}
        for sample in earlier:
            if sample.at_s < own_s:
                before.setdefault(sample.at_s, {})[sample.series] = sample.mean
        for at_s in sorted(before, reverse=True):
            if len(self._moments) == self._moments.maxlen:
                break
            self._moments.appendleft((at_s, before[at_s]))
        self.whole = True

    def reaches(self, since_s: float, until_s: float) -> bool:
        """Whether all that is known of this stretch is here."""
        return self.whole and until_s - since_s <= self._kept_s

    def binned(
        self, series: Sequence[str], since_s: float, until_s: float, points: int, least_s: float
    ) -> tuple[list[float], dict[str, list[float | None]]]:
        """Means on one axis of about `points` equal steps of at least `least_s` seconds.

        A step without a value is None.
        """
        width_s = max((until_s - since_s) / points, least_s)
        steps = max(1, round((until_s - since_s) / width_s))
        axis = [since_s + (step + 0.5) * width_s for step in range(steps)]
        bins: list[list[Mapping[str, float]]] = [[] for _ in range(steps)]
        for at_s, values in self._moments:
            step = int((at_s - since_s) // width_s)
            if 0 <= step < steps and at_s < until_s:
                bins[step].append(values)
        return axis, {name: [_mean(one, name) for one in bins] for name in series}


def _mean(moments: Sequence[Mapping[str, float]], name: str) -> float | None:
    known = [values[name] for values in moments if name in values]
    return sum(known) / len(known) if known else None
