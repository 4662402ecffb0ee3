"""Round robin over networks and over the peers of each, in a shuffled order. Pure."""

from __future__ import annotations

import random
from collections import OrderedDict

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
