"""What the link carries and what clients can take: the two speeds that Fair and Adaptive need."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..protocol.bounded_table import BoundedTable
from .contract import LineSeen
from .leases import Lease
from .reading import RATE


@dataclass(frozen=True, slots=True)
class CapacityTuning:
    """How the speeds of clients are believed. What the first ones bring: `make laws`."""

    #: A transfer that was held back is taken to be able to go this much faster than it went, until
    #: it is seen not to.
    may_be_faster: float = 1.25
    #: A client that falls short of its highest rate is believed to have slowed down by this part of
    #: the difference at each look: a rate that dips comes back.
    slower_part: float = 0.1
    #: A client that takes less than this part of an equal share is believed to take no more. Idle
    #: readers would otherwise be paused as if they were fast, in the places of others.
    idle_part: float = 1.0 / 8.0
    #: The least speed that such a client is believed to have, bytes/s.
    least_bytes_s: float = 100.0
    #: A download at this part of its believed best, held back by the server alone, may be faster.
    near_best: float = 0.97
    #: A client whose program was seen to read is believed to read more by this part of the
    #: difference: what its kernel takes after a pause comes faster.
    reads_more: float = 0.1
    #: The latest client counts for this part of the mean of clients.
    memory: float = 0.05
    #: Clients whose speed is remembered from their last large download: about 3 MB.
    remembered: int = 20_000
    #: What small downloads take is smoothed over this, seconds.
    small_s: float = 4.0
    #: They are taken to leave at least this part of the line to large ones.
    large_part: float = 0.5
    #: A client is taken for this fast before any was seen, bytes/s, but for no more than this part
    #: of the line. One that is held back shows slowly that it is faster: with 250 kB/s bursts at a
    #: new server take 10 % longer. One that is slower shows it at once.
    first_client_bytes_s: float = 1_000_000.0
    first_client_part: float = 0.25


CAPACITY = CapacityTuning()


class _LineDemand:
    """What one line of several carries, and how much own speed of clients fills it."""

    def __init__(self) -> None:
        self.rate_bytes_s = math.inf
        self.boost = 1.0


def _boosted(boost: float, goodput_bytes_s: float, rate_bytes_s: float, *, enough: bool) -> float:
    """The correction of a line's demand from now on; `enough`: it is full, or no more is wanted."""
    if enough:
        return max(1.0, boost * 0.9)
    return min(8.0, boost * 1.1) if goodput_bytes_s < 0.97 * rate_bytes_s else boost


