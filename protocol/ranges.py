"""Byte ranges (RFC 9110, 14): Range and Content-Range, and multipart/byteranges bodies.

A `ByteRange` is half open: `(start, end)` with `0 <= start < end <= size`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from .errors import BadRange

ByteRange = tuple[int, int]


class RangeBounds(NamedTuple):
    """How many ranges a request may have, and how near they are joined."""

    #: A request with more ranges gets the whole file (RFC 9110, 14.2, against many small ranges).
    asked: int = 200
    #: The same for the ranges that are left after joining.
    parts: int = 64
    #: Ranges closer than this are joined: the header of a part takes as many bytes.
    gap_bytes: int = 80


BOUNDS = RangeBounds()

_SPEC = re.compile(r"([0-9]*)-([0-9]*)")


def parse_range(value: str, size_bytes: int) -> list[ByteRange] | None:
    """The requested ranges in their order, joined where they are close.

    None: the field is ignored (another unit, bad syntax, too many ranges, an empty file), and the
    whole file is the answer. Raises BadRange when the field is well formed and no range lies in the
    file.
    """
    simple = _SPEC.fullmatch(value, 6)
    if simple is not None and simple[1] and value.startswith("bytes=") and len(value) <= 60:
        # The form that nearly all clients send.
        start = int(simple[1])
        end = int(simple[2]) + 1 if simple[2] else size_bytes
        if start < end <= size_bytes:
            return [(start, end)]
    unit, equals, rest = value.partition("=")
    if not equals or unit.lower() != "bytes":
        return None
    specs = [spec.strip(" \t") for spec in rest.split(",") if spec.strip(" \t")]
    if not specs or len(specs) > BOUNDS.asked or size_bytes == 0:
        return None
    ranges: list[ByteRange] = []
    for spec in specs:
        match = _SPEC.fullmatch(spec)
        if match is None or spec == "-" or len(spec) > 60:
            return None
        first, last = match[1], match[2]
        if not first:
            start, end = max(0, size_bytes - int(last)), size_bytes
        else:
            start = int(first)
            if last and int(last) < start:
                return None
            end = min(size_bytes, int(last) + 1) if last else size_bytes
        if start < end:
            ranges.append((start, end))
    if not ranges:
        raise BadRange(f"No byte of the range asked for exists: the file has {size_bytes} bytes.")
    joined = join_ranges(ranges)
    return joined if len(joined) <= BOUNDS.parts else None


def join_ranges(ranges: Sequence[ByteRange]) -> list[ByteRange]:
    """Join ranges that overlap, touch or are closer than `BOUNDS.gap_bytes` (RFC 9110, 15.3.7.2).

    A joined range has the position of its first member.
    """
    if all(end + BOUNDS.gap_bytes < start for (_, end), (start, _) in pairwise(ranges)):
        return list(ranges)
    merged: list[list[int]] = []
    for order, (start, end) in sorted(enumerate(ranges), key=lambda item: item[1]):
        if merged and start <= merged[-1][1] + BOUNDS.gap_bytes:
            merged[-1][1] = max(merged[-1][1], end)
            merged[-1][2] = min(merged[-1][2], order)
        else:
            merged.append([start, end, order])
    return [(start, end) for start, end, _ in sorted(merged, key=lambda item: item[2])]


def format_range(ranges: Sequence[ByteRange]) -> str:
    """The Range field value for these ranges."""
    return "bytes=" + ",".join(f"{start}-{end - 1}" for start, end in ranges)


@dataclass(frozen=True, slots=True)
class ContentRange:
    """A Content-Range. `start` and `end` (half open) are None for an unsatisfied range."""

    start: int | None
    end: int | None
    size_bytes: int | None

    def __str__(self) -> str:
        size = "*" if self.size_bytes is None else str(self.size_bytes)
        if self.start is None or self.end is None:
            return f"bytes */{size}"
        return f"bytes {self.start}-{self.end - 1}/{size}"


def parse_content_range(value: str) -> ContentRange | None:
    """A Content-Range field value; None when it is malformed or of another unit."""
    match = re.fullmatch(r"(?i:bytes)[ \t]+(?:([0-9]+)-([0-9]+)|\*)/([0-9]+|\*)", value.strip())
    if match is None or any(len(part or "") > 19 for part in match.groups()):
        return None
    size = None if match[3] == "*" else int(match[3])
    if match[1] is None:
        return None if size is None else ContentRange(None, None, size)
    start, end = int(match[1]), int(match[2]) + 1
    if end <= start or (size is not None and end > size):
        return None
    return ContentRange(start, end, size)


def multipart_pieces(
    ranges: Sequence[ByteRange], size_bytes: int, content_type: str, boundary: str
) -> tuple[list[bytes | ByteRange], int]:
    """The body of a multipart/byteranges answer, file bytes as ranges; and its length."""
    pieces: list[bytes | ByteRange] = []
    total = 0
    # The first boundary begins a line, too: zsync needs it, and otherwise repeats its request.
    for start, end in ranges:
        head = (
            f"\r\n--{boundary}\r\nContent-Type: {content_type}\r\n"
            f"Content-Range: bytes {start}-{end - 1}/{size_bytes}\r\n\r\n"
        ).encode("latin-1")
        pieces += [head, (start, end)]
        total += len(head) + end - start
    tail = f"\r\n--{boundary}--\r\n".encode("ascii")
    pieces.append(tail)
    return pieces, total + len(tail)
