"""Where bytes of a download lie until they are whole: a part file, or a ring for a pipe."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Protocol

from ..net.errors import LocalProblem

Buffer = bytes | bytearray | memoryview


class Storage(Protocol):
    """Random access to the bytes of one download."""

    def write(self, offset: int, data: Buffer) -> None: ...
    def read(self, offset: int, length: int) -> bytes: ...


class FileStorage:
    """A file written in place with pwrite; opened without following a link at its name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(path, flags, 0o666)
        except OSError as error:
            raise LocalProblem.of(error, path) from None

    def write(self, offset: int, data: Buffer) -> None:
        try:
            done = os.pwrite(self._fd, data, offset)
            while done < len(data):
                done += os.pwrite(self._fd, memoryview(data)[done:], offset + done)
        except OSError as error:
            raise LocalProblem.of(error, self.path) from None

    def read(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._fd, length, offset)
        except OSError as error:
            raise LocalProblem.of(error, self.path) from None

    def truncate(self, size_bytes: int) -> None:
        """Cut the file to its right length (a larger leftover may have had the name)."""
        try:
            os.ftruncate(self._fd, size_bytes)
        except OSError as error:
            raise LocalProblem.of(error, self.path) from None

    def room_bytes(self) -> int:
        stat = os.fstatvfs(self._fd)
        return stat.f_bavail * stat.f_frsize

    def capacity_bytes(self) -> int:
        """What the file system can hold, free or not."""
        stat = os.fstatvfs(self._fd)
        return stat.f_blocks * stat.f_frsize

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._fd = -1


class RingStorage:
    """A window of memory that moves over the file; holds [passed, passed + window_bytes)."""

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.passed = 0
        self._ring = bytearray(window_bytes)

    def write(self, offset: int, data: Buffer) -> None:
        length = len(data)
        if offset < self.passed or offset + length > self.passed + self.window_bytes:
            raise ValueError("bytes outside the window")
        at = offset % self.window_bytes
        first = min(length, self.window_bytes - at)
        view = memoryview(data)
        self._ring[at : at + first] = view[:first]
        self._ring[: length - first] = view[first:]

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.passed + self.window_bytes - offset)
        at = offset % self.window_bytes
        first = min(length, self.window_bytes - at)
        return bytes(self._ring[at : at + first]) + bytes(self._ring[: length - first])
