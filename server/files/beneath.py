"""`openat2` (Linux 5.6), which Python does not offer: open a file below a folder, by no link."""

from __future__ import annotations

import ctypes
import struct

#: The same on every architecture (asm-generic/unistd.h).
_OPENAT2 = 437
#: RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH (linux/openat2.h).
_RESOLVE = 0x02 | 0x04 | 0x08

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
    how = struct.pack("QQQ", flags, 0, _RESOLVE)
    fd = int(_syscall(_OPENAT2, folder_fd, path, how, len(how)))
    return fd if fd >= 0 else None
