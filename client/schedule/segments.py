"""The ledger under every block strategy: which bytes are wanted, free, or under way. Pure.

A *lane* is one connection to one mirror; a *block* is a run of bytes handed to a lane. Laws:

- A wanted byte is either free or in at least one live block; nothing is ever forgotten.
- A block's `end` may move down while it is under way (another lane took its tail). The lane
  stops reading there; when `end` reaches `position`, the block is over.
- `stopped()` names blocks whose transfer must be broken off now.

Times are seconds (`now` never runs backwards), rates bytes per second.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from ...protocol.intervals import IntervalSet, Span
from .meter import Meter

#: Stands for the size of a file that no mirror tells.
UNKNOWN_SIZE = 1 << 62


@dataclass(slots=True, eq=False)
class Segment:
    """[position, end) is still to come on `lane`; ask for more work when past `ask_at`. The answer
    that brings it runs on to `stop`, which is past `end` where another lane took the tail."""

    lane: int
    start: int
    end: int
    position: int
    ask_at: int
    handed_s: float
    stop: int
    live: bool = True


@dataclass(slots=True)
class Lane:
    """One connection as the strategy sees it; `hint` is the rate known from earlier."""

    number: int
    hint: float | None
    rtt_s: float
    mirror: int
    meter: Meter = field(default_factory=Meter)
    blocks: list[Segment] = field(default_factory=list)
    last_size: int = 0
    last_rate: float | None = None
    #: No block is longer than this: the mirror would cut the answer off.
    most_bytes: int | None = None
    #: Each block takes a connection of its own, so blocks are longer.
    single: bool = False
    present: bool = True

    def rate(self, now: float) -> float | None:
        """The best guess: measured, else as last measured, else as known from history."""
        found = self.meter.rate(now)
        if found is not None:
            self.last_rate = found
            return found
        return self.last_rate if self.last_rate is not None else self.hint

    def left(self) -> int:
        """Bytes still to come on this lane."""
        return sum(block.end - block.position for block in self.blocks)


class SegmentMap(ABC):
    """Bookkeeping shared by the strategies, which add `ask` and may override `_finished`."""

    def __init__(self, missing: list[Span]) -> None:
        self.wanted = IntervalSet(missing)
        self.free = IntervalSet(missing)
        self.lanes: dict[int, Lane] = {}
        #: The in-order reader's window: nothing at or past it is handed out.
        self.limit: int | None = None
        #: What lies below will probably come by multicast: it is handed out last.
        self.floor = 0
        #: Picks what is handed out next from what is free; None: the lowest bytes first.
        self.choose: Callable[[IntervalSet], Span | None] | None = None
        #: How many lanes there are or will be in a moment; one alone may take everything.
        self.expected = 1
        #: When the first byte came, and how many have since, on all lanes.
        self._first_s: float | None = None
        self._arrived_bytes = 0
        self._stopped: list[Segment] = []

    # -- lanes ---------------------------------------------------------------------------------

    def join(
        self,
        lane: int,
        now: float,
        *,
        mirror: int = 0,
        hint: float | None = None,
        rtt_s: float = 0.0,
        most_bytes: int | None = None,
        single: bool = False,
    ) -> None:
        """A connection is ready to work; joining again keeps what was measured."""
        known = self.lanes.get(lane)
        if known is None:
            known = self.lanes[lane] = Lane(lane, hint, rtt_s, mirror)
        else:
            known.present = True
            known.rtt_s = rtt_s or known.rtt_s
            # A fresh connection starts small, whatever the old one reached or failed to reach; but
            # where each answer takes a fresh one, they would all be small.
            known.last_size = known.last_size if single else 0
            if known.last_rate is not None and known.last_rate <= 1.0:
                known.last_rate = None
        known.most_bytes = most_bytes
        known.single = single

    def leave(self, lane: int, now: float) -> None:
        """The connection is gone (or waits, or is dropped): its blocks are free again."""
        known = self.lanes.get(lane)
        if known is None:
            return
        known.present = False
        known.meter.rest()
        for block in list(known.blocks):
            self._close(block)

    # -- bytes ---------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Every wanted byte has been received."""
        return self.wanted.total == 0

    @abstractmethod
    def ask(self, lane: int, now: float) -> Segment | None:
        """The next work for a lane, or None when there is none for it now."""

    def received(self, block: Segment, count: int, now: float) -> None:
        """`count` bytes at the block's position have arrived (no more than up to its end)."""
        lane = self.lanes[block.lane]
        if self._first_s is None:
            self._first_s = now
        self._arrived_bytes += count
        lane.meter.add(count, now)
        self.wanted.remove(block.position, block.position + count)
        block.position += count
        if block.position >= block.end:
            lane.rate(now)
            self._close(block)
            self._finished(block, now)

    def ended(self, block: Segment, now: float) -> None:
        """The answer is over; what it did not bring is free again."""
        if block.live:
            self._close(block)

    def claim(self, lane: int, start: int, end: int, now: float) -> Segment:
        """The lane is already being sent [start, end): make that its block."""
        block = self._hand(self.lanes[lane], start, end, now)
        block.ask_at = start + (end - start) // 4
        return block

    def carry_on(self, block: Segment, now: float) -> bool:
        """If what follows the block in its answer is free, the block grows. False: it ends where
        it does, and its answer should be broken off there."""
        if self.choose is not None:
            return False
        span = self._first_free(block.end)
        lane = self.lanes[block.lane]
        if span is None or span[0] != block.end or block.stop <= block.end or not lane.present:
            return False
        stop = min(span[1], block.stop, block.end + self._growth(lane, now))
        if stop <= block.end:
            return False
        self.free.remove(block.end, stop)
        block.end = block.ask_at = stop
        if not block.live:
            block.live = True
            block.handed_s = now
            lane.blocks.insert(0, block)
            lane.meter.start(now)
        return True

    def want(self, start: int, end: int) -> None:
        """Those bytes are missing (again): a piece was wrong, or a mirror lied."""
        for a, b in self.wanted.holes(start, end):
            self.wanted.add(a, b)
            self.free.add(a, b)

    def settle(self, size_bytes: int) -> None:
        """The size was not known and is now: nothing past it is wanted."""
        for lane in self.lanes.values():
            for block in lane.blocks:
                block.end = max(block.position, min(block.end, size_bytes))
                block.stop = max(block.end, min(block.stop, size_bytes))
        end = max((last for _, last in self.wanted), default=size_bytes)
        self.filled(size_bytes, max(end, size_bytes))

    def filled(self, start: int, end: int) -> None:
        """Those bytes came from elsewhere (multicast): no lane needs to fetch them.

        Blocks under way keep running unless nothing of them is wanted any more.
        """
        self.wanted.remove(start, end)
        self.free.remove(start, end)
        for lane in self.lanes.values():
            for block in list(lane.blocks):
                if not self.wanted.overlaps(block.position, block.end):
                    self._stop(block)

    def shorten(self, most_bytes: int) -> None:
        """No block under way is longer from here on; what that takes away is free again."""
        for lane in self.lanes.values():
            for block in list(lane.blocks):
                end, cut = block.end, block.position + most_bytes
                if cut < end:
                    self._cut(block, cut)
                    for start, stop in self.wanted.within(cut, end):
                        self.free.add(start, stop)

    def stopped(self) -> list[Segment]:
        """Blocks taken away since the last call: break off their transfers."""
        found, self._stopped = self._stopped, []
        return found

    # -- for the strategies --------------------------------------------------------------------

    def _usual_rate(self, now: float) -> float:
        """What all lanes together bring a second: since the first byte, or what was seen lately
        while that is not long ago."""
        # A mean rate says something after so long.
        if self._first_s is None or now - self._first_s < 0.3:
            return sum(lane.rate(now) or 0.0 for lane in self.lanes.values() if lane.blocks)
        return self._arrived_bytes / (now - self._first_s)

    def _hand(self, lane: Lane, start: int, end: int, now: float) -> Segment:
        self.free.remove(start, end)
        block = Segment(lane.number, start, end, start, end, now, end)
        lane.blocks.append(block)
        lane.last_size = end - start
        lane.meter.start(now)
        return block

    def _growth(self, lane: Lane, now: float) -> int:
        """How many bytes more the lane should have in its block."""
        return self.wanted.total

    def _first_free(self, start: int = 0) -> Span | None:
        """The next free span to hand out, cut at the reader's window."""
        if self.choose is not None:
            return self.choose(self.free)
        start = start or self.floor
        span = (start and self.free.first(start)) or self.free.first()
        if span is None or self.limit is None:
            return span
        return None if span[0] >= self.limit else (span[0], min(span[1], self.limit))

    def _cut(self, block: Segment, end: int) -> None:
        """Take [end, block.end) away from a block and leave it free."""
        block.end = end
        if block.position >= end:
            self._stop(block)

    def _stop(self, block: Segment) -> None:
        self._close(block)
        self._stopped.append(block)

    def _close(self, block: Segment) -> None:
        if not block.live:
            return
        block.live = False
        lane = self.lanes[block.lane]
        lane.blocks.remove(block)
        if not lane.blocks:
            lane.meter.rest()
        for start, end in self.wanted.within(block.position, block.end):
            for a, b in self._unattended(start, end):
                self.free.add(a, b)

    def _unattended(self, start: int, end: int) -> list[Span]:
        rest = IntervalSet([(start, end)])
        for lane in self.lanes.values():
            for block in lane.blocks:
                rest.remove(block.position, block.end)
        return list(rest)

    def _finished(self, block: Segment, now: float) -> None:  # noqa: B027 - most do not care
        """A block came in whole."""
