"""Who the client is when a proxy stands in front: believed only from configured networks.

A proxy appends to what its client sent, so only the near end of a header is its own word, and only
in the one header that it writes: any other passes through from the client untouched. Every reader
here takes one look at each byte.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ...protocol.errors import BadHeader

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ProxyHeader = Literal["x-forwarded-for", "forwarded", "x-real-ip"]

#: PROXY protocol, version 2 (haproxy.org, proxy-protocol.txt, section 2.2).
_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_PREFACE_HEAD = struct.Struct(">12sBBH")


# IPv6 takes 8 µs. A mover names its client twice in a request, and its own address in each.
@lru_cache(maxsize=1024)
def parse_address(text: str) -> str | None:
    """A bare IP address out of `1.2.3.4`, `1.2.3.4:80`, `[::1]` or `[::1]:80`; None if none."""
    text = text.strip().strip('"')
    if len(text) > 64:
        return None
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    if ":" not in text:
        # `ipaddress` reads the same, and takes 8 µs.
        try:
            socket.inet_pton(socket.AF_INET, text)
        except (OSError, ValueError):
            return None
        return text
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        if address.scope_id is not None:
            return None
    return str(address)


@dataclass(frozen=True, slots=True)
class Preface:
    """What a proxy says of a connection before its first byte: PROXY protocol, version 2.

    `address` is None where the proxy speaks for itself (a health check). `size_bytes` is how much
    of the stream the preface takes.
    """

    address: str | None
    is_tls: bool
    size_bytes: int


def read_preface(data: bytes) -> Preface | None:
    """The preface at the beginning of a connection; None while bytes are missing.

    Raises BadHeader for what is none.
    """
    if not _SIGNATURE.startswith(data[: len(_SIGNATURE)]):
        raise BadHeader("The connection does not begin with PROXY protocol, version 2.")
    if len(data) < _PREFACE_HEAD.size:
        return None
    _, command, family, length = _PREFACE_HEAD.unpack_from(data)
    if command not in (0x20, 0x21) or length > 4096:
        raise BadHeader("The PROXY preface has an unknown command or is too long.")
    end = _PREFACE_HEAD.size + length
    if len(data) < end:
        return None
    body = data[_PREFACE_HEAD.size : end]
    if command == 0x20:  # LOCAL: the proxy's own connection
        return Preface(None, False, end)
    # TCP over IPv4 and IPv6.
    size = {0x11: 4, 0x21: 16}.get(family)
    if size is None:
        return Preface(None, False, end)
    if length < 2 * size + 4:
        raise BadHeader("The PROXY preface is shorter than its addresses.")
    address = parse_address(str(ipaddress.ip_address(body[:size])))
    return Preface(address, _says_tls(body[2 * size + 4 :]), end)


def _says_tls(extensions: bytes) -> bool:
    """Whether the extensions of a preface say that the client came by TLS."""
    at = 0
    while at + 3 <= len(extensions):
        kind, length = extensions[at], int.from_bytes(extensions[at + 1 : at + 3], "big")
        # PP2_TYPE_SSL, whose first byte has PP2_CLIENT_SSL.
        if kind == 0x20 and length >= 5:
            return bool(extensions[at + 3 : at + 4] and extensions[at + 3] & 0x01)
        at += 3 + length
    return False


@lru_cache(maxsize=4096)
def prefixes_of(address: str) -> tuple[str, ...]:
    """The networks that enclose an address, narrow to wide, as keys.

    The first is what counts as one address: IPv4 whole, IPv6 its /64, `local` for a unix socket.
    One household or company has an IPv4 /24, an IPv6 /56 or a /48 at most.
    """
    if not address:
        return ("local",)
    try:
        # As strict as the module below, at a tenth of its cost: each newcomer has another one.
        socket.inet_pton(socket.AF_INET, address)
    except (OSError, ValueError):
        pass
    else:
        return (address, f"{address.rpartition('.')[0]}.0/24")
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return (address,)
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            # As the module above writes networks, at a third of its cost.
            return tuple(
                f"{socket.inet_ntop(socket.AF_INET6, parsed.packed[:kept].ljust(16, bytes(1)))}"
                f"/{8 * kept}"
                for kept in (8, 7, 6)
            )
        parsed = parsed.ipv4_mapped
    wide = int(parsed) >> 8 << 8
    return (str(parsed), str(ipaddress.IPv4Network((wide, 24))))


def block_of(address: str) -> str:
    """What counts as one address; see `prefixes_of`."""
    return prefixes_of(address)[0]


class TrustedProxies:
    """The networks whose forwarding header counts; `unix` stands for peers on a unix socket.

    `header` is the one that these proxies write: X-Forwarded-For (with X-Forwarded-Proto),
    Forwarded (RFC 7239) or X-Real-IP (with X-Forwarded-Proto). The others are ignored. A chain is
    read from its near end: the first hop that is not itself a trusted proxy is the client, so a
    client cannot invent its own. With `preface` these proxies begin each connection with PROXY
    protocol instead, and no header counts. Raises ValueError for a network that cannot be read.
    """

    def __init__(
        self,
        networks: Iterable[str] = (),
        header: ProxyHeader = "x-forwarded-for",
        *,
        preface: bool = False,
    ) -> None:
        names = list(networks)
        self._unix = "unix" in names
        self._networks: list[_Network] = [
            ipaddress.ip_network(name, strict=False) for name in names if name != "unix"
        ]
        self._active = bool(names)
        self._header = header.encode("ascii")
        self._preface = preface
        self._encloses = lru_cache(4096)(self._looks_up)

    def trusts(self, peer: str) -> bool:
        """Whether forwarding headers from this peer address count ('' is a unix socket)."""
        if not self._active:
            return False
        return self._encloses(peer) if peer else self._unix

    def begins_with_preface(self, peer: str) -> bool:
        """Whether a connection from this peer address must begin with PROXY protocol."""
        return self._preface and self.trusts(peer)

    def client_address(self, peer: str, headers: Mapping[bytes, bytes]) -> str:
        """The address of the client behind `peer`; `peer` itself when no other is proven."""
        if not self._active or not self.trusts(peer):
            return peer
        near, left = peer, headers.get(self._header, b"")
        # Proxies in a row that are looked through: more is a client's invention.
        for _ in range(16):
            left, _, hop = left.rpartition(b",")
            if self._header == b"forwarded":
                hop = _pair(hop, b"for") or b""
            address = parse_address(hop[-80:].decode("latin-1")) if hop else None
            if address is None:
                break
            near = address
            if not left or not self.trusts(address):
                break
        return near

    def is_tls(self, peer: str, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a trusted proxy says that the client came by https."""
        if not self._active or not self.trusts(peer):
            return False
        if self._header == b"forwarded":
            proto = _pair(headers.get(b"forwarded", b"").rpartition(b",")[2], b"proto") or b""
        else:
            proto = headers.get(b"x-forwarded-proto", b"").rpartition(b",")[2]
        return proto.strip().lower() == b"https"

    def _looks_up(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def _pair(element: bytes, name: bytes) -> bytes | None:
    """The value of one pair of a Forwarded element, unquoted; None when it is not there.

    Quotes around a comma or semicolon are not followed: neither stands in an address or a scheme,
    and what a client left open further away must not swallow what the proxy appended.
    """
    for pair in element.split(b";"):
        key, equals, value = pair.partition(b"=")
        if equals and key.strip().lower() == name:
            return value.strip().strip(b'"')
    return None
