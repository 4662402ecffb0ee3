"""The tracker's memory: the peers that have or want pieces of one file. Pure.

A peer is a port and the address that its announce came from. When the memory is full, the network
with most peers gives up its oldest one (`PrefixShares`).
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum

from ...protocol.bounded_table import BoundedTable
from ..http.prefix_shares import PrefixShares
from ..http.proxies import prefixes_of

#: A peer's address and port.
Place = tuple[str, int]


class Ring:
    """Selects a few of many peers: one of each network before a second one of any.

    The next call continues behind the networks of the last one, so all are selected equally often.
    A new network gets a random position. A call takes as many steps as it returns peers.
    """

    def __init__(self) -> None:
        self._networks: list[str] = []
        self._at: dict[str, int] = {}
        #: The peers of each network, the next to be selected first.
        self._members: dict[str, OrderedDict[Place, None]] = {}
        self._next = 0

    def add(self, place: Place, rng: random.Random) -> None:
        network = prefixes_of(place[0])[-1]
        members = self._members.get(network)
        if members is None:
            members = self._members[network] = OrderedDict()
            at = rng.randrange(len(self._networks) + 1)
            self._networks.append(network)
            self._stand(self._networks[at], len(self._networks) - 1)
            self._stand(network, at)
        members[place] = None

    def discard(self, place: Place) -> None:
        network = prefixes_of(place[0])[-1]
        members = self._members.get(network)
        if members is None or place not in members:
            return
        del members[place]
        if not members:
            del self._members[network]
            last = self._networks.pop()
            at = self._at.pop(network)
            if last != network:
                self._stand(last, at)

    def _stand(self, network: str, at: int) -> None:
        self._networks[at] = network
        self._at[network] = at

    def take(self, want: int, asker: Place) -> list[Place]:
        """At most `want` peers other than the asker."""
        found: list[Place] = []
        size, at = len(self._networks), self._next
        own = prefixes_of(asker[0])[-1]
        # One more: the asker may be the only one of its network.
        steps = min(size, want + 1)
        networks = self._networks[at : at + steps]
        networks += self._networks[: steps - len(networks)]
        self._next = (at + min(steps, want)) % max(1, size)
        given = 0
        while networks:
            more = []
            for network in networks:
                if len(found) >= want:
                    return found
                members = self._members[network]
                others = len(members)
                if network == own and asker in members:
                    others -= 1
                    members.move_to_end(asker)
                if others > given:
                    place = next(iter(members))
                    members.move_to_end(place)
                    found.append(place)
                if others > given + 1:
                    more.append(network)
            given += 1
            networks = more
        return found


class PeerEvent(Enum):
    """The event that a peer announces (BEP 3)."""

    STILL_THERE = ""
    STARTED = "started"
    COMPLETED = "completed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Announce:
    """A peer's address and port, the bytes it still lacks, and how many peers it wants."""

    address: str
    port: int
    left_bytes: int
    event: PeerEvent = PeerEvent.STILL_THERE
    want: int = 30


@dataclass(slots=True)
class _Peer:
    seen_s: float
    complete: bool


@dataclass(frozen=True, slots=True)
class Census:
    """Peers with the whole file, peers without, and how many ever announced completion."""

    complete: int
    incomplete: int
    downloaded: int


class Swarm:
    """The peers of one file."""

    def __init__(self, interval_s: float, most: int) -> None:
        self._interval_s = interval_s
        self._most = most
        self._peers: dict[Place, _Peer] = {}
        self._shares: PrefixShares[Place] = PrefixShares()
        self._all = Ring()
        #: The peers that a finished peer is told about.
        self._unfinished = Ring()
        self._complete = 0
        self._downloaded = 0

    def announce(self, peer: Announce, now: float, rng: random.Random) -> list[Place]:
        """Record a peer. Returns some of the other peers, at most as many as it wants."""
        self._expire(now)
        place = (peer.address, peer.port)
        known = self._peers.get(place)
        if peer.event is PeerEvent.STOPPED:
            self._forget(place)
            return []
        complete = peer.left_bytes == 0
        if (
            peer.event is PeerEvent.COMPLETED
            and complete
            and known is not None
            and not known.complete
        ):
            self._downloaded += 1
        # Bounds the peers in one answer.
        want = max(0, min(peer.want, 64))
        if known is None and not self._make_room(peer.address):
            # No other peer is told of it, but it is told of others.
            return self._others(place, complete, want)
        if known is None:
            self._shares.add(place, prefixes_of(peer.address))
            self._all.add(place, rng)
        else:
            # `_expire` needs the dictionary in the order of the last announces.
            self._complete -= known.complete
            del self._peers[place]
        self._peers[place] = _Peer(now, complete)
        self._complete += complete
        if complete:
            self._unfinished.discard(place)
        elif known is None or known.complete:
            self._unfinished.add(place, rng)
        return self._others(place, complete, want)

    def census(self, now: float) -> Census:
        self._expire(now)
        return Census(self._complete, len(self._peers) - self._complete, self._downloaded)

    def _others(self, asker: Place, complete: bool, want: int) -> list[Place]:
        """Up to `want` other peers. A peer with the whole file gets only peers without it.

        A network that fills the memory with its ports does not fill the answers, see `Ring`.
        """
        return (self._unfinished if complete else self._all).take(want, asker)

    def _make_room(self, address: str) -> bool:
        if len(self._peers) < self._most:
            return True
        goes = self._shares.to_give_up(prefixes_of(address))
        if goes is None:
            return False
        self._forget(goes)
        return True

    def _forget(self, place: Place) -> None:
        peer = self._peers.pop(place, None)
        if peer is not None:
            self._complete -= peer.complete
            self._shares.remove(place)
            self._all.discard(place)
            self._unfinished.discard(place)

    def _expire(self, now: float) -> None:
        # One announce may be lost.
        until_s = now - 2.5 * self._interval_s
        while self._peers:
            place = next(iter(self._peers))
            if self._peers[place].seen_s >= until_s:
                return
            self._forget(place)


class Brake:
    """A token bucket for the announces of each network (IPv4 /24, IPv6 /48).

    The default rate is that of 1 800 peers of one network which announce once a minute. `most`
    bounds the networks in memory.
    """

    def __init__(self, per_s: float = 30.0, burst: float = 300.0, most: int = 20_000) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left: BoundedTable[str, tuple[float, float]] = BoundedTable(most)

    def allows(self, address: str, now: float) -> bool:
        """Whether the network of this address may announce now."""
        network = prefixes_of(address)[-1]
        left, at_s = self._left.get(network, (self._burst, now))
        left = min(self._burst, left + (now - at_s) * self._per_s)
        allowed = left >= 1.0
        self._left[network] = (left - 1.0 if allowed else left, now)
        return allowed
