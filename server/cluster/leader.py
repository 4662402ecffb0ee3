"""The leader's side: requests that arrived at nodes enter its admission as if they were its own.

For each such request the leader has an ordinary `Request` whose connection is a number at a node:
what is answered becomes messages, and what the node tells becomes what a connection would have
told. So the gate, the policy and everything around them do not know that there are nodes.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from ...protocol.manifest import FileDigests
from ..admission.gate import Gate
from ..admission.leases import TICK_S
from ..admission.rules import RuleBook
from ..files.transfer import (
    BodyPlan,
    Representation,
    StartBody,
    TcpState,
    Transfer,
    TransferListener,
)
from ..http.answers import Header
from ..http.clock import Clock, Repeat, cancel, pause
from ..http.proxies import TrustedProxies
from ..http.request import Request
from . import messages
from .link import Link, Peer

_log = Logger()
#: New requests wait for nodes that are not back yet for so long after a leader's start: what runs
#: there has its slots first.
GATHER_S = 2.0


class LeaderBounds(NamedTuple):
    """When a node counts no more, and what nodes are told at most."""

    #: A node that says nothing for this time is cut off, in seconds.
    silent_s: float = 8.0
    #: How often unchanged terms are sent, so that a node knows that its leader lives.
    again_s: float = 1.0
    look_s: float = 0.02
    #: Bounds the list of blocked networks for nodes. With more, nodes have every request judged.
    most_blocked: int = 1_000
    #: Bounds the list of logins and API tokens for machines, which hear it four times a second.
    most_proofs: int = 1_000
    #: A machine that was lost has its share of the slots for so long: its downloads are resumed, or
    #: it is only started anew.
    missed_s: float = 30.0


TUNING = LeaderBounds()


@dataclass(frozen=True, slots=True)
class Home:
    """What the leader's own server does for requests of nodes, beside its gate."""

    #: Decides when a body starts.
    enter: Callable[[Request, Representation, BodyPlan, StartBody], None]
    #: Answers a request for one of the server's routes.
    route: Callable[[Request], None]
    #: Answers a request that came to another machine's admin page.
    administer: Callable[[Request], None]
    #: Digests of the logins and API tokens that hold; None while they are not known.
    proofs: Callable[[], frozenset[str] | None]
    #: The digests of a content; None when they cannot be had here.
    digests: Callable[[Representation], Deferred[FileDigests | None]]


class RemoteConnection:
    """A connection that a node has: what a `Request` needs of an `HttpConnection`."""

    elsewhere = True

    def __init__(self, node: Node, told: messages.Ask, proxies: TrustedProxies):
        asked, self.running = told.request, told.running
        self.peer_address = asked.peer_address
        self.is_tls = asked.is_tls
        #: What a proxy's preface said, see `http.connection`.
        self.forwarded = asked if asked.prefaced else None
        self.client_address = asked.peer_address
        self.factory = SimpleNamespace(proxies=proxies)
        self.node = node
        self.number = told.number
        self.line = node.machine
        here, body, http10 = cast(Any, self), asked.body, asked.http10
        request = Request(here, asked.method, asked.target, asked.headers, body=body, http10=http10)
        request.dripped = asked.dripped
        #: None once it is over.
        self.request: Request | None = request
        self.transfer: RemoteTransfer | None = None

    @property
    def alive(self) -> bool:
        """Whether the client is there, as far as its node told."""
        return self.node.remote.get(self.number) is self

    def answer(
        self,
        request: Request,
        status: int,
        headers: Iterable[Header],
        body: bytes,
        *,
        close: bool,
        current: Callable[[], bool] | None = None,
    ) -> None:
        request.status = status
        self.node.link.send(messages.Respond(self.number, status, tuple(headers), body, close))
        self.over()

    def begin(
        self,
        request: Request,
        status: int,
        headers: Iterable[Header],
        length: int | None,
        more: bool,
    ) -> None:
        request.status = status
        self.node.link.send(messages.Begin(self.number, status, tuple(headers), length, more))

    def write_body(self, request: Request, data: bytes) -> None:
        if data:
            self.node.link.send(messages.Write(self.number, data))

    def finish(self, request: Request) -> None:
        self.node.link.send(messages.Write(self.number, b""))
        self.over()

    def drip(self, request: Request, status: int, name: bytes, value: bytes) -> None:
        request.dripped = request.dripped or status
        self.node.link.send(messages.Drip(self.number, status, name, value))

    def abort(self) -> None:
        """See `HttpConnection.abort`: the node tells when it has happened."""
        self.node.link.send(messages.Cut(self.number))

    def gone(self) -> None:
        """The client has left, or its node is lost."""
        if self.alive:
            sent = self.transfer.delivered_bytes() if self.transfer is not None else 0
            self.over(sent, gone=True)

    def over(self, delivered_bytes: int = 0, complete: bool = False, *, gone: bool = False) -> None:
        """It is answered, or its node has sent so much of the body that it asked for.

        Let go of the request: each has the other, and only the collector would find them.
        """
        self.node.remote.pop(self.number, None)
        if self.transfer is not None:
            self.transfer.ended(delivered_bytes, complete)
        request, self.request = self.request, None
        if request is not None:
            request.ended(gone=gone)


