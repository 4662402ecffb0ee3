"""What a node does while nobody leads: it leads itself, with the policy that the last leader told.

Its own leader is the ordinary one over a gate of its own, joined to the node in memory: so requests
wait and start, and bodies that run have their slots, as under any other. Its tickets are signed
with the keys of all and numbered from `ELSEWHERE`. Those that wait are handed over to the next
leader, which gives each a place by its time of issue; so it does for one whose token is all that
there is. There is no journal meanwhile.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError
from twisted.internet.defer import Deferred, succeed

from ...policies.contract import ELSEWHERE, TicketRow
from ...policies.registry import POLICIES
from ...policies.settings import PolicySettings
from ...protocol.cluster import (
    FromLeader,
    FromNode,
    Terms,
    WireTicket,
    decode_from_leader,
    decode_from_node,
)
from ...protocol.errors import ProtocolError
from ...protocol.manifest import FileDigests
from ..admission.gate import Gate, QueueTerms, SmallTerms
from ..admission.line import Line
from ..files.transfer import BodyPlan, Representation, StartBody
from ..http.clock import Clock
from ..http.proxies import TrustedProxies
from ..http.request import Request
from .leader import Leader, Nodes
from .line import FleetLine
from .link import Link, Peer
from .wire import wire_ticket

#: Clients sent away while nobody leads come back after so long, seconds.
RETRY_S = 2
#: A node's numbers are a block of so many at a random place, so that no two nodes share one.
_BLOCK_BITS, _BLOCKS_BITS = 20, 28

#: Builds a gate on this line with this policy; numbers begin with the one given.
MakeGate = Callable[[Terms, Line, str, PolicySettings, int], Gate]


def no_leader(request: Request) -> None:
    """Nobody decides this at present; a place that the client has is not touched by it."""
    request.refuse(
        503,
        "no-leader",
        "The queue is being restarted and keeps every place; ask again in a moment.",
        [(b"Retry-After", b"%d" % RETRY_S)],
    )


def own_settings(terms: Terms, nodes: int, slots: int) -> PolicySettings | None:
    """The policy's settings for one of so many nodes, with `slots` for large downloads.

    None where the terms tell nothing usable.
    """
    if not terms.keys or terms.policy not in POLICIES:
        return None
    cap = terms.bandwidth_bytes_s
    try:
        told = PolicySettings.model_validate_json(terms.settings)
        # Small files have their part of the reserve here, too: they wait behind nothing large.
        reserve = max(1, told.reserve_small // nodes) if told.reserve_small else 0
        share = {"slots": slots + reserve, "reserve_small": reserve}
        line = {"bandwidth_bytes_s": cap / nodes if cap is not None else told.bandwidth_bytes_s}
        return PolicySettings.model_validate({**told.model_dump(), **share, **line})
    except ValidationError:
        return None


class NoJournal:
    """Implements `gateparts.TicketJournal` where nothing can be written."""

    def keep_tickets(self, rows: Iterable[TicketRow]) -> None:
        """The tokens keep them."""

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Nothing becomes safer by waiting."""
        callback()


class _Wire:
    """A transport in memory: what is written has arrived at once."""

    def __init__(self) -> None:
        self.far: Link[Any] | None = None

    def write(self, data: bytes) -> None:
        """See `ITransport`."""
        if self.far is not None and self.far.open:
            self.far.dataReceived(data)  # type: ignore[no-untyped-call]

    def abortConnection(self) -> None:
        """See `ITCPTransport`: its maker takes it away."""


