"""When each client would be done without admission: the virtual processor sharing of the crowd.

All clients that ask enter a virtual link of the same capacity that serves them at once, max-min by
their own speeds, as a plain web server does. A client that asks for several files is one flow; each
download ends at a *mark*, a count of the bytes its client has asked for. The time until a mark is
foretold at the flow's present rate. (Related: FSP, Friedman and Henderson, SIGMETRICS 2003, which
serves in the order of these times; here they only say when a download can wait no longer.)
"""

from __future__ import annotations

import math

from policies.max_min import Flow, SharedLink


class VirtualSharing:
    """Flows by share (`policies.sharing`): mostly one client. Sizes are bytes, times seconds."""

    __slots__ = ("_asked", "_clients", "_flows", "_link", "_open", "_share")

    def __init__(self) -> None:
        self._link: SharedLink | None = None
        self._flows: dict[str, Flow] = {}
        #: Bytes each share has asked for in all, and its downloads that are not over in truth;
        #: forgotten once it has neither a flow nor such a download.
        self._asked: dict[str, float] = {}
        self._open: dict[str, int] = {}
        #: The share of each client with a download that is not over, and how many it has.
        self._share: dict[str, tuple[str, int]] = {}
        #: The speeds of a share's clients, each with all that it fetches at once.
        self._clients: dict[str, dict[str, float]] = {}

    def __len__(self) -> int:
        """Shares that are not done."""
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
            del self._flows[flow.payload]
            self._forget(flow.payload)
        link.run_to(now)
        link.set_capacity(capacity_bytes_s)

    def add(
        self, client: str, size_bytes: int, speed_bytes_s: float, share: str | None = None
    ) -> float:
        """A client that takes `speed_bytes_s` asks for so much; returns the mark of its end.

        It stays in the `share` it came with (None: one of its own) as long as it has downloads.
        Call `run_to` before, once at least.
        """
        assert self._link is not None
        share, downloads = self._share.get(client, (share or client, 0))
        self._share[client] = share, downloads + 1
        speeds = self._clients.setdefault(share, {})
        speeds[client] = max(speed_bytes_s, speeds.get(client, 0.0))
        flow = self._flows.get(share)
        if flow is None:
            flow = self._flows[share] = Flow(sum(speeds.values()), size_bytes, share)
            self._link.start(flow)
        else:
            self._link.change(flow, size_bytes, sum(speeds.values()))
        self._open[share] = self._open.get(share, 0) + 1
        mark = self._asked[share] = self._asked.get(share, 0.0) + size_bytes
        return mark

    def set_speed(self, client: str, speed_bytes_s: float) -> None:
        """The client is faster or slower than was thought, with all that it fetches at once."""
        share, _ = self._share.get(client, (client, 0))
        speeds, flow = self._clients.get(share, {}), self._flows.get(share)
        known = speeds.get(client)
        if flow is None or known is None or abs(known - speed_bytes_s) <= 0.05 * speed_bytes_s:
            return
        assert self._link is not None
        speeds[client] = speed_bytes_s
        self._link.change(flow, 0.0, sum(speeds.values()))

    def end(self, client: str, done: bool) -> None:
        """One of the client's downloads is over in truth; a finished one runs on here.

        When the last one of a share was given up, nothing would be sent to it any more.
        """
        share, downloads = self._share.pop(client, (client, 1))
        if downloads > 1:
            self._share[client] = share, downloads - 1
        left = self._open.get(share, 0) - 1
        if left > 0:
            self._open[share] = left
            if downloads <= 1 and len(self._clients.get(share, ())) > 1:
                del self._clients[share][client]
            return
        self._open.pop(share, None)
        if not done and share in self._flows:
            assert self._link is not None
            self._link.stop(self._flows.pop(share))
        self._forget(share)

    def _forget(self, share: str) -> None:
        if share not in self._flows and share not in self._open:
            self._asked.pop(share, None)
            self._clients.pop(share, None)

    def is_served(self, client: str, speed_bytes_s: float, nearly: float = 1.0) -> bool:
        """Whether a client that takes so much with all it fetches at once is given that.

        It is with all of its share. Up to `nearly` times as much counts, too.
        """
        assert self._link is not None
        speeds = self._clients.get(self._share.get(client, (client, 0))[0], {})
        others = sum(speed for name, speed in speeds.items() if name != client)
        return speed_bytes_s + others <= nearly * self._link.level_bytes_s

    def left_s(self, client: str, mark: float) -> float:
        """Seconds until the download that ends at this mark would be done; 0 if it would be now."""
        share, _ = self._share.get(client, (client, 0))
        flow = self._flows.get(share)
        if flow is None:
            return 0.0
        assert self._link is not None
        left = self._link.remaining(flow) - (self._asked[share] - mark)
        if left <= 0.0:
            return 0.0
        rate = self._link.rate(flow)
        return left / rate if rate > 0.0 else math.inf
