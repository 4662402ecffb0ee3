"""What all connections of a server share: bounds, counts, the date, and the once-a-second sweep."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol
from wsgiref.handlers import format_date_time

from twisted.logger import Logger

from ...protocol.errors import ProtocolError
from .accesslog import AccessLog
from .clock import Clock, DelayedCall, pause
from .limits import HttpLimits
from .parser import BodyAllowance
from .prefix_shares import PrefixShares
from .proxies import TrustedProxies, block_of, prefixes_of
from .ready import Shortcut, Turns
from .request import Request
from .request_shape import MOST_BYTES, MOST_FIELDS, MOST_TARGET_BYTES
from .unarrived import UnarrivedAnswers

_log = Logger()
_SWEEP_S = 1.0
_SWEPT_AT_ONCE = 1000
#: What a request is charged before its answer leaves: about a header. An answer that needs the disk
#: is charged once it leaves; without this all requests of a network would pass meanwhile.
REQUEST_BYTES = 512


class CountedConnection(Protocol):
    """What the books hold of a connection (`connection.HttpConnection`)."""

    peer_address: str
    block: str
    deadline: float
    shortcut: bool
    refusal: ProtocolError | None

    @property
    def client_address(self) -> str:
        """The client, seen through a proxy's preface."""

    @property
    def alive(self) -> bool:
        """Whether it is not over."""

    @property
    def resting(self) -> bool:
        """Whether nothing is being answered on it."""

    @property
    def just_came(self) -> bool:
        """Whether its first request may still be on its way."""

    @property
    def parting(self) -> bool:
        """Whether it is being closed."""

    @property
    def written_out(self) -> bool:
        """Whether the socket has taken all that was to be said."""

    def lost(self) -> None:
        """Give it up."""

    def close_if_idle(self) -> None:
        """Close it now, or after the answer that it is giving."""

    def abort(self) -> None:
        """Cut it."""

    def needs_sweep(self, now: float) -> bool:
        """Whether a deadline of it may have passed."""

    def sweep(self, now: float) -> None:
        """Look at its deadlines."""


class Blocked(Protocol):
    """Which addresses the operator has blocked (`admission.denylist.BlockList`)."""

    def blocks(self, address: str) -> bool:
        """Whether requests from this address are refused now."""

    def on_added(self, callback: Callable[[], None]) -> None:
        """Call back each time that a network was added."""


