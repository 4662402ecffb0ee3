"""Parked requests: clients that wait inside their request, because their program cannot come back.

A waiting page's question about its ticket is parked as well, and answered when the ticket changes.

At first nothing is sent. Then the status line and one harmless header line after another keep the
program's time-outs from firing. When the turn comes, the rest of the header and the file follow. At
the limit of its program the connection is closed; a retry finds the old place. A status line that
was sent cannot be taken back, so later failures close the connection.

A proxy forwards a header only when it is complete, so header lines do not keep a program behind one
alive. Many programs follow redirects, and each renews their patience: silence ends in a redirect to
the same address. The query has the ticket and the number of redirects.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from twisted.logger import Logger

from ...policies.admission import AdmissionPolicy
from ...policies.contract import Estimate, Wait
from ...protocol.units import format_duration
from ..http.clock import Clock, DelayedCall, cancel
from ..http.prefix_shares import PrefixShares
from ..http.request import Request
from .client_keys import TICKET_FIELD
from .client_programs import ToolRule
from .gateparts import AdmissionRequest, StatusRequest

_log = Logger()
_HOP = b"tidegate-redirects"


class ParkedFor(enum.Enum):
    """What a parked request waits for."""

    #: The turn of its ticket: the policy calls it.
    PLACE = "waits for the turn of its ticket"
    #: A running lease has all the connections it may have: the end of one calls it.
    CONNECTION = "waits for a connection of its download to end"
    #: A policy without tickets is full: it looks for itself.
    SLOT = "looks for a free slot"


class ParkingGate(Protocol):
    """The gate as parked requests see it."""

    @property
    def policy(self) -> AdmissionPolicy:
        """The present policy."""

    def estimate(self, number: int) -> Estimate | None:
        """When this waiting ticket is expected to start, from now."""

    def offer_again(self, request: ParkedRequest) -> None:
        """Offer its job once more."""

    def left(self, request: ParkedRequest, limit: bool) -> None:
        """The client has left, or (`limit`) its program bears no longer wait."""

    def redirect(self, request: ParkedRequest) -> None:
        """Redirect to the same address: its program bears no more silence."""


@dataclass(eq=False, repr=False, slots=True)
class ParkedRequest:
    """One request that is kept open."""

    _parked: ParkedRequests
    visit: AdmissionRequest | StatusRequest
    rule: ToolRule
    wait: Wait
    #: Its ticket while it waits for a place, else None.
    ticket: int | None = None
    waits_for: ParkedFor = ParkedFor.SLOT
    over: bool = False
    _trickled: int = 0
    _trickle_call: DelayedCall = field(init=False)
    _look_call: DelayedCall | None = None

    def __post_init__(self) -> None:
        self._trickle_call = self._parked.call_later(self.rule.silent_s, self._trickle)

    @property
    def committed(self) -> bool:
        """Whether the status line was already sent."""
        return self._trickled > 0

    @property
    def looks(self) -> bool:
        """Whether it will look for a slot by itself."""
        return self._look_call is not None and self._look_call.active()

    def look_in(self, delay_s: float) -> None:
        """Offer the job again after this time, under a policy that calls no client."""
        cancel(self._look_call)
        self._look_call = self._parked.call_later(delay_s, self._look)

    def end(self) -> None:
        """Send nothing more."""
        self.over = True
        cancel(self._trickle_call, self._look_call)

    def gone(self) -> None:
        """Its client has left."""
        self._parked.host.left(self, False)

    def _look(self) -> None:
        self._look_call = None
        self._parked.host.offer_again(self)

    def _trickle(self) -> None:
        if isinstance(self.visit, StatusRequest) or self._trickled >= self.rule.drip_lines:
            if self.rule.redirects:
                self._parked.host.redirect(self)
            else:
                self._parked.host.left(self, True)
            return
        # Without the next line the program would give up: a fault must cost one line only.
        self._trickle_call = self._parked.call_later(self.rule.drip_s, self._trickle)
        self._trickled += 1
        with _log.failuresHandled("A request that waits was not told so"):
            plan = self.visit.plan
            status = plan.held_status or plan.status
            self.visit.request.drip(status, b"Tidegate-Held", self._line())

    def _line(self) -> bytes:
        if self.wait.place is None:
            return b"waiting for a free slot"
        gate, ticket = self._parked.host, self.ticket
        place = self.wait.place if ticket is None else gate.policy.place(ticket)
        text = f"place {place}"
        # To forecast takes half of a line's CPU time, and few programs show these lines.
        forecasts = self._trickled % 4 == 1
        estimate = gate.estimate(ticket) if forecasts and ticket is not None else None
        if estimate is not None and estimate.done is not None:
            text += f", done in about {format_duration(estimate.done.expected_s)}"
        elif estimate is not None:
            text += f", start in about {format_duration(estimate.expected_s)}"
        return text.encode("ascii")


#: Most have one request, and a dictionary for one takes 230 bytes.
_Groups = dict[Any, tuple[ParkedRequest, ...]]


class ParkedRequests:
    """All parked requests, by what they wait for and by client, within bounds."""

    def __init__(self, host: ParkingGate, reactor: Clock, most: int) -> None:
        self.host = host
        self.call_later: Callable[..., DelayedCall] = reactor.callLater
        #: The requests that may be parked at once. If it falls, parked ones stay.
        self.most = most
        #: In the order of arrival.
        self._requests: dict[ParkedRequest, None] = {}
        self._by_client: _Groups = {}
        self._by_network: PrefixShares[ParkedRequest] = PrefixShares()
        #: Those that wait for a place.
        self._by_ticket: _Groups = {}
        self._unchecked: list[ParkedRequest] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ParkedRequest]:
        return iter(tuple(self._requests))

    @property
    def placed(self) -> int:
        """How many tickets have requests parked with them."""
        return len(self._by_ticket)

    def has_room(self, client: str, network: Sequence[str]) -> bool:
        """Whether one more request of this client may be parked, perhaps instead of another."""
        if self.of_client(client) >= 64:
            return False
        return len(self._requests) < self.most or self._by_network.to_give_up(network) is not None

    def of_client(self, client: str) -> int:
        return len(self._by_client.get(client, ()))

    def to_let_go(self, network: Sequence[str]) -> ParkedRequest | None:
        """The request that gives way to one of this network; None while there is room."""
        return None if len(self._requests) < self.most else self._by_network.to_give_up(network)

    def how_many_networks(self) -> int:
        return self._by_network.networks

    def add(self, request: ParkedRequest) -> None:
        self._requests[request] = None
        self._by_network.add(request, request.visit.job.network)
        client = request.visit.job.client
        self._by_client[client] = (*self._by_client.get(client, ()), request)

    def bind(self, request: ParkedRequest, wait: Wait, waits_for: ParkedFor) -> None:
        """Let the request wait for this from now on."""
        request.wait, request.waits_for = wait, waits_for
        ticket = wait.ticket if waits_for is ParkedFor.PLACE else None
        if ticket != request.ticket:
            self._unbind(request)
            request.ticket = ticket
            if ticket is not None:
                self._by_ticket[ticket] = (*self.with_ticket(ticket), request)

    def with_ticket(self, ticket: int) -> tuple[ParkedRequest, ...]:
        """The requests that wait with this ticket, in the order of arrival."""
        return self._by_ticket.get(ticket, ())

    def has_place(self, client: str, file: str) -> bool:
        """Whether a request of this download waits with a ticket."""
        ours = self._by_client.get(client, ())
        return any(one.ticket is not None and one.visit.job.file == file for one in ours)

    def call(self, ticket: int) -> bool:
        """Offer all requests again that are parked with this ticket; False if there is none."""
        requests = self.with_ticket(ticket)
        for request in requests:
            self.host.offer_again(request)
        return bool(requests)

    def connection_ended(self, client: str, file: str) -> None:
        """A download lost a connection, or its lease is over: offer its next requests again."""
        for request in self._by_client.get(client, ()):
            if request.waits_for is ParkedFor.CONNECTION and request.visit.job.file == file:
                self.host.offer_again(request)
                if request.waits_for is ParkedFor.CONNECTION and not request.over:
                    return

    def next_to_check(self) -> list[ParkedRequest]:
        """Some of the parked requests; all of them within a few seconds."""
        if not self._unchecked:
            self._unchecked = list(self._requests)
        # All of them in 20 ticks.
        count = len(self._requests) // 20 + 1
        found, self._unchecked = self._unchecked[-count:], self._unchecked[:-count]
        return [request for request in found if not request.over]

    def remove(self, request: ParkedRequest) -> None:
        request.end()
        if request not in self._requests:
            return
        del self._requests[request]
        self._by_network.remove(request)
        self._unbind(request)
        _drop(self._by_client, request.visit.job.client, request)

    def _unbind(self, request: ParkedRequest) -> None:
        if request.ticket is not None:
            _drop(self._by_ticket, request.ticket, request)
            request.ticket = None


def _drop(table: _Groups, key: Any, request: ParkedRequest) -> None:
    requests = tuple(one for one in table[key] if one is not request)
    if requests:
        table[key] = requests
    else:
        del table[key]


def redirects_of(query: bytes) -> int:
    """How many redirects of ours led to a request with this query."""
    found = re.search(rb"(?:^|&)%b=([0-9]{1,4})(?:&|$)" % _HOP, query)
    return int(found[1]) if found is not None else 0


def send_on(request: Request, token: str | None) -> None:
    """Redirect to the same file, with this ticket."""
    own = (b"%b=" % TICKET_FIELD, b"%b=" % _HOP)
    items = [item for item in request.query.split(b"&") if item and not item.startswith(own)]
    if token is not None:
        items.append(b"%b=%b" % (TICKET_FIELD, token.encode("ascii")))
    items.append(b"%b=%d" % (_HOP, redirects_of(request.query) + 1))
    # Not relative to the path: apt does not understand that.
    location = b"%b?%b" % (request.path, b"&".join(items))
    request.respond(302, [(b"Location", location), (b"Cache-Control", b"no-store")])
