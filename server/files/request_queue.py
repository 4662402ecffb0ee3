"""Requests wait here while the line is full, those of networks beyond their share.

Everything but the body of a large download leaves without asking the pacer: small files, listings,
pages, refusals, headers. Each request may pass as long as its network is within its share. A
network may be ahead of its share by `BURST_BYTES`, so the request of one that was quiet never
waits. All others wait until their network's share has come up with it (deficit round robin by
network, one address after the other within it), or until no other network wants the line.

So what leaves without asking is bounded by construction: per network by its share and one burst,
and in all by what the pacer lets requests have.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache
from heapq import heappop, heappush, heapreplace

from ...policies.network_shares import BURST_BYTES, NetworkShares, enclosing
from ..http.factory import REQUEST_BYTES
from ..http.proxies import prefixes_of

#: A wide network has this part of all shares, by how its prefix ends, and two at least: a popular
#: provider's visitors are many networks, and the owner of a whole one takes no more of the line.
_WIDE_PARTS = {"/16": 1 / 4, "/40": 1 / 16, "/32": 1 / 16}
#: A request waits no longer than this, seconds. Programs that wait in silence for 30 s give up.
LONGEST_S = 20.0


class _WaitingNetwork:
    """The requests of one network, by address. Each address has one turn after another."""

    __slots__ = ("by_address", "count")

    def __init__(self) -> None:
        self.by_address: OrderedDict[str, OrderedDict[Hashable, _Waiting]] = OrderedDict()
        self.count = 0


class _Waiting:
    """One request: when it came, and what is called once it goes or is sent away."""

    __slots__ = ("come_s", "go", "refuse")

    def __init__(
        self, come_s: float, go: Callable[[], None], refuse: Callable[[float], None]
    ) -> None:
        self.come_s = come_s
        self.go = go
        self.refuse = refuse


class RequestQueue:
    """Who must wait. Its owner (the pacer) sets `busy` and grants what requests may have."""

    def __init__(self) -> None:
        #: Whether a request may have to wait: the line is full, or requests wait.
        self.busy = False
        #: What requests may still be given before they wait, of all networks together.
        self.granted_bytes = 0.0
        self.shares = NetworkShares(dict.fromkeys(_WIDE_PARTS, 2.0))
        #: How fast a share grows.
        self.share_bytes_s = math.inf
        self._networks: dict[str, _WaitingNetwork] = {}
        #: Networks by their finish tag when they were last looked at. Each that waits is here.
        self._order: list[tuple[float, str]] = []
        #: The names in `_order`, some of which may have no request left.
        self._ordered: set[str] = set()
        self._address_of: dict[Hashable, str] = {}
        self._by_age: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._address_of)

    @property
    def networks(self) -> int:
        """Of how many networks requests wait."""
        return len(self._networks)

    def passes(self, address: str) -> bool:
        """Whether a request from here need not wait."""
        if self.granted_bytes <= 0.0:
            return False
        network = self._networks.get(network_of(address))
        if network is not None and address in network.by_address:
            return False
        return not self.is_beyond_share(address)

    def is_beyond_share(self, address: str) -> bool:
        """Whether its network was given more than its share and one burst."""
        return self.shares.excess_bytes(levels_of(address)) > BURST_BYTES

    def earn(self, earned_bytes: float, rate_bytes_s: float, shares: int) -> None:
        """The line has earned these bytes at this rate, and its shares have them."""
        self.share_bytes_s = rate_bytes_s / shares
        parts = _WIDE_PARTS.items()
        self.shares.wide_shares = {key: max(2.0, part * shares) for key, part in parts}
        self.shares.earn(earned_bytes / shares)

    def charge(self, address: str, count: int) -> None:
        """Count bytes that leave to this address without the pacer."""
        self.shares.charge(levels_of(address), count)

    def wait(
        self,
        key: Hashable,
        address: str,
        now_s: float,
        go: Callable[[], None],
        refuse: Callable[[float], None],
    ) -> None:
        """This request waits. After `LONGEST_S` `refuse` hears when to come back, in seconds."""
        path = levels_of(address)
        name = network_of(address)
        network = self._networks.get(name)
        if network is None:
            network = self._networks[name] = _WaitingNetwork()
            if name not in self._ordered:
                self._ordered.add(name)
                heappush(self._order, (self.shares.finish_tag(path), name))
        network.by_address.setdefault(address, OrderedDict())[key] = _Waiting(now_s, go, refuse)
        network.count += 1
        self._address_of[key] = address
        self._by_age[key] = now_s

    def forget(self, key: Hashable) -> None:
        """This request is not there any more, if it ever waited."""
        address = self._address_of.get(key)
        if address is not None:
            self._take(key, address)

    def serve(self, *, within_share: bool, alone: bool = False) -> None:
        """Let requests go while something is granted: of networks within their share, or of all.

        `alone`: no download wants the line, so what requests have of it takes nothing from others.
        """
        order, shares = self._order, self.shares
        while order and self.granted_bytes > 0.0:
            _, name = order[0]
            network = self._networks.get(name)
            if network is None:
                heappop(order)
                self._ordered.discard(name)
                continue
            address = next(iter(network.by_address))
            path = levels_of(address)
            tag = shares.finish_tag(path)
            if tag > order[0][0]:
                heapreplace(order, (tag, name))
                continue
            beyond = shares.excess_bytes(path) - BURST_BYTES
            if beyond > 0.0 and within_share:
                return
            if beyond > 0.0 and alone:
                # The one with the least excess is served: the shares of all have come up to it.
                shares.earn(beyond)
            self._answer(address, network)

    def refuse_oldest(self, now_s: float) -> None:
        """Those that have waited for too long are told when to come back."""
        while self._by_age:
            key, come_s = next(iter(self._by_age.items()))
            if now_s < come_s + LONGEST_S:
                return
            address = self._address_of[key]
            self._take(key, address).refuse(self._until_share_s(address))

    def let_all_go(self) -> None:
        """There is no cap any more."""
        self.busy = False
        self.shares.clear()
        while self._by_age:
            key = next(iter(self._by_age))
            self._take(key, self._address_of[key]).go()

    def _until_share_s(self, address: str) -> float:
        """When the network of this address will be within its share again."""
        beyond = self.shares.excess_bytes(levels_of(address)) - BURST_BYTES
        # A client is told to come back within this, seconds, however large its network's excess
        # is: the others may be done by then.
        return min(300.0, max(1.0, beyond / self.share_bytes_s))

    def _answer(self, address: str, network: _WaitingNetwork) -> None:
        key = next(iter(network.by_address[address]))
        waiting = self._take(key, address)
        if address in network.by_address:
            network.by_address.move_to_end(address)
        self.shares.charge(levels_of(address), REQUEST_BYTES)
        self.granted_bytes -= REQUEST_BYTES
        waiting.go()

    def _take(self, key: Hashable, address: str) -> _Waiting:
        del self._address_of[key], self._by_age[key]
        name = network_of(address)
        network = self._networks[name]
        of_address = network.by_address[address]
        waiting = of_address.pop(key)
        if not of_address:
            del network.by_address[address]
        network.count -= 1
        if not network.count:
            del self._networks[name]
        return waiting


def network_of(address: str) -> str:
    """The network that an address counts with."""
    return prefixes_of(address.removesuffix("/64"))[-1]


@lru_cache(maxsize=16_384)
def levels_of(address: str) -> tuple[str, ...]:
    """An address (a /64 may stand for its addresses), its network, and those around it."""
    prefixes = prefixes_of(address.removesuffix("/64"))
    around = enclosing(prefixes[-1])
    return around if len(prefixes) == 1 else (prefixes[0], *around)