class _Home:
    """Implements `leader.Home` for the requests of one node that has no other leader."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def enter(
        self, request: Request, rep: Representation, plan: BodyPlan, start: StartBody
    ) -> None:
        """See `leader.Home`."""
        self._gate.enter(request, rep, plan, start)

    def route(self, request: Request) -> None:
        """See `leader.Home`."""
        no_leader(request)

    def administer(self, request: Request) -> None:
        """See `leader.Home`."""
        no_leader(request)

    def proofs(self) -> frozenset[str] | None:
        """See `leader.Home`."""
        return None

    def register(self, request: Request, rep: Representation) -> None:
        """See `leader.Home`."""
        no_leader(request)

    def turned_away(self, request: Request, url_path: str) -> bool:
        """See `leader.Home`: whose pass was revoked only a leader knows."""
        no_leader(request)
        return True

    def digests(self, rep: Representation) -> Deferred[FileDigests | None]:
        """See `leader.Home`."""
        return succeed(None)

    def small_terms(self) -> SmallTerms:
        """See `leader.Home`."""
        return self._gate.small_terms()

    def queue_terms(self) -> QueueTerms:
        """See `leader.Home`."""
        return self._gate.queue_terms()

    def served_small(self, url_path: str, times: int, whole: int, size_bytes: int) -> None:
        """See `leader.Home`."""

    def serve_with(self, machines: int) -> None:
        """See `leader.Home`: it is one node's part whatever runs elsewhere."""

    def take_up(self, tickets: Iterable[WireTicket]) -> None:
        """See `leader.Home`: nobody hands over to a node."""

    def rules(self) -> bytes:
        """See `leader.Home`: the node knows them."""
        return b"[]"


class OwnQueue:
    """A node's own leader. `running` bodies go on at once; `slots` are its part of the machine's.

    `link` is the node's end, once `start` has joined it. Raises ProtocolError when the terms of the
    last leader do not tell what it takes.
    """

    def __init__(
        self,
        reactor: Clock,
        terms: Terms,
        nodes: int,
        running: int,
        make_gate: MakeGate,
        proxies: TrustedProxies,
    ) -> None:
        self._reactor = reactor
        self._terms = terms
        self._nodes = nodes
        self._slots = max(terms.alone, running)
        settings = own_settings(terms, nodes, self._slots)
        if settings is None:
            raise ProtocolError("The last leader has not told its policy.")
        here = Nodes()
        line = FleetLine(here, settings.bandwidth_bytes_s)
        first = ELSEWHERE + (secrets.randbits(_BLOCKS_BITS) << _BLOCK_BITS)
        self._gate = gate = make_gate(terms, line, terms.policy, settings, first)
        gate.reception.blocked.become(terms.blocked)
        self._leader = Leader(
            reactor,
            _Home(gate),
            here,
            proxies,
            epoch=0,
            awaited=frozenset(),
            cap_of=lambda machine: terms.bandwidth_bytes_s,
        )
        self._end: Link[FromNode] = Link(reactor, decode_from_node, self._leader.peer)
        self.link: Link[FromLeader] | None = None

    def start(self, node: Peer[FromLeader]) -> None:
        """Decide for this node from now on."""
        self._gate.open(())
        self._leader.start(lambda: None)
        link: Link[FromLeader] = Link(self._reactor, decode_from_leader, node)
        self.link = link
        for near, far in ((link, self._end), (self._end, link)):
            near.transport = _Wire()
            near.transport.far = far
        self._end.connectionMade()
        link.connectionMade()

    def tend(self, running: int) -> None:
        """So many downloads run that it began with: what they leave above its part is nobody's."""
        slots = max(self._terms.alone, min(self._slots, running))
        if slots != self._slots:
            self._slots = slots
            settings = own_settings(self._terms, self._nodes, slots)
            if settings is not None:
                self._gate.apply(self._terms.policy, settings)

    def proofs(self) -> dict[int, str]:
        """The tokens of those who wait inside their requests, by the node's numbers."""
        return {
            request.connection.number: token  # type: ignore[attr-defined]
            for request, token in self._gate.proofs()
        }

    def tickets(self) -> tuple[WireTicket, ...]:
        """Those of its own that wait, for the next leader; all others are in the journal."""
        gate = self._gate
        return tuple(
            wire_ticket(gate.on_wall_clock(row))
            for row in gate.policy.tickets()
            if row.number >= ELSEWHERE
        )

    def stop(self) -> None:
        """Another leads: nothing more is said."""
        self._end.open = False
        if self.link is not None:
            self.link.open = False
        self._leader.stop()
        self._gate.close()
