"""Which bytes of a file are wanted, free, or under way, and which lane gets which next. Pure.

A *lane* is one connection to one mirror; a *block* is a run of bytes handed to a lane. Laws:

- A wanted byte is either free or in at least one live block; nothing is ever forgotten.
- A block's `end` may move down while it is under way (another lane took its tail). The lane
  stops reading there; when `end` reaches `position`, the block is over.
- `stopped()` names blocks whose transfer must be broken off now.

Times are seconds (`now` never runs backwards), rates bytes per second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...protocol.intervals import IntervalSet, Span
from .meter import Meter
from .model import Path, least_block

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
    """One connection as the map sees it; `hint` is the rate known from earlier."""

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


class SegmentMap:
    """Blocks as long as a lane's last half second, ever shorter towards the end.

    - A lane's block is its measured rate times `stretch_s` (or `round_trips`, or what
      `client.schedule.model` holds for the shortest that is worth a request), at most half of the
      time that all lanes together still need, so that all end together. It grows at most
      eightfold at a time.
    - A lane takes nothing that it would end after the others are through.
    - The next block is asked for one round trip before the last one ends.
    - When nothing is free, an idle lane takes over the tail of the block that would end last, if
      that ends the download noticeably earlier. A lane that has fallen silent loses all it holds.
    - On a narrow line answers are left to run: what is broken off there has filled the queue in
      front of the line already, so it costs more than the end all together would bring.

    `align` rounds long blocks to piece boundaries. `first_bytes` is the block for a lane about
    which nothing is known.
    """

    stretch_s = 0.5
    single_stretch_s = 2.0
    #: On a long line at least this: shorter blocks leave the sender without work before the next
    #: request comes, that lowers the rate, and a lower rate makes shorter blocks.
    round_trips = 4
    grain_s = 0.03
    margin_s = 0.02
    worth_s = 0.03
    silence_s = 0.15
    least_bytes = 4096
    near_s = 0.003
    #: All lanes together: a modem, a phone far from its mast, a crowded hotel.
    narrow_bytes_s = 32 << 10
    #: What may queue in front of such a line.
    queue_bytes = 32 << 10
    #: Cutting an answer there pays only where more than this is left of it.
    long_s = 60.0
    #: So long, and four round trips, a lane may take to show its rate.
    early_s = 0.2

    def __init__(self, missing: list[Span], *, align: int = 1, first_bytes: int = 64 << 10) -> None:
        self._align = max(1, align)
        self._first = first_bytes
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
        return self.wanted.total == 0

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
        if lane.rtt_s > self.near_s and len(lane.blocks) == 1:
            self._look_ahead(lane, lane.blocks[0], now)

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
        stop = min(span[1], block.stop, block.end + self._size(lane, now))
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
                if block.position + most_bytes < block.end:
                    self._cut(block, block.position + most_bytes)

    def stopped(self) -> list[Segment]:
        """Blocks taken away since the last call: break off their transfers."""
        found, self._stopped = self._stopped, []
        return found

    def _usual_rate(self, now: float) -> float:
        """What all lanes together bring a second: since the first byte, or what was seen lately
        while that is not long ago."""
        # A mean rate over a shorter time says nothing.
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
        for start, stop in self.wanted.within(end, block.end):
            self.free.add(start, stop)
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

    # -- how long a block is -------------------------------------------------------------------

    def ask(self, lane: int, now: float) -> Segment | None:
        """The next work for a lane, or None when there is none for it now."""
        own = self.lanes[lane]
        if len(own.blocks) >= 2 or (own.blocks and self.carry_on(own.blocks[0], now)):
            return None
        span = self._first_free()
        if span is None:
            if own.blocks or not self._take_over(own, now):
                return None
            span = self._first_free()
            if span is None:
                return None
        size = self._size(own, now)
        if size <= 0:
            return None
        start = span[0]
        end = min(span[1], start + size)
        if self._align > 1 and end - start >= self._align:
            end -= end % self._align
        if span[1] - end < self.least_bytes:
            end = span[1]
        block = self._hand(own, start, end, now)
        self._look_ahead(own, block, now)
        return block

    def _look_ahead(self, own: Lane, block: Segment, now: float) -> None:
        """Ask for the next block one round trip before this one ends, at the rate it will have."""
        rate = own.rate(now)
        if rate is None:
            block.ask_at = block.start
            return
        early_s = own.rtt_s + self.margin_s
        lately = own.meter.lately(now) or 0.0
        if own.rtt_s > self.near_s and lately > 1.2 * rate:
            # The window opens: every round trip brings twice what the last one brought.
            rate = lately
            early_s += own.rtt_s
        block.ask_at = min(block.ask_at, max(block.start, block.end - int(rate * early_s)))

    def _size(self, own: Lane, now: float) -> int:
        size = self._wish(own, now)
        return size if own.most_bytes is None else min(size, max(own.most_bytes, self.least_bytes))

    def _wish(self, own: Lane, now: float) -> int:
        others = any(lane.present for lane in self.lanes.values() if lane is not own)
        if self.choose is None and self.expected <= 1 and not others:
            return self.wanted.total
        rate = own.rate(now)
        if rate is None:
            # A mirror whose copy can be checked is not given much more before it was.
            size = self._first if self._align > 1 else self._first << len(own.blocks)
            if own.single and own.meter.total_bytes:
                # Its answers are over before their rate can be told.
                size = max(size, own.last_size * 4)
        else:
            # On a slow or a long line, what the model says is worth a request.
            stretch_s = self.single_stretch_s if own.single else self.stretch_s
            stretch_s = max(stretch_s, self.round_trips * own.rtt_s)
            size = max(int(rate * stretch_s), least_block(Path(own.rtt_s, rate)))
            if own.last_size and not own.single:
                size = min(size, own.last_size * 8)
            elif own.meter.total_bytes == 0:
                # A rate from history is a guess: believe half of it.
                size //= 2
        if rate is None:
            return min(size, max(self.least_bytes, self.wanted.total // (2 * len(self.lanes))))
        rates = {n: x.rate(now) or 0.0 for n, x in self.lanes.items() if x.present}
        total = sum(rates.values())
        if total <= 0:
            return size
        through_s = self.wanted.total / total
        spare_s = through_s - own.left() / max(rate, 1.0)
        others_work = any(x.blocks for x in self.lanes.values() if x is not own)
        if not own.blocks:
            spare_s -= own.rtt_s
        if others_work or own.blocks:
            if spare_s * rate < self.least_bytes:
                return 0
            size = min(size, int(rate * max(spare_s / 2, min(spare_s, self.grain_s))))
        return max(size, self.least_bytes)

    def _take_over(self, own: Lane, now: float) -> bool:
        """Free the tail of the block that would end last, for `own`; False if not worth it."""
        rate = own.rate(now)
        if rate is None:
            rate = max((x.rate(now) or 0.0 for x in self.lanes.values()), default=0.0) or 1e5
        worst: Segment | None = None
        worst_s = 0.0
        ahead = 0
        for lane in self.lanes.values():
            if lane is own or not lane.blocks:
                continue
            speed = self._speed(lane, now)
            before = 0
            for block in lane.blocks:
                left = block.end - block.position
                end_s = (before + left) / speed
                if end_s > worst_s:
                    worst, worst_s, ahead = block, end_s, before
                before += left
        if worst is None:
            return False
        lane, first = self.lanes[worst.lane], self.lanes[worst.lane].blocks[0]
        speed = self._speed(lane, now)
        if speed > 1.0 and self._better_left(own, worst, now):
            return False
        left = worst.end - worst.position
        wait_s = own.rtt_s
        take = int(((ahead + left) / speed - wait_s) / (1 / max(rate, 1.0) + 1 / speed))
        take = left if speed <= 1.0 or left - take < self.least_bytes else take
        answers_s = first.handed_s + 2 * lane.rtt_s + self.margin_s
        if take == left and ahead and first.position == first.start and now < answers_s:
            # Its connection would be lost before the first answer. Two lanes that do so to each
            # other never get one.
            return False
        stretch = max(self._first, int(rate * self.stretch_s))
        if take > 2 * stretch and speed > 1.0:
            # From the far end, bit by bit: the answer that brings it all flows on undisturbed.
            take = stretch
        after_s = max(wait_s + take / max(rate, 1.0), (ahead + left - take) / speed)
        if take < min(left, self.least_bytes) or take <= 0:
            return False
        if worst_s - after_s < self.worth_s + 0.1 * own.rtt_s:
            return False
        if speed <= 1.0:
            # It must not take anything over itself before it has spoken again.
            lane.last_rate = 1.0
        self._cut(worst, worst.end - take)
        return True

    def _better_left(self, own: Lane, block: Segment, now: float) -> bool:
        """Whether an answer should be left to run: the line is narrow, or may be, as the lane has
        had no time to show its rate."""
        lane = self.lanes[block.lane]
        if self._first_s is None:
            # No byte has come yet: dead mirrors are found by `client.fetch.connections`.
            return True
        seen_s = now - max(block.handed_s, self._first_s)
        if lane.rate(now) is None and seen_s < self.early_s + 4 * lane.rtt_s:
            return True
        usual = self._usual_rate(now)
        if usual >= self.narrow_bytes_s or (own.rate(now) or 0.0) >= self.narrow_bytes_s:
            return False
        # It may be the other mirror that is slow. One that was not tried may try, if it pays.
        return own.meter.total_bytes > 0 or self.wanted.total < usual * self.long_s

    def _queue_s(self, now: float) -> float:
        """How long a lane's bytes may stand in the queue in front of a narrow line."""
        usual = self._usual_rate(now)
        return self.queue_bytes / usual if 1.0 < usual < self.narrow_bytes_s else 0.0

    def _speed(self, lane: Lane, now: float) -> float:
        rate = lane.rate(now)
        if rate is None:
            # Nothing has come yet: the longer that lasts, the less we expect.
            waited_s = now - min(block.handed_s for block in lane.blocks)
            return self._first / max(0.05, 4 * waited_s)
        silence_s = now - lane.meter.last_s - lane.rtt_s
        if silence_s > max(self.silence_s, 6000 / max(rate, 1.0), self._queue_s(now)):
            # Longer than four packets should take: at the end no time is left for it to recover.
            return 1.0
        queue_s = self._queue_s(now)
        if queue_s:
            # Its bytes come by turns with those of others.
            return max(rate, self.queue_bytes / queue_s / len(self.lanes))
        # A mirror that has just slowed down would look fast for half a second more.
        lately = lane.meter.lately(now, max(0.1 + 2 * lane.rtt_s, 12_000 / max(rate, 1.0)))
        if lately is not None and lately < rate / 2:
            rate = lately
        return max(rate, 1.0)