@dataclass(eq=False, repr=False, slots=True)
class RemoteTransfer(Transfer):
    """A body that a node sends. `_seconds` is the leader's clock."""

    _node: Node
    _number: int
    _listener: TransferListener
    total_bytes: int
    _delivered_bytes: int
    _seconds: Callable[[], float]
    sent_bytes: int = field(init=False)
    blocked: bool = False
    paused: bool = False
    _over: bool = False
    _missing_bytes: int = 0
    #: For how long its client's window was shut, and since when it is so now.
    _shut_s: float = 0.0
    _shut_since_s: float = math.inf

    def __post_init__(self) -> None:
        self.sent_bytes = self._delivered_bytes

    @property
    def machine(self) -> str:
        """Whose line it is on."""
        return self._node.machine

    def pause(self) -> None:
        if not self._over and not self.paused:
            self.paused = True
            self._node.link.send(messages.Pause(self._number))

    def resume(self) -> None:
        if not self._over and self.paused:
            self.paused = False
            self._node.link.send(messages.Resume(self._number, self._in_background))

    def abort(self, reason: str) -> None:
        if not self._over:
            self._node.link.send(messages.Cut(self._number, reason))

    def delivered_bytes(self) -> int:
        return self._delivered_bytes

    def flying_bytes(self) -> int:
        return max(self._missing_bytes, self.sent_bytes - self._delivered_bytes)

    def missing_bytes(self) -> int:
        """See `Transfer`: what was under way at its end, for nodes do not tell how that went on."""
        return self._missing_bytes

    def tcp_state(self) -> TcpState:
        """See `Transfer`: a window that was told to be shut is so until something else is told.

        By the leader's clock, for what nodes measure reaches it early or late.
        """
        return TcpState(self._shut_s + max(0.0, self._seconds() - self._shut_since_s))

    def share_changed(self) -> None:
        """See `Transfer`; a paused one hears it when it goes on."""
        if not self._over and not self.paused:
            self._node.link.send(messages.Resume(self._number, self._in_background))

    @property
    def _in_background(self) -> bool:
        share = self._listener.share
        return share is not None and share.background

    def moved(
        self, sent_bytes: int, delivered_bytes: int, blocked: bool, *, shut: bool = False
    ) -> None:
        """The node tells how far it is; `shut`: whether its client's window is."""
        if delivered_bytes != self._delivered_bytes:
            self._listener.moves()
        self.sent_bytes = sent_bytes
        self._delivered_bytes = delivered_bytes
        self.blocked = blocked
        if shut != (self._shut_since_s < math.inf):
            self._shut_s = self.tcp_state().shut_s
            self._shut_since_s = self._seconds() if shut else math.inf

    def ending(self) -> None:
        """The node asks whether its last bytes may leave."""
        if self._over or self._listener.may_end(self._let_end):
            self._let_end()

    def _let_end(self) -> None:
        self._node.link.send(messages.MayEnd(self._number))

    def ended(self, delivered_bytes: int, complete: bool) -> None:
        """It is over; its listener hears of it once."""
        if not self._over:
            self._over = True
            self._missing_bytes = self.total_bytes - delivered_bytes if complete else 0
            self.sent_bytes = self._delivered_bytes = delivered_bytes + self._missing_bytes
            self._listener.transfer_done(self, complete)


def machine_of(name: str) -> str:
    """The machine of the node that bears this name; the only one has none."""
    return name.rpartition("/")[0]


@dataclass(eq=False, slots=True)
class Node:
    """One node as the leader knows it."""

    name: str
    pid: int
    link: Link[messages.FromNode]
    machine: str = ""
    serves: bool = True
    #: The time since its last message, by this process's own ticks: a stopped one received nothing.
    silent_s: float = 0.0
    #: The same of what it was told.
    untold_s: float = 0.0
    #: Whether it will not be back.
    parts: bool = False
    remote: dict[int, RemoteConnection] = field(default_factory=dict)
    told: messages.ProgressReport = field(default_factory=messages.ProgressReport)
    #: When it told its progress last.
    told_s: float = -math.inf
    terms: messages.Terms | None = None

    @property
    def running(self) -> int:
        return sum(
            one.transfer is not None and not one.transfer.paused for one in self.remote.values()
        )