class Capacity:
    """The line's capacity in bytes a second: as it was found, and no more than configured.

    Feed it with `observe` (what the line is found to carry), `measured` and `learn` (what clients
    take); ask it for `rate_bytes_s`, `demand_bytes_s`, `speed` of a client, and whether the line
    is `full`. What the line carries is `known` once it was found: a configured bound tells it only
    where no finder looks. `demand` is how much own speed of clients should be running to fill the
    line: the capacity, times a correction that grows while the line idles although more was wanted
    (clients slower than they seemed), and falls back when it is full.

    Where a fleet has several lines, all that is the sum of them; `observe_lines` tells of each, and
    what runs on a line is measured against the `rate_of` and `demand_of` it.
    """

    def __init__(self) -> None:
        self.configured: float | None = None
        self.rate_bytes_s = math.inf
        self.full = self.known = False
        self._boost = 1.0
        #: By name; empty where there is one line.
        self.lines: dict[str, _LineDemand] = {}
        self._client_log = math.log(CAPACITY.first_client_bytes_s)
        self._client_variance = 0.0
        #: What a client is taken to be able to take before it was measured (geometric mean).
        self.typical_client_bytes_s = math.exp(self._client_log)
        self._clients = self._looks = 0
        self._idle_bytes_s = 0.0
        #: What small downloads took since the last look, what they take, and took until that look.
        self._small_new_bytes, self._small_bytes_s, self.small_past_bytes = 0, 0.0, 0
        self._looked_s = -math.inf
        #: Below 0: the client takes at least that.
        self._speeds: BoundedTable[str, float] = BoundedTable(CAPACITY.remembered)

    def configure(self, bandwidth_bytes_s: float | None) -> None:
        """The operator's bound; without one, what was found counts."""
        found = self.rate_bytes_s if self.rate_bytes_s != self.configured else math.inf
        self.configured = bandwidth_bytes_s
        self.rate_bytes_s = min(found, math.inf if bandwidth_bytes_s is None else bandwidth_bytes_s)
        self.known = math.isfinite(self.rate_bytes_s)
        self._guess_client()

    def observe(
        self,
        goodput_bytes_s: float,
        link_busy: bool,
        more_wanted: bool,
        line_bytes_s: float | None,
        downloads: int = 0,
    ) -> None:
        """What left lately, whether the line was full, whether a client was kept waiting.

        `line_bytes_s` is what the line was found to carry; infinite while that is not known, None
        if no finder looks.
        """
        self.full = link_busy
        self._idle_bytes_s = CAPACITY.idle_part * goodput_bytes_s / max(1, downloads)
        bound = math.inf if self.configured is None else self.configured
        found = bound if line_bytes_s is None else line_bytes_s
        self.known = math.isfinite(found)
        self.rate_bytes_s = max(1.0, min(found, bound))
        self._guess_client()
        enough = link_busy or not more_wanted
        self._boost = _boosted(self._boost, goodput_bytes_s, self.rate_bytes_s, enough=enough)

    def small_took(self, count: int) -> None:
        """Small downloads have taken this much."""
        self._small_new_bytes += count

    def observe_small(self, now: float) -> None:
        """Some time has passed since the last look at what small downloads take."""
        passed_s, self.small_past_bytes = now - self._looked_s, 0
        if passed_s <= 0.0:
            return
        self.small_past_bytes, self._small_new_bytes, self._looked_s = self._small_new_bytes, 0, now
        part = min(1.0, passed_s / CAPACITY.small_s)
        self._small_bytes_s += part * (self.small_past_bytes / passed_s - self._small_bytes_s)

    @property
    def large_bytes_s(self) -> float:
        """What the line has for large downloads: small ones never wait behind them."""
        rate = self.rate_bytes_s
        return rate - min(self._small_bytes_s, (1.0 - CAPACITY.large_part) * rate)

    def observe_lines(self, lines: Mapping[str, LineSeen], wanted: Collection[str]) -> None:
        """What left lately on each of several lines; clients are kept waiting at those `wanted`."""
        for name in self.lines.keys() - lines.keys():
            del self.lines[name]
        for name, seen in lines.items():
            line = self.lines.get(name)
            if line is None:
                line = self.lines[name] = _LineDemand()
            line.rate_bytes_s = rate = max(1.0, min(seen.line_bytes_s, self.rate_bytes_s))
            enough = seen.busy or name not in wanted
            line.boost = _boosted(line.boost, seen.goodput_bytes_s, rate, enough=enough)

    @property
    def demand_bytes_s(self) -> float:
        """Own speeds of clients that should run together."""
        if self.lines:
            return sum(self.demand_of(name) for name in self.lines)
        return self.rate_bytes_s * self._boost

    def rate_of(self, line: str) -> float:
        """What this line carries; an equal part of all for one that is not known."""
        if not self.lines:
            return self.rate_bytes_s
        known = self.lines.get(line)
        return self.rate_bytes_s / len(self.lines) if known is None else known.rate_bytes_s

    def demand_of(self, line: str) -> float:
        """Own speeds of clients that should run together on this line."""
        known = self.lines.get(line)
        boost = self._boost if known is None else known.boost
        return self.rate_of(line) * boost

    # -- clients -------------------------------------------------------------------------------

    def _seems(self, client_bytes_s: float, part: float) -> None:
        """One more client takes this; it counts for this part of the mean."""
        off = math.log(client_bytes_s) - self._client_log
        # West's running variance (Communications of the ACM, 1979) with the same weights.
        self._client_variance = (1.0 - part) * (self._client_variance + part * off * off)
        self._takes(self._client_log + part * off)

    def _guess_client(self) -> None:
        """What a client takes while none was seen."""
        if not (self._clients or self._looks):
            most = max(1.0, CAPACITY.first_client_part * self.rate_bytes_s)
            self._takes(math.log(min(CAPACITY.first_client_bytes_s, most)))

    def _takes(self, client_log: float) -> None:
        self._client_log, self.typical_client_bytes_s = client_log, math.exp(client_log)

    @property
    def slower_client_bytes_s(self) -> float:
        """What two in three clients can take at least: half a deviation below the usual speed."""
        return math.exp(self._client_log - 0.5 * math.sqrt(self._client_variance))

    def _count(self, lease: Lease) -> None:
        """What this client takes counts once, when it has taken more than its kernel keeps.

        If ends counted, a crowd would seem as fast as the first ones that are done. If the kernels
        of 300 idle readers did, all would seem slow: live they cost 40 people +81 instead of +8 %.
        """
        if not lease.speed_counted:
            lease.speed_counted = True
            self._clients += 1
            self._seems(lease.cap_bytes_s, max(CAPACITY.memory, 1.0 / self._clients))

    def speed(self, lease: Lease) -> float:
        """What this client can take, as far as known; never more than the link."""
        cap, typical = lease.cap_bytes_s, self.typical_client_bytes_s
        most = self.rate_of(lease.line) if self.lines else self.rate_bytes_s
        if cap == math.inf or (lease.cap_is_floor and cap < typical):
            cap = typical
        return cap if cap < most else most

    def measured(
        self,
        lease: Lease,
        rate_bytes_s: float,
        held_back: bool | None,
        reads_bytes_s: float = 0.0,
    ) -> None:
        """The lease took `rate_bytes_s` lately.

        `held_back`: the server let it have no more, so its client may well be faster: a share says
        nothing of a client's speed but that it is not below. None: perhaps the line did.
        `reads_bytes_s`: what its program is known to read (`policies.reading`); 0: not known.
        """
        # An unknown line may hold back whom it likes: in a burst some get nothing for a second.
        limited = held_back is False or (held_back is None and self.known)
        idle = limited and rate_bytes_s < self._idle_bytes_s
        if idle:
            # Else idle readers would be paused as if they were fast, in the places of others.
            lease.cap_bytes_s = max(CAPACITY.least_bytes_s, rate_bytes_s)
            lease.cap_is_floor = False
        if idle or rate_bytes_s <= 0.0:
            return
        known = lease.cap_bytes_s < math.inf
        if reads_bytes_s > 0.0:
            lease.cap_bytes_s, lease.cap_is_floor, lease.reads = reads_bytes_s, False, True
            return
        if lease.reads:
            more = max(0.0, rate_bytes_s - lease.cap_bytes_s)
            lease.cap_bytes_s += CAPACITY.reads_more * more
            return
        if held_back is not False:
            if known and not lease.cap_is_floor:
                if held_back is None or rate_bytes_s < CAPACITY.near_best * lease.cap_bytes_s:
                    lease.cap_bytes_s = max(lease.cap_bytes_s, rate_bytes_s)
                    return
                lease.cap_is_floor = True
            typical = self.typical_client_bytes_s
            if held_back is None and not known and CAPACITY.may_be_faster * rate_bytes_s < typical:
                # It may be slow by itself, which is seen at a later look: its probe goes on.
                return
            floor = lease.cap_bytes_s if known else typical
            lease.cap_bytes_s = max(floor, CAPACITY.may_be_faster * rate_bytes_s)
            lease.cap_is_floor = True
            return
        seen_before = known and not lease.cap_is_floor
        if seen_before and rate_bytes_s < lease.cap_bytes_s:
            rate_bytes_s = lease.cap_bytes_s + CAPACITY.slower_part * (
                rate_bytes_s - lease.cap_bytes_s
            )
        lease.cap_bytes_s = rate_bytes_s
        lease.cap_is_floor = False
        if seen_before and lease.started_bytes - lease.remaining_bytes >= RATE.ahead_bytes:
            self._count(lease)
        elif not self._clients:
            # Before any counts, the first looks tell more than nothing.
            self._looks += 1
            self._seems(rate_bytes_s, max(CAPACITY.memory, 1.0 / self._looks))

    def learn(self, lease: Lease) -> None:
        """The lease is over: what its client could take tells of those to come."""
        # Idle clients tell nothing: they would make all look slow.
        if self._idle_bytes_s < lease.cap_bytes_s < math.inf:
            # Of a client that was held back is known only that it is not slower.
            if not lease.cap_is_floor or lease.cap_bytes_s > self.typical_client_bytes_s:
                self._count(lease)
            known = lease.cap_bytes_s
            self._speeds[lease.client] = -known if lease.cap_is_floor else known

    def remember(self, lease: Lease) -> None:
        """The client of this lease takes what it took at its last download, if that is known."""
        known = self._speeds.get(lease.client)
        if known is not None and lease.cap_bytes_s == math.inf:
            lease.cap_bytes_s, lease.cap_is_floor = abs(known), known < 0.0

    def recall(self, client: str) -> float:
        """What this client took at its last download; infinite if that is not known."""
        return abs(self._speeds.get(client, math.inf))
