"""Mirrors that follow a script, in virtual time: rates, round trips, stalls and losses.

A step of 2 ms at a time; requests reach a mirror after half a round trip, bytes come back after
another half, a broken-off transfer loses what is on the line and costs two round trips.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidegate.client.schedule.segments import Segment, SegmentMap

STEP_S = 0.002


@dataclass(eq=False)
class Mirror:
    """`rate(t)` in bytes per second, None while it is dead (the lane leaves and never returns)."""

    rate: Callable[[float], float | None]
    rtt_s: float = 0.0
    busy_until_s: float = 0.0
    queue: deque[tuple[float, Segment, int, int]] = field(default_factory=deque)
    line: deque[tuple[float, Segment, int]] = field(default_factory=deque)
    connected_s: float = 0.0
    joined: bool = False
    dead: bool = False
    sent_bytes: int = 0
    silent_since_s: float = 0.0
    credit: float = 0.0
    opening: tuple[int, int] | None = None
    stalls: int = 0
    #: Broken-off transfers so far: what was on the line then arrives in vain.
    epoch: int = 0
    #: What TCP lets be under way on a new connection, where its slow start is to be played.
    window_bytes: int | None = None
    window: float = 0.0
    unacknowledged: deque[tuple[float, int]] = field(default_factory=deque)

    def open_window(self) -> None:
        """A new connection."""
        self.window = float(self.window_bytes or 0)
        self.unacknowledged.clear()

    def admitted(self, now: float) -> float:
        """So many bytes TCP lets go now; each acknowledgement opens the window by as much."""
        if self.window_bytes is None:
            return math.inf
        while self.unacknowledged and self.unacknowledged[0][0] <= now:
            self.window += self.unacknowledged.popleft()[1]
        return self.window - sum(count for _, count in self.unacknowledged)


@dataclass
class Line:
    """The client's own line, which all mirrors share: bytes queue in front of it, up to
    `queue_bytes`, and what was sent passes it even when nobody wants it any more."""

    rate: float
    queue_bytes: int = 14_000
    queue: deque[tuple[Mirror, int, Segment, int]] = field(default_factory=deque)
    queued_bytes: int = 0
    passed_bytes: int = 0
    credit: float = 0.0

    def room(self, count: int) -> int:
        """So many of `count` bytes may be sent now: a packet at a time, so that all get some."""
        return max(0, min(count, 1448, self.queue_bytes - self.queued_bytes))

    def send(self, mirror: Mirror, block: Segment, count: int) -> None:
        self.queue.append((mirror, mirror.epoch, block, count))
        self.queued_bytes += count

    def step(self, now: float, rtt_s: float) -> None:
        """What has passed reaches the mirrors' own lines."""
        self.credit = min(self.credit + self.rate * STEP_S, 2000.0) if self.queue else 0.0
        while self.queue and self.queue[0][3] <= self.credit:
            mirror, epoch, block, count = self.queue.popleft()
            self.credit -= count
            self.queued_bytes -= count
            self.passed_bytes += count
            if epoch == mirror.epoch:
                mirror.line.append((now + rtt_s / 2, block, count))


def steady(rate: float) -> Callable[[float], float | None]:
    return lambda t: rate


def run(
    segments: SegmentMap,
    mirrors: Sequence[Mirror],
    limit_s: float = 120.0,
    stall_s: float = 1.0,
    shared: Line | None = None,
) -> float:
    """Seconds until the segment map is done; raises when it is not after `limit_s`."""
    now = 0.0
    segments.expected = len(mirrors)
    while not segments.done:
        if now > limit_s:
            raise AssertionError("the download never ends")
        turn = round(now / STEP_S) % len(mirrors)
        order = list(enumerate(mirrors))
        for lane, mirror in order[turn:] + order[:turn]:
            _step(segments, lane, mirror, now, stall_s, shared)
        if shared is not None:
            shared.step(now, mirrors[0].rtt_s)
        for block in segments.stopped():
            # Whatever else was asked for on that connection goes with it.
            segments.leave(block.lane, now)
            mirrors[block.lane].joined = False
            _break(mirrors[block.lane], now)
        now += STEP_S
    return now


def _break(mirror: Mirror, now: float) -> None:
    mirror.queue.clear()
    mirror.line.clear()
    mirror.epoch += 1
    mirror.connected_s = now + 2 * mirror.rtt_s
    mirror.credit = 0.0


def _step(
    segments: SegmentMap, lane: int, mirror: Mirror, now: float, stall_s: float, shared: Line | None
) -> None:
    rate = mirror.rate(now)
    if mirror.dead or now < mirror.busy_until_s:
        return
    if rate is None:
        mirror.dead = True
        _break(mirror, now)
        segments.leave(lane, now)
        return
    if now < mirror.connected_s:
        return
    if not mirror.joined:
        mirror.joined = True
        mirror.open_window()
        segments.join(lane, now, mirror=lane, rtt_s=mirror.rtt_s)
        if mirror.opening is not None:
            # Asked for in the dark, before the size was known.
            block = segments.claim(lane, *mirror.opening, now)
            mirror.queue.append((now + mirror.rtt_s / 2, block, block.start, block.end))
            mirror.opening = None
    own = segments.lanes[lane]
    if mirror.queue or mirror.line:
        if now - mirror.silent_since_s > stall_s + mirror.rtt_s:
            mirror.stalls += 1
            segments.leave(lane, now)
            _break(mirror, now)
            mirror.joined = False
            mirror.connected_s = now + 2.0**mirror.stalls
            return
    else:
        mirror.silent_since_s = now
    if not own.blocks or (len(own.blocks) == 1 and own.blocks[0].position >= own.blocks[0].ask_at):
        more = segments.ask(lane, now)
        if more is not None:
            mirror.queue.append((now + mirror.rtt_s / 2, more, more.start, more.end))
    mirror.credit = min(mirror.credit + rate * STEP_S, rate * STEP_S + 16384)
    while mirror.queue and mirror.credit >= 1 and mirror.queue[0][0] <= now:
        at, block, position, promised = mirror.queue.popleft()
        count = int(min(mirror.credit, promised - position, mirror.admitted(now)))
        if shared is not None:
            count = shared.room(count)
        if count > 0:
            mirror.credit -= count
            mirror.sent_bytes += count
            mirror.unacknowledged.append((now + mirror.rtt_s, count))
            if shared is not None:
                shared.send(mirror, block, count)
            else:
                mirror.line.append((now + mirror.rtt_s / 2, block, count))
        if position + count < promised:
            mirror.queue.appendleft((at, block, position + count, promised))
            break
    if not mirror.queue:
        mirror.credit = 0.0
    while mirror.line and mirror.line[0][0] <= now:
        _, block, count = mirror.line.popleft()
        mirror.silent_since_s = now
        if not block.live:
            continue
        wanted = min(count, block.end - block.position)
        segments.received(block, wanted, now)
        if wanted < count:
            # The end was moved down meanwhile: the rest of the answer is of no use.
            segments.leave(lane, now)
            segments.join(lane, now, mirror=lane, rtt_s=mirror.rtt_s)
            _break(mirror, now)
            break
