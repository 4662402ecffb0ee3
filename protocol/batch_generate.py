"""Generates the update between two trees in bounded memory (step 1 of paper D).

Two passes over the manifests find the changes. Then contents are read group by group through the
caller's functions. Memory holds one group (the window) and the changed names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .batch import Header, UpdateWriter
from .batch_align import Alignment
from .batch_group import FilePart, PlannedGroup, encode_group, encode_same, plan_groups
from .tree import Entry
from .tree_diff import Difference, change_to_row

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
