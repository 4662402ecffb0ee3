"""The connection between a node and its leader: frames of messages, sent once a reactor turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from twisted.application.internet import ClientService
from twisted.internet import protocol
from twisted.logger import Logger
from twisted.protocols.basic import Int32StringReceiver
from twisted.python.failure import Failure

from ..http.clock import Clock, Reactor, cancel
from .messages import MOST_BYTES, BadFrame, FromLeader, FromNode, encode_frame

_log = Logger()
Received = TypeVar("Received")


@dataclass(frozen=True, slots=True)
class Peer(Generic[Received]):
    """Who hears of one connection: its beginning, its messages, its end."""

    opened: Callable[[Link[Received]], None]
    received: Callable[[Link[Received], list[Received]], None]
    closed: Callable[[Link[Received]], None]


#: Cuts each connection, while no machine leads here.
NOBODY: Peer[Any] = Peer(lambda link: link.drop(), lambda link, messages: None, lambda link: None)


@dataclass(frozen=True, slots=True)
class SilentConnections:
    """Connections at a door on which no message has come yet: a stranger without the cluster's
    certificate never gets further, and must not use up the descriptors. It is cut after 10 s."""

    _reactor: Clock
    _calls: dict[Link[Any], Any] = field(default_factory=dict)

    def add(self, link: Link[Any]) -> None:
        """It has begun; where there are too many the oldest goes."""
        self._calls[link] = self._reactor.callLater(10.0, link.drop)
        if len(self._calls) > 256:
            next(iter(self._calls)).drop()

    def remove(self, link: Link[Any]) -> None:
        """It has said something, or is over."""
        cancel(self._calls.pop(link, None))


@dataclass(eq=False, repr=False)
class Link(Int32StringReceiver, Generic[Received]):
    """One connection; `send` gathers messages until the reactor's turn is over."""

    MAX_LENGTH = MOST_BYTES
    transport: Any = field(init=False)
    _reactor: Clock
    _decode: Callable[[bytes], list[Received]]
    _peer: Peer[Received]
    _silent: SilentConnections | None = None
    _unread: Callable[[], None] = lambda: None
    _out: list[FromNode | FromLeader] = field(default_factory=list)
    _flush_soon: Any = None
    open: bool = False

    def send(self, message: FromNode | FromLeader) -> None:
        """Send soon, after what was sent before; nothing once the connection is lost."""
        if not self.open:
            return
        self._out.append(message)
        if self._flush_soon is None:
            self._flush_soon = self._reactor.callLater(0, self.flush)

    def flush(self) -> None:
        """Send what has gathered now."""
        cancel(self._flush_soon)
        self._flush_soon = None
        out, self._out = self._out, []
        if out and self.open:
            self.sendString(encode_frame(out))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the connection after what was sent."""
        self.flush()
        if self.open:
            self.transport.loseConnection()

    def drop(self) -> None:
        """Cut the connection."""
        if self.open:
            self.transport.abortConnection()

    def connectionMade(self) -> None:
        self.open = True
        if self._silent is not None:
            self._silent.add(self)
        self._peer.opened(self)

    def stringReceived(self, string: bytes) -> None:
        try:
            messages = self._decode(string)
        except BadFrame as fault:
            _log.error(
                "A connection of the cluster is cut: {fault} If its other end runs another version "
                "of Tidegate, upgrade that machine.",
                fault=fault,
            )
            self._unread()
            self.drop()
            return
        if self._silent is not None:
            self._silent.remove(self)
        self._peer.received(self, messages)

    def lengthLimitExceeded(self, length: int) -> None:
        _log.error("A connection of the cluster is cut: a frame of {length} bytes.", length=length)
        self.drop()

    def connectionLost(self, reason: Failure = protocol.connectionDone) -> None:
        if self.open:
            self.open = False
            if self._silent is not None:
                self._silent.remove(self)
            cancel(self._flush_soon)
            self._peer.closed(self)


@dataclass(eq=False, repr=False)
class LinkFactory(protocol.Factory, Generic[Received]):
    """Builds links that report to `peer`, later ones to another; at a `door` strangers may come.

    `unread` is called when a frame of the other side cannot be read.
    """

    noisy = False
    _reactor: Clock
    _decode: Callable[[bytes], list[Received]]
    peer: Peer[Received]
    door: SilentConnections | None = None
    unread: Callable[[], None] = lambda: None

    def buildProtocol(self, addr: Any) -> Link[Received]:
        return Link(self._reactor, self._decode, self.peer, self.door, self.unread)


def keep_connected(reactor: Reactor, endpoint: Any, links: LinkFactory[Any]) -> ClientService:
    """Keeps one connection to wherever `endpoint` leads.

    A lost leader is looked for ten times a second: it returns within 1 or 2 s.
    """
    kept: Any = ClientService
    found: ClientService = kept(endpoint, links, lambda failures: 0.1, reactor)
    return found
