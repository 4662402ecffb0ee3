"""What receivers lack of one block, against what is on its way to them. Pure.

A want is counted from the last datagram its receiver saw: what was sent later is on its way and is
not sent again, however late the report is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

#: A want of this share of a block is met by its source: a late joiner then never decodes.
_SOURCE_AGAIN = 0.75


def wants_source(count: int, k: int) -> bool:
    """Whether so many symbols of K are better met by the source than by repair."""
    return count >= _SOURCE_AGAIN * k


@dataclass(slots=True)
class Repair:
    """What was asked for and sent of one block beyond its first pass.

    For codes that count: `goal` and `sent` are totals, `history` says at which datagram each run
    began, how much was sent before it, and how long it was. For others: `bits` are the symbols
    wanted, `history` holds the symbols of each run instead.
    """

    goal: int = 0
    sent: int = 0
    rounds: int = 0
    again: int | None = None
    cursor: int | None = None
    bits: int = 0
    history: list[tuple[int, int, int]] = field(default_factory=list)
    named: list[tuple[int, Sequence[int]]] = field(default_factory=list)

    def sent_until(self, sequence: int) -> int:
        """How much had been sent when datagram `sequence` had."""
        for start, before, count in reversed(self.history):
            if start <= sequence:
                return before + min(count, sequence + 1 - start)
        return 0

    def on_its_way(self, sequence: int) -> int:
        """The symbols (bit set) that were sent after datagram `sequence`."""
        bits = 0
        for start, symbols in reversed(self.named):
            if start + len(symbols) <= sequence + 1:
                break
            for symbol in symbols[max(0, sequence + 1 - start) :]:
                bits |= 1 << symbol
        return bits

    def foresee(self, count: int) -> None:
        """Receivers will want so many in all, beyond the first pass."""
        if self.again is None and count > self.goal:
            self.goal = count
            self.rounds = max(self.rounds, 1)

    def want_count(
        self, count: int, seen: int, loss: float, k: int, *, hasty: bool = False
    ) -> None:
        """A receiver of that loss that saw datagram `seen` lacks `count` symbols of K.

        `hasty`: nothing else is left to send, so another round would cost more than a few symbols.
        """
        whole = wants_source(count, k)
        if whole and self.again is None and self.sent_until(seen) == self.sent:
            # Nearly nothing came: the source again, so that nobody needs to decode; but not
            # before the others have their first pass.
            self.again = 0
            self.goal = max(self.goal, self.sent + k)
        goal = self.sent_until(seen) + count + self._margin(count, loss, hasty)
        if goal > self.goal:
            if self.sent >= self.goal:
                self.rounds += 1
            self.goal = goal

    def want_symbols(self, bits: int, seen: int) -> None:
        """A receiver that saw datagram `seen` lacks exactly those symbols."""
        self.bits |= bits & ~self.on_its_way(seen)

    def _margin(self, count: int, loss: float, hasty: bool) -> int:
        """What to add to a want because repair is lost, too.

        Nothing at first, when receivers still differ and the worst decides anyway; later, when a
        round is a handful of symbols and mostly waiting, the expected loss rounded, then rounded
        up; in haste a deviation more.
        """
        if self.rounds < 1:
            return 0
        expected = count * min(loss, 0.5)
        if hasty:
            return math.ceil(expected + math.sqrt(expected))
        return math.ceil(expected) if self.rounds > 1 else round(expected)

    def next_fresh(self, k: int, start: int, ring: int) -> tuple[int, int]:
        """Where in the ring source + repair the next symbols are, and how many up to its end."""
        count = max(0, self.goal - self.sent)
        if self.again is not None:
            return self.again, min(count, k - self.again)
        first = (self.cursor if self.cursor is not None else start) % ring
        return first, min(count, ring - first)

    def fresh(self, limit: int, k: int, start: int, ring: int, sequence: int) -> Sequence[int]:
        """The next symbols of the ring that nobody has seen for longest.

        The first of them is `start`; they are sent from datagram `sequence` on.
        """
        first, count = self.next_fresh(k, start, ring)
        count = min(limit, count)
        if count <= 0:
            return ()
        if self.again is not None:
            self.again = first + count if first + count < k else None
        else:
            self.cursor = first + count
        self.history.append((sequence, self.sent, count))
        self.sent += count
        return range(first, first + count)

    def named_next(self, limit: int, sequence: int) -> Sequence[int]:
        """The next symbols that were asked for by name."""
        symbols: list[int] = []
        while self.bits and len(symbols) < limit:
            low = self.bits & -self.bits
            symbols.append(low.bit_length() - 1)
            self.bits ^= low
        if symbols:
            self.named.append((sequence, symbols))
        return symbols

    def beside(self) -> Repair:
        """For other receivers of the same block: the same was sent, nothing is wanted."""
        return Repair(
            goal=self.sent,
            sent=self.sent,
            cursor=self.cursor,
            history=list(self.history),
            named=list(self.named),
        )

    def follow(self, other: Repair, symbols: Sequence[int], sequence: int, k: int) -> None:
        """`other`, of the same block, sent those from datagram `sequence` on: they count here, too.

        Repair helps every receiver that wants any symbols; source that is sent again helps those
        that have nothing, and hardly any other.
        """
        if self.bits or other.named:
            for symbol in symbols:
                self.bits &= ~(1 << symbol)
            self.named.append((sequence, symbols))
        elif symbols[0] >= k or self.again is not None:
            self.cursor = other.cursor
            self.history.append((sequence, self.sent, len(symbols)))
            self.sent += len(symbols)
            if self.goal < self.sent:
                self.goal = self.sent


class NackAggregator:
    """What one group of receivers lacks, block by block, in the order in which it is sent.

    `later` are the blocks that wait until the first pass is over.
    """

    def __init__(self) -> None:
        self.repairs: dict[int, Repair] = {}
        self.queue: deque[int] = deque()
        self.later: deque[int] = deque()
        self._queued: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self.queue or self.later)

    def of(self, block: int) -> Repair:
        """What is known of a block."""
        return self.repairs.setdefault(block, Repair())

    def enqueue(self, block: int, *, later: bool = False) -> None:
        """Something of the block is to be sent."""
        if block not in self._queued:
            self._queued.add(block)
            (self.later if later else self.queue).append(block)

    def recall(self) -> None:
        """The first pass is over: what waited for that is next."""
        self.queue.extend(self.later)
        self.later.clear()

    def drop_first(self, *, again: bool) -> None:
        """The first of the queue has nothing to send now; `again`: it will have, soon."""
        block = self.queue.popleft()
        if again:
            self.queue.append(block)
        else:
            self._queued.discard(block)
