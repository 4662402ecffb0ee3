"""Clients that wait inside their request, because their tool cannot come back.

At first nothing is sent. Then the status line and one harmless header line after another keep the
tool's time-outs from firing. When the turn comes the rest of the header follows, and the file. A
tool that was held to its limit is cut off; its retry finds the old place. A status line that was
sent cannot be taken back, so what fails later ends with the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from policies.job import Wait
from protocol.units import format_duration
from server.gateparts import Visit
from server.tools import ToolRule


class Host(Protocol):
    """What a hold asks of the gate."""

    def offer_again(self, hold: Hold) -> None:
        """Offer the held job once more."""
        ...

    def hold_left(self, hold: Hold, limit: bool) -> None:
        """The client has left, or (`limit`) was held as long as its tool bears."""
        ...


class Hold:
    """One request that is kept open."""

    __slots__ = (
        "_call",
        "_drips",
        "_hall",
        "_poll",
        "crowded",
        "over",
        "rule",
        "ticket",
        "visit",
        "wait",
    )

    def __init__(self, hall: HoldingHall, visit: Visit, rule: ToolRule) -> None:
        self._hall = hall
        self.visit = visit
        self.rule = rule
        self.ticket: int | None = None
        self.wait: Wait | None = None
        self.over = False
        #: Whether it waits, or waited to the end, for another connection of the same download.
        self.crowded = False
        self._drips = 0
        self._call: Any = hall.call_later(rule.silent_s, self._drip)
        self._poll: Any = None

    @property
    def committed(self) -> bool:
        """Whether the status line was already sent."""
        return self._drips > 0

    def poll_in(self, delay_s: float) -> None:
        """Offer the job again after a while; for policies that do not call."""
        if self._poll is not None and self._poll.active():
            self._poll.cancel()
        self._poll = self._hall.call_later(delay_s, self._poll_now)

    def end(self) -> None:
        """Nothing more will be sent by this hold."""
        self.over = True
        for call in (self._call, self._poll):
            if call is not None and call.active():
                call.cancel()

    def _poll_now(self) -> None:
        self._poll = None
        self._hall.host.offer_again(self)

    def _drip(self) -> None:
        if self._drips >= self.rule.drip_lines:
            self._hall.host.hold_left(self, True)
            return
        self._drips += 1
        self.visit.request.drip(self.visit.plan.status, b"Tidegate-Held", self._line())
        if not self.over:
            self._call = self._hall.call_later(self.rule.drip_s, self._drip)

    def _line(self) -> bytes:
        wait = self.wait
        if wait is None or wait.place is None:
            return b"waiting for a free slot"
        text = f"place {wait.place}"
        estimate = self._hall.estimate(self.ticket) if self.ticket is not None else None
        if estimate is not None:
            text += f", about {format_duration(estimate)}"
        return text.encode("ascii")


class HoldingHall:
    """All holds, by ticket and by client, within their bounds."""

    def __init__(
        self,
        host: Host,
        reactor: Any,
        estimate: Callable[[int], float | None],
        most: int,
        most_per_client: int,
    ) -> None:
        self.host = host
        self.call_later: Callable[..., Any] = reactor.callLater
        self.estimate = estimate
        self.most = most
        self.most_per_client = most_per_client
        self._holds: set[Hold] = set()
        self._by_ticket: dict[int, set[Hold]] = {}
        self._by_client: dict[str, int] = {}
        #: By client and file, in the order of coming.
        self._crowds: dict[tuple[str, str], dict[Hold, None]] = {}
        self.held_total = 0

    def __len__(self) -> int:
        return len(self._holds)

    def __iter__(self) -> Iterator[Hold]:
        return iter(tuple(self._holds))

    def has_room(self, client: str) -> bool:
        """Whether one more request of this client may be held."""
        return (
            len(self._holds) < self.most and self._by_client.get(client, 0) < self.most_per_client
        )

    def add(self, hold: Hold) -> None:
        """Keep a client; it leaves by `remove`."""
        self._holds.add(hold)
        self.held_total += 1
        client = hold.visit.job.client
        self._by_client[client] = self._by_client.get(client, 0) + 1

    def bind(self, hold: Hold, wait: Wait, *, crowded: bool = False) -> None:
        """The hold now waits with this ticket, or with none; or for one of its own to end."""
        hold.wait = wait
        if crowded != hold.crowded:
            if crowded:
                self._crowds.setdefault(_download_of(hold), {})[hold] = None
            else:
                self._leave_crowd(hold)
            hold.crowded = crowded
        if wait.ticket != hold.ticket:
            self._unbind(hold)
            hold.ticket = wait.ticket
            if wait.ticket is not None:
                self._by_ticket.setdefault(wait.ticket, set()).add(hold)

    def holding(self, ticket: int) -> tuple[Hold, ...]:
        """Those who wait with this ticket."""
        return tuple(self._by_ticket.get(ticket, ()))

    def first_of_crowd(self, client: str, file: str) -> Hold | None:
        """Who has waited longest for a connection of this download to end."""
        crowd = self._crowds.get((client, file))
        return next(iter(crowd)) if crowd else None

    def remove(self, hold: Hold) -> None:
        """The hold is over, whatever became of it."""
        hold.end()
        if hold not in self._holds:
            return
        self._holds.discard(hold)
        self._unbind(hold)
        self._leave_crowd(hold)
        client = hold.visit.job.client
        left = self._by_client[client] - 1
        if left:
            self._by_client[client] = left
        else:
            del self._by_client[client]

    def _leave_crowd(self, hold: Hold) -> None:
        crowd = self._crowds.get(_download_of(hold), {})
        crowd.pop(hold, None)
        if hold.crowded and not crowd:
            del self._crowds[_download_of(hold)]

    def _unbind(self, hold: Hold) -> None:
        if hold.ticket is None:
            return
        holds = self._by_ticket.get(hold.ticket)
        if holds is not None:
            holds.discard(hold)
            if not holds:
                del self._by_ticket[hold.ticket]


def _download_of(hold: Hold) -> tuple[str, str]:
    return hold.visit.job.client, hold.visit.job.file
