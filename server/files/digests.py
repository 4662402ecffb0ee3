"""Digests of files: computed off the reactor, the most wanted first, each content once.

The catalog answers at once when it knows, and otherwise puts the file in line. Threads only read
and hash; every decision is taken on the reactor. What a thread computed counts only if the file
did not change meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from twisted.internet import defer
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from ...protocol.bounded_table import BoundedTable
from ...protocol.manifest import FileDigests, piece_length_for
from ..http.clock import Threads, Waiters, in_pool
from .disk import disk_pool, let_go
from .openfile import OpenFile, Unreadable
from .transfer import FileKey, Representation

T = TypeVar("T")

_log = Logger()
_READ_BYTES = 1 << 20
#: Up to this size, hashing again is cheaper than asking the store.
NOT_KEPT_BYTES = 128 * 1024
#: Larger files never take the last thread: no client waits minutes for a small file's digest.
_LONG_BYTES = 64 << 20
#: Hashing so little costs less than handing it to a thread, and describing the file twice.
TINY_BYTES = 16 * 1024
#: Digests that clients wait for.
_MOST_ASKED = 256


class DigestCache(Protocol):
    """Where digests survive a restart. Neither call may block; both run on the reactor."""

    def find(self, rep: Representation) -> defer.Deferred[FileDigests | None]:
        """What is kept for this content; None when nothing is."""

    def keep(self, key: FileKey, digests: FileDigests) -> None:
        """Keep it; a failure to do so is the cache's own to report."""


class FileChanged(Exception):
    """The file is not the one it was when it was opened."""


class Stopped(FileChanged):
    """The server ended before the digest was computed."""


def digest_file(file: OpenFile, stopped: Callable[[], bool] = lambda: False) -> FileDigests:
    """Read and hash a whole file. Raises FileChanged when it did not stay as it was opened.

    `stopped` is asked after each MiB; once it says True, Stopped is raised.
    """
    return digest_open(file.fd, file.rep.size_bytes, file.unchanged, stopped)


def digest_open(
    fd: int, size: int, unchanged: Callable[[], bool], stopped: Callable[[], bool]
) -> FileDigests:
    """The same of an open descriptor and the `size` (bytes) that it had when it was opened."""
    piece_length = piece_length_for(size)
    if size <= min(piece_length, _READ_BYTES):
        # Most files are of one piece: hash it once.
        data = os.pread(fd, size, 0)
        if len(data) == size and not stopped():
            if not unchanged():
                raise FileChanged
            return digest_piece(data)
    whole = hashlib.sha256()
    pieces = []
    offset = 0
    while offset < size:
        piece = hashlib.sha256()
        piece_end = min(size, offset + piece_length)
        while offset < piece_end:
            data = os.pread(fd, min(_READ_BYTES, piece_end - offset), offset)
            if not data:
                raise FileChanged
            if stopped():
                raise Stopped
            whole.update(data)
            piece.update(data)
            offset += len(data)
        pieces.append(piece.digest())
    if not unchanged():
        raise FileChanged
    return FileDigests(size, whole.digest(), piece_length, tuple(pieces))


def digest_piece(data: bytes) -> FileDigests:
    """The digests of a content that is one piece, or empty."""
    size = len(data)
    digest = hashlib.sha256(data).digest()
    return FileDigests(size, digest, piece_length_for(size), (digest,) if size else ())


def _stand_behind_others() -> None:
    """Let this thread take only the time that serving leaves."""
    with contextlib.suppress(OSError):
        behind = min(19, os.getpriority(os.PRIO_PROCESS, os.getpid()) + 10)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), behind)


@dataclass(slots=True)
class _DigestWish:
    file: OpenFile
    hits: int = 0
    waiters: Waiters[FileDigests] = field(default_factory=Waiters)


