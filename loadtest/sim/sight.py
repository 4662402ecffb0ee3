"""What a live server can see of its link, and the cap that it puts on it: `server.admission.line`.

The policy in a run is told nothing else. Not whether the link is full, but whether the cap that the
server itself set holds a client back; not what a transfer gets at this instant, but what was
acknowledged between two looks, smoothed as the live server smooths it; not what the link carries,
but what `policies.bottleneck` finds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ...policies.bottleneck import Bottleneck, LineOrders, Sample
from ...policies.contract import FULL_PART
from ...policies.max_min import Flow, SharedLink
from ...policies.reading import ReadingPace, RunningRate
from .conditions import Conditions, CongestionWindow
from .outcome import SimClient


class Sight:
    """Sockets and pacer of the simulated server."""

    def __init__(self, link: SharedLink, conditions: Conditions) -> None:
        finds = conditions.paced and conditions.can_pause
        ceiling_bytes_s = conditions.ceiling_bytes_s if finds else None
        self._link = link
        self._conditions = conditions
        self._line_bytes_s = link.capacity_bytes_s
        self._look_s = conditions.look_s
        self._bottleneck = Bottleneck(ceiling_bytes_s) if finds else None
        self.orders = LineOrders()
        #: What stands before the line, and what could at the most.
        self._standing_bytes = self._sockets_bytes = 0.0
        self._cap_bytes_s = math.inf
        self._cap(LineOrders(ceiling_bytes_s))
        #: Lease -> when it was last looked at, and what it had left then.
        self._looks: dict[int, tuple[float, float]] = {}
        self._rates: dict[int, RunningRate] = {}
        self._paces: dict[int, ReadingPace] = {}
        #: Of the leases at the last `progress`: whose sockets will soon have all that is left.
        self.ending: list[int] = []
        #: What was sent whole and has not arrived: the live server sees it all together.
        self._whole: list[Flow] = []
        #: When and how much had been delivered in all, at the last tick.
        self._ticked = (link.now, link.delivered_bytes)
        self._goodput_bytes_s = 0.0

    def _cap(self, orders: LineOrders) -> None:
        self.orders = orders
        self._cap_bytes_s = cap = math.inf if orders.cap_bytes_s is None else orders.cap_bytes_s
        # What stands before the line leaves beside what the cap lets go.
        leaves = cap + self._standing_bytes / self._conditions.tick_s
        self._link.set_capacity(min(self._line_bytes_s, leaves))
        self._capped = cap <= self._line_bytes_s or self._standing_bytes < self._sockets_bytes

    def _let_stand(self, passed_s: float, flows: Mapping[int, Flow]) -> None:
        """Bytes sent beyond the line stand in sockets, which have a bound each."""
        link, most = self._link, self._conditions.socket_bytes
        network = self._conditions.network
        if network is not None and network.queue_bytes:
            beyond = sum([_beyond_path(flow, link.rate(flow)) for flow in flows.values()])
            self._sockets_bytes = min(float(network.queue_bytes), beyond)
        else:
            self._sockets_bytes = sum([min(most, link.remaining(flow)) for flow in flows.values()])
        stands = 0.0
        if link.full:
            stands = self._standing_bytes + (self._cap_bytes_s - self._line_bytes_s) * passed_s
        self._standing_bytes = min(max(0.0, stands), self._sockets_bytes)

    @property
    def standing_bytes(self) -> float:
        return self._standing_bytes

    @property
    def found_bytes_s(self) -> float | None:
        """What the line was found to carry; None where the server does not look for it."""
        return None if self._bottleneck is None else self.orders.line_bytes_s

    @property
    def busy(self) -> bool:
        """Whether the cap, or a line that is full behind a gate, holds a client back."""
        if not self._conditions.can_pause:
            told_bytes_s = self._conditions.ceiling_bytes_s or math.inf
            return self._goodput_bytes_s >= FULL_PART * told_bytes_s
        return self._capped and self._link.full

    def stuck(self, flow: Flow) -> bool:
        """Whether this transfer's socket takes no more: its client, or the line, is the limit."""
        return not self.busy or self._link.rate(flow) >= flow.cap_bytes_s

    def begins(self, lease: int, flow: Flow, now: float) -> None:
        """A transfer runs (again): what it got before tells nothing of what it will get."""
        self._looks[lease] = (now, self._link.remaining(flow))
        self._rates.setdefault(lease, RunningRate()).resume()
        self._paces[lease] = ReadingPace()

    def ends(self, lease: int) -> None:
        self._looks.pop(lease, None)
        self._rates.pop(lease, None)
        self._paces.pop(lease, None)

    def sent_whole(self, flow: Flow) -> None:
        """All of it lies in its socket, and nothing that is decided from now on changes that."""
        self._whole.append(flow)
        self._link.weigh(flow, self._whole_weight)

    @property
    def _whole_weight(self) -> float:
        # As live: the pacer pays for what is sent in one go afterwards, so under a cap that leaves
        # before all that waits for a turn. It counts as this many transfers.
        return 256.0 if self._capped else 1.0

    def _weigh_whole(self) -> None:
        """A line that is not capped is shared by all sockets alike."""
        weight = self._whole_weight
        self._whole = [flow for flow in self._whole if flow.running]
        for flow in self._whole:
            if flow.weight != weight:
                self._link.weigh(flow, weight)

    def restart(self, now: float) -> None:
        """No client was there until now."""
        self._ticked = (now, self._link.delivered_bytes)

    def tick(self, now: float, flows: Mapping[int, Flow]) -> float:
        """Look at the running transfers, cap the link; returns the goodput since the last tick."""
        link, line_bytes_s = self._link, self._conditions.line_bytes_s(now)
        then, bytes_then = self._ticked
        self._let_stand(now - then, flows)
        if line_bytes_s != self._line_bytes_s:
            self._line_bytes_s = line_bytes_s
            self._cap(self.orders)
        network = self._conditions.network
        if self._bottleneck is not None:
            samples, busy, ceil = [], self.busy, math.ceil
            flying = self._standing_bytes
            drops = network is not None and 0 < network.queue_bytes <= flying
            looks = link.looks(flows.values())
            for (lease, flow), (remaining, rate) in zip(flows.items(), looks, strict=True):
                left = ceil(remaining)
                stuck = not busy or rate >= flow.cap_bytes_s
                # What was acknowledged counts by how it grows: as what is left falls.
                shut, grows = self._paces[lease].shut, _in_slow_start(flow, rate)
                window = flow.payload.window
                trip_s = 0.0 if window is None else window.rtt_s
                flying += rate * trip_s
                lossy = drops and rate < flow.cap_bytes_s
                samples.append(Sample(lease, -left, left, stuck, shut, lossy, grows, trip_s))
            acked = int(link.delivered_bytes)
            self._cap(self._bottleneck.observe(now, acked, int(flying), busy, samples))
        self._weigh_whole()
        self._ticked = (now, link.delivered_bytes)
        goodput = (link.delivered_bytes - bytes_then) / (now - then) if now > then else 0.0
        self._goodput_bytes_s = goodput
        return goodput

    def progress(
        self, now: float, flows: Mapping[int, Flow]
    ) -> Iterator[tuple[int, int, float, bool | None, float]]:
        """What the live server measures of each running transfer.

        What it has left, its rate, whether its client may be faster than it is, as far as the
        server knows, and what its program is known to read. Nothing may change on the link until
        the last was looked at.
        """
        link, looks, orders, busy = self._link, self._looks, self.orders, self.busy
        rates = self._rates
        look_s, reader_bytes = max(self._look_s, 1e-9), self._conditions.reader_bytes
        hold, ceil = orders.hold, math.ceil
        socket_bytes, tick_s = self._conditions.socket_bytes, self._conditions.tick_s
        self.ending = ending = []
        seen = link.looks(flows.values())
        for (lease, flow), (remaining, gets) in zip(flows.items(), seen, strict=True):
            if lease in hold or not gets:
                continue
            looked_s, left = looks[lease]
            rate = rates[lease]
            if now - looked_s >= look_s:
                rate.look(left - remaining, now - looked_s)
                looks[lease] = (now, remaining)
            stuck = not busy or gets >= flow.cap_bytes_s
            if stuck and remaining <= socket_bytes + gets * tick_s:
                ending.append(lease)
            held_back = orders.held_back(lease, stuck, _in_slow_start(flow, gets))
            if not self._conditions.can_pause:
                held_back = busy
            reads = self._reads(lease, flow, now, remaining, stuck) if reader_bytes else 0.0
            yield lease, ceil(remaining), rate.client_bytes_s(held_back), held_back, reads

    def _reads(self, lease: int, flow: Flow, now: float, remaining: float, stuck: bool) -> float:
        """What a program reads whose kernel takes no more."""
        client: SimClient = flow.payload
        # A window is shut when a client's kernel holds this part of what it takes.
        shut = stuck and client.unread >= 0.95 * self._conditions.reader_bytes
        return self._paces[lease].look(now, -math.ceil(remaining), shut)


def _beyond_path(flow: Flow, rate_bytes_s: float) -> float:
    """What its window lets it send beyond what is on its way, unless its client takes no more."""
    window: CongestionWindow | None = flow.payload.window
    if window is None or flow.cap_bytes_s <= rate_bytes_s < 0.99 * window.rate_bytes_s():
        return 0.0
    return max(0.0, window.window_bytes - rate_bytes_s * window.rtt_s)


def _in_slow_start(flow: Flow, rate_bytes_s: float) -> bool:
    window = flow.payload.window
    return window is not None and window.in_slow_start(flow.cap_bytes_s, rate_bytes_s)
