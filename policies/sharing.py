"""Which clients count with their network in the sharing of the line.

Invented names cost nothing, and the addresses of one's own network cost nothing either. So new
clients have a few shares of the line together with their whole network, and each client with
evidence (an old cookie, places claimed in time, finished downloads) has a share of its own.
The guard of Fair counts by that share; the place in the queue does not: a network of strangers may
be late by what it asks, but makes no other client late.
"""

from __future__ import annotations

from collections import OrderedDict

#: Clients that are remembered. The one that asked longest ago is forgotten first.
_REMEMBERED = 100_000


class Strangers:
    """Remembers the network of each client that asked as a stranger."""

    __slots__ = ("_networks",)

    def __init__(self) -> None:
        self._networks: OrderedDict[str, str] = OrderedDict()

    def note(self, client: str, network: str) -> None:
        """This client asks, as a stranger of that network (empty: of none)."""
        if not network:
            self._networks.pop(client, None)
            return
        self._networks[client] = network
        self._networks.move_to_end(client)
        if len(self._networks) > _REMEMBERED:
            self._networks.popitem(last=False)

    def network_of(self, client: str) -> str:
        """The network that it counts with; empty when it counts by itself."""
        return self._networks.get(client, "")
