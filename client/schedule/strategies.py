"""Three ways to share one file among mirrors, and one to not share it. Pure.

`HistoryBlocks` and `DynamicBlocks` are those of Rodriguez, Kirpal and Biersack (paper B, sections
II and III); `AdaptiveBlocks` is ours and the default; `SingleBlocks` uses one mirror at a time.
"""

from __future__ import annotations

from ...protocol.intervals import Span
from .model import Path, least_block
from .segments import Lane, Segment, SegmentMap


class HistoryBlocks(SegmentMap):
    """One part per lane, its size in proportion to the rate last seen from that mirror.

    `shares` are the rates by lane number, in the order of the file. A lane that ends early gets
    nothing more, unless another was lost and left bytes behind.
    """

    def __init__(self, missing: list[Span], shares: dict[int, float]) -> None:
        super().__init__(missing)
        self._parts: dict[int, list[Span]] = {}
        total = sum(shares.values()) or 1.0
        left = [list(span) for span in self.free]
        rest = self.free.total
        for place, (lane, share) in enumerate(shares.items()):
            part = rest if place == len(shares) - 1 else int(self.free.total * share / total)
            self._parts[lane] = []
            part = min(part, rest)
            rest -= part
            while part > 0:
                count = min(part, left[0][1] - left[0][0])
                self._parts[lane].append((left[0][0], left[0][0] + count))
                left[0][0] += count
                part -= count
                if left[0][0] == left[0][1]:
                    left.pop(0)

    def ask(self, lane: int, now: float) -> Segment | None:
        """The lane's own part first, then what lost lanes left behind."""
        own = self.lanes[lane]
        if own.blocks:
            return None
        for start, end in self._parts.get(lane, []):
            for a, b in self.free.within(start, end):
                return self._hand(own, a, b, now)
        promised = [
            span
            for number, parts in self._parts.items()
            if number not in self.lanes or self.lanes[number].present
            for span in parts
        ]
        for start, end in self.free:
            if not any(a < end and b > start for a, b in promised):
                return self._hand(own, start, end, now)
        return None

    def leave(self, lane: int, now: float) -> None:
        super().leave(lane, now)
        self._parts.pop(lane, None)


class DynamicBlocks(SegmentMap):
    """`count` equal blocks, one at a time to an idle mirror; at the end at most two on one block.

    An idle lane that finds nothing unassigned helps with a block that just one other lane has: it
    asks for the part that has not come yet. The slower of two is stopped.
    """

    def __init__(self, missing: list[Span], count: int) -> None:
        super().__init__(missing)
        self._size = max(1, -(-self.wanted.total // max(1, count)))

    def ask(self, lane: int, now: float) -> Segment | None:
        own = self.lanes[lane]
        if own.blocks:
            return None
        span = self._first_free()
        if span is not None:
            start = span[0]
            # Blocks lie on a grid, so a block left half done is finished, not shifted.
            end = min(span[1], (start // self._size + 1) * self._size)
            return self._hand(own, start, end, now)
        return self._help(own, now)

    def _help(self, own: Lane, now: float) -> Segment | None:
        if self.limit is not None and self.free.first() is not None:
            return None
        everyone = [block for lane in self.lanes.values() for block in lane.blocks]
        alone = [
            block
            for block in everyone
            if block.lane != own.number
            and sum(b.position < block.end and b.end > block.position for b in everyone) == 1
        ]
        if not alone:
            return None
        # The one that has the most left gains the most from help.
        block = max(alone, key=lambda b: b.end - b.position)
        return self._hand(own, block.position, block.end, now)

    def _finished(self, block: Segment, now: float) -> None:
        for lane in self.lanes.values():
            for other in list(lane.blocks):
                if not self.wanted.overlaps(other.position, other.end):
                    self._stop(other)


class SingleBlocks(SegmentMap):
    """All of it from one lane; the others stand by until it leaves."""

    def ask(self, lane: int, now: float) -> Segment | None:
        own = self.lanes[lane]
        if any(other.blocks for other in self.lanes.values()):
            return None
        span = self._first_free()
        return None if span is None else self._hand(own, *span, now)


class AdaptiveBlocks(SegmentMap):
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

    def __init__(
        self,
        missing: list[Span],
        *,
        align: int = 1,
        first_bytes: int = 64 << 10,
    ) -> None:
        super().__init__(missing)
        self._align = max(1, align)
        self._first = first_bytes

    def ask(self, lane: int, now: float) -> Segment | None:
        own = self.lanes[lane]
        if len(own.blocks) >= 2:
            return None
        if own.blocks and self.carry_on(own.blocks[0], now):
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

    def received(self, block: Segment, count: int, now: float) -> None:
        super().received(block, count, now)
        own = self.lanes[block.lane]
        if own.rtt_s > self.near_s and len(own.blocks) == 1:
            self._look_ahead(own, own.blocks[0], now)

    def _growth(self, lane: Lane, now: float) -> int:
        return self._size(lane, now)

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

    def _alone(self, own: Lane) -> bool:
        return (
            self.choose is None
            and self.expected <= 1
            and not any(lane.present for lane in self.lanes.values() if lane is not own)
        )

    def _size(self, own: Lane, now: float) -> int:
        size = self._wish(own, now)
        return size if own.most_bytes is None else min(size, max(own.most_bytes, self.least_bytes))

    def _wish(self, own: Lane, now: float) -> int:
        if self._alone(own):
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
        speed = self._speed(self.lanes[worst.lane], now)
        if speed > 1.0 and self._better_left(own, worst, now):
            return False
        left = worst.end - worst.position
        wait_s = own.rtt_s
        take = int(((ahead + left) / speed - wait_s) / (1 / max(rate, 1.0) + 1 / speed))
        take = left if speed <= 1.0 or left - take < self.least_bytes else take
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
            self.lanes[worst.lane].last_rate = 1.0
        cut = worst.end - take
        end = worst.end
        self._cut(worst, cut)
        for start, stop in self.wanted.within(cut, end):
            self.free.add(start, stop)
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
