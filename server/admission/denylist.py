"""Addresses and networks that the operator has blocked.

Clients are known by the block of their address (IPv4 whole, IPv6 by its /64, see
`proxies.block_of`), so blocking one IPv6 address blocks its /64.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from functools import lru_cache

from ..http.proxies import block_of

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class BlockList:
    """Blocked networks, each until a time or for good (`until_s` None)."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until: dict[Network, float | None] = {}
        self._added: list[Callable[[], None]] = []

    def on_added(self, callback: Callable[[], None]) -> None:
        """Call back each time that a network was added."""
        self._added.append(callback)

    def __bool__(self) -> bool:
        return bool(self._until)

    def __contains__(self, address: str) -> bool:
        """Whether an address (or its block, as in a client key) is blocked now."""
        wanted = _network(address)
        if wanted is None:
            return False
        for network, until_s in tuple(self._until.items()):
            if until_s is not None and until_s <= self._now():
                del self._until[network]
            elif _covers(network, wanted):
                return True
        return False

    def blocks(self, address: str) -> bool:
        """Whether requests from this address are refused now; cheap while none is blocked."""
        return bool(self._until) and block_of(address) in self

    def add(self, network: str, until_s: float | None = None) -> None:
        """Block from now on. Raises ValueError for what is not a network."""
        self._until[ipaddress.ip_network(network, strict=False)] = until_s
        for callback in self._added:
            callback()

    def networks(self) -> tuple[str, ...]:
        """All that are blocked now."""
        now = self._now()
        return tuple(
            str(one) for one, until_s in self._until.items() if until_s is None or until_s > now
        )

    def become(self, networks: Iterable[str]) -> None:
        """Block exactly these, as another list says. Raises ValueError."""
        wanted = {ipaddress.ip_network(one, strict=False) for one in networks}
        new = wanted - self._until.keys()
        self._until = dict.fromkeys(wanted)
        if new:
            for callback in self._added:
                callback()

    def discard(self, network: str) -> bool:
        """Lift a block; False when there was none of exactly this network."""
        return self._until.pop(ipaddress.ip_network(network, strict=False), False) is not False


@lru_cache(maxsize=4096)
def _network(address: str) -> Network | None:
    try:
        return ipaddress.ip_network(address, strict=False)
    except ValueError:
        return None


def _covers(blocked: Network, wanted: Network) -> bool:
    if isinstance(blocked, ipaddress.IPv4Network) and isinstance(wanted, ipaddress.IPv4Network):
        return wanted.subnet_of(blocked)
    if isinstance(blocked, ipaddress.IPv6Network) and isinstance(wanted, ipaddress.IPv6Network):
        return wanted.subnet_of(blocked) or blocked.subnet_of(wanted)
    return False
