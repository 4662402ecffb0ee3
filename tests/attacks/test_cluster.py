"""Who reaches the port where the machines of a cluster meet, and has no certificate."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransportWithDisconnection

from tidegate.server.cluster.identity import MutualTls, make_identity
from tidegate.server.cluster.link import Link, LinkFactory, Peer, SilentConnections
from tidegate.server.cluster.messages import Hello, decode_from_node, encode_frame


class Door:
    """The leader's port, in memory."""

    def __init__(self, *, tls: bool) -> None:
        self.clock = Clock()
        self.heard: list[object] = []
        peer: Peer[Any] = Peer(
            lambda link: None,
            lambda link, messages: self.heard.extend(messages),
            lambda link: None,
        )
        factory: Any = LinkFactory(
            self.clock, decode_from_node, peer, SilentConnections(self.clock)
        )
        if tls:
            factory = MutualTls([make_identity(0.0)], 0.0).around(factory)
        self.factory = factory

    def connect(self) -> tuple[Any, StringTransportWithDisconnection]:
        protocol = self.factory.buildProtocol(None)
        transport = StringTransportWithDisconnection()
        transport.protocol = protocol
        transport.abortConnection = transport.loseConnection
        protocol.makeConnection(transport)
        return protocol, transport


@pytest.mark.filterwarnings("ignore:Passing pyOpenSSL:DeprecationWarning")
def test_who_connects_and_says_nothing_is_let_go() -> None:
    """Such connections used to stay for ever, until the leader had no descriptor left."""
    door = Door(tls=True)
    connected = [door.connect()[1] for _ in range(10)]
    door.clock.advance(5.0)
    assert all(transport.connected for transport in connected)
    door.clock.advance(5.1)
    assert not any(transport.connected for transport in connected)


def test_a_flood_of_silent_connections_costs_the_oldest_of_them_and_no_node() -> None:
    door = Door(tls=False)
    node, line = door.connect()
    assert isinstance(node, Link)
    body = encode_frame([Hello("b-0", pid=1, machine="b", serves=True)])
    node.dataReceived(len(body).to_bytes(4, "big") + body)  # type: ignore[no-untyped-call]
    assert door.heard
    flood = [door.connect()[1] for _ in range(1000)]
    assert sum(transport.connected for transport in flood) == 256
    assert flood[-1].connected
    assert line.connected
    door.clock.advance(3600.0)
    assert line.connected


def test_a_frame_that_none_would_send_cuts_its_connection() -> None:
    for bytes_ in (b"\xff\xff\xff\xff", b"\0\0\0\x04\xc1\xc1\xc1\xc1", b"\0\0\0\0"):
        door = Door(tls=False)
        link, line = door.connect()
        link.dataReceived(bytes_)
        assert not line.connected
        assert not door.heard
