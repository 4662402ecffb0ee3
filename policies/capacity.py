"""What the link carries and what clients can take: the two speeds that Fair and Adaptive need."""

from __future__ import annotations

import math
from collections import OrderedDict

from policies.slots import Lease

_SLOWER_PER_PROGRESS = 0.995
_MEMORY = 0.05
#: How many clients' speeds are remembered from their last large download.
_REMEMBERED = 20_000
#: A transfer this near to the fastest on a full link may have been held back by the link.
_HELD_BACK = 0.9
#: and is taken to be able to go this much faster (beyond any overbooking, or more and more would
#: share less and less), until it is seen not to.
_PROBE = 1.25


class Capacity:
    """The link's capacity in bytes a second: configured, or learnt from what leaves the server.

    `demand` is how much own speed of clients should be running to fill it: the capacity, times
    the configured overbooking, times a correction that grows while the link idles although more
    was wanted (clients slower than they seemed), and falls back when it is full.
    """

    __slots__ = (
        "_boost",
        "_client_log",
        "_clients",
        "_looks",
        "_overbook",
        "_round",
        "_speeds",
        "configured",
        "full",
        "rate_bytes_s",
    )

    def __init__(self) -> None:
        self.configured: float | None = None
        self.rate_bytes_s = math.inf
        self.full = False
        self._boost = 1.0
        self._overbook = 1.0
        self._client_log = math.log(250_000.0)
        self._clients = self._looks = 0
        #: Below 0: the client takes at least that.
        self._speeds: OrderedDict[str, float] = OrderedDict()
        #: What leases took since the last `observe`.
        self._round: list[tuple[Lease, float]] = []

    def configure(self, bandwidth_bytes_s: float | None, overbook: float) -> None:
        """The operator's word counts; without one, start from what was learnt."""
        self._overbook = overbook
        self.configured = bandwidth_bytes_s
        if bandwidth_bytes_s is not None:
            self.rate_bytes_s = bandwidth_bytes_s

    def observe(self, goodput_bytes_s: float, link_busy: bool, more_wanted: bool) -> None:
        """What left lately, whether the link was full, and whether somebody was kept waiting."""
        self.full = link_busy
        self._learn_clients()
        if self.configured is None:
            if link_busy:
                known = math.isfinite(self.rate_bytes_s)
                step = 0.2 if known else 1.0
                base = self.rate_bytes_s if known else 0.0
                self.rate_bytes_s = max(1.0, base + step * (goodput_bytes_s - base))
            elif more_wanted and math.isfinite(self.rate_bytes_s):
                # Held back by us alone: the link may carry more than we believe.
                self.rate_bytes_s = max(self.rate_bytes_s * 1.05, goodput_bytes_s)
        if link_busy or not more_wanted:
            self._boost = max(1.0, self._boost * 0.9)
        elif goodput_bytes_s < 0.97 * self.rate_bytes_s:
            self._boost = min(8.0, self._boost * 1.1)

    @property
    def demand_bytes_s(self) -> float:
        """Own speeds of clients that should run together."""
        return self.rate_bytes_s * self._overbook * self._boost

    # -- clients -------------------------------------------------------------------------------

    @property
    def typical_client_bytes_s(self) -> float:
        """What a client is taken to be able to take before it was measured (geometric mean)."""
        return math.exp(self._client_log)

    def speed(self, lease: Lease) -> float:
        """What this client can take, as far as known; never more than the link."""
        cap = lease.cap_bytes_s
        return min(cap if cap < math.inf else self.typical_client_bytes_s, self.rate_bytes_s)

    def measured(self, lease: Lease, rate_bytes_s: float) -> None:
        """The lease took `rate_bytes_s` lately; `observe` then tells what to make of it."""
        if rate_bytes_s > 0.0:
            self._round.append((lease, rate_bytes_s))

    def _learn_clients(self) -> None:
        """Tell the clients' own speeds from what the link left them.

        On a full link the fastest transfers run at the level that it can give to each: these
        clients may be faster than seen. All others run at their own speed.
        """
        taken, self._round = self._round, []
        level = max((rate for _, rate in taken), default=0.0)
        for lease, rate in taken:
            known = lease.cap_bytes_s < math.inf
            if not known and not self._clients:
                # Before any is over, the first looks tell more than nothing.
                self._looks += 1
                self._client_log += (math.log(rate) - self._client_log) / self._looks
            if self.full and rate > _HELD_BACK * level:
                floor = lease.cap_bytes_s if known else self.typical_client_bytes_s
                lease.cap_bytes_s = max(
                    floor * _SLOWER_PER_PROGRESS, _PROBE * self._overbook * rate
                )
                lease.cap_is_floor = True
                continue
            lease.cap_bytes_s = rate
            lease.cap_is_floor = False

    def learn(self, lease: Lease) -> None:
        """The lease is over: what its client could take tells of those to come."""
        if 0.0 < lease.cap_bytes_s < math.inf:
            self._clients += 1
            step = max(_MEMORY, 1.0 / self._clients)
            self._client_log += step * (math.log(lease.cap_bytes_s) - self._client_log)
            known = lease.cap_bytes_s
            self._speeds[lease.client] = -known if lease.cap_is_floor else known
            self._speeds.move_to_end(lease.client)
            if len(self._speeds) > _REMEMBERED:
                self._speeds.popitem(last=False)

    def recall(self, client: str) -> float:
        """What this client took at its last download; infinite if that is not known."""
        return abs(self._speeds.get(client, math.inf))

    def recall_is_floor(self, client: str) -> bool:
        """Whether the link held that client back, so that it may well be faster."""
        return self._speeds.get(client, math.inf) < 0.0
