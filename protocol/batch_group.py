"""Groups of contents: many new contents encoded together against similar old ones.

One zstd frame spans the group, and its reference is the group's old contents one after the other:
text that moved to another file is found, too. A group needs at most the window. A larger content is
cut into parts; the reference of a part is the old content around the same relative place.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from .compress import LEVELS, Packable, pack, pack_against, unpack
from .errors import BadManifest
from .tree import Entry, check_number, check_path
from .tree_diff import Content

Codec = Literal["raw", "zstd", "same"]
#: Packed and raw size of a group's head.
_HEAD = struct.Struct(">II")
#: A reader's bound on the names of one group.
HEAD_LIMIT_BYTES = 8 << 20
#: A reference must save 5 %: every mirror reads it.
_WORTH = 0.95


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes `[offset, offset + length)` of the file at `path`."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Group:
    """Parts of the new tree (`outs`), and the old parts that they are encoded against (`refs`)."""

    outs: tuple[FilePart, ...]
    refs: tuple[FilePart, ...]
    codec: Codec = "zstd"

    @property
    def out_bytes(self) -> int:
        return sum(part.length for part in self.outs)

    @property
    def ref_bytes(self) -> int:
        return sum(part.length for part in self.refs)


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group with the entries of the whole files behind its parts.

    `cut`: it is one part of a file that is too large for a group.
    """

    outs: tuple[tuple[FilePart, Entry], ...]
    refs: tuple[tuple[FilePart, Entry], ...]
    cut: bool = False