class AddressCounts:
    """How many connections are open from which address; here at a process that serves alone."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()

    def add(self, address: str) -> None:
        """One more."""
        self.open[address] += 1

    def remove(self, address: str) -> None:
        """One less."""
        self.open[address] -= 1
        if not self.open[address]:
            del self.open[address]

    def of(self, address: str) -> int:
        """How many there are."""
        return self.open[address]


class Requests:
    """Where requests wait while the line is full: here it never is.

    `files.request_queue.RequestQueue` is the one of a server with a cap.
    """

    #: Whether a request may have to wait: the line is full, or requests wait.
    busy = False

    def passes(self, address: str) -> bool:
        """Whether a request from here need not wait. Ask while `busy`; changes nothing."""
        return True

    def charge(self, address: str, count: int) -> None:
        """Charge an address while `busy`: `REQUEST_BYTES` for a request that passes, and bytes
        of answers that leave."""

    def wait(
        self,
        key: Hashable,
        address: str,
        now_s: float,
        go: Callable[[], None],
        refuse: Callable[[float], None],
    ) -> None:
        """A request waits; `refuse` hears when to come back, in seconds."""

    def forget(self, key: Hashable) -> None:
        """A request is not there any more, if it ever waited."""


@dataclass(eq=False, repr=False)
class HttpFactory:
    """What connections have in common: the handler, the bounds, and the books on them.

    `handler` gets each request. The reactor's clock counts deadlines, `wall` (Unix time) gives the
    Date field. `charge`, when set, hears of every byte that leaves outside body senders, and
    requests wait in `requests` while it says so. One factory may serve several listeners: the
    bounds count over all of them, `per_address` over all processes that share it. `goes_first` says
    of a request that would wait there that it need not. With `large_bodies`, these say who may send
    one. `answers` hears of larger answers that were sent whole, while it wants to. `shortcut`
    answers requests of a known shape, see `ready`.
    """

    handler: Callable[[Request], None]
    reactor: Clock
    _: KW_ONLY
    limits: HttpLimits = field(default_factory=HttpLimits)
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    access_log: AccessLog | None = None
    charge: Callable[[int], None] | None = None
    requests: Requests = field(default_factory=Requests)
    goes_first: Callable[[Request], bool] = lambda request: False
    denylist: Blocked | None = None
    hsts_s: float = 0.0
    wall: Callable[[], float] = time.time
    per_address: AddressCounts = field(default_factory=AddressCounts)
    large_bodies: BodyAllowance | None = None
    answers: UnarrivedAnswers = field(default_factory=UnarrivedAnswers)
    shortcut: Shortcut | None = None
    turns: Turns = field(init=False)
    connections: set[CountedConnection] = field(init=False, default_factory=set)
    _handshakes: PrefixShares[CountedConnection] = field(init=False, default_factory=PrefixShares)
    refusing: int = field(init=False, default=0)
    accepted_total: int = field(init=False, default=0)
    _looked_s: float = field(init=False, default=-1.0)
    _no_room_for: set[str] = field(init=False, default_factory=set)
    draining: bool = field(init=False, default=False)
    now: float = field(init=False, default=0.0)
    date_line: bytes = field(init=False, default=b"")
    #: The same for answers by TLS, with Strict-Transport-Security (RFC 6797) if so wished.
    tls_date_line: bytes = field(init=False, default=b"")
    _sweeper: DelayedCall | None = field(init=False, default=None)
    _to_sweep: list[CountedConnection] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.denylist is not None:
            self.denylist.on_added(self._judge_shortcuts)
        charge = self.charge
        self.turns = Turns(self.reactor, lambda count: charge(count) if charge else None)
        self._tell_time()

    def may_shortcut(self, peer_address: str) -> bool:
        """Whether requests from here may be answered without the parser.

        A proxy's preface is read by connections alone.
        """
        limits = self.limits
        return not (
            self.shortcut is None
            or self.draining
            or self.blocks(peer_address)
            or self.proxies.begins_with_preface(peer_address)
            or limits.max_headers < MOST_FIELDS
            or limits.max_target_bytes < MOST_TARGET_BYTES
            or limits.max_header_bytes < MOST_BYTES
        )

    def blocks(self, address: str) -> bool:
        """Whether requests from this address are refused now."""
        return self.denylist is not None and self.denylist.blocks(address)

    def _judge_shortcuts(self) -> None:
        """An address was blocked, or the server drains."""
        for connection in self.connections:
            if connection.shortcut:
                connection.shortcut = self.may_shortcut(connection.peer_address)

    def takes(self, peer_address: str) -> bool:
        """Whether a new connection from here can be taken, be it to refuse it in words."""
        if self._sweeper is None:
            self._tell_time()
            self._sweeper = self.reactor.callLater(_SWEEP_S, self._sweep)
        if self.refusing < self.limits.max_refusals:
            return True
        self._make_room(peer_address)
        if self._refusal(peer_address) is None:
            return True
        self.accepted_total += 1
        return False

    def has_room(self, peer_address: str) -> bool:
        """Whether a new connection from here needs neither to be refused nor room to be made."""
        return self._refusal(peer_address) is None

    def _refusal(self, peer_address: str) -> str | None:
        limits = self.limits
        # Those that are refused stand beside, within their own bound.
        if 0 < limits.max_connections <= len(self.connections) - self.refusing:
            return "This server has as many connections as it takes; please come back soon."
        if (
            peer_address
            and 0 < limits.max_connections_per_address <= self.per_address.of(_block(peer_address))
            # A proxy brings the connections of all its clients from one address.
            and not self.proxies.trusts(peer_address)
        ):
            return "Your address has as many connections as one may have here; close some."
        return None

    def _make_room(self, peer_address: str) -> None:
        """Every connection is taken: give up some on which nothing is being answered.

        Those of the network that has most go first, and of these the one that was idle longest.
        One that has only just come goes for a network that has fewer: among equals of one crowd
        the newcomer is told that it is one too many, and no client is cut that is about to ask.
        A batch at a time, so that what it costs to look at all of them is shared.
        """
        most = self.limits.max_connections
        if not 0 < most <= len(self.connections) - self.refusing:
            return
        own = prefixes_of(peer_address)[-1]
        if self._looked_s != self.now:
            self._looked_s = self.now
            self._no_room_for.clear()
        if own in self._no_room_for:
            return
        counted = [one for one in self.connections if one.refusal is None]
        networks = {one: prefixes_of(one.client_address) for one in counted}
        taken = Counter(key for network in networks.values() for key in network)
        resting = [one for one in counted if one.resting]
        resting.sort(
            key=lambda one: (
                *(-taken[networks[one][-1]], -taken[networks[one][0]]),
                *(one.just_came, one.deadline),
            )
        )
        given_up = [
            one
            for one in resting[: max(1, most // 100)]
            if not (one.just_came and taken[networks[one][-1]] <= taken[own] + 1)
        ]
        for one in given_up:
            one.lost()
        # How many networks are remembered for which there was no room.
        if not given_up and len(self._no_room_for) < 1000:
            # Do not look again for this network before the next sweep.
            self._no_room_for.add(own)

    def entered(self, connection: CountedConnection) -> ProtocolError | None:
        """Count a new connection; an error means that it must be refused."""
        self.accepted_total += 1
        self._make_room(connection.peer_address)
        reason = self._refusal(connection.peer_address)
        block = connection.block = _block(connection.peer_address)
        self.connections.add(connection)
        self.per_address.add(block)
        if reason is None:
            return None
        self.refusing += 1
        return ProtocolError(reason, status=503, code="too-many-connections")

    def begins_handshake(self, connection: CountedConnection) -> bool:
        """Count a handshake that begins; False where there is no room for it.

        The network that has most of them gives its oldest up for a newcomer of one that has less.
        """
        network = prefixes_of(connection.peer_address)
        if len(self._handshakes) >= self.limits.max_handshakes:
            oldest = self._handshakes.to_give_up(network)
            if oldest is None:
                return False
            oldest.lost()
        self._handshakes.add(connection, network)
        return True

    def ended_handshake(self, connection: CountedConnection) -> None:
        """Count it no longer."""
        self._handshakes.remove(connection)

    def left(self, connection: CountedConnection) -> None:
        """A counted connection is over."""
        self._handshakes.remove(connection)
        self.connections.discard(connection)
        self.per_address.remove(connection.block)
        if connection.refusal is not None:
            self.refusing -= 1

    def write_deadline(self, buffered_bytes: int) -> float:
        """By when a peer at the lowest permitted rate has taken this many bytes."""
        limits = self.limits
        return self.now + limits.min_rate_window_s + buffered_bytes / limits.min_rate_bytes_s

    def log(self, request: Request, *, complete: bool) -> None:
        """Note an answered (or abandoned) request, where there is a log."""
        if self.access_log is not None:
            self.access_log.note(request, complete, self.reactor.seconds(), self.wall())

    def drain(self) -> None:
        """Have each connection say with its next answer that it is the last."""
        self.draining = True
        self.turns.close_books()
        self._judge_shortcuts()

    async def close(self, most_s: float) -> None:
        """Close idle connections, let complete answers leave for `most_s` seconds, cut the rest."""
        self.drain()
        for connection in tuple(self.connections):
            connection.close_if_idle()
        # A reset in the same breath would take back what their peers have not read yet.
        until = self.reactor.seconds() + most_s
        while any(one.parting for one in self.connections) and self.reactor.seconds() < until:
            await pause(self.reactor, 0.02)
        for connection in tuple(self.connections):
            if not (connection.parting and connection.written_out):
                connection.abort()

    def _tell_time(self) -> None:
        self.now = self.reactor.seconds()
        self.date_line = b"Date: %b\r\n" % format_date_time(self.wall()).encode("ascii")
        age_s = self.hsts_s
        hsts = b"Strict-Transport-Security: max-age=%d\r\n" % age_s if age_s else b""
        self.tls_date_line = self.date_line + hsts

    def _sweep(self) -> None:
        self._tell_time()
        if self.access_log is not None:
            self.access_log.flush()
        self._to_sweep = list(self.connections)
        self._sweep_some()

    def _sweep_some(self) -> None:
        """A part of them, so that thousands delay no request."""
        now = self.now
        some = self._to_sweep[-_SWEPT_AT_ONCE:]
        del self._to_sweep[-_SWEPT_AT_ONCE:]
        for connection in some:
            if connection.alive and connection.needs_sweep(now):
                with _log.failuresHandled("A connection's time could not be looked at"):
                    connection.sweep(now)
        if self._to_sweep:
            self._sweeper = self.reactor.callLater(0, self._sweep_some)
        else:
            again = bool(self.connections)
            self._sweeper = self.reactor.callLater(_SWEEP_S, self._sweep) if again else None


def _block(peer_address: str) -> str:
    """`block_of`, without parsing what needs none."""
    return block_of(peer_address) if ":" in peer_address or not peer_address else peer_address
