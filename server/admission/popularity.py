"""How often each file was begun, and how many bytes of it were delivered; pure and bounded."""

from __future__ import annotations

from ..store.records import UsageRecord

#: Files counted between two writes to the store; further ones have to wait for the next.
_MOST_FILES = 100_000


class Popularity:
    """Counts since the last `take`, by URL path."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}

    def count(self, file: str, downloads: int, sent_bytes: int) -> None:
        """Add to a file's numbers."""
        row = self._counts.get(file)
        if row is None:
            if len(self._counts) >= _MOST_FILES:
                return
            row = self._counts[file] = [0, 0]
        row[0] += downloads
        row[1] += sent_bytes

    def pending(self, file: str) -> tuple[int, int]:
        """(downloads, bytes) of a file that no `take` has had yet."""
        downloads, sent_bytes = self._counts.get(file, (0, 0))
        return downloads, sent_bytes

    def take(self, now: float) -> list[UsageRecord]:
        """Everything counted since the last call."""
        counts, self._counts = self._counts, {}
        return [
            UsageRecord(file, downloads, sent_bytes, now)
            for file, (downloads, sent_bytes) in counts.items()
        ]