@dataclass(eq=False, repr=False)
class Nodes:
    """All nodes that are here, by name, and what they send together with the leader itself."""

    own_goodput_bytes_s: Callable[[], float] = lambda: 0.0
    by_name: dict[str, Node] = field(default_factory=dict)
    #: Since when those are away that were here, and did not say that they leave for good.
    away: dict[str, float] = field(default_factory=dict)
    _came: Callable[[Node], None] = lambda node: None
    _left: Callable[[str], None] = lambda name: None
    #: The names of those that count.
    _counted: set[str] = field(default_factory=set)
    #: What was counted by nodes that have left.
    _past_connections: int = 0
    _past_bytes: int = 0

    def call(self, token: str, for_s: float) -> None:
        """A client is told to come now, and may come to any node."""
        for node in self:
            node.link.send(messages.Called(token, for_s))

    def watch(self, came: Callable[[Node], None], left: Callable[[str], None]) -> None:
        """Call `came` for each new node, `left` with the name of each that counts no more."""
        self._came = came
        self._left = left

    def __len__(self) -> int:
        return len(self.by_name)

    def __iter__(self) -> Iterator[Node]:
        return iter(tuple(self.by_name.values()))

    def remove(self, node: Node, now: float) -> None:
        """It has left; what it counted stays counted."""
        if self.by_name.get(node.name) is node:
            del self.by_name[node.name]
            if node.parts:
                self._counted.discard(node.name)
                self._left(node.name)
            else:
                self.away[node.name] = now
            self._past_connections += node.told.connections_total
            self._past_bytes += node.told.sent_bytes_total

    def add(self, node: Node) -> None:
        self.by_name[node.name] = node
        self._counted.add(node.name)
        self.away.pop(node.name, None)
        self._came(node)

    def miss(self, names: Iterable[str], now: float) -> None:
        """An earlier leader had these, which are not here as yet."""
        missed = set(names) - self.by_name.keys()
        self._counted |= missed
        self.away |= dict.fromkeys(missed, now)

    def counted_machines(self, now: float) -> set[str]:
        """The machines that are here, or were a moment ago and did not say that they leave.

        Nodes that were lost and stay away do not count any more, here or at a later leader.
        """
        for name in self._counted - self.by_name.keys():
            if self.away[name] <= now - TUNING.missed_s:
                self._counted.discard(name)
                self._left(name)
        return {machine_of(name) for name in self._counted}

    def goodput_bytes_s(self) -> float:
        return sum(node.told.goodput_bytes_s for node in self) + self.own_goodput_bytes_s()

    @property
    def connections(self) -> int:
        return sum(node.told.connections for node in self)

    @property
    def connections_total(self) -> int:
        return sum(node.told.connections_total for node in self) + self._past_connections

    @property
    def sent_bytes_total(self) -> int:
        return sum(node.told.sent_bytes_total for node in self) + self._past_bytes


