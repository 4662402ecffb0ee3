"""All bytes at an offset of an open file, clones of files, and a real tree to scan."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import BadManifest
from ..tree_scan import Cached, Found, Stamp, decode_cached


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


def stamp_of(seen: os.stat_result) -> Stamp:
    return Stamp(seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, seen.st_dev)


def found_root(root: str | Path) -> Found:
    """The tree's own directory; a symbolic link to it is followed."""
    seen = os.stat(root)
    return Found("", "d", stat.S_IMODE(seen.st_mode), stamp_of(seen))


def found_name(name: os.DirEntry[str]) -> Found:
    """One name in a directory; links are not followed. Raises OSError if it is gone."""
    seen = name.stat(follow_symlinks=False)
    mode, stamp = stat.S_IMODE(seen.st_mode), stamp_of(seen)
    if stat.S_ISREG(seen.st_mode):
        return Found(name.name, "f", mode, stamp, seen.st_nlink)
    if stat.S_ISDIR(seen.st_mode):
        return Found(name.name, "d", mode, stamp)
    if stat.S_ISLNK(seen.st_mode):
        return Found(name.name, "l", mode, stamp, target=os.readlink(name.path))
    return Found(name.name, "other", mode, stamp)


def read_cache(path: Path) -> Iterator[Cached]:
    """The cache's lines, up to a damaged one: the files of the others are read again."""
    try:
        lines = path.open("rb")
    except FileNotFoundError:
        return
    with lines:
        for line in lines:
            try:
                yield decode_cached(line)
            except BadManifest:
                return
