"""What a program reads, seen from a peer whose window is shut.

A kernel takes the first hundreds of kilobytes for a slow reader as fast as the line brings them, so
the rate of that time tells nothing of it. Once its receive window is full what arrives is what the
program reads, whatever the line and the others do.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RateTuning:
    """How the rate of one download is measured, and the pace of its program."""

    #: Rates are smoothed over this, seconds.
    smoothing_s: float = 0.5
    #: What a client's kernel takes ahead of its program: Linux gives a socket 128 KiB at first and
    #: doubles what a program asks for.
    ahead_bytes: int = 256 * 1024
    #: This part of what arrives is counted as taken ahead until all of that is. With 0.8 instead of
    #: 0.5, under a known cap too, slow crowds on 10 Mbit/s took 5 % longer in the mean.
    ahead_part: float = 0.5
    #: The pace of a program is told once bytes have arrived for this long, seconds.
    least_reading_s: float = 0.2
    #: Bytes that arrived longer ago do not count for it, seconds.
    most_reading_s: float = 4.0


RATE = RateTuning()


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
        if passed_s >= RATE.most_reading_s:
            self._since, self._newer = self._newer, here
        elif passed_s >= 0.5 * RATE.most_reading_s and self._newer == self._since:
            self._newer = here
        return (
            max(0, arrived_bytes - before) / passed_s if passed_s >= RATE.least_reading_s else 0.0
        )


class RunningRate:
    """What one download takes while it runs, and how much of that only its client's kernel took.

    Call `resume` when it runs (again), and `look` at intervals with what arrived since.
    """

    __slots__ = ("_ahead_bytes_s", "_ahead_left", "bytes_s")

    def __init__(self) -> None:
        #: Smoothed; 0 before the first look.
        self.bytes_s = 0.0
        self._ahead_bytes_s = 0.0
        self._ahead_left = float(RATE.ahead_bytes)

    def resume(self) -> None:
        """Its program has read on meanwhile, so the kernel takes that much ahead again."""
        self._ahead_left = float(RATE.ahead_bytes)

    def look(self, fresh_bytes: float, passed_s: float) -> None:
        """This much arrived in this time."""
        ahead = min(self._ahead_left, RATE.ahead_part * fresh_bytes)
        self._ahead_left -= ahead
        part = min(1.0, passed_s / RATE.smoothing_s) if self.bytes_s else 1.0
        self.bytes_s += (fresh_bytes / passed_s - self.bytes_s) * part
        self._ahead_bytes_s += (ahead / passed_s - self._ahead_bytes_s) * part

    def client_bytes_s(self, held_back: bool | None) -> float:
        """The part that tells of the client's speed.

        Where it cannot be told who limits the client (None), only a lower bound is learnt, and
        nothing corrects it while the client is paused. So what its kernel took ahead does not
        count. Under a cap that the line is known to carry it does: a share rarely fills a kernel.
        """
        return self.bytes_s - self._ahead_bytes_s if held_back is None else self.bytes_s
