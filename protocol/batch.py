"""The update file of a mirror channel: it turns one published tree into the next.

Layout: an 8-byte magic, then sections. A section has one type byte, an 8-byte big-endian length and
that many bytes. The sections in order: one `H` (header, JSON), any number of `R` (changes: 4-byte
raw size, then a zstd frame of JSON lines in manifest order), any number of `G` (a group of
contents, `protocol.batch_group`), one `E` (32 bytes: SHA-256 of all bytes before). A snapshot is
the update from version 0, the missing tree. This module reads and writes through callables.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, NamedTuple

from msgspec import Meta

from .batch_group import HEAD_LIMIT_BYTES
from .compress import LEVELS, pack, unpack
from .errors import BadManifest
from .tree import Count, Sha256, decode_row, encode_row, read_signed

MAGIC = b"TGUPD\x00\x01\n"
#: A change that an older reader could misread gets the next number.
FORMAT = 1
#: Type and length of a section.
_SECTION = struct.Struct(">cQ")
_RAW_SIZE = struct.Struct(">I")


class RowBounds(NamedTuple):
    """Sizes of what is read and written at once."""

    #: The raw size at which a writer closes a section of changes.
    flush_bytes: int = 1 << 20
    #: A reader's bound: one longest row more.
    limit_bytes: int = flush_bytes + (1 << 16)
    hash_bytes: int = 1 << 20


BOUNDS = RowBounds()

#: Reads (offset, length).
ReadAt = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Header:
    """The trees between which an update leads.

    `from_version` 0 is a snapshot. `before` and `after` are manifest digests. `window_bytes` bounds
    the content of one group (reference and result together).
    """

    channel: str
    from_version: Count
    to_version: Annotated[int, Meta(ge=1, le=1 << 62)]
    before: Sha256
    after: Sha256
    window_bytes: Annotated[int, Meta(ge=0, le=1 << 40)]
    format: int = FORMAT


def decode_header(data: bytes) -> Header:
    """Read a header. Raises BadManifest."""
    return read_signed(data, Header, "The header of the update", FORMAT)


class UpdateWriter:
    """Writes an update in order: all `row`s, then all `group`s, then `close`."""

    def __init__(self, write: Callable[[bytes], object], header: Header) -> None:
        self._write = write
        self._hasher = hashlib.sha256()
        self._rows: list[bytes] = []
        self._rows_bytes = 0
        self.length_bytes = 0
        self._put(MAGIC)
        self._section(b"H", json.dumps(asdict(header), separators=(",", ":")).encode("ascii"))

    @property
    def sha256(self) -> str:
        """Digest of all bytes written so far."""
        return self._hasher.hexdigest()

    def row(self, row: list[object]) -> None:
        """Add one change (`protocol.tree_diff`), in manifest order."""
        line = encode_row(row)
        if self._rows_bytes + len(line) > BOUNDS.flush_bytes:
            self._flush_rows()
        self._rows.append(line)
        self._rows_bytes += len(line)

    def group(self, data: bytes) -> None:
        """Add one encoded group of contents; no row may follow."""
        self._flush_rows()
        self._section(b"G", data)

    def close(self) -> None:
        """Write the end section. After it `sha256` and `length_bytes` are final."""
        self._flush_rows()
        self._section(b"E", self._hasher.digest())

    def _flush_rows(self) -> None:
        if self._rows:
            raw = b"".join(self._rows)
            self._section(b"R", _RAW_SIZE.pack(len(raw)) + pack(raw, LEVELS.delta))
            self._rows.clear()
            self._rows_bytes = 0

    def _section(self, kind: bytes, data: bytes) -> None:
        self._put(_SECTION.pack(kind, len(data)))
        self._put(data)

    def _put(self, data: bytes) -> None:
        self._hasher.update(data)
        self.length_bytes += len(data)
        self._write(data)


class Update:
    """Reads an update file through `read(offset, length)`.

    The constructor reads the section heads only. Call `verify` before you trust the content, unless
    the file's digest was checked against signed metadata. `window_bytes` bounds a group more
    tightly than the header. Raises BadManifest.
    """

    def __init__(self, read: ReadAt, length_bytes: int, window_bytes: int | None = None) -> None:
        self._read = read
        self._sections: list[tuple[bytes, int, int]] = []
        if read(0, len(MAGIC)) != MAGIC:
            raise BadManifest("This is not an update file of this format.")
        offset = len(MAGIC)
        while offset < length_bytes:
            kind, length = _SECTION.unpack(self._exactly(offset, _SECTION.size))
            offset += _SECTION.size
            if length > length_bytes - offset:
                raise BadManifest("The update file is truncated; fetch it again.")
            self._sections.append((kind, offset, length))
            offset += length
        kinds = b"".join(kind for kind, _, _ in self._sections)
        if not kinds.startswith(b"H") or kinds[-1:] != b"E" or kinds[1:-1].lstrip(b"R").strip(b"G"):
            raise BadManifest("The update file is truncated or its parts are out of order.")
        _, offset, length = self._sections[0]
        # A reader's bound.
        if length > 1 << 16:
            raise BadManifest("The header of the update is too long.")
        self.header = decode_header(self._exactly(offset, length))
        allowed = self.header.window_bytes
        self.window_bytes = allowed if window_bytes is None else min(allowed, window_bytes)

    def verify(self) -> None:
        """Check the end section against every byte before it."""
        _, end, length = self._sections[-1]
        hasher = hashlib.sha256()
        body = end - _SECTION.size
        for offset in range(0, body, BOUNDS.hash_bytes):
            hasher.update(self._exactly(offset, min(BOUNDS.hash_bytes, body - offset)))
        if self._exactly(end, length) != hasher.digest():
            raise BadManifest("The update file is damaged; fetch it again.")

    def rows(self) -> Iterator[list[object]]:
        """The changes in manifest order. Can be called repeatedly."""
        for kind, offset, length in self._sections:
            if kind != b"R":
                continue
            if length > 2 * BOUNDS.limit_bytes:
                raise BadManifest("A part of the update is larger than the format allows.")
            data = self._exactly(offset, length)
            if length < _RAW_SIZE.size:
                raise BadManifest("A part of the update is too short.")
            (raw_bytes,) = _RAW_SIZE.unpack_from(data)
            if raw_bytes > BOUNDS.limit_bytes:
                raise BadManifest("A part of the update is larger than the format allows.")
            for line in unpack(data[_RAW_SIZE.size :], raw_bytes).splitlines():
                yield decode_row(line)

    def groups(self) -> Iterator[bytes]:
        """The encoded groups of contents, one in memory at a time."""
        for kind, offset, length in self._sections:
            if kind == b"G":
                # Content that does not compress is carried raw, so a group is never larger.
                if length > self.window_bytes + 2 * HEAD_LIMIT_BYTES:
                    raise BadManifest("A group of the update is larger than its header promised.")
                yield self._exactly(offset, length)

    def _exactly(self, offset: int, length: int) -> bytes:
        data = self._read(offset, length)
        if len(data) != length:
            raise BadManifest("The update file is truncated; fetch it again.")
        return data
