"""Mirrors that follow a script, in virtual time: rates, round trips, stalls and losses.

A step of 2 ms at a time; requests reach a mirror after half a round trip, bytes come back after
another half, a broken-off transfer loses what is on the line and costs two round trips.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from client.schedule.segments import Block, Board

STEP_S = 0.002


@dataclass
class Mirror:
    """`rate(t)` in bytes per second, None while it is dead (the lane leaves and never returns)."""

    rate: Callable[[float], float | None]
    rtt_s: float = 0.0
    busy_until_s: float = 0.0
    queue: deque[tuple[float, Block, int, int]] = field(default_factory=deque)
    line: deque[tuple[float, Block, int]] = field(default_factory=deque)
    connected_s: float = 0.0
    joined: bool = False
    dead: bool = False
    sent_bytes: int = 0
    silent_since_s: float = 0.0
    credit: float = 0.0
    stalls: int = 0


def steady(rate: float) -> Callable[[float], float | None]:
    return lambda t: rate


def run(
    board: Board,
    mirrors: Sequence[Mirror],
    limit_s: float = 120.0,
    stall_s: float = 1.0,
    link: float | None = None,
) -> float:
    """Seconds until the board is done; raises when it is not after `limit_s`."""
    now = 0.0
    board.expected = len(mirrors)
    while not board.done:
        if now > limit_s:
            raise AssertionError("the download never ends")
        for lane, mirror in enumerate(mirrors):
            _step(board, lane, mirror, now, stall_s)
        for block in board.stopped():
            _break(mirrors[block.lane], now)
        now += STEP_S
    return now


def _break(mirror: Mirror, now: float) -> None:
    mirror.queue.clear()
    mirror.line.clear()
    mirror.connected_s = now + 2 * mirror.rtt_s
    mirror.credit = 0.0


def _step(board: Board, lane: int, mirror: Mirror, now: float, stall_s: float) -> None:
    rate = mirror.rate(now)
    if mirror.dead or now < mirror.busy_until_s:
        return
    if rate is None:
        mirror.dead = True
        _break(mirror, now)
        board.leave(lane, now)
        return
    if now < mirror.connected_s:
        return
    if not mirror.joined:
        mirror.joined = True
        board.join(lane, now, mirror=lane, rtt_s=mirror.rtt_s)
    own = board.lanes[lane]
    if mirror.queue or mirror.line:
        if now - mirror.silent_since_s > stall_s + mirror.rtt_s:
            mirror.stalls += 1
            board.leave(lane, now)
            _break(mirror, now)
            mirror.joined = False
            mirror.connected_s = now + 2.0**mirror.stalls
            return
    else:
        mirror.silent_since_s = now
    if not own.blocks or (len(own.blocks) == 1 and own.blocks[0].position >= own.blocks[0].ask_at):
        block = board.ask(lane, now)
        if block is not None:
            mirror.queue.append((now + mirror.rtt_s / 2, block, block.start, block.end))
    mirror.credit = min(mirror.credit + rate * STEP_S, rate * STEP_S + 16384)
    while mirror.queue and mirror.credit >= 1 and mirror.queue[0][0] <= now:
        at, block, position, promised = mirror.queue.popleft()
        count = min(int(mirror.credit), promised - position)
        if count > 0:
            mirror.credit -= count
            mirror.sent_bytes += count
            mirror.line.append((now + mirror.rtt_s / 2, block, count))
        if position + count < promised:
            mirror.queue.appendleft((at, block, position + count, promised))
    if not mirror.queue:
        mirror.credit = 0.0
    while mirror.line and mirror.line[0][0] <= now:
        _, block, count = mirror.line.popleft()
        mirror.silent_since_s = now
        if not block.live:
            continue
        wanted = min(count, block.end - block.position)
        board.received(block, wanted, now)
        if wanted < count:
            # The end was moved down meanwhile: the rest of the answer is of no use.
            board.leave(lane, now)
            board.join(lane, now, mirror=lane, rtt_s=mirror.rtt_s)
            _break(mirror, now)
            break
