"""Bytes at one place of an open file, all of them; and a whole file by its extents."""

from __future__ import annotations

import fcntl
import os

#: ioctl(2) FICLONE: share the extents of another file (btrfs, XFS, bcachefs).
_FICLONE = 0x40049409


def read_piece(handle: int, offset: int, into: memoryview) -> bool:
    """Fill `into` from the file's `offset`, in bytes; False where the file ends before."""
    done = 0
    while done < len(into):
        count = os.preadv(handle, [into[done:]], offset + done)
        if not count:
            return False
        done += count
    return True


def write_piece(handle: int, offset: int, piece: memoryview) -> None:
    """Write all of `piece` at the file's `offset`, in bytes."""
    while piece:
        done = os.pwrite(handle, piece, offset)
        piece, offset = piece[done:], offset + done


def clone(source: int, target: int) -> bool:
    """Make `target` the same as `source` without copying; False where the file system cannot."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True
