"""Finds who gave wrong bytes when only the digest of the whole file is known.

Bytes of one mirror are read again from the others and compared. Samples first: a mirror whose
samples differ most is the first suspect, and all of its bytes are replaced. When no samples differ,
the mirrors' shares are read again half by half. After each step the caller checks the digest; the
file is read at most once more per mirror.
"""

from __future__ import annotations

from collections import deque

from ..schedule.segments import SegmentMap
from ..storage.piece_writer import PieceWriter
from .state import Mirror

_SAMPLES = 4
_SAMPLE_BYTES = 16 << 10
Span = tuple[int, int]


class CulpritSearch:
    """Call `next` whenever the digest turned out wrong; it says whose bytes to read again."""

    def __init__(self, mirrors: list[Mirror], sink: PieceWriter) -> None:
        self._mirrors = mirrors
        self._sink = sink
        self._suspect: int | None = None
        shares = self._shares()
        order = sorted(shares, key=lambda n: -sum(b - a for a, b in shares[n]))
        self._samples = deque(order)
        self._steps: deque[tuple[int, int]] = deque()
        self._planned = False

    def _shares(self) -> dict[int, list[Span]]:
        found: dict[int, list[Span]] = {}
        for start, end, number in self._sink.sources(0, self._sink.size_bytes):
            if self._mirrors[number].alive:
                found.setdefault(number, []).append((start, end))
        return found

    def next(self, board: SegmentMap) -> int | None:
        """Prepare the next step: some bytes of one mirror are wanted again, from others; its
        number is returned. None when nothing is left to try."""
        self._suspect = None
        while self._samples:
            number = self._samples.popleft()
            spans = [
                (start, min(end, start + _SAMPLE_BYTES))
                for start, end in self._spread(self._shares().get(number, []))
            ]
            if self._doubt(board, number, spans):
                return number
        if not self._planned:
            self._planned = True
            self._plan()
        while self._steps:
            number, half = self._steps.popleft()
            spans = self._shares().get(number, [])
            if self._doubt(board, number, self._half(spans, half)):
                self._suspect = number
                return number
        return None

    def _plan(self) -> None:
        counts: dict[int, int] = {}
        for (old, new), times in self._sink.differences.items():
            for number in (old, new):
                counts[number] = counts.get(number, 0) + times
        accused = sorted(counts, key=lambda n: -counts[n])
        self._steps.extend((number, 2) for number in accused)
        others = [n for n in self._shares() if n not in accused]
        # The first half changes hands, so what is left of the share is then the second.
        self._steps.extend((number, half) for number in others for half in (0, 2))

    @staticmethod
    def _spread(spans: list[Span]) -> list[Span]:
        if len(spans) <= _SAMPLES:
            return spans
        step = (len(spans) - 1) / (_SAMPLES - 1)
        return [spans[round(at * step)] for at in range(_SAMPLES)]

    @staticmethod
    def _half(spans: list[Span], half: int) -> list[Span]:
        """The first half of the bytes (0), or all (2)."""
        if half == 2:
            return spans
        left = sum(end - start for start, end in spans) // 2
        found = []
        for start, end in spans:
            cut = min(left, end - start)
            left -= cut
            found.append((start, start + cut))
        return [span for span in found if span[1] > span[0]]

    def _doubt(self, board: SegmentMap, number: int, spans: list[Span]) -> bool:
        others = any(mirror.alive and mirror.number != number for mirror in self._mirrors)
        if not spans or not others or not self._mirrors[number].alive:
            return False
        for start, end in spans:
            self._sink.doubt(start, end)
            board.want(start, end)
        return True

    def name_culprit(self) -> None:
        """The digest is right now: the mirror that was being replaced had given the wrong bytes."""
        differing = {old for (old, _), times in self._sink.differences.items() if times}
        if self._suspect is not None:
            self._sink.culprits.add(self._suspect)
        elif len(differing) == 1:
            self._sink.culprits |= differing
