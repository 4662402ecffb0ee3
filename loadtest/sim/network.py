"""The path between server and clients: round trips, slow start, idle restart, a queue on the way.

The engine's link is fluid and without delay. Here stands what TCP makes of a path on it: a transfer
is no faster than its congestion window a round trip, the window doubles each round trip in which it
was used up, and shrinks while the connection is idle. No packet is lost.

Sources: RFC 5681 (slow start), RFC 6928 (the first window), RFC 7661 and Linux's
`tcp_cwnd_restart` (idle restart).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkPath:
    """What lies between a server's card and its clients.

    `rtt_s`: round-trip times; client n has the n-th of them, again from the first. `queue_bytes`:
    what a router on the way holds before its line; it delays all alike. 0: the line is the
    server's own card, where nothing waits but in the sockets.
    """

    rtt_s: tuple[float, ...]
    queue_bytes: int = 0
    #: Ten packets (RFC 6928) with their payload on Ethernet.
    first_window_bytes: int = 10 * 1448
    #: The send or the receive buffer, whichever is less: half of Linux's largest (`tcp_wmem`).
    largest_window_bytes: int = 2 << 20
    #: Linux's least retransmission time-out beside the round trip.
    least_timeout_s: float = 0.2

    def rtt_of(self, client: int) -> float:
        """The round-trip time of the n-th client while no queue stands."""
        return self.rtt_s[client % len(self.rtt_s)]

    def queue_s(self, standing_bytes: float, line_bytes_s: float) -> float:
        """How long what stands before the line delays all."""
        return min(standing_bytes, self.queue_bytes) / line_bytes_s

    def connect_s(self, client: int) -> float:
        """From the client's first packet to the server's reading the request: one and a half."""
        return 1.5 * self.rtt_of(client)

    def last_byte_s(self, client: int) -> float:
        """From the server's sending to the client's reading."""
        return 0.5 * self.rtt_of(client)


class CongestionWindow:
    """The window of one connection. Times in seconds, rates in bytes a second."""

    __slots__ = ("_idle_since_s", "_network", "_rtt_s", "due_s", "window_bytes")

    def __init__(self, network: NetworkPath, rtt_s: float) -> None:
        self._network = network
        self._rtt_s = rtt_s
        self._idle_since_s: float | None = None
        self.window_bytes = float(network.first_window_bytes)
        #: When it is looked at again; an earlier look is out of date.
        self.due_s = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether only keep-alive bytes are sent."""
        return self._idle_since_s is not None

    def rate_bytes_s(self, queue_s: float = 0.0) -> float:
        return self.window_bytes / (self._rtt_s + queue_s)

    def in_slow_start(self, takes_bytes_s: float, rate_bytes_s: float) -> bool:
        """Whether it alone limits a client that takes this, and still grows: no queue stands."""
        grows = self.window_bytes < self._network.largest_window_bytes
        most = self.rate_bytes_s()
        return grows and takes_bytes_s >= most and rate_bytes_s >= 0.5 * most

    def look_s(self, queue_s: float = 0.0) -> float:
        """How long until it is looked at again: a round trip, or several short ones."""
        # Bounds the looks at short paths. Half moves no mean of the lab's trace `mixed`, double
        # moves those at 20 ms by 2 %.
        return max(0.02, self._rtt_s + queue_s)

    def grow(self, rate_bytes_s: float, queue_s: float = 0.0) -> None:
        """`look_s` has passed at this rate: a used up window doubles each round trip."""
        # Linux takes a window for limiting when more than half of it is used in slow start
        # (`tcp_is_cwnd_limited`).
        if rate_bytes_s >= 0.5 * self.rate_bytes_s(queue_s):
            trips = self.look_s(queue_s) / (self._rtt_s + queue_s)
            # From the first window to the largest one.
            grown = self.window_bytes * 2 ** min(trips, 8)
            self.window_bytes = min(grown, float(self._network.largest_window_bytes))

    def rest(self, now: float) -> None:
        """Nothing is sent from now on but keep-alive bytes."""
        if self._idle_since_s is None:
            self._idle_since_s = now

    def resume(self, now: float) -> None:
        """It is used again: for each time-out that it was idle it is half as large."""
        idle_since_s, self._idle_since_s = self._idle_since_s, None
        if idle_since_s is None:
            return
        timeout_s = self._network.least_timeout_s + self._rtt_s
        halvings = min(60, int((now - idle_since_s) / timeout_s))
        least = min(self.window_bytes, float(self._network.first_window_bytes))
        self.window_bytes = max(least, self.window_bytes / 2**halvings)