@dataclass(eq=False, repr=False)
class Leader:
    """Hears `nodes` and decides for them; `awaited` are the names of those that will be there.

    `cap_of` says what a machine may send; `lost` are the nodes of the machine that led:
    the leader does not wait for them, and they count for `TUNING.missed_s`.
    """

    _reactor: Clock
    _gate: Gate
    _home: Home
    nodes: Nodes
    _proxies: TrustedProxies
    epoch: int
    awaited: frozenset[str]
    cap_of: Callable[[str], float | None]
    lost: frozenset[str] = frozenset()
    _gathered: Callable[[], None] = lambda: None
    _by_link: dict[Link[messages.FromNode], Node] = field(default_factory=dict)
    #: The names of nodes whose version does not fit.
    _sent_away: set[str] = field(default_factory=set)
    #: Requests that came before all nodes were back; None once they are.
    _early: dict[tuple[Node, int], messages.Ask] | None = field(default_factory=dict)
    _gather_call: Any = None
    _leaves: bool = False

    def __post_init__(self) -> None:
        self._timer = Repeat(self._reactor, TICK_S, self._tell)
        self.peer: Peer[messages.FromNode] = Peer(self._opened, self._received, self._closed)

    # -- life --------------------------------------------------------------------------------

    def start(self, gathered: Callable[[], None]) -> None:
        """Wait for nodes from now on; `gathered` hears when they are here, or waited for enough."""
        self._gathered = gathered
        self.nodes.miss(self.awaited | self.lost, self._reactor.seconds())
        self._gather_call = self._reactor.callLater(GATHER_S, self._open)
        self._timer.start()

    async def leave(self) -> None:
        """Part from all nodes, once they have what was sent: they look for another leader."""
        self._leaves = True
        self.stop()
        for link, node in tuple(self._by_link.items()):
            # The next leader hears from the nodes that stay, and waits for no others.
            node.parts = True
            link.close()
        until_s = self._reactor.seconds() + 1.0
        while self._by_link and self._reactor.seconds() < until_s:
            await pause(self._reactor, TUNING.look_s)

    def stop(self) -> None:
        """Stop the clocks; the connections end with the process."""
        cancel(self._gather_call)
        self._timer.stop()

    # -- messages ----------------------------------------------------------------------------

    def _opened(self, link: Link[messages.FromNode]) -> None:
        """A node will say hello, unless this leader parts."""
        if self._leaves:
            link.drop()

    def _closed(self, link: Link[messages.FromNode]) -> None:
        node = self._forget_node(link)
        if node is not None and node.serves:
            _log.info("Node {name} (process {pid}) has left.", name=node.name, pid=node.pid)

    def _forget_node(self, link: Link[messages.FromNode]) -> Node | None:
        """Its connection is over; the node, if it has said hello."""
        node = self._by_link.pop(link, None)
        if node is None:
            return None
        self.nodes.remove(node, self._reactor.seconds())
        if self._early is not None:
            self._early = {one: ask for one, ask in self._early.items() if one[0] is not node}
        for remote in tuple(node.remote.values()):
            remote.gone()
        return node

    def _received(self, link: Link[messages.FromNode], received: list[messages.FromNode]) -> None:
        node = self._by_link.get(link)
        if node is not None:
            node.silent_s = 0.0
        for message in received:
            if node is None:
                node = self._greet(link, message)
                if node is None:
                    return
            else:
                self._handle(node, message)

    def _greet(self, link: Link[messages.FromNode], message: messages.FromNode) -> Node | None:
        if not isinstance(message, messages.Hello) or message.version < messages.OLDEST:
            self._send_away(link, message)
            return None
        old = self.nodes.by_name.get(message.name)
        if old is not None and message.serves:
            # Its connection broke, and this end has not noticed.
            old.link.drop()
            self._forget_node(old.link)
        elif message.serves:
            _log.info("Node {name} (process {pid}) is here.", name=message.name, pid=message.pid)
        node = Node(message.name, message.pid, link, message.machine, message.serves)
        self._by_link[link] = node
        if node.serves:
            self.nodes.add(node)
            self._serve_with_machines()
        self._tell_node(node, self._terms())
        return node

    def _send_away(self, link: Link[messages.FromNode], message: messages.FromNode) -> None:
        """Its version does not fit; it comes again and again, and is told of once."""
        link.drop()
        hello = message if isinstance(message, messages.Hello) else messages.Hello("", version=0)
        if hello.name in self._sent_away:
            return
        self._sent_away.add(hello.name)
        _log.error(
            "Node {name} was sent away: it speaks version {version} of the cluster's messages, "
            "and this program {oldest} to {newest}. Upgrade its machine.",
            name=hello.name or "without a name",
            version=hello.version,
            oldest=messages.OLDEST,
            newest=messages.VERSION,
        )

    def _serve_with_machines(self) -> None:
        self._gate.serve_with(max(1, len(self.nodes.counted_machines(self._reactor.seconds()))))

    def _open(self) -> None:
        """All nodes are here, or were waited for long enough: new requests are let in."""
        early, self._early = self._early, None
        if early is None:
            return
        for (node, _), message in early.items():
            self._handle(node, message)
        self._gathered()

    def _handle(self, node: Node, message: messages.FromNode) -> None:
        # What comes often is looked for first: a look at another kind of message costs 0.1 us.
        if isinstance(message, messages.Ended):
            remote = node.remote.get(message.number)
            if remote is not None:
                gone = remote.transfer is None
                remote.over(message.delivered_bytes, message.complete, gone=gone)
            elif self._early is not None:
                self._early.pop((node, message.number), None)
        elif isinstance(message, messages.Ask):
            if self._early is not None and not message.running:
                self._early[node, message.number] = message
            else:
                self._enter(node, message)
        elif isinstance(message, messages.Ending):
            remote = node.remote.get(message.number)
            if remote is not None and remote.transfer is not None:
                remote.transfer.ending()
        elif isinstance(message, messages.Parting):
            node.parts = True
        elif isinstance(message, messages.ProgressReport):
            self._progress(node, message)
        elif isinstance(message, messages.Handover):
            now = self._gate.parts.wall()
            self._gate.take_up(messages.ticket_row(one, now) for one in message.tickets)
        elif isinstance(message, messages.FindDigests):
            found = self._home.digests(message.file).addErrback(lambda _: None)
            found.addCallback(lambda known: node.link.send(messages.Digests(message.number, known)))

    def _enter(self, node: Node, message: messages.Ask) -> None:
        if message.number in node.remote:
            return
        remote = RemoteConnection(node, message, self._proxies)
        node.remote[message.number] = remote
        request = remote.request
        assert request is not None
        request.answer_by(lambda request: self._decide(remote, request, message))

    def _decide(self, remote: RemoteConnection, request: Request, asked: messages.Ask) -> None:
        reception = self._gate.reception
        if asked.administers:
            self._home.administer(request)
        elif asked.judged is not None:
            if not reception.turned_away(request, asked.judged):
                remote.node.link.send(messages.Allow(asked.number))
                del remote.node.remote[asked.number]
        elif asked.file is None:
            self._home.route(request)
        elif asked.plan is not None:
            self._enter_body(remote, request, asked, asked.file, asked.plan)
        elif request.method != b"GET" or not reception.register(request, asked.file):
            request.not_found()

    def _enter_body(
        self,
        remote: RemoteConnection,
        request: Request,
        asked: messages.Ask,
        rep: Representation,
        plan: BodyPlan,
    ) -> None:
        node, number = remote.node, remote.number

        def start(listener: TransferListener, headers: Sequence[Header] = ()) -> RemoteTransfer:
            share = listener.share
            shared = (0, False) if share is None else (id(share), share.counts_body)
            logged = (request.waited_s, request.priority_class)
            node.link.send(messages.Start(number, tuple(headers), shared[0], *logged, shared[1]))
            size = (plan.body_bytes, asked.delivered_bytes)
            remote.transfer = RemoteTransfer(node, number, listener, *size, self._reactor.seconds)
            return remote.transfer

        self._home.enter(request, rep, plan, start)

    def _progress(self, node: Node, message: messages.ProgressReport) -> None:
        node.told, node.told_s = message, self._reactor.seconds()
        for body in message.bodies:
            remote = node.remote.get(body.number)
            if remote is not None and remote.transfer is not None:
                remote.transfer.moved(
                    body.sent_bytes, body.delivered_bytes, body.blocked, shut=body.shut
                )
        for url_path, times, whole, size_bytes in message.small:
            self._gate.served_elsewhere(url_path, times, whole, size_bytes)
        told = {one.name for one in self.nodes if one.told_s > -math.inf}
        if self._early is not None and self.awaited <= told:
            # Before its first report a node has told what it runs.
            self._open()

    # -- terms -------------------------------------------------------------------------------

    def _tell(self) -> None:
        self._serve_with_machines()
        terms = self._terms()
        for node in tuple(self._by_link.values()):
            node.silent_s += TICK_S
            node.untold_s += TICK_S
            self._tell_node(node, terms)
            if node.silent_s >= TUNING.silent_s:
                _log.error("Node {name} says nothing; its connection is cut.", name=node.name)
                node.link.drop()

    def _proofs(self) -> tuple[str, ...] | None:
        proofs = self._home.proofs()
        return None if proofs is None or len(proofs) > TUNING.most_proofs else tuple(proofs)

    def _terms(self) -> messages.Terms:
        """What nodes may do without asking, as things are now."""
        gate = self._gate
        small_free, brief_free = gate.free_for_small()
        blocked = gate.reception.blocked.networks()
        return messages.Terms(
            gate.settings.small_below_bytes,
            small_free,
            _as_json(gate.parts.rules),
            None,
            brief_free,
            blocked if len(blocked) <= TUNING.most_blocked else None,
            gate.parts.keys.derived(),
            gate.policy.name,
            gate.settings.model_dump_json().encode(),
            self.epoch,
        )

    def _tell_node(self, node: Node, terms: messages.Terms) -> None:
        if node.serves:
            terms = replace(terms, bandwidth_bytes_s=self.cap_of(node.machine))
        else:
            terms = replace(terms, keys=(), proofs=self._proofs())
        if terms != node.terms or node.untold_s >= TUNING.again_s:
            node.terms, node.untold_s = terms, 0.0
            node.link.send(terms)


@functools.lru_cache(1)
def _as_json(book: RuleBook) -> bytes:
    """Rules for nodes."""
    rules = [rule.model_dump(mode="json", exclude_none=True) for rule in book.rules]
    return json.dumps(rules).encode()
