"""Who the client is when a proxy stands in front: believed only from configured networks."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_FORWARDED_PAIR = re.compile(rb'([A-Za-z]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;,"]+)')


def _address(text: str) -> str | None:
    """A bare IP address out of `1.2.3.4`, `1.2.3.4:80`, `[::1]` or `[::1]:80`; None if none."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
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


def block_of(address: str) -> str:
    """What counts as one address: IPv4 whole, IPv6 its /64, `local` for a unix socket."""
    if not address:
        return "local"
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


class TrustedProxies:
    """The networks whose forwarding headers count; `unix` stands for peers on a unix socket.

    Forwarded (RFC 7239) wins over X-Forwarded-For. The chain is read from its near end: the first
    hop that is not itself a trusted proxy is the client, so a client cannot invent its own.
    Raises ValueError for a network that cannot be read.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        names = list(networks)
        self._unix = "unix" in names
        self._networks: list[_Network] = [
            ipaddress.ip_network(name, strict=False) for name in names if name != "unix"
        ]
        self._active = bool(names)

    def trusts(self, peer: str) -> bool:
        """Whether forwarding headers from this peer address count ('' is a unix socket)."""
        if not self._active:
            return False
        if peer == "":
            return self._unix
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def client_address(self, peer: str, headers: Mapping[bytes, bytes]) -> str:
        """The address of the client behind `peer`; `peer` itself when nobody else is proven."""
        if not self._active or not self.trusts(peer):
            return peer
        near = peer
        for hop in reversed(self._hops(headers)):
            address = _address(hop)
            if address is None:
                break
            near = address
            if not self.trusts(address):
                break
        return near

    def is_tls(self, peer: str, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a trusted proxy says that the client came by https."""
        if not self._active or not self.trusts(peer):
            return False
        forwarded = headers.get(b"forwarded")
        if forwarded is not None:
            element = forwarded.rpartition(b",")[2]
            for key, value in _FORWARDED_PAIR.findall(element):
                if key.lower() == b"proto":
                    return bool(value.strip(b'"').lower() == b"https")
            return False
        proto = headers.get(b"x-forwarded-proto", b"")
        return proto.rpartition(b",")[2].strip().lower() == b"https"

    @staticmethod
    def _hops(headers: Mapping[bytes, bytes]) -> list[str]:
        forwarded = headers.get(b"forwarded")
        if forwarded is not None:
            hops = []
            for element in forwarded.split(b","):
                for key, value in _FORWARDED_PAIR.findall(element):
                    if key.lower() == b"for":
                        hops.append(value.decode("latin-1"))
            return hops
        listed = headers.get(b"x-forwarded-for")
        return listed.decode("latin-1").split(",") if listed else []
