"""What the kernel knows of TCP sockets of other processes: sock_diag(7), without privilege.

It answers questions, and tells of each socket that is destroyed. The sockets must be in this
process's network namespace.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Sequence

import msgspec

from ..http.clock import Reactor
from ..http.proxies import parse_address
from .datagrams import DatagramReader


class _Diag:
    """Numbers of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h."""

    NETLINK = 4
    BY_FAMILY = 20
    REQUEST = 1
    DUMP = 0x300
    ERROR = 2
    DONE = 3
    #: TCP_LISTEN of net/tcp_states.h.
    LISTEN = 10
    #: The attribute with `struct tcp_info`.
    INFO = 2
    ANY_STATE = 0xFFFFFFFF
    #: The groups that are told of destroyed sockets: SKNLGRP_INET_TCP_DESTROY is the first,
    #: SKNLGRP_INET6_TCP_DESTROY the third.
    DESTROYED = 1 << 0 | 1 << 2


class _Place:
    """Places in `struct inet_diag_msg` and `struct tcp_info`."""

    ENDS = 4
    #: `tcpi_bytes_acked`.
    BYTES_ACKED = 120


#: `struct nlmsghdr`, an attribute, the beginning of `struct inet_diag_req_v2`, and of
#: `struct inet_diag_msg` ports and addresses.
_MESSAGE = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_ENDS = struct.Struct("!HH16s16s")
#: Length and kind of a message, and of its `struct inet_diag_msg` the state and the bytes that the
#: peer has not acknowledged. The attributes come next.
_ANSWER = struct.Struct("=IH10xxB58xI8x")
_BYTES = struct.Struct("=Q")
#: The mover has the socket open in these: TCP_ESTABLISHED, TCP_CLOSE_WAIT (net/tcp_states.h).
_OPEN = frozenset({1, 8})


class SocketName(msgspec.Struct, frozen=True):
    """The two ends of a connection between a client and the mover."""

    client: str
    client_port: int
    mover: str
    mover_port: int


class SocketState(msgspec.Struct, frozen=True):
    """`acked_bytes` since the connection began; `queued_bytes` are not acknowledged yet.

    `closing`: the mover has closed it, the kernel sends what is queued.
    """

    acked_bytes: int
    queued_bytes: int
    closing: bool = False


#: The kernel has this socket no more: it told of the one that the mover listens on.
GONE = SocketState(0, 0, closing=True)


def read_socket_name(words: Sequence[str]) -> SocketName | None:
    """The name in `ADDRESS PORT ADDRESS PORT`, as the mover writes it; None for other words.

    A mover that knows its client's end alone says `ADDRESS PORT`: see `InetDiag.find`.
    """
    if len(words) == 2:
        words = (*words, "0.0.0.0" if ":" not in words[0] else "::", "0")
    if len(words) != 4 or not (words[1].isdecimal() and words[3].isdecimal()):
        return None
    client, mover = parse_address(words[0]), parse_address(words[2])
    ports = int(words[1]), int(words[3])
    if client is None or mover is None or max(ports) > 0xFFFF or (":" in client) != (":" in mover):
        return None
    return SocketName(client, ports[0], mover, ports[1])


def question(name: SocketName, dump: int | None = None) -> bytes:
    """The message that asks for this socket, or for all open ones with its ports (0: any).

    `dump` is the family of those.
    """
    family: int = socket.AF_INET6 if ":" in name.client else socket.AF_INET
    # Padded with zeros by their formats.
    mover, client = socket.inet_pton(family, name.mover), socket.inet_pton(family, name.client)
    states, flags = _Diag.ANY_STATE, _Diag.REQUEST
    if dump is not None:
        family, flags = dump, _Diag.REQUEST | _Diag.DUMP
        states = sum(1 << state for state in _OPEN)
    return (
        _MESSAGE.pack(_MESSAGE.size + _ASKED.size + _ENDS.size + 12, _Diag.BY_FAMILY, flags, 0, 0)
        + _ASKED.pack(family, socket.IPPROTO_TCP, 1 << _Diag.INFO - 1, 0, states)
        + _ENDS.pack(name.mover_port, name.client_port, mover, client)
        # No interface, and no cookie is known.
        + b"\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"
    )


def read_named(data: bytes) -> tuple[SocketName, SocketState] | None:
    """The socket that this message of the kernel is about, as it is or was last."""
    state = read_state(data)
    if state is None:
        return None
    mover_port, client_port, mover, client = _ENDS.unpack_from(data, _MESSAGE.size + _Place.ENDS)
    addresses = []
    for packed in (client, mover):
        if data[_MESSAGE.size] == socket.AF_INET:
            addresses.append(socket.inet_ntop(socket.AF_INET, packed[:4]))
        elif packed.startswith(bytes(10) + b"\xff\xff"):
            addresses.append(socket.inet_ntop(socket.AF_INET, packed[12:]))
        else:
            addresses.append(socket.inet_ntop(socket.AF_INET6, packed))
    return SocketName(addresses[0], client_port, addresses[1], mover_port), state


def read_state(data: bytes) -> SocketState | None:
    """The state in an answer of the kernel; None where it has none of the mover at all."""
    if len(data) < _ANSWER.size:
        return None
    length, kind, state, queued = _ANSWER.unpack_from(data)
    if kind == _Diag.ERROR:
        return None
    if state == _Diag.LISTEN:
        return GONE
    at = _ANSWER.size
    end = min(length, len(data)) - _ATTRIBUTE.size
    while at <= end:
        size, name = _ATTRIBUTE.unpack_from(data, at)
        if name == _Diag.INFO and size >= _ATTRIBUTE.size + _Place.BYTES_ACKED + 8:
            (acked,) = _BYTES.unpack_from(data, at + _ATTRIBUTE.size + _Place.BYTES_ACKED)
            return SocketState(acked, queued, state not in _OPEN)
        if size < _ATTRIBUTE.size:
            break
        at += size + 3 & ~3
    return None


class InetDiag:
    """Asks the kernel; Linux only. Elsewhere every socket is unknown.

    `destroyed` is told of each socket that ends, of whatever program, between `start` and `close`.
    """

    def __init__(
        self, reactor: Reactor, destroyed: Callable[[SocketName, SocketState], None]
    ) -> None:
        self._reactor = reactor
        self._destroyed = destroyed
        self._socket: socket.socket | None = None
        self._news: DatagramReader | None = None

    def start(self) -> None:
        """Begin to ask and to listen."""
        with contextlib.suppress(OSError, AttributeError):
            self._socket = _diag_socket(0)
        with contextlib.suppress(OSError, AttributeError):
            # Where more sockets end than its buffer holds (ENOBUFS), the looks find them.
            self._news = DatagramReader(self._reactor, _diag_socket(_Diag.DESTROYED), self._tell)

    def look(self, name: SocketName) -> SocketState | None:
        """The state of a socket; None where the kernel has none of this name, and none listens."""
        if self._socket is None:
            return None
        try:
            self._socket.send(question(name))
            # The kernel has answered within the call that asked.
            return read_state(self._socket.recv(4096))
        except OSError:
            return None

    def find(self, name: SocketName) -> SocketName:
        """The whole name of a socket of which the mover told the client's end alone.

        The kernel walks through all its sockets: 0.5 ms. A socket that takes both families has an
        IPv4 client, too.
        """
        if name.mover_port or self._socket is None:
            return name
        with contextlib.suppress(OSError, struct.error):
            for family in (socket.AF_INET, socket.AF_INET6):
                for one, _ in self._dump(question(name, family)):
                    if one.client == name.client:
                        return one
        return name

    def _dump(self, asked: bytes) -> list[tuple[SocketName, SocketState]]:
        """All sockets that the kernel tells. Raises OSError and struct.error."""
        assert self._socket is not None
        self._socket.send(asked)
        found: list[tuple[SocketName, SocketState]] = []
        while True:
            data = self._socket.recv(65_536)
            while data:
                length, kind, *_ = _MESSAGE.unpack_from(data)
                if kind in (_Diag.ERROR, _Diag.DONE) or length < _MESSAGE.size:
                    return found
                one = read_named(data[:length])
                if one is not None:
                    found.append(one)
                data = data[length + 3 & ~3 :]

    def close(self) -> None:
        """Ask and listen no more."""
        if self._news is not None:
            self._news.close()
            self._news = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tell(self, data: bytes) -> None:
        found = read_named(data)
        if found is not None:
            self._destroyed(*found)


def _diag_socket(groups: int) -> socket.socket:
    one = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _Diag.NETLINK)
    one.setblocking(False)
    if groups:
        one.bind((0, groups))
    return one