def plan_groups(
    contents: Iterable[Content], window_bytes: int, *, delta: bool
) -> Iterator[PlannedGroup]:
    """Cut `contents` into groups of at most `window_bytes` (results and references together).

    The groups keep the order of the contents: `batch_apply` relies on it.
    """
    half = max(1, window_bytes // 2)
    outs: list[tuple[FilePart, Entry]] = []
    refs: dict[str, tuple[FilePart, Entry]] = {}
    filled = referred = named = 0
    for content in contents:
        entry = content.entry
        reference = content.reference if delta else None
        wanted = 0 if reference is None else reference.size_bytes
        large = entry.size_bytes > half or wanted > half
        crowded = filled + entry.size_bytes > half or referred + wanted > half
        # Half of the limit, because the names' sizes are estimates.
        if outs and (large or crowded or named > HEAD_LIMIT_BYTES // 2):
            yield PlannedGroup(tuple(outs), tuple(refs.values()))
            outs, refs, filled, referred, named = [], {}, 0, 0, 0
        if large:
            yield from _cut(entry, reference, window_bytes)
            continue
        outs.append((FilePart(entry.path, 0, entry.size_bytes), entry))
        filled += entry.size_bytes
        named += _name_bytes(entry.path)
        if reference is not None and wanted and reference.path not in refs:
            refs[reference.path] = (FilePart(reference.path, 0, wanted), reference)
            referred += wanted
            named += _name_bytes(reference.path)
    if outs:
        yield PlannedGroup(tuple(outs), tuple(refs.values()))


def _name_bytes(path: str) -> int:
    """An upper bound on a part's size in a head (JSON may escape one letter by six)."""
    return 40 + len(path) * (1 if path.isascii() and path.isprintable() else 6)


def _cut(entry: Entry, reference: Entry | None, window_bytes: int) -> Iterator[PlannedGroup]:
    step = max(1, window_bytes // 4)
    reach = max(1, window_bytes - step)
    offset = 0
    while offset < entry.size_bytes or offset == 0:
        length = min(step, entry.size_bytes - offset)
        refs: tuple[tuple[FilePart, Entry], ...] = ()
        if reference is not None and reference.size_bytes:
            middle = (offset + length / 2) / max(1, entry.size_bytes) * reference.size_bytes
            start = int(min(max(0, middle - reach / 2), max(0, reference.size_bytes - reach)))
            stretch = FilePart(reference.path, start, min(reach, reference.size_bytes - start))
            refs = ((stretch, reference),)
        yield PlannedGroup(((FilePart(entry.path, offset, length), entry),), refs, cut=True)
        offset += step


def encode_group(
    outs: tuple[FilePart, ...], refs: tuple[FilePart, ...], old: Packable, new: Packable
) -> bytes:
    """Encode `new` (the joined outs) against `old` (the joined refs), or alone if as small."""
    codec: Codec = "zstd"
    payload: Packable = pack_against(old, new, LEVELS.delta) if old else b""
    if not old or len(payload) > _WORTH * len(new) / 2:
        whole = pack(new, LEVELS.whole)
        if not old or len(payload) > _WORTH * len(whole):
            payload, refs = whole, ()
    if len(payload) >= len(new):
        payload, refs, codec = new, (), "raw"
    return _head(outs, refs, codec) + payload


def encode_same(out: FilePart, ref: FilePart) -> bytes:
    """Encode a part that is equal to a part of the old tree."""
    return _head((out,), (ref,), "same")


def _head(outs: tuple[FilePart, ...], refs: tuple[FilePart, ...], codec: Codec) -> bytes:
    rows = [[_row(part) for part in outs], [_row(part) for part in refs], codec]
    head = json.dumps(rows, separators=(",", ":")).encode("ascii")
    packed = pack(head, LEVELS.delta)
    return _HEAD.pack(len(packed), len(head)) + packed


def decode_group(
    data: bytes, window_bytes: int, read_old: Callable[[FilePart, memoryview], bool]
) -> tuple[Group, bytes | memoryview | None]:
    """Read a group: its parts and their joined bytes. Raises BadManifest.

    `read_old` fills in the bytes of a reference, or returns False when this mirror lacks them. The
    bytes are None then, and for a group of equal parts. The caller checks their digests.
    """
    group, payload = _decode_head(data, window_bytes)
    if group.codec == "same":
        # The stage copies the bytes from the old tree.
        lengths = [[part.length for part in parts] for parts in (group.outs, group.refs)]
        if payload or lengths[0] != lengths[1]:
            raise BadManifest("A group of the update has the wrong length; fetch it again.")
        return group, None
    old = bytearray(group.ref_bytes)
    with memoryview(old) as view:
        at = 0
        for part in group.refs:
            if not read_old(part, view[at : at + part.length]):
                return group, None
            at += part.length
    size = group.out_bytes
    if group.codec == "raw":
        if len(payload) != size:
            raise BadManifest("A group of the update has the wrong length; fetch it again.")
        return group, payload
    return group, unpack(payload, size, old)


def _decode_head(data: bytes, window_bytes: int) -> tuple[Group, memoryview]:
    if len(data) < _HEAD.size:
        raise BadManifest("A group of the update is too short.")
    packed, raw = _HEAD.unpack_from(data)
    if raw > HEAD_LIMIT_BYTES or packed > len(data) - _HEAD.size:
        raise BadManifest("The head of a group of the update is impossible.")
    head = unpack(data[_HEAD.size : _HEAD.size + packed], raw)
    try:
        outs, refs, codec = json.loads(head)
        group = Group(tuple(map(_part, outs)), tuple(map(_part, refs)), codec)
    except (ValueError, TypeError, RecursionError) as fault:
        raise BadManifest("The head of a group of the update cannot be read.") from fault
    if codec not in ("raw", "zstd", "same"):
        raise BadManifest(
            "The update is encoded in a way that this program does not know: "
            "install a newer Tidegate on this mirror.",
            code="too-old",
        )
    if group.out_bytes + group.ref_bytes > window_bytes:
        raise BadManifest("A group of the update is larger than its header promised.")
    return group, memoryview(data)[_HEAD.size + packed :]


def _row(part: FilePart) -> list[object]:
    # Nearly all parts begin at offset 0, which is left out.
    return [part.path, part.length] if not part.offset else [part.path, part.length, part.offset]


def _part(row: object) -> FilePart:
    if not isinstance(row, list) or len(row) not in (2, 3):
        raise BadManifest("A part of a group cannot be read.")
    offset = check_number(row[2], "offset") if len(row) == 3 else 0
    return FilePart(check_path(row[0]), offset, check_number(row[1], "length"))
