"""What each network was given, against what one share was given meanwhile.

One counter runs for all: the bytes that a share has earned so far (virtual time of fair queueing:
Parekh and Gallagher 1993; start-time fair queueing: Goyal, Vin and Cheng 1996). Each network has a
finish tag: the counter when it last became active, plus all it was given since. The difference is
its *excess*. A network that takes no more than its share has none, and one that stops taking loses
its excess as the shares of the others grow.

An address is charged at all its levels: IPv4 address, /24 and /16; IPv6 /64, /48, /40 and /32. All
addresses of one owner have no more together than their network has. The outermost levels may
hold many owners; they may take more than one network may (`WIDE_SHARES`).
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush

#: Shares of a wide network in the order of downloads, by how its prefix ends. A /16 has many
#: owners: its networks cost the others less than as many elsewhere. A /32 may have one owner, who
#: costs about what the owner of a /48 does; with 2 shares a quarter more.
WIDE_SHARES: Mapping[str, float] = {"/16": 4.0, "/40": 1.5, "/32": 1.5}
#: What a network may be ahead of its share before its requests wait: the largest small file by
#: default (256 kB), so that one that was quiet never waits.
BURST_BYTES = 256 * 1024
#: Networks that are remembered while they have an excess. 10 000 take about 2 MB.
REMEMBERED = 10_000


@lru_cache(maxsize=16_384)
def enclosing(network: str) -> tuple[str, ...]:
    """A network (an address, /24 or /48) and the wider ones around it. Other names stand alone."""
    try:
        parsed = ipaddress.ip_network(network)
    except ValueError:
        return (network,)
    # Providers are given a /32 (RIPE-738).
    bits = (16,) if parsed.version == 4 else (40, 32)
    wider = (parsed.supernet(new_prefix=one) for one in bits if one < parsed.prefixlen)
    return (network, *map(str, wider))


class NetworkShares:
    """The excess of each network, in bytes.

    A `path` holds prefixes, narrow to wide: an address or nothing, and `enclosing` its network.
    """

    def __init__(self, wide_shares: Mapping[str, float] = WIDE_SHARES) -> None:
        self.wide_shares = wide_shares
        #: What one share has earned since the start.
        self._share_bytes = 0.0
        self._tags: dict[str, float] = {}
        #: The same tags in order, with some that have changed since.
        self._by_tag: list[tuple[float, str]] = []

    def __len__(self) -> int:
        """How many prefixes have an excess."""
        return len(self._tags)

    def earn(self, share_bytes: float) -> None:
        """Each share has earned this much more."""
        self._share_bytes += share_bytes
        by_tag, tags = self._by_tag, self._tags
        while by_tag and by_tag[0][0] <= self._share_bytes:
            _, key = heappop(by_tag)
            tag = tags.get(key)
            if tag is None:
                continue
            if tag <= self._share_bytes:
                del tags[key]
            else:
                heappush(by_tag, (tag, key))

    def charge(
        self, path: Sequence[str], count: float, most_excess_bytes: float = math.inf
    ) -> None:
        """A client of these networks was given `count` bytes.

        No excess grows beyond `most_excess_bytes`, so that what was taken long ago, while no other
        client wanted it, is forgotten some day.
        """
        tags = self._tags
        for key in path:
            part = count / self.wide_shares.get(key[-3:], 1.0)
            tag = tags.get(key)
            if tag is None:
                if len(tags) >= REMEMBERED:
                    self._forget_the_least()
                tag = self._share_bytes
                heappush(self._by_tag, (tag, key))
            tags[key] = max(tag, min(tag + part, self._share_bytes + most_excess_bytes))

    def finish_tag(self, path: Sequence[str]) -> float:
        """What a share will have earned when none of these networks has an excess any more."""
        return max(self._share_bytes, *(self._tags.get(key, 0.0) for key in path))

    def excess_bytes(self, path: Sequence[str]) -> float:
        """The largest excess of these networks."""
        return self.finish_tag(path) - self._share_bytes

    def count_ahead(self, least_bytes: float) -> int:
        """How many networks (wide ones apart) have an excess of more than this."""
        least = self._share_bytes + least_bytes
        return sum(tag > least and key[-3:] not in WIDE_SHARES for key, tag in self._tags.items())

    def clear(self) -> None:
        """Forget all: no client stood in another's way for a while."""
        self._tags.clear()
        self._by_tag.clear()

    def _forget_the_least(self) -> None:
        """The half with the least excess goes, so that this is rare."""
        least_first = sorted(self._tags.items(), key=lambda entry: entry[1])
        for key, _ in least_first[: len(least_first) // 2]:
            del self._tags[key]
        self._by_tag = [(tag, key) for key, tag in self._tags.items()]
        heapify(self._by_tag)
