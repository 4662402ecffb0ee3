"""What is known of a file's content: its digest and those of its pieces."""

from __future__ import annotations

from dataclasses import dataclass

_LEAST_PIECE_BYTES = 256 * 1024
_MOST_PIECES = 1024


def piece_length_for(size_bytes: int) -> int:
    """The piece length for a file: a power of two from 256 KiB up, for at most 1 024 pieces."""
    length = _LEAST_PIECE_BYTES
    while length * _MOST_PIECES < size_bytes:
        length *= 2
    return length


@dataclass(frozen=True, slots=True)
class FileDigests:
    """Raw SHA-256 digests of a whole file and of its pieces, in order; the last may be short.

    An empty file has no pieces.
    """

    size_bytes: int
    sha256: bytes
    piece_length_bytes: int
    pieces: tuple[bytes, ...]
