"""Generates the update between two trees in bounded memory (step 1 of paper D).

Two passes over the manifests find the changes. Then contents are read group by group through the
caller's functions. Memory holds one group (the window) and the changed names. Of a large content,
the parts that the old one has are found first (`Alignment`): mirrors copy these undecoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .batch import Header, UpdateWriter
from .batch_group import FilePart, PlannedGroup, encode_group, encode_same, plan_groups
from .tree import Entry
from .tree_diff import Difference, change_to_row


class AlignTuning(NamedTuple):
    """How two contents are aligned."""

    #: A block is a 64th of the window within these bounds: a difference costs one block.
    most_block_bytes: int = 1 << 20
    least_block_bytes: int = 64
    blocks_in_window: int = 64
    #: Bytes in the middle of a block that are searched in the old content.
    anchor_bytes: int = 48
    #: An anchor with fewer distinct byte values occurs in too many places.
    telling_values: int = 10
    #: Bounds the failed searches in one part: each may read the whole old stretch.
    vain_searches: int = 8


TUNING = AlignTuning()


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `[start, end)` of the new content beside `[low, high)` of the old one.

    `same`: they are equal. Otherwise the new bytes are encoded against the old ones.
    """

    start: int
    end: int
    low: int
    high: int
    same: bool


class Alignment:
    """One new content beside an old one of `old_bytes`. `pieces` gets the parts in rising order.

    A new release is mostly the old one, shifted where bytes were inserted. A block is compared at
    the last known shift first. If it differs there, a few of its bytes are searched in the old
    content. Both run at memory speed, a hundred times as fast as zstd's encoder.

    `read_old(offset, into)` fills `into`. `window_bytes` determines the block size.
    """

    def __init__(
        self, read_old: Callable[[int, memoryview], None], old_bytes: int, window_bytes: int
    ) -> None:
        self._read_old = read_old
        self._old_bytes = old_bytes
        self._window_bytes = window_bytes
        grain = window_bytes // TUNING.blocks_in_window
        self._block = min(TUNING.most_block_bytes, max(TUNING.least_block_bytes, grain))
        #: Offset in the old content less offset in the new one, at the last match.
        self._shift = 0
        self._low = self._high = 0
        #: The old bytes from `_low` to `_high`. The buffer is reused: fresh memory is slow.
        self._stretch = bytearray()

    def pieces(self, offset: int, new: memoryview, low: int, high: int) -> Iterator[Piece]:
        """Cut the part `new` at `offset`. If no block matches, `[low, high)` is its reference."""
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
        """The piece between two matches with the shifts `one` and `other`.

        Its reference is the old bytes at both shifts, or at `other` alone if they lie far apart.
        """
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
        """The matching stretches (start, end, shift) in order."""
        block = self._block
        self._load(offset + self._shift - block, offset + self._shift + len(new) + block)
        runs: list[tuple[int, int, int]] = []
        vain, wide = 0, False
        # Views: a copy takes longer than the comparison.
        for at in range(0, len(new), block):
            piece = new[at : at + block]
            if not self._is_at(offset + at + self._shift, piece) and vain < TUNING.vain_searches:
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
        """The shift of `piece` from `place` at which the old content has its middle; else None."""
        middle = len(piece) // 2
        anchor = bytes(piece[middle : middle + TUNING.anchor_bytes])
        if len(set(anchor)) < TUNING.telling_values:
            return None
        at = self._stretch.find(anchor, 0, self._high - self._low)
        return None if at < 0 else self._low + at - middle - place


#: (entry of the whole file, offset, buffer): fills the buffer with the bytes from the offset on.
ReadContent = Callable[[Entry, int, memoryview], None]


@dataclass(frozen=True, slots=True)
class GeneratedUpdate:
    """Figures of a written update; sizes in bytes, `content_bytes` before encoding.

    `window_bytes` is the size of its largest group, at most what the header allows.
    """

    length_bytes: int
    sha256: str
    changes: int
    deletions: int
    renames: int
    contents: int
    content_bytes: int
    window_bytes: int


