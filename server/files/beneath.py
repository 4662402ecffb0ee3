"""`openat2` (Linux 5.6), which Python does not offer: open a file below a folder, by no link."""

from __future__ import annotations

import ctypes
import struct
from functools import lru_cache

#: The same on every architecture (asm-generic/unistd.h).
_OPENAT2 = 437
#: RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH (linux/openat2.h).
_RESOLVE = 0x02 | 0x04 | 0x08

#: `struct open_how`: flags, mode, resolve.
_HOW = struct.Struct("QQQ")


@lru_cache(maxsize=8)
def _how(flags: int) -> bytes:
    return _HOW.pack(flags, 0, _RESOLVE)


_syscall = ctypes.CDLL(None).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_size_t,
)


def open_beneath(folder_fd: int, path: bytes, flags: int) -> int | None:
    """A descriptor of what lies under a relative path, if no part of the path is a link.

    None where there is nothing, something else is wrong, or the kernel has no such call.
    """
    fd: int = _syscall(_OPENAT2, folder_fd, path, _how(flags), _HOW.size)
    return fd if fd >= 0 else None
