"""Where a part of a large content lies in the old one: looked for, so that zstd need not search.

A new release of a large file is mostly the old one, perhaps moved by what was put in before. Such
stretches are found by comparing blocks at the distance that held last, and where that fails by
looking up a few bytes; both run at the speed of memory, a hundred times that of the encoder, and
a mirror copies them without decoding anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

_MOST_BLOCK_BYTES = 1 << 20
_LEAST_BLOCK_BYTES = 64
_BLOCKS_IN_WINDOW = 64
_ANCHOR_BYTES = 48
#: Bytes with fewer different values in them are found in too many places.
_TELLING_VALUES = 10
#: So many searches in one part may be in vain: each may read the whole old stretch.
_VAIN_SEARCHES = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `[start, end)` of the new content and `[low, high)` of the old, in bytes.

    `same`: they are equal; otherwise the old ones are what to encode them against.
    """

    start: int
    end: int
    low: int
    high: int
    same: bool


class Alignment:
    """One new content beside an old one of `old_bytes`; parts are given in rising order.

    `read_old(offset, into)` fills in exactly those bytes. `window_bytes` sets the grain.
    """

    def __init__(
        self, read_old: Callable[[int, memoryview], None], old_bytes: int, window_bytes: int
    ) -> None:
        self._read_old = read_old
        self._old_bytes = old_bytes
        self._window_bytes = window_bytes
        grain = window_bytes // _BLOCKS_IN_WINDOW
        self._block = min(_MOST_BLOCK_BYTES, max(_LEAST_BLOCK_BYTES, grain))
        #: How far to the right the new content last lay in the old one.
        self._shift = 0
        self._low = self._high = 0
        #: The old bytes from `_low` to `_high`, and older ones behind: fresh memory is dear.
        self._stretch = bytearray()

    def pieces(self, offset: int, new: memoryview, low: int, high: int) -> Iterator[Piece]:
        """Cut the part `new` at `offset`; where nothing fits, `[low, high)` is its reference."""
        runs = self._runs(offset, new, low, high)
        end = offset + len(new)
        if not runs:
            yield Piece(offset, end, low, high, same=False)
            return
        at = offset
        for number, (start, stop, shift) in enumerate(runs):
            if at < start:
                yield self._between(at, start, runs[max(0, number - 1)][2], shift)
            yield Piece(start, stop, start + shift, stop + shift, same=True)
            at = stop
        if at < end:
            yield self._between(at, end, runs[-1][2], runs[-1][2])

    def _between(self, start: int, end: int, one: int, other: int) -> Piece:
        """What is new between two stretches that moved so far; a jump needs no more than that."""
        near = self._block
        if abs(one - other) > near:
            one = other
        low = max(0, start + min(one, other) - near)
        room = self._window_bytes - (end - start)
        high = min(self._old_bytes, end + max(one, other) + near, low + room)
        return Piece(start, end, min(low, high), high, same=False)

    def _runs(
        self, offset: int, new: memoryview, low: int, high: int
    ) -> list[tuple[int, int, int]]:
        """The stretches (start, end, shift) that the old content has, in order."""
        block = self._block
        self._load(offset + self._shift - block, offset + self._shift + len(new) + block)
        runs: list[tuple[int, int, int]] = []
        vain, wide = 0, False
        # Views: to copy what is compared takes longer than to compare it.
        for at in range(0, len(new), block):
            piece = new[at : at + block]
            if not self._is_at(offset + at + self._shift, piece) and vain < _VAIN_SEARCHES:
                found = self._find(offset + at, piece)
                if found is None and not wide:
                    self._load(low, high)
                    wide = True
                    found = self._find(offset + at, piece)
                following = new[at + block : at + 2 * block]
                if found is not None and (
                    self._is_at(offset + at + found, piece)
                    or (following and self._is_at(offset + at + block + found, following))
                ):
                    self._shift = found
                else:
                    vain += 1
            if not self._is_at(offset + at + self._shift, piece):
                continue
            start, end = offset + at, offset + at + len(piece)
            if runs and runs[-1][1:] == (start, self._shift):
                start = runs.pop()[0]
            runs.append((start, end, self._shift))
        return runs

    def _load(self, low: int, high: int) -> None:
        low, high = max(0, low), min(self._old_bytes, high)
        self._low, self._high = low, max(low, high)
        length = self._high - low
        if len(self._stretch) < length:
            self._stretch = bytearray()
            self._stretch = bytearray(length)
        with memoryview(self._stretch) as whole, whole[:length] as stretch:
            if length:
                self._read_old(low, stretch)

    def _is_at(self, place: int, piece: memoryview) -> bool:
        at = place - self._low
        return at >= 0 and self._stretch.startswith(piece, at, self._high - self._low)

    def _find(self, place: int, piece: memoryview) -> int | None:
        """How far from `place` the middle of `piece` stands in the old content, if it does."""
        middle = len(piece) // 2
        anchor = bytes(piece[middle : middle + _ANCHOR_BYTES])
        if len(set(anchor)) < _TELLING_VALUES:
            return None
        at = self._stretch.find(anchor, 0, self._high - self._low)
        return None if at < 0 else self._low + at - middle - place
