"""What a program reads, seen from a peer whose window is shut.

A kernel takes the first hundreds of kilobytes for a slow reader as fast as the line brings them, so
the rate of that time tells nothing of it. Once its receive window is full what arrives is what the
program reads, whatever the line and the others do.
"""

from __future__ import annotations

#: What arrived over the first of these is needed before anything is told, and no more than the
#: second counts, seconds.
_LEAST_S, _MOST_S = 0.2, 4.0


class ReadingPace:
    """Of one download, while it runs. Feed it at every look."""

    __slots__ = ("_newer", "_since")

    def __init__(self) -> None:
        #: When the window was seen shut first, or a while ago, and what had arrived by then.
        self._since: tuple[float, int] | None = None
        self._newer: tuple[float, int] | None = None

    @property
    def shut(self) -> bool:
        """Whether its window was shut at the last look: its program is what limits it."""
        return self._since is not None

    def forget(self) -> None:
        """It was paused, which let its window open."""
        self._since = self._newer = None

    def look(self, now: float, arrived_bytes: int, shut: bool) -> float:
        """What its program reads, bytes a second; 0 while that cannot be told.

        `shut`: its window was so nearly all the time since the last look.
        """
        if not shut:
            self.forget()
            return 0.0
        here = now, arrived_bytes
        if self._since is None or self._newer is None:
            self._since = self._newer = here
            return 0.0
        since_s, before = self._since
        passed_s = now - since_s
        if passed_s >= _MOST_S:
            self._since, self._newer = self._newer, here
        elif passed_s >= 0.5 * _MOST_S and self._newer == self._since:
            self._newer = here
        return max(0, arrived_bytes - before) / passed_s if passed_s >= _LEAST_S else 0.0
