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
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush, heapreplace

from ...policies.crowd_debt import CrowdDebt
from ...policies.network_shares import BURST_BYTES, NetworkShares, enclosing
from ..http.factory import REQUEST_BYTES, Requests
from ..http.proxies import prefixes_of

#: A wide network has this part of all shares, by how its prefix ends, and two at least: a popular
#: provider's visitors are many networks, and the owner of a whole one takes no more of the line.
_WIDE_PARTS = {"/16": 1 / 4, "/40": 1 / 16, "/32": 1 / 16}
#: A request waits no longer than this, seconds. Programs that wait in silence for 30 s give up.
LONGEST_S = 20.0


@dataclass(slots=True)
class _Waiting:
    """One request: what is called once it goes or is sent away."""

    go: Callable[[], None]
    refuse: Callable[[float], None]


#: The requests of one network, by address. Each address has one turn after another.
_Network = OrderedDict[str, OrderedDict[Hashable, _Waiting]]


class RequestQueue(Requests):
    """Who must wait. Its owner (the pacer) sets `busy` and grants what requests may have."""

    def __init__(self) -> None:
        self.busy = False
        #: What requests may still be given before they wait, of all networks together.
        self.granted_bytes = 0.0
        self.shares = NetworkShares(dict.fromkeys(_WIDE_PARTS, 2.0))
        #: What networks fetched again and again by small downloads.
        self._crowd = CrowdDebt()
        #: How fast a share grows.
        self.share_bytes_s = math.inf
        self._networks: dict[str, _Network] = {}
        #: Networks by their finish tag when they were last looked at. Each that waits is here.
        self._order: list[tuple[float, str]] = []
        #: The names in `_order`, some of which may have no request left.
        self._ordered: set[str] = set()
        #: When each came, and from which address; the oldest first.
        self._by_age: OrderedDict[Hashable, tuple[float, str]] = OrderedDict()

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._by_age)

    @property
    def networks(self) -> int:
        """Of how many networks requests wait."""
        return len(self._networks)

    def passes(self, address: str) -> bool:
        """See `Requests`."""
        if self.granted_bytes <= 0.0:
            return False
        network = self._networks.get(network_of(address))
        if network is not None and address in network:
            return False
        return not self.is_beyond_share(address)

    def is_beyond_share(self, address: str) -> bool:
        """Whether its network was given more than its share and one burst."""
        return self.shares.excess_bytes(levels_of(address)) > BURST_BYTES

    def stands_behind(self, address: str) -> bool:
        """Whether its small downloads wait until nothing else wants a turn."""
        return self.is_beyond_share(address) or self._crowd.behind_bytes(network_of(address)) > 0.0

    def body_begins(self, address: str) -> None:
        """A small download begins that needs turns."""
        self._crowd.note(network_of(address))

    def charge_body(self, address: str, count: int) -> None:
        """It was sent `count` bytes."""
        self.charge(address, count)
        self._crowd.took(network_of(address), count, BURST_BYTES)

    def earn(self, earned_bytes: float, rate_bytes_s: float, shares: int, now_s: float) -> None:
        """The line has earned these bytes at this rate, and its shares have them."""
        # Networks that fetch small files again and again have 0.15 of the line together beside
        # large downloads. Ten of them cost 40 people +50 %, and with 0.25 +90 %.
        self._crowd.earn(earned_bytes, BURST_BYTES, now_s, 0.15)
        self.share_bytes_s = rate_bytes_s / shares
        parts = _WIDE_PARTS.items()
        self.shares.wide_shares = {key: max(2.0, part * shares) for key, part in parts}
        self.shares.earn(earned_bytes / shares)

    def charge(self, address: str, count: int) -> None:
        """See `Requests`."""
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
            network = self._networks[name] = OrderedDict()
            if name not in self._ordered:
                self._ordered.add(name)
                heappush(self._order, (self.shares.finish_tag(path), name))
        network.setdefault(address, OrderedDict())[key] = _Waiting(go, refuse)
        self._by_age[key] = now_s, address

    def forget(self, key: Hashable) -> None:
        """See `Requests`."""
        if key in self._by_age:
            self._take(key)

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
            address = next(iter(network))
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
            key, (come_s, address) = next(iter(self._by_age.items()))
            if now_s < come_s + LONGEST_S:
                return
            self._take(key).refuse(self._until_share_s(address))

    def let_all_go(self) -> None:
        """There is no cap any more."""
        self.busy = False
        self.shares.clear()
        while self._by_age:
            self._take(next(iter(self._by_age))).go()

    def _until_share_s(self, address: str) -> float:
        """When the network of this address will be within its share again."""
        beyond = self.shares.excess_bytes(levels_of(address)) - BURST_BYTES
        # A client is told to come back within this, seconds, however large its network's excess
        # is: the others may be done by then.
        return min(300.0, max(1.0, beyond / self.share_bytes_s))

    def _answer(self, address: str, network: _Network) -> None:
        waiting = self._take(next(iter(network[address])))
        if address in network:
            network.move_to_end(address)
        self.shares.charge(levels_of(address), REQUEST_BYTES)
        self.granted_bytes -= REQUEST_BYTES
        waiting.go()

    def _take(self, key: Hashable) -> _Waiting:
        _, address = self._by_age.pop(key)
        name = network_of(address)
        network = self._networks[name]
        of_address = network[address]
        waiting = of_address.pop(key)
        if not of_address:
            del network[address]
        if not network:
            del self._networks[name]
        return waiting


def network_of(address: str) -> str:
    """The network that an address counts with."""
    return prefixes_of(address.removesuffix("/64"))[-1]


@lru_cache(maxsize=4096)
def levels_of(address: str) -> tuple[str, ...]:
    """An address (a /64 may stand for its addresses), its network, and those around it."""
    prefixes = prefixes_of(address.removesuffix("/64"))
    around = enclosing(prefixes[-1])
    return around if len(prefixes) == 1 else (prefixes[0], *around)
