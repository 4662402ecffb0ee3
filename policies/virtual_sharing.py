"""When each client would be done without admission: the virtual processor sharing of the crowd.

All clients that ask enter a virtual link of the same capacity that serves them at once, max-min by
their own speeds, as a plain web server does. A client that asks for several files is one flow; each
download ends at a *mark*, a count of the bytes its client has asked for. The time until a mark is
foretold at the flow's present rate. (Related: FSP, Friedman and Henderson, SIGMETRICS 2003, which
serves in the order of these times; here they only say when a download can wait no longer.)

Strangers of one network (`policies.sharing`) weigh no more than so many others, together: where
there are more, each has its part of that. So a crowd that is all of one network is shared as any
other. The networks within a wider one (`policies.network_shares`) weigh hardly more than one.
"""

from __future__ import annotations

from collections.abc import Mapping

from .max_min import Flow, SharedLink
from .network_shares import WIDE_SHARES, enclosing

#: The weights of a network's flows are set anew once it has so many times as many, or as few: then
#: one more costs the same few steps however many there are.
_MOVED = 1.1


class _Network:
    """The flows of one network's strangers, and the weight that each has."""

    __slots__ = ("flows", "shares", "weighed", "weight")

    def __init__(self, shares: float) -> None:
        self.shares = shares
        self.flows: dict[str, Flow] = {}
        #: How many there were when they were weighed.
        self.weighed = 0
        self.weight = 1.0


class VirtualSharing:
    """One flow a client. Sizes are bytes, times seconds."""

    __slots__ = ("_asked", "_flows", "_link", "_network_of", "_networks", "_open", "_speeds")

    def __init__(self) -> None:
        self._link: SharedLink | None = None
        self._flows: dict[str, Flow] = {}
        #: Of each client: the bytes it has asked for in all, how fast it is with all that it
        #: fetches at once, and its downloads that are not over in truth; forgotten once it has
        #: neither a flow nor such a download.
        self._asked: dict[str, float] = {}
        self._speeds: dict[str, float] = {}
        self._open: dict[str, int] = {}
        #: Of each stranger: its network and the widest around it.
        self._network_of: dict[str, tuple[str, ...]] = {}
        self._networks: dict[str, _Network] = {}

    def __len__(self) -> int:
        """Clients that are not done."""
        return len(self._flows)

    def run_to(self, now: float, capacity_bytes_s: float) -> None:
        """Let time pass, and the link carry so much from now on (finite, above 0)."""
        link = self._link
        if link is None:
            self._link = SharedLink(capacity_bytes_s, now)
            return
        while link.next_end() <= now:
            link.run_to(link.next_end())
            flow = link.pop_ended()
            if flow is None:
                break
            self._flow_over(flow.payload)
        link.run_to(now)
        link.set_capacity(capacity_bytes_s)

    def add(
        self,
        client: str,
        size_bytes: int,
        speed_bytes_s: float,
        network: str = "",
        network_shares: int = 0,
    ) -> float:
        """A client that takes `speed_bytes_s` asks for so much; returns the mark of its end.

        With a `network` it is one of its strangers, who weigh as much as `network_shares` others
        at the most; it stays one as long as it has downloads. Call `run_to` before, once at least.
        """
        assert self._link is not None
        speed = self._speeds[client] = max(speed_bytes_s, self._speeds.get(client, 0.0))
        flow = self._flows.get(client)
        if flow is not None:
            self._link.change(flow, size_bytes, speed)
        else:
            flow = self._flows[client] = Flow(speed, size_bytes, client)
            if client not in self._asked and network and network_shares:
                around = enclosing(network)
                self._network_of[client] = around if len(around) < 2 else (network, around[-1])
            self._join(client, flow, network_shares)
            self._link.start(flow)
        self._open[client] = self._open.get(client, 0) + 1
        mark = self._asked[client] = self._asked.get(client, 0.0) + size_bytes
        return mark

    def set_speeds(self, speeds_bytes_s: Mapping[str, float]) -> None:
        """How fast clients seem by now, each with all that it fetches at once."""
        known_of, flows, link = self._speeds, self._flows, self._link
        for client, speed_bytes_s in speeds_bytes_s.items():
            if client not in flows:
                continue
            off = known_of.get(client, 0.0) - speed_bytes_s
            if -0.05 * speed_bytes_s <= off <= 0.05 * speed_bytes_s:
                continue
            assert link is not None
            known_of[client] = speed_bytes_s
            link.change(flows[client], 0.0, speed_bytes_s)

    def end(self, client: str, done: bool) -> None:
        """One of the client's downloads is over in truth; a finished one runs on here.

        When its last one was given up, nothing would be sent to it any more.
        """
        left = self._open.get(client, 0) - 1
        if left > 0:
            self._open[client] = left
            return
        self._open.pop(client, None)
        flow = self._flows.get(client)
        if flow is not None and not done:
            assert self._link is not None
            self._link.stop(flow)
            self._flow_over(client)
        elif flow is None:
            self._forget(client)

    def _flow_over(self, client: str) -> None:
        del self._flows[client]
        for key in self._network_of.get(client, ()):
            network = self._networks.get(key)
            if network is None or network.flows.pop(client, None) is None:
                continue
            if len(network.flows) * _MOVED < network.weighed:
                self._weigh(network)
            if not network.flows:
                del self._networks[key]
        if client not in self._open:
            self._forget(client)

    def _forget(self, client: str) -> None:
        for of_client in (self._asked, self._speeds, self._network_of):
            of_client.pop(client, None)

    # -- the weight of a network -----------------------------------------------------------------

    def _join(self, client: str, flow: Flow, network_shares: int) -> None:
        joined = []
        for level, key in enumerate(self._network_of.get(client, ())):
            shares = network_shares * (WIDE_SHARES if level else 1.0)
            network = self._networks.setdefault(key, _Network(shares))
            network.flows[client] = flow
            joined.append(network)
        if joined:
            flow.weight = self._weight_of(client)
        for network in joined:
            if len(network.flows) > _MOVED * network.weighed:
                self._weigh(network)

    def _weigh(self, network: _Network) -> None:
        assert self._link is not None
        network.weighed = count = len(network.flows)
        weight = min(1.0, network.shares / count) if count else 1.0
        if weight != network.weight:
            network.weight = weight
            for client, flow in network.flows.items():
                weight = self._weight_of(client)
                if weight != flow.weight:
                    self._link.weigh(flow, weight)

    def _weight_of(self, client: str) -> float:
        """The least that any network around a stranger gives each of its own."""
        networks, keys = self._networks, self._network_of[client]
        return min(networks[key].weight for key in keys if key in networks)

    def most_bytes_s(self, client: str) -> float:
        """What this client is given at most, with all that it fetches at once.

        One that takes no more is served as fast as if it were alone.
        """
        assert self._link is not None
        level = self._link.level_bytes_s
        if self._network_of and client in self._network_of:
            networks = self._networks
            for key in self._network_of[client]:
                if key in networks:
                    level = min(level, networks[key].weight * self._link.level_bytes_s)
        return level

    def left_s(self, client: str, mark: float) -> float:
        """Seconds until the download that ends at this mark would be done; 0 if it would be now."""
        flow = self._flows.get(client)
        if flow is None:
            return 0.0
        assert self._link is not None
        return self._link.until_s(flow, self._asked[client] - mark)
