"""A leader of several processes: their socket, and what it does for their requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, succeed

from ...protocol.manifest import FileDigests
from ..admission.gate import Gate
from ..cluster.common_memory import CommonLine, CommonMemory
from ..cluster.leader import Home, Leader, Nodes, machine_of
from ..cluster.link import LinkFactory
from ..cluster.messages import FromNode, decode_from_node
from ..control.vitals import NodeFigures, Totals
from ..files.site import Site
from ..files.transfer import Representation
from ..files.tree import IsDirectory, NotHere
from ..http.clock import Reactor
from ..http.proxies import TrustedProxies
from ..http.request import Request
from ..store.database import Database
from .line_room import LineRoom
from .parts import Part
from .shared import Shared


@dataclass(frozen=True, slots=True)
class ClusterSeat:
    """What a leader has of its cluster: the database and the keys that all machines share.

    `awaited` are the nodes of the earlier leader, `lost` those of its machine. `retire` is called
    when another machine leads.
    """

    machine: str
    database: Database
    shared: Shared
    awaited: frozenset[str]
    lost: frozenset[str]
    retire: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Several processes that serve: their names, their URLs, and the socket of their leader.

    `epoch` counts the leaders since the start, or since the cluster began.
    """

    names: frozenset[str]
    urls: tuple[str, ...]
    socket: Path
    epoch: int
    #: Memory that all processes of the machine share, and the row of this process.
    memory: CommonMemory
    row: int
    cluster: ClusterSeat | None = None

    @property
    def expected(self) -> tuple[frozenset[str], frozenset[str]]:
        """The nodes that a new leader waits for, and others that may connect."""
        seat = self.cluster
        return (self.names, frozenset()) if seat is None else (seat.awaited, seat.lost)

    def common_line(self) -> CommonLine:
        """The line as this process sees it."""
        return CommonLine(self.memory, self.row)

    @property
    def machines(self) -> int:
        """How many machines these processes run on."""
        return max(1, len({machine_of(name) for name in frozenset().union(*self.expected)}))


def build_leader(
    reactor: Reactor,
    site: Site,
    gate: Gate,
    line: LineRoom,
    plan: FleetPlan,
    proxies: TrustedProxies,
    *,
    administer: Callable[[Request], None],
    proofs: Callable[[], frozenset[str] | None],
) -> Leader:
    """What decides for the nodes of `plan`."""
    assert line.nodes is not None
    assert line.fleet_line is not None

    def digests(rep: Representation) -> Deferred[FileDigests | None]:
        """Known, kept, or computed now if the file is the same one here."""
        try:
            file = site.tree.open(rep.path.split(b"/"))
        except (NotHere, IsDirectory):
            return succeed(None)
        if file.rep.key != rep.key:
            return succeed(None)
        wanted: Deferred[Any] = site.catalog.want(file)
        return wanted

    awaited, lost = plan.expected
    return Leader(
        reactor,
        gate,
        Home(site.admission.enter, site, administer, proofs, digests),
        line.nodes,
        proxies,
        epoch=plan.epoch,
        awaited=awaited,
        cap_of=line.fleet_line.cap_of,
        lost=lost,
    )


def fleet_totals(line: LineRoom, plan: FleetPlan, now: Callable[[], float]) -> Totals:
    """The figures of all processes; this one sends only multicast."""
    nodes, pacer = line.nodes, line.pacer
    assert nodes is not None
    assert line.fleet_line is not None
    return Totals(
        listeners=plan.urls,
        connections=nodes.connections,
        connections_total=nodes.connections_total,
        sent_bytes_total=nodes.sent_bytes_total + pacer.sent_bytes_total,
        goodput_bytes_s=nodes.goodput_bytes_s(),
        capacity_bytes_s=line.fleet_line.capacity_bytes_s,
        nodes=tuple(
            NodeFigures(
                node.name,
                node.told.connections,
                node.running,
                node.told.goodput_bytes_s,
                node.told.sent_bytes_total,
                node.silent_s,
            )
            for node in sorted(nodes, key=lambda node: node.name)
        ),
        epoch=plan.epoch,
        fleet_fault=_fault(nodes, plan, now()),
    )


def _fault(nodes: Nodes, plan: FleetPlan, now: float) -> str:
    """A sentence about faults among processes and machines; empty without a fault."""
    found = []
    # A node that is away for ten minutes was removed.
    away = sorted(name for name, lost_s in nodes.away.items() if lost_s > now - 600.0)
    if away:
        named = ", ".join(away[:3]) + (" and others" if len(away) > 3 else "")
        found.append(f"{named} {'is' if len(away) == 1 else 'are'} away.")
        if plan.cluster is not None:
            found.append("A node that still runs continues its downloads and starts no new ones.")
    return " ".join(found)


def node_port(reactor: Reactor, leader: Leader, path: Path) -> Part:
    """The socket for nodes, which only this user can open; that of an earlier leader goes."""
    links: LinkFactory[FromNode] = LinkFactory(reactor, decode_from_node, leader.peer)
    opened: list[Any] = []

    def begin() -> None:
        path.unlink(missing_ok=True)
        opened.append(reactor.listenUNIX(str(path), links, backlog=64, mode=0o600))

    return Part("node port", begin, lambda: opened.pop().stopListening())
