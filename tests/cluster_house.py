"""A gate behind a leader, and nodes in front of it, joined in memory: real links, one clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from twisted.internet.defer import succeed
from twisted.internet.task import Clock

from tests.fakes import Asked, House
from tidegate.policies.settings import PolicySettings
from tidegate.protocol.manifest import FileDigests
from tidegate.protocol.ticket import KeyRing
from tidegate.server.admission.gate import Gate
from tidegate.server.admission.number_allocator import Numbers
from tidegate.server.admission.passes import PassBook
from tidegate.server.admission.responses import RetryResponder
from tidegate.server.cluster.degraded import NoJournal
from tidegate.server.cluster.leader import Home, Leader, Nodes, machine_of
from tidegate.server.cluster.line import FleetLine
from tidegate.server.cluster.link import Link
from tidegate.server.cluster.messages import (
    FromLeader,
    FromNode,
    Hello,
    Terms,
    decode_from_leader,
    decode_from_node,
)
from tidegate.server.cluster.node import NodeHome, RemoteAdmission
from tidegate.server.files.pages import Pages
from tidegate.server.http.proxies import TrustedProxies
from tidegate.server.http.request import Request


class MemoryTransport:
    """One direction of a connection: bytes arrive in the next turn, whole or not at all."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.far: Link[Any] | None = None
        self.near: Link[Any] | None = None
        self.cut = False

    def write(self, data: bytes) -> None:
        far = self.far
        if far is not None and not self.cut:
            self.clock.callLater(0, self._arrive, far, data)

    def _arrive(self, far: Any, data: bytes) -> None:
        if not self.cut:
            far.dataReceived(data)

    def abortConnection(self) -> None:
        if self.cut:
            return
        self.cut = True
        for side in (self.near, self.far):
            if side is not None:
                other = side.transport
                other.cut = True
                self.clock.callLater(0, side.connectionLost)

    def loseConnection(self) -> None:
        self.abortConnection()


def join(clock: Clock, leader: Leader, node: RemoteAdmission) -> Link[FromLeader]:
    """Connect a node with a leader; the node's side of it."""
    at_node: Link[FromLeader] = Link(clock, decode_from_leader, node.peer)
    at_leader: Link[FromNode] = Link(clock, decode_from_node, leader.peer)
    for near, far in ((at_node, at_leader), (at_leader, at_node)):
        near.transport = MemoryTransport(clock)
        near.transport.near, near.transport.far = near, far
    at_leader.connectionMade()
    at_node.connectionMade()
    clock.advance(0)
    return at_node


class Outlet:
    """What a node sends, as a test says."""

    link_busy = False
    sent_bytes_total = 0
    waiting_networks = 0
    goodput = 0.0
    bandwidth_bytes_s: float | None = None

    def goodput_bytes_s(self) -> float:
        return self.goodput

    def set_bandwidth(self, bandwidth_bytes_s: float | None) -> None:
        self.bandwidth_bytes_s = bandwidth_bytes_s

    def give_back(self, count: int) -> None:
        pass


class Served:
    """What a leader's server does beside its gate, as a test says."""

    def __init__(self) -> None:
        self.digest: FileDigests | None = None
        self.routed: list[Request] = []
        self.held: frozenset[str] | None = None

    def administer(self, request: Request) -> None:
        request.respond(200, [], b"administered")


class FleetHouse(House):
    """The same as a `House`, but every request enters by one node or another, in turn.

    The nodes are those of one machine, or each is one of its own.
    """

    def __init__(
        self,
        *args: Any,
        count: int = 2,
        machines: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.names = [f"m{n}/node-0" if machines else f"node-{n}" for n in range(count)]
        self.begun_again: list[Request] = []
        self.outlets = [Outlet() for _ in range(count)]
        self.fleet = [
            RemoteAdmission(
                self.clock,
                Hello(self.names[index], pid=index, machine=machine_of(self.names[index])),
                NodeHome(
                    outlet,
                    self.settings.small_below_bytes,
                    again=lambda request: self.begun_again.append(request),
                    make_gate=self._make_gate,
                ),
            )
            for index, outlet in enumerate(self.outlets)
        ]
        for node in self.fleet:
            node.begin()
        self.lead()
        self._turn = 0

    def _make_gate(self, terms: Terms, settings: PolicySettings, first: int) -> Gate:
        """What issues tickets at a node while nobody leads: it knows only what it was told."""
        own = House()
        keys = KeyRing.from_derived(terms.keys)
        parts = replace(
            own.gate.parts,
            reactor=self.clock,
            now=self.clock.seconds,
            wall=self.clock.seconds,
            keys=keys,
            journal=NoJournal(),
            numbers=Numbers(first, (), lambda below: None),
            passes=PassBook(keys, lambda record: None, judges=False),
            waiting=RetryResponder(Pages(), tells_places=False),
            line=FleetLine(Nodes(), settings.bandwidth_bytes_s),
        )
        return Gate(parts, terms.policy, settings)

    def lead(
        self,
        *,
        bandwidth_bytes_s: float | None = None,
        join_all: bool = True,
        lost: Collection[str] = (),
    ) -> None:
        """A leader over this house's gate, with all nodes connected; it awaits all not `lost`."""
        self.nodes = Nodes()
        self.home = home = Served()
        self.lines = FleetLine(self.nodes, bandwidth_bytes_s)
        if bandwidth_bytes_s is not None:
            self.gate.parts.line = self.lines
        self.leader = Leader(
            self.clock,
            self.gate,
            Home(
                self.gate.enter,
                home.routed.append,
                lambda request: home.administer(request),
                lambda: home.held,
                lambda rep: succeed(home.digest),
            ),
            self.nodes,
            TrustedProxies(),
            epoch=1,
            awaited=frozenset(self.names) - frozenset(lost),
            cap_of=self.lines.cap_of,
            lost=frozenset(lost),
        )
        self.leader.start(lambda: None)
        if join_all:
            self.links = [join(self.clock, self.leader, node) for node in self.fleet]
            self.clock.advance(0)

    def ask_with(
        self,
        address: str,
        headers: Mapping[bytes, bytes],
        file: str,
        size_bytes: int,
        ranges: tuple[int, int] | None,
        query: str,
    ) -> Asked:
        self._turn += 1
        self.entrance = self.fleet[self._turn % len(self.fleet)]
        return self._enter(address, headers, file, size_bytes, ranges, query)

    def ask_at(self, index: int, address: str, **more: Any) -> Asked:
        """Ask at this node."""
        self._turn = index - 1
        return self.ask(address, **more)

    def _enter(self, *of: Any) -> Asked:
        asked = super().ask_with(*of)
        self.clock.advance(0)
        return asked
