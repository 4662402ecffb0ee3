"""Durable writes: a crash leaves the old file or the new one, never a part."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Write a new content of `path`. It gets the name when the block ends without error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
            out.flush()
            # The mode of `mkstemp`: a server without the right to change modes needs no other.
            if mode != 0o600:
                os.fchmod(out.fileno(), mode)
            os.fsync(out.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_whole(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    with replacing(path, mode=mode) as out:
        out.write(data)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class WriteBehind:
    """Starts writing a long file to disk while it grows, so that a later sync is short.

    It guarantees nothing; `sync_filesystem` does.
    """

    def __init__(self, handle: int, offset: int = 0) -> None:
        self._handle = handle
        self._begun = offset

    def wrote(self, end: int) -> None:
        """Report that all bytes before the offset `end` are written."""
        length = end - self._begun
        # The bytes that `WriteBehind` collects for one call.
        if length >= 4 << 20:
            LIBC.sync_file_range(
                # sync_file_range(2) SYNC_FILE_RANGE_WRITE: start writing, do not wait.
                self._handle,
                ctypes.c_int64(self._begun),
                ctypes.c_int64(length),
                2,
            )
            self._begun = end


def sync_filesystem(path: Path) -> None:
    """Make everything written so far on the file system of `path` durable (syncfs, Linux)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        if LIBC.syncfs(handle) != 0:
            os.sync()
    finally:
        os.close(handle)
