"""Block hashes of files that will be multicast: computed on threads, cached by content.

A session needs them for its offer. They are requested with the first capable request of a window,
so that they are ready when the session starts.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from typing import Any

from twisted.internet.defer import Deferred, gatherResults, succeed

from ...protocol.bounded_table import BoundedTable
from ...protocol.fec import BlockLayout
from ..files.digests import FileChanged
from ..files.openfile import OpenFile
from ..files.transfer import FileKey
from ..http.clock import Threads, Waiters, in_pool


def hash_blocks(
    file: OpenFile, layout: BlockLayout, first: int = 0, end: int | None = None
) -> tuple[bytes, ...]:
    """SHA-256 of the blocks [first, end), without padding. Raises `FileChanged`."""
    hashes = []
    for block in range(first, layout.blocks if end is None else end):
        digest = hashlib.sha256()
        at, left = layout.offset(block), layout.length(block)
        while left:
            data = os.pread(file.fd, min(left, 1 << 18), at)
            if not data:
                raise FileChanged
            digest.update(data)
            at += len(data)
            left -= len(data)
        hashes.append(digest.digest())
    if not file.unchanged():
        raise FileChanged
    return tuple(hashes)


def _shares(blocks: int) -> list[tuple[int, int]]:
    """Equal shares of the blocks, one for each thread: a session's start waits for the hashes."""
    # Four threads for one file.
    count = max(1, min(4, blocks // 4))
    return [(blocks * i // count, blocks * (i + 1) // count) for i in range(count)]


class BlockHashes:
    """A cache of block hashes by content and layout."""

    def __init__(self, reactor: Threads, pool: Any) -> None:
        self._reactor = reactor
        self._pool = pool
        self._known: BoundedTable[tuple[FileKey, BlockLayout], tuple[bytes, ...]] = BoundedTable(
            # Files whose hashes are cached: 32 bytes for each MiB.
            256
        )
        self._running: dict[tuple[FileKey, BlockLayout], Waiters[tuple[bytes, ...]]] = {}

    def known(self, key: FileKey, layout: BlockLayout) -> tuple[bytes, ...] | None:
        """The hashes if they are cached."""
        return self._known.get((key, layout))

    def want(self, file: OpenFile, layout: BlockLayout) -> Deferred[tuple[bytes, ...]]:
        """The hashes, computed unless they are cached. Fails with `FileChanged` or OSError."""
        name = (file.rep.key, layout)
        known = self._known.get(name)
        if known is not None:
            return succeed(known)
        begun = name in self._running
        answer = self._running.setdefault(name, Waiters()).wait()
        if not begun:
            jobs = gatherResults(
                [
                    in_pool(self._reactor, self._pool, hash_blocks, file, layout, first, end)
                    for first, end in _shares(layout.blocks)
                ],
                consumeErrors=True,
            )
            jobs.addCallbacks(
                lambda parts: self._keep(name, tuple(itertools.chain.from_iterable(parts))),
                lambda failure: failure.value.subFailure,
            )
            jobs.addBoth(lambda result: self._running.pop(name).tell(result))
        return answer

    def _keep(
        self, name: tuple[FileKey, BlockLayout], hashes: tuple[bytes, ...]
    ) -> tuple[bytes, ...]:
        self._known[name] = hashes
        return hashes
