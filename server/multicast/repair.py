"""Aggregates the receivers' requests for repair (NACKs) by block, and predicts them. Pure.

A report names the last datagram that its receiver saw. Symbols sent later are on their way and are
not sent again. For blocks at the end of the pass no report comes in time: their repair is
predicted by the reported losses. To wait for reports would leave the line idle.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple


class RepairTuning(NamedTuple):
    """How much repair is sent, and when."""

    #: A receiver that lacks this share of a block gets its source again, and need not decode.
    source_again: float = 0.75
    #: Blocks sent within this time before the end of the pass get predicted repair.
    ending_s: float = 0.25
    #: The probability that predicted repair completes a block at all receivers.
    sure: float = 0.9
    #: Bounds the loss in predictions.
    most_loss: float = 0.5
    #: Reports about blocks sent within this time may be on their way.
    recent_s: float = 0.1


TUNING = RepairTuning()


def wants_source(count: int, k: int) -> bool:
    """Whether a receiver that lacks `count` of K symbols gets the source again."""
    return count >= TUNING.source_again * k


@dataclass(slots=True)
class Repair:
    """The repair of one block: what was requested, and what was sent beyond the first pass.

    Codes that count: `goal` and `sent` are totals; `history` has each run as (first datagram,
    symbols sent before it, its length). `again` is the next source symbol if the source is sent
    again, `cursor` the next repair symbol. Other codes: `bits` are the requested symbols, `named`
    has each run as (first datagram, symbols).
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
        """The number of symbols sent up to datagram `sequence`."""
        for start, before, count in reversed(self.history):
            if start <= sequence:
                return before + min(count, sequence + 1 - start)
        return 0

    def on_its_way(self, sequence: int) -> int:
        """The symbols (bit set) sent after datagram `sequence`."""
        bits = 0
        for start, symbols in reversed(self.named):
            if start + len(symbols) <= sequence + 1:
                break
            for symbol in symbols[max(0, sequence + 1 - start) :]:
                bits |= 1 << symbol
        return bits

    def predict(self, count: int) -> None:
        """Receivers will need `count` symbols in all beyond the first pass."""
        if self.again is None and count > self.goal:
            self.goal = count
            self.rounds = max(self.rounds, 1)

    def want_count(
        self, count: int, seen: int, loss: float, k: int, *, hasty: bool = False
    ) -> None:
        """Add a request: a receiver that saw datagram `seen` lacks `count` of K symbols.

        `hasty`: nothing else is left to send, so a further round costs more than a few symbols.
        """
        whole = wants_source(count, k)
        if whole and self.again is None and self.sent_until(seen) == self.sent:
            # It received nearly nothing: the source again, after the first pass of the others.
            self.again = 0
            self.goal = max(self.goal, self.sent + k)
        goal = self.sent_until(seen) + count + self._margin(count, loss, hasty)
        if goal > self.goal:
            if self.sent >= self.goal:
                self.rounds += 1
            self.goal = goal

    def want_symbols(self, bits: int, seen: int) -> None:
        """Add a request: a receiver that saw datagram `seen` lacks these symbols."""
        self.bits |= bits & ~self.on_its_way(seen)

    def _margin(self, count: int, loss: float, hasty: bool) -> int:
        """Extra symbols against the loss of repair itself.

        None in the first round, where the worst receiver decides. Later rounds have few symbols and
        mostly wait: the expected loss, first rounded, then rounded up; if `hasty`, a standard
        deviation more.
        """
        if self.rounds < 1:
            return 0
        expected = count * min(loss, 0.5)
        if hasty:
            return math.ceil(expected + math.sqrt(expected))
        return math.ceil(expected) if self.rounds > 1 else round(expected)

    def fresh(self, limit: int, k: int, start: int, ring: int, sequence: int) -> Sequence[int]:
        """Take at most `limit` next symbols, which are sent from datagram `sequence` on.

        The ring of source and repair starts at `start`: the symbols sent longest ago come next.
        """
        first, end = self.again, k
        if first is None:
            first, end = (self.cursor if self.cursor is not None else start) % ring, ring
        count = min(limit, self.goal - self.sent, end - first)
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
        """Take at most `limit` symbols that were requested by number."""
        symbols: list[int] = []
        while self.bits and len(symbols) < limit:
            low = self.bits & -self.bits
            symbols.append(low.bit_length() - 1)
            self.bits ^= low
        if symbols:
            self.named.append((sequence, symbols))
        return symbols

    def copy_sent(self) -> Repair:
        """A repair of the same block for other receivers: the same was sent, nothing requested."""
        return Repair(
            goal=self.sent,
            sent=self.sent,
            cursor=self.cursor,
            history=list(self.history),
            named=list(self.named),
        )

    def add_sent(self, other: Repair, symbols: Sequence[int], sequence: int, k: int) -> None:
        """Count symbols that `other`, of the same block, sent from datagram `sequence` on.

        Repair symbols help all receivers. Source that is sent again helps only receivers that have
        nothing.
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
    """The requests of one group of receivers, in the order in which blocks are repaired.

    The blocks in `later` wait for the end of the first pass.
    """

    def __init__(self) -> None:
        self.repairs: dict[int, Repair] = {}
        self.queue: deque[int] = deque()
        self.later: deque[int] = deque()
        self._queued: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self.queue or self.later)

    def of(self, block: int) -> Repair:
        return self.repairs.setdefault(block, Repair())

    def enqueue(self, block: int, *, later: bool = False) -> None:
        """Queue a block, unless it is queued."""
        if block not in self._queued:
            self._queued.add(block)
            (self.later if later else self.queue).append(block)

    def recall(self) -> None:
        """The first pass is over: queue the blocks in `later`."""
        self.queue.extend(self.later)
        self.later.clear()

    def drop_first(self, *, again: bool) -> None:
        """Remove the first block, which has no symbols now. `again`: queue it at the end."""
        block = self.queue.popleft()
        if again:
            self.queue.append(block)
        else:
            self._queued.discard(block)


def surely_enough(k: int, loss: float, receivers: int) -> int:
    """Repair symbols with which all receivers surely have K symbols of a block (`TUNING.sure`)."""
    if loss <= 0 or receivers < 1:
        return 0
    loss = min(TUNING.most_loss, loss)
    deviations = NormalDist().inv_cdf(1 - (1 - TUNING.sure) / receivers)
    # The distribution of few losses is skewed (first term of the Cornish-Fisher expansion).
    skewed = max(0.0, deviations**2 - 1) / 6
    return math.ceil((k + deviations * math.sqrt(k * loss) + skewed) / (1 - loss)) - k


def at_least(k: int, loss: float) -> int:
    """Repair symbols that the worst receiver lacks on average: rarely one too many."""
    loss = min(TUNING.most_loss, max(0.0, loss))
    return int(k * loss / (1 - loss))


class EndedBlocks:
    """The blocks whose source was sent within `TUNING.recent_s`."""

    def __init__(self, blocks: int) -> None:
        self._count = blocks
        self._blocks: deque[tuple[int, float]] = deque()
        self._before: float | None = None

    def add(self, block: int, now: float) -> bool:
        """Add a block whose last source symbol is being sent.

        Returns whether the pass ends within `TUNING.ending_s`: it then gets predicted repair.
        """
        self._blocks.append((block, now))
        while self._blocks[0][1] < now - TUNING.recent_s:
            self._blocks.popleft()
        before, self._before = self._before, now
        return before is not None and (self._count - 1 - block) * (now - before) < TUNING.ending_s

    def since(self, then: float) -> Iterator[int]:
        """The blocks that were added at `then` or later."""
        return (block for block, at in self._blocks if at >= then)
