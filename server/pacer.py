"""The cap on what leaves the server, shared fairly: deficit rounds among senders that can send.

Senders that the cap holds back stand in a ring. Each tick adds `rate * elapsed` to a budget, and
the ring is served one quantum at a time until the budget is spent. A sender whose peer takes no
more leaves the ring until its socket is writable again, so slow clients keep what they can take
and the others share the rest: max-min fairness, at a cost set by the bandwidth and not by the
number of clients.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

TICK_S = 0.01
_QUANTUM_BYTES = 16 * 1024
#: The budget never holds more than this much time's worth, so an idle link makes no long burst.
_BURST_S = 0.05
_GOODPUT_WINDOW_S = 1.0


class Paced(Protocol):
    """A body sender as the pacer sees it."""

    def push(self, most_bytes: int) -> int:
        """Send at most so many bytes now; returns how many went.

        Fewer than asked means that the sender cannot go on now (blocked, paused or over): it
        leaves the ring and calls `Pacer.ready` again when it can.
        """
        ...

    def uncapped(self) -> None:
        """The cap was lifted while this sender stood in the ring: go on without turns."""
        ...


class Pacer:
    """Shares `bandwidth_bytes_s` (None: no cap) and measures what leaves.

    The cap counts HTTP bytes, header and body; TCP/IP headers add about 3 % on a 1 500-byte link.
    """

    def __init__(self, reactor: Any, bandwidth_bytes_s: float | None = None) -> None:
        self._reactor = reactor
        self._bandwidth_bytes_s = bandwidth_bytes_s
        self._ring: deque[Paced] = deque()
        self._budget = 0.0
        self._last_tick_s = reactor.seconds()
        self._tick_call: Any = None
        self.sent_bytes_total = 0
        self._marks: deque[tuple[float, int]] = deque()

    @property
    def capped(self) -> bool:
        """Whether there is a cap at all."""
        return self._bandwidth_bytes_s is not None

    @property
    def bandwidth_bytes_s(self) -> float | None:
        """The cap; None for none."""
        return self._bandwidth_bytes_s

    def set_bandwidth(self, bandwidth_bytes_s: float | None) -> None:
        """Change the cap; running transfers feel it at the next tick."""
        self._bandwidth_bytes_s = bandwidth_bytes_s
        if bandwidth_bytes_s is None:
            ring, self._ring = self._ring, deque()
            for paced in ring:
                paced.uncapped()

    @property
    def link_busy(self) -> bool:
        """Whether the cap, right now, holds somebody back."""
        return bool(self._ring)

    def charge(self, count: int) -> None:
        """Note bytes that left without asking (headers, small answers); later ones pay for them."""
        self.sent_bytes_total += count
        if self._bandwidth_bytes_s is not None:
            self._budget -= count

    def ready(self, paced: Paced) -> None:
        """A sender can send: it stands in the ring from now on. Never call twice in a row."""
        self._ring.append(paced)
        if self._tick_call is None:
            self._earn()
            self._tick_call = self._reactor.callLater(TICK_S, self._tick)

    def now(self) -> float:
        """The reactor's clock, in seconds."""
        return float(self._reactor.seconds())

    def goodput_bytes_s(self) -> float:
        """What left lately, averaged over about a second of calls to this."""
        now = self._reactor.seconds()
        marks = self._marks
        marks.append((now, self.sent_bytes_total))
        while len(marks) > 2 and marks[1][0] <= now - _GOODPUT_WINDOW_S:
            marks.popleft()
        elapsed_s = now - marks[0][0]
        return (self.sent_bytes_total - marks[0][1]) / elapsed_s if elapsed_s > 0 else 0.0

    def _earn(self) -> None:
        now = self._reactor.seconds()
        rate = self._bandwidth_bytes_s
        if rate is not None:
            most = max(rate * _BURST_S, 2.0 * _QUANTUM_BYTES)
            self._budget = min(most, self._budget + rate * max(0.0, now - self._last_tick_s))
        self._last_tick_s = now

    def _tick(self) -> None:
        self._tick_call = None
        self._earn()
        ring = self._ring
        rate = self._bandwidth_bytes_s
        # Small quanta on a slow link keep the turns short; 100 turns a second at the least.
        quantum = _QUANTUM_BYTES if rate is None else int(min(_QUANTUM_BYTES, rate / 20)) or 1
        while ring and self._budget >= quantum:
            paced = ring.popleft()
            sent = paced.push(quantum)
            self._budget -= sent
            self.sent_bytes_total += sent
            if sent == quantum:
                ring.append(paced)
        if ring:
            self._tick_call = self._reactor.callLater(TICK_S, self._tick)