class DigestService:
    """Knows digests by content key. `threads` is the number of threads; 0 computes in line."""

    def __init__(self, reactor: Threads, cache: DigestCache, *, threads: int = 2) -> None:
        self._reactor = reactor
        self._cache = cache
        self._threads = threads
        self._learned: Callable[[FileKey, FileDigests], None] | None = None
        #: Digests that are remembered.
        self._known: BoundedTable[FileKey, FileDigests] = BoundedTable(100_000)
        #: Counts the times that what is known has changed.
        self.version = 0
        self._line: dict[FileKey, _DigestWish] = {}
        self._active: dict[FileKey, _DigestWish] = {}
        self._pool: ThreadPool | None = None
        self._stopped = False

    @property
    def pending(self) -> int:
        """How many files wait for their digest or are being hashed."""
        return len(self._line) + len(self._active)

    def known(self, key: FileKey) -> FileDigests | None:
        """What is known of a content right now."""
        return self._known.get(key)

    def on_learned(self, callback: Callable[[FileKey, FileDigests], None]) -> None:
        """Have `callback` told of each digest that becomes known."""
        self._learned = callback

    def ask(self, file: OpenFile, hits: int = 1) -> None:
        """Have the digest computed some time; each ask moves the file forward in line."""
        key = file.rep.key
        if self._stopped or key in self._known:
            return
        if len(self._line) >= _MOST_ASKED and key not in self._line and key not in self._active:
            # Each wish keeps its file open; the survey comes by here, too.
            return
        self._wish(file).hits += hits
        self._next()

    def want(self, file: OpenFile, hits: int = 1_000) -> defer.Deferred[FileDigests]:
        """The digest as soon as it is known: normally before all that is merely asked for.

        Fails with FileChanged when the file is written to meanwhile, or with an OSError.
        """
        known = self._known.get(file.rep.key)
        if known is not None:
            return defer.succeed(known)
        if self._stopped:
            return defer.fail(FileChanged())
        wish = self._wish(file)
        result = wish.waiters.wait()
        wish.hits += hits
        self._next()
        return result

    def at_once(self, file: OpenFile, *, wanted: bool) -> FileDigests | None:
        """The digest now, as far as that is cheap; `wanted`: a client asks for it.

        None where a thread costs less, a disk would have to be waited for, or the file changed.
        """
        key = file.rep.key
        digests = self._known.get(key)
        if digests is not None:
            return digests
        try:
            if key.size_bytes <= TINY_BYTES:
                data = file.read_pieces_at_hand([(0, key.size_bytes)])
                digests = None if data is None else digest_piece(data)
            # Up to this size it is hashed between two requests.
            if digests is None and wanted and key.size_bytes <= 256 * 1024:
                digests = digest_file(file)
        except (FileChanged, OSError, Unreadable):
            return None
        if digests is not None:
            self._learn(key, digests)
            if key.size_bytes > NOT_KEPT_BYTES:
                self._cache.keep(key, digests)
        return digests

    def behind_others(self, work: Callable[[Callable[[], bool]], T]) -> defer.Deferred[T]:
        """Run `work` on a thread that takes only the time that serving leaves.

        It is given a function that says whether it has to stop. Fails with Stopped after the end.
        """
        if self._stopped:
            return defer.fail(Stopped())
        if self._threads == 0:
            return defer.execute(work, lambda: self._stopped)

        def in_thread() -> T:
            _stand_behind_others()
            return work(lambda: self._stopped)

        self._pool = self._pool or disk_pool(self._threads, "digests")
        return in_pool(self._reactor, self._pool, in_thread)

    def learn(self, found: Iterable[tuple[FileKey, FileDigests]]) -> None:
        """Take up what was computed elsewhere, of files that are not kept in the store."""
        for key, digests in found:
            if key not in self._known:
                self._learn(key, digests)

    def stop(self) -> None:
        """Stop the threads, also in the midst of a file; wishes that are left fail."""
        self._stopped = True
        for wish in (*self._line.values(), *self._active.values()):
            wish.waiters.fail(FileChanged())
        self._line.clear()
        if self._pool is not None:
            let_go(self._pool)
            self._pool = None

    def _wish(self, file: OpenFile) -> _DigestWish:
        key = file.rep.key
        wish = self._active.get(key) or self._line.get(key)
        if wish is None:
            wish = self._line[key] = _DigestWish(file)
        return wish

    def _next(self) -> None:
        most = max(1, self._threads)
        while self._line and len(self._active) < most and not self._stopped:
            long = sum(key.size_bytes > _LONG_BYTES for key in self._active)
            only_short = 0 < most - 1 <= long
            line = [k for k in self._line if not only_short or k.size_bytes <= _LONG_BYTES]
            if not line:
                return
            key = max(line, key=lambda k: self._line[k].hits)
            self._active[key] = self._line.pop(key)
            work = defer.Deferred.fromCoroutine(self._digest(self._active[key].file))
            work.addBoth(self._ended, key)

    async def _digest(self, file: OpenFile) -> FileDigests:
        """As it is kept, or computed; an error when the file changes meanwhile."""
        key = file.rep.key
        is_kept = key.size_bytes > NOT_KEPT_BYTES
        found = await self._cache.find(file.rep) if is_kept else None
        if found is None or found.size_bytes != key.size_bytes:
            found = await self.behind_others(partial(digest_file, file))
            if is_kept and not self._stopped:
                self._cache.keep(key, found)
        return found

    def _ended(self, result: FileDigests | Failure, key: FileKey) -> None:
        wish = self._active.pop(key)
        if isinstance(result, FileDigests):
            self._learn(key, result)
        elif not isinstance(result.value, FileChanged | OSError):
            _log.failure("computing a digest failed", result)
        wish.waiters.tell(result)
        self._next()

    def _learn(self, key: FileKey, digests: FileDigests) -> None:
        self.version += 1
        self._known[key] = digests
        if self._learned is not None:
            self._learned(key, digests)
