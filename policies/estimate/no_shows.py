"""How many of those who have just taken a place come for it, learnt from a sample of them.

Some take tickets and never return, or take a slot and hang up. Such a client is known only when
its told return has passed, and until then its ticket looks like any other. So newcomers are counted
as far as newcomers come lately, and while some do not they are asked to show themselves soon: an
estimate that counts work which nobody will ask for sends everybody away for too long, and slots
idle meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush

#: So many newcomers are watched at once; that many of those who were late may still turn up.
_WATCHED = 512
#: The latest three dozen count; as many as this are imagined to have come before the first.
_MEMORY, _FIRST = 0.03, 3.0
#: Below this part of them coming, they are asked to show themselves soon.
_DOUBTFUL = 0.9


class NoShows:
    """Watches first returns. Tickets are known by number, times are seconds."""

    __slots__ = ("_came", "_due", "_late", "_missed", "_order")

    def __init__(self) -> None:
        self._came = self._missed = 0.0
        self._due: dict[int, float] = {}
        self._order: list[tuple[float, int]] = []
        self._late: OrderedDict[int, None] = OrderedDict()

    @property
    def shows(self) -> float:
        """The part of newcomers that come."""
        came = self._came + _FIRST
        return came / (came + self._missed)

    @property
    def doubtful(self) -> bool:
        """Whether so many stay away that it must be known soon who does."""
        return self.shows < _DOUBTFUL

    def learn(self, came: bool) -> None:
        """One came for good, or it did not."""
        self._came = self._came * (1.0 - _MEMORY) + came
        self._missed = self._missed * (1.0 - _MEMORY) + (not came)

    def told(self, number: int, due_s: float) -> None:
        """A new ticket's owner went away and should be back by then."""
        if len(self._due) < _WATCHED:
            self._due[number] = due_s
            heappush(self._order, (due_s, number))

    def seen(self, number: int) -> None:
        """The owner of that ticket came, in time or not."""
        if self._due.pop(number, None) is not None:
            self.learn(True)
        elif number in self._late:
            del self._late[number]
            self._missed = max(0.0, self._missed - 1.0)
            self.learn(True)

    def check(self, now: float) -> None:
        """Count clients that should have been back by now as missing."""
        while self._order and self._order[0][0] <= now:
            due_s, number = heappop(self._order)
            if self._due.get(number) == due_s:
                del self._due[number]
                self._late[number] = None
                self.learn(False)
        while len(self._late) > _WATCHED:
            self._late.popitem(last=False)
