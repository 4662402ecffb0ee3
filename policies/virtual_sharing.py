"""When each client would be done without admission: the virtual processor sharing of the crowd.

All clients that ask enter a virtual link of the same capacity that serves them at once, max-min by
their own speeds, as a plain web server does. A client that asks for several files is one flow; each
download ends at a *mark*, a count of the bytes its client has asked for. The time until a mark is
foretold at the flow's present rate. (Related: FSP, Friedman and Henderson, SIGMETRICS 2003, which
serves in the order of these times; here they only say when a download can wait no longer.)
"""

from __future__ import annotations

import math

from policies.max_min import Flow, Link


class VirtualSharing:
    """Flows by client. Sizes are bytes, times seconds."""

    __slots__ = ("_asked", "_flows", "_link", "_open")

    def __init__(self) -> None:
        self._link: Link | None = None
        self._flows: dict[str, Flow] = {}
        #: Bytes each client has asked for in all, and its downloads that are not over in truth;
        #: forgotten once it has neither a flow nor such a download.
        self._asked: dict[str, float] = {}
        self._open: dict[str, int] = {}

    def __len__(self) -> int:
        """Clients that are not done."""
        return len(self._flows)

    def run_to(self, now: float, capacity_bytes_s: float) -> None:
        """Let time pass, and the link carry so much from now on (finite, above 0)."""
        link = self._link
        if link is None:
            self._link = Link(capacity_bytes_s, now)
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

    def add(self, client: str, size_bytes: int, speed_bytes_s: float) -> float:
        """A client that takes `speed_bytes_s` asks for so much; returns the mark of its end.

        Call `run_to` before, once at least.
        """
        assert self._link is not None
        flow = self._flows.get(client)
        if flow is None:
            flow = self._flows[client] = Flow(speed_bytes_s, size_bytes, client)
            self._link.start(flow)
        else:
            self._link.change(flow, size_bytes, speed_bytes_s)
        self._open[client] = self._open.get(client, 0) + 1
        mark = self._asked[client] = self._asked.get(client, 0.0) + size_bytes
        return mark

    def set_speed(self, client: str, speed_bytes_s: float) -> None:
        """The client is faster or slower than was thought."""
        flow = self._flows.get(client)
        if flow is not None and abs(flow.cap_bytes_s - speed_bytes_s) > 0.05 * speed_bytes_s:
            assert self._link is not None
            self._link.change(flow, 0.0, speed_bytes_s)

    def end(self, client: str, done: bool) -> None:
        """One of the client's downloads is over in truth; a finished one runs on here.

        When the last one was given up, nothing would be sent to this client any more.
        """
        left = self._open.get(client, 0) - 1
        if left > 0:
            self._open[client] = left
            return
        self._open.pop(client, None)
        if not done and client in self._flows:
            assert self._link is not None
            self._link.stop(self._flows.pop(client))
        self._forget(client)

    def _forget(self, client: str) -> None:
        if client not in self._flows and client not in self._open:
            self._asked.pop(client, None)

    def left_s(self, client: str, mark: float) -> float:
        """Seconds until the download that ends at this mark would be done; 0 if it would be now."""
        flow = self._flows.get(client)
        if flow is None:
            return 0.0
        assert self._link is not None
        left = self._link.remaining(flow) - (self._asked[client] - mark)
        if left <= 0.0:
            return 0.0
        rate = self._link.rate(flow)
        return left / rate if rate > 0.0 else math.inf
