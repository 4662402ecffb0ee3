"""Reads and writes all bytes at an offset of an open file; clones a whole file."""

from __future__ import annotations

import fcntl
import os


def read_piece(handle: int, offset: int, into: memoryview) -> bool:
    """Fill `into` from the file's `offset`; False if the file ends before."""
    done = 0
    while done < len(into):
        count = os.preadv(handle, [into[done:]], offset + done)
        if not count:
            return False
        done += count
    return True


def write_piece(handle: int, offset: int, piece: memoryview) -> None:
    """Write all of `piece` at the file's `offset`."""
    while piece:
        done = os.pwrite(handle, piece, offset)
        piece, offset = piece[done:], offset + done


def clone(source: int, target: int) -> bool:
    """Share all extents of `source` with `target`; False if the file system cannot."""
    try:
        # FICLONE of ioctl(2), for btrfs, XFS, bcachefs.
        fcntl.ioctl(target, 0x40049409, source)
    except OSError:
        return False
    return True
