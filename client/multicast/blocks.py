"""Blocks on their way in: symbols are collected, whole blocks checked and written. Pure.

Nothing leaves through `write` that does not hash to what the offer says. A block that does not
verify is dropped whole, counted, and collected afresh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...protocol.fec import BlockDecoder, BlockLayout, Scheme

Write = Callable[[int, memoryview], object]


class Space(Protocol):
    """Where blocks are collected."""

    def take(self, size: int) -> memoryview:
        """Zeroed memory of `size` bytes."""

    def give_back(self, memory: memoryview) -> None:
        """The block is done; the memory may be used again."""


@dataclass(slots=True)
class ReceiverCounters:
    """What happened, for reports and `--explain`."""

    datagrams: int = 0
    foreign: int = 0
    forged: int = 0
    malformed: int = 0
    bad_blocks: int = 0
    overruns: int = 0

    def words(self) -> str:
        """For people: how many datagrams came, and what else is worth a word."""
        told = f"{self.datagrams} datagrams"
        for count, what in (
            (self.overruns, "lost here"),
            (self.bad_blocks, "blocks that did not verify"),
            (self.forged, "forged"),
            (self.malformed, "malformed"),
            (self.foreign, "of other senders"),
        ):
            if count:
                told += f", {count} {what}"
        return told


class BlockCollector:
    """The blocks of one object.

    `write(offset, data)` takes verified bytes; `have(block)` says which blocks the caller already
    holds; `space` gives memory to collect blocks in (the caller may back it by a file).
    """

    def __init__(
        self,
        layout: BlockLayout,
        scheme: Scheme,
        hashes: Sequence[bytes],
        write: Write,
        have: Callable[[int], bool],
        space: Space,
    ) -> None:
        self.layout = layout
        self.counters = ReceiverCounters()
        self._scheme = scheme
        self._hashes = hashes
        self._write = write
        self._space = space
        self._have = have
        self._memory: dict[int, memoryview] = {}
        self._open: dict[int, BlockDecoder] = {}
        self._done = bytearray(layout.blocks)
        self._left = layout.blocks
        self._drop_known()

    def _complete(self, now: float) -> None:
        """Every block was written."""

    @property
    def finished(self) -> bool:
        return not self._left

    def _take_symbol(
        self, k: int, block: int, symbol: int, payload: memoryview, now: float
    ) -> None:
        layout = self.layout
        if block >= layout.blocks or len(payload) != layout.symbol_bytes or k != layout.k(block):
            self.counters.malformed += 1
            return
        if self._done[block]:
            return
        decoder = self._open.get(block)
        if decoder is None:
            space = self._space.take(k * layout.symbol_bytes)
            self._memory[block] = space
            decoder = self._open[block] = self._scheme.decoder(k, layout.symbol_bytes, space)
        if decoder.add(symbol, payload):
            self._finish_block(block, decoder, now)

    def _finish_block(self, block: int, decoder: BlockDecoder, now: float) -> None:
        del self._open[block]
        layout = self.layout
        data = decoder.block()[: layout.length(block)]
        good = hashlib.sha256(data).digest() == self._hashes[block]
        if good:
            self._write(layout.offset(block), data)
            self._done[block] = 1
            self._left -= 1
        else:
            self.counters.bad_blocks += 1
        self._space.give_back(self._memory.pop(block))
        if good and not self._left:
            self._complete(now)

    def _drop_known(self) -> None:
        """What came another way meanwhile is not asked for."""
        for block in list(self.missing_blocks()):
            if self._have(block):
                self._done[block] = 1
                self._left -= 1
                if self._open.pop(block, None) is not None:
                    self._space.give_back(self._memory.pop(block))

    def missing_blocks(self, below: int | None = None) -> Iterator[int]:
        """The blocks not written yet, ascending."""
        at = self._done.find(0, 0, below)
        while at >= 0:
            yield at
            at = self._done.find(0, at + 1, below)

    def repair_ranges(self) -> list[tuple[int, int]]:
        """What to fetch by unicast so that every block becomes whole: (first, end), ascending.

        Of a block that is partly here only as many symbols are asked for as its code still needs.
        Hand what arrives to `patch`.
        """
        layout = self.layout
        ranges: list[tuple[int, int]] = []
        for block in self.missing_blocks():
            start, length = layout.offset(block), layout.length(block)
            decoder = self._open.get(block)
            if decoder is None:
                _append(ranges, start, start + length)
                continue
            bits = decoder.wanted
            while bits:
                low = bits & -bits
                bits ^= low
                at = (low.bit_length() - 1) * layout.symbol_bytes
                _append(ranges, start + at, start + min(at + layout.symbol_bytes, length))
        return ranges

    def patch(self, offset: int, data: bytes | memoryview, now: float) -> None:
        """Bytes that came by unicast for one of `repair_ranges`, from its start, whole."""
        layout = self.layout
        at = 0
        while at < len(data):
            block, inside = divmod(offset + at, layout.block_bytes)
            symbol = inside // layout.symbol_bytes
            length = min(layout.symbol_bytes, layout.length(block) - symbol * layout.symbol_bytes)
            piece = memoryview(data)[at : at + length]
            if inside % layout.symbol_bytes or len(piece) != length:
                return
            padded = bytes(piece).ljust(layout.symbol_bytes, b"\0")
            self._take_symbol(layout.k(block), block, symbol, memoryview(padded), now)
            at += length


def _append(ranges: list[tuple[int, int]], first: int, end: int) -> None:
    if ranges and ranges[-1][1] == first:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((first, end))