def generate(
    header: Header,
    old: Iterable[Entry],
    new: Iterable[Entry],
    read_old: ReadContent,
    read_new: ReadContent,
    write: Callable[[bytes], object],
    *,
    delta: bool = True,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> GeneratedUpdate:
    """Write the update from `old` to `new` (both iterable repeatedly, in manifest order).

    `progress` gets (content bytes encoded, content bytes in all). Errors of the readers pass
    through; the caller then discards what was written.
    """
    writer = UpdateWriter(write, header)
    difference = Difference(old, new)
    for change in difference.changes():
        writer.row(change_to_row(change))
    total = difference.carried_bytes
    encoder = _Encoder(read_old, read_new, header.window_bytes)
    done = 0
    for group in plan_groups(difference.contents(), header.window_bytes, delta=delta):
        for data in encoder.encode(group):
            writer.group(data)
        done += sum(part.length for part, _ in group.outs)
        progress(done, total)
    writer.close()
    return GeneratedUpdate(
        length_bytes=writer.length_bytes,
        sha256=writer.sha256,
        changes=difference.changed,
        deletions=difference.deletions,
        renames=difference.renames,
        contents=difference.carried,
        content_bytes=total,
        window_bytes=encoder.window_bytes,
    )


class _Encoder:
    """Reads and encodes groups. `window_bytes` is the size of the largest one so far."""

    def __init__(self, read_old: ReadContent, read_new: ReadContent, window_bytes: int) -> None:
        self._read_old = read_old
        self._read_new = read_new
        self._allowed_bytes = window_bytes
        self._entry: Entry | None = None
        self._alignment: Alignment | None = None
        #: Reused for the parts of a large content: fresh memory is slow.
        self._buffer = memoryview(bytearray())
        self.window_bytes = 0

    def encode(self, group: PlannedGroup) -> Iterator[bytes]:
        if group.cut and group.refs:
            yield from self._encode_part(group)
            return
        before = _joined(self._read_old, group.refs)
        after = _joined(self._read_new, group.outs)
        outs = tuple(part for part, _ in group.outs)
        refs = tuple(part for part, _ in group.refs)
        self._used(len(before) + len(after))
        yield encode_group(outs, refs, before, after)

    def _encode_part(self, group: PlannedGroup) -> Iterator[bytes]:
        ((out, entry),), ((ref, old),) = group.outs, group.refs
        if self._alignment is None or self._entry != entry:
            self._entry = entry
            self._alignment = Alignment(
                lambda offset, into: self._read_old(old, offset, into),
                old.size_bytes,
                self._allowed_bytes,
            )
        if len(self._buffer) < out.length:
            self._buffer = memoryview(bytearray(out.length))
        after = self._buffer[: out.length]
        self._read_new(entry, out.offset, after)
        low, high = ref.offset, ref.offset + ref.length
        for piece in self._alignment.pieces(out.offset, after, low, high):
            length = piece.end - piece.start
            part = FilePart(out.path, piece.start, length)
            beside = FilePart(ref.path, piece.low, piece.high - piece.low)
            self._used(length + beside.length)
            if piece.same:
                yield encode_same(part, beside)
                continue
            content = after[piece.start - out.offset : piece.end - out.offset]
            before = _joined(self._read_old, ((beside, old),))
            yield encode_group((part,), (beside,) if before else (), before, content)

    def _used(self, size_bytes: int) -> None:
        self.window_bytes = max(self.window_bytes, size_bytes)


def _joined(read: ReadContent, parts: Iterable[tuple[FilePart, Entry]]) -> bytearray:
    """The bytes of some parts, one after the other."""
    parts = tuple(parts)
    joined = bytearray(sum(part.length for part, _ in parts))
    with memoryview(joined) as whole:
        at = 0
        for part, entry in parts:
            if part.length:
                read(entry, part.offset, whole[at : at + part.length])
            at += part.length
    return joined
