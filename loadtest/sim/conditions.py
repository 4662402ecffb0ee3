"""What surrounds the policy in a run: the link, the path to the clients, the clients' manners."""

from __future__ import annotations

from dataclasses import dataclass

from ...client.net.retry import POLITE, RetryPolicy
from ...policies.contract import BRIEF_BYTES


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
    """The window of one connection: what TCP makes of a path.

    A transfer is no faster than its window a round trip. The window doubles each round trip in
    which it was used up, and shrinks while the connection is idle. No packet is lost. Sources: RFC
    5681 (slow start), RFC 6928 (the first window), RFC 7661 and Linux's `tcp_cwnd_restart` (idle
    restart). Times in seconds, rates in bytes a second.
    """

    __slots__ = ("_idle_since_s", "_network", "due_s", "rtt_s", "window_bytes")

    def __init__(self, network: NetworkPath, rtt_s: float) -> None:
        self._network = network
        self.rtt_s = rtt_s
        self._idle_since_s: float | None = None
        self.window_bytes = float(network.first_window_bytes)
        #: When it is looked at again; an earlier look is out of date.
        self.due_s = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether only keep-alive bytes are sent."""
        return self._idle_since_s is not None

    def rate_bytes_s(self, queue_s: float = 0.0) -> float:
        return self.window_bytes / (self.rtt_s + queue_s)

    def in_slow_start(self, takes_bytes_s: float, rate_bytes_s: float) -> bool:
        """Whether it alone limits a client that takes this, and still grows: no queue stands."""
        grows = self.window_bytes < self._network.largest_window_bytes
        most = self.rate_bytes_s()
        return grows and takes_bytes_s >= most and rate_bytes_s >= 0.5 * most

    def look_s(self, queue_s: float = 0.0) -> float:
        """How long until it is looked at again: a round trip, or several short ones."""
        # Bounds the looks at short paths. Half moves no mean of the lab's trace `mixed`, double
        # moves those at 20 ms by 2 %.
        return max(0.02, self.rtt_s + queue_s)

    def grow(self, rate_bytes_s: float, queue_s: float = 0.0) -> None:
        """`look_s` has passed at this rate: a used up window doubles each round trip."""
        # Linux takes a window for limiting when more than half of it is used in slow start
        # (`tcp_is_cwnd_limited`).
        if rate_bytes_s >= 0.5 * self.rate_bytes_s(queue_s):
            trips = self.look_s(queue_s) / (self.rtt_s + queue_s)
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
        timeout_s = self._network.least_timeout_s + self.rtt_s
        halvings = min(60, int((now - idle_since_s) / timeout_s))
        least = min(self.window_bytes, float(self._network.first_window_bytes))
        self.window_bytes = max(least, self.window_bytes / 2**halvings)


#: Asks again every second, whatever it was told.
RUDE = RetryPolicy(own_retry_s=1.0, jitter=0.0)
#: The paper's clients: they come back exactly when told.
PUNCTUAL = RetryPolicy(jitter=0.0)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What surrounds the policy. The two costs of a connection are the paper's.

    `hold`: clients wait inside their request instead of polling. `one_connection`: one connection
    carries all files of a client (the paper's FTP). `tick_s`: how often the policy is told the
    progress of transfers, as the live server does; `first_tick_s` after the first arrival (None:
    one tick; on a live server that is chance). `look_s`: what a transfer gets is told once it has
    run so long. `socket_bytes`: what a socket that is full goes on sending once its transfer is
    paused. `reader_bytes`: what a client's kernel takes before its program has read it, as with
    `--limit-rate`; 0 where its line is what makes it slow. `paced`: the server sends files of up to
    `brief_bytes` in one go, finds its line and caps itself, with `ceiling_bytes_s` configured or
    not. `limit_s`: give up on a run that has not ended by then (a policy that starves a client).
    `answer_bytes`: what an answer without a file takes of the link; who asks often takes some of it
    from those who download. `line`: from such a time on, in seconds, the link carries such a part
    of its bandwidth. `network`: the path to the clients; None: it takes no time. `can_pause`:
    whether the server sends the files itself; behind a gate what runs is not paused, no cap holds
    it back, and each download keeps to the rate that it was told at its start.
    """

    bandwidth_bytes_s: float
    hold: bool = False
    one_connection: bool = False
    attempt_s: float = 0.4
    accept_s: float = 0.1
    tick_s: float = 0.25
    first_tick_s: float | None = None
    look_s: float = 0.2
    socket_bytes: int = 64 * 1024
    reader_bytes: int = 0
    paced: bool = True
    brief_bytes: int = BRIEF_BYTES
    ceiling_bytes_s: float | None = None
    manners: RetryPolicy = POLITE
    rude_manners: RetryPolicy = RUDE
    answer_bytes: int = 0
    limit_s: float = 10_000_000.0
    line: tuple[tuple[float, float], ...] = ()
    network: NetworkPath | None = None
    can_pause: bool = True

    def line_bytes_s(self, now: float) -> float:
        """What the link carries at this time."""
        parts = [part for since_s, part in self.line if since_s <= now]
        return self.bandwidth_bytes_s * (parts[-1] if parts else 1.0)


class Starved(RuntimeError):
    """The run did not end: a client waits for ever."""
