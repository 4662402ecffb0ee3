"""Memory for blocks that are still coming in: the heap first, a deleted temporary file beyond.

With 5 % loss nearly every block of a pass stays incomplete until the repair, so a large file would
need its size in memory. Beyond `most_bytes` blocks live in a mapped file that the kernel may write
out; its space is freed with it, whatever happens to us.
"""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path

_SLOT_BYTES = 1 << 20
_SLOTS_A_FILE = 64


class BlockSpace:
    """Implements `client.multicast.blocks.Space`; `folder` should be where the file goes."""

    def __init__(self, folder: Path, most_bytes: int = 64 << 20) -> None:
        self._folder = folder
        self._left = most_bytes
        self._free: list[memoryview] = []
        #: What is lent, by identity: its whole slot in a mapped file, or None for the heap.
        self._lent: dict[int, memoryview | None] = {}
        self._maps: list[mmap.mmap] = []

    def take(self, size: int) -> memoryview:
        """Zeroed memory of `size` bytes (at most 1 MiB). Raises OSError when the disk is full."""
        if size <= self._left:
            memory = memoryview(bytearray(size))
            self._left -= size
            self._lent[id(memory)] = None
            return memory
        if not self._free:
            self._grow()
        slot = self._free.pop()
        memory = slot[:size]
        self._lent[id(memory)] = slot
        return memory

    def give_back(self, memory: memoryview) -> None:
        """The very object `take` gave; its memory may be used again."""
        slot = self._lent.pop(id(memory))
        if slot is None:
            self._left += len(memory)
            return
        memory[:] = bytes(len(memory))
        self._free.append(slot)

    def _grow(self) -> None:
        with tempfile.TemporaryFile(dir=self._folder, prefix=".tidegate-blocks-") as file:
            size = _SLOT_BYTES * _SLOTS_A_FILE
            file.truncate(size)
            mapped = mmap.mmap(file.fileno(), size)
        self._maps.append(mapped)
        whole = memoryview(mapped)
        self._free.extend(whole[at : at + _SLOT_BYTES] for at in range(0, size, _SLOT_BYTES))
