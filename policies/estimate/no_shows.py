"""The part of new tickets whose clients return, learnt from a sample.

Some clients take a ticket and never return, or take a slot and hang up. Such a ticket looks like
any other until its told return has passed. So a new ticket counts in the schedule by the part of
recent clients that returned. While many stay away, new clients are told to return soon. Otherwise
the estimates would count work that never comes, all clients would return too late, and slots would
be idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from ...protocol.bounded_table import BoundedTable


@dataclass(frozen=True, slots=True)
class NoShowTuning:
    """How the part of new clients that return is learnt."""

    #: New tickets that are watched at once, and late ones that may still return.
    watched: int = 512
    #: The weight of the newest client: about the latest three dozen count.
    memory: float = 0.03
    #: Imagined clients that returned before the first real one.
    first: float = 3.0
    #: Below this part of returns, new clients are told to return soon.
    doubtful: float = 0.9


NO_SHOWS = NoShowTuning()


class NoShows:
    """Watches first returns. Tickets are known by number, times are seconds."""

    def __init__(self) -> None:
        self._came = self._missed = 0.0
        self._due: dict[int, float] = {}
        self._order: list[tuple[float, int]] = []
        self._late: BoundedTable[int, None] = BoundedTable(NO_SHOWS.watched)

    @property
    def shows(self) -> float:
        """The part of new clients that return."""
        came = self._came + NO_SHOWS.first
        return came / (came + self._missed)

    @property
    def doubtful(self) -> bool:
        """Whether too many stay away to wait for their told return."""
        return self.shows < NO_SHOWS.doubtful

    def learn(self, came: bool) -> None:
        """A client returned, or stayed away."""
        self._came = self._came * (1.0 - NO_SHOWS.memory) + came
        self._missed = self._missed * (1.0 - NO_SHOWS.memory) + (not came)

    def told(self, number: int, due_s: float) -> None:
        """The client of a new ticket was told to return by `due_s`."""
        if len(self._due) < NO_SHOWS.watched:
            self._due[number] = due_s
            heappush(self._order, (due_s, number))

    def seen(self, number: int) -> None:
        """The client of this ticket returned, in time or late."""
        if self._due.pop(number, None) is not None:
            self.learn(True)
        elif number in self._late:
            del self._late[number]
            self._missed = max(0.0, self._missed - 1.0)
            self.learn(True)

    def check(self, now: float) -> None:
        """Count clients whose told return has passed as absent."""
        while self._order and self._order[0][0] <= now:
            due_s, number = heappop(self._order)
            if self._due.get(number) == due_s:
                del self._due[number]
                self._late[number] = None
                self.learn(False)
