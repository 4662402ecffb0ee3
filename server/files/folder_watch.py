"""Folders of which the kernel tells when something in them changes (inotify(7)).

It does not tell of stores to a mapped file, of writes by another hard link or another machine, and
of what a link leads to. So a file in a watched folder is still looked at, only less often.
"""

from __future__ import annotations

import ctypes
import os
import struct
from enum import IntFlag


class _Event(IntFlag):
    """Kinds of events (linux/inotify.h)."""

    #: IN_MODIFY and IN_ATTRIB: a content has changed, and all names are where they were.
    CONTENT = 0x2 | 0x4
    #: With them IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_DELETE_SELF and IN_MOVE_SELF.
    CHANGES = CONTENT | 0xFC0
    #: The folder is gone.
    IGNORED = 0x8000


#: Each takes about 1 kB of the kernel's memory.
_MOST_WATCHES = 4096
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None)


class FolderWatch:
    """Watches folders of a tree; `root` is its name, which ends in a slash.

    `fd` can be read once something has changed since `read`; -1 where there is no inotify.
    """

    def __init__(self, root: bytes) -> None:
        self._root = root
        self.fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._folders: set[bytes] = set()
        self._watches: set[int] = set()

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def watches(self, folder: bytes) -> bool:
        """Whether `fd` tells of what changes from now on in a folder and the folders above it."""
        return folder in self._folders or self._watch(folder)

    def _watch(self, folder: bytes) -> bool:
        if folder and not self.watches(folder.rpartition(b"/")[0]):
            return False
        if self.fd < 0 or len(self._watches) >= _MOST_WATCHES:
            return False
        names = [self._root + folder]
        if not folder and os.path.islink(self._root[:-1]):
            # A mirror makes it lead to another tree.
            names.append(os.path.dirname(self._root[:-1]))
        watches = [_libc.inotify_add_watch(self.fd, name, _Event.CHANGES) for name in names]
        self._watches.update(watch for watch in watches if watch >= 0)
        if min(watches) < 0:
            return False
        self._folders.add(folder)
        return True

    def read(self) -> None:
        """Have `fd` tell of later changes."""
        try:
            events = os.read(self.fd, 16 * 1024)
        except OSError:
            return
        place = 0
        while place < len(events):
            watch, mask, _, name_bytes = _EVENT.unpack_from(events, place)
            if mask & ~_Event.CONTENT:
                # A folder of this name may be another one now.
                self._folders.clear()
            if mask & _Event.IGNORED:
                self._watches.discard(watch)
            place += _EVENT.size + name_bytes
        if len(self._watches) >= _MOST_WATCHES and not self._folders:
            # Some may be of folders that lie outside the tree by now.
            for watch in self._watches:
                _libc.inotify_rm_watch(self.fd, watch)
            self._watches.clear()
