"""Counts each file's begun and complete downloads and its delivered bytes; pure and bounded.

A download is begun when a client gets a slot for it, or when a whole file leaves in one write. It
is complete when every byte of the whole file was delivered under one lease: the ranges and resumes
of that lease are summed, and a byte that came twice counts once. A whole file that left in one
write is complete at once.
"""

from __future__ import annotations

from ..store.records import UsageRecord


class Popularity:
    """Counts since the last `take`, by URL path, and totals since the start of the process."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self.begun_total = 0
        self.complete_total = 0

    def count(self, file: str, begun: int, complete: int, sent_bytes: int) -> None:
        self.begun_total += begun
        self.complete_total += complete
        row = self._counts.get(file)
        if row is None:
            # Between two writes to the store: further files have to wait for the next.
            if len(self._counts) >= 100_000:
                return
            row = self._counts[file] = [0, 0, 0]
        row[0] += begun
        row[1] += complete
        row[2] += sent_bytes

    def pending(self, file: str) -> tuple[int, int, int]:
        """(begun, complete, bytes) of a file that no `take` has had yet."""
        begun, complete, sent_bytes = self._counts.get(file, (0, 0, 0))
        return begun, complete, sent_bytes

    def take(self, now: float) -> list[UsageRecord]:
        counts, self._counts = self._counts, {}
        return [
            UsageRecord(file, begun, complete, sent_bytes, now)
            for file, (begun, complete, sent_bytes) in counts.items()
        ]
