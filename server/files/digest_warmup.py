"""A quiet walk over the whole tree, so that digests are known before a client asks.

Folders are read in pieces on a thread that stands behind others, which hashes what is small there
and then; the loop only learns what was found. Long files go the way of all others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from twisted.internet import defer
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...protocol.manifest import FileDigests
from ..http.clock import Clock, pause
from .digests import NOT_KEPT_BYTES, DigestService, FileChanged, Stopped, digest_open
from .openfile import has_key, key_of
from .transfer import FileKey
from .tree import Folder, IsDirectory, NotHere, Overloaded, Tree

_log = Logger()


@dataclass(slots=True)
class _Piece:
    """What a part of a folder held: what was hashed, folders, and names that the loop looks at."""

    learned: list[tuple[FileKey, FileDigests]] = field(default_factory=list)
    folders: list[bytes] = field(default_factory=list)
    others: list[bytes] = field(default_factory=list)
    last: bool = False
    took_s: float = 0.0


def _look(
    folder: Folder, known: Callable[[FileKey], object | None], stopped: Callable[[], bool]
) -> _Piece:
    """The next piece of a folder. Raises OSError when the folder cannot be read."""
    began_s = time.monotonic()
    piece = _Piece()
    room_bytes, names = 1 << 20, iter(folder)
    # 64 names in one piece; fewer if they have 1 MiB to hash.
    for _ in range(64):
        found = next(names, None)
        if found is None:
            piece.last = True
            break
        name, item = found
        if item.is_dir(follow_symlinks=False):
            piece.folders.append(name)
        elif item.is_symlink():
            piece.others.append(name)
        elif item.is_file(follow_symlinks=False):
            room_bytes -= _hash(folder, name, piece, known, stopped)
        if room_bytes <= 0 or stopped():
            break
    piece.took_s = time.monotonic() - began_s
    return piece


def _hash(
    folder: Folder,
    name: bytes,
    piece: _Piece,
    known: Callable[[FileKey], object | None],
    stopped: Callable[[], bool],
) -> int:
    """Hash a file if it is short and unknown; how many bytes that were."""
    try:
        fd, status = folder.open(name)
    except OSError:
        return 0
    try:
        key = key_of(status)
        if known(key) is not None:
            return 0
        size = key.size_bytes
        if size > NOT_KEPT_BYTES:
            piece.others.append(name)
            return 0
        digests = digest_open(fd, size, lambda: has_key(os.fstat(fd), key), stopped)
        piece.learned.append((key, digests))
        return size
    except (FileChanged, OSError):
        return 0
    finally:
        os.close(fd)


@dataclass(eq=False)
class DigestWarmup:
    """Walks a tree and has every file digested, piece by piece, behind all other wishes.

    `start` may be called again at any time (for instance on SIGHUP); a walk that runs goes on.
    """

    _reactor: Clock
    _tree: Tree
    _catalog: DigestService
    _stopped: bool = False
    running: bool = False

    def start(self) -> None:
        """Begin, unless a walk runs already."""
        self._stopped = False
        if not self.running:
            self.running = True
            defer.Deferred.fromCoroutine(self._walk()).addBoth(self._ended)

    def stop(self) -> None:
        """End the walk after the file at hand."""
        self._stopped = True

    def _ended(self, result: Any) -> None:
        self.running = False
        if isinstance(result, Failure):
            _log.failure("the walk over the served directory failed", result)
        elif not self._stopped:
            _log.info("The walk over the served directory is over.")

    async def _walk(self) -> None:
        waiting: list[list[bytes]] = [[]]
        # Links may lead round in circles: every directory is entered once.
        entered: set[tuple[int, int]] = set()
        while waiting and not self._stopped:
            parts = waiting.pop()
            try:
                folder = self._tree.folder(parts)
            except (NotHere, Overloaded):
                continue
            try:
                if folder.identity not in entered:
                    entered.add(folder.identity)
                    await self._read(folder, parts, waiting)
            except OSError:
                # Its disk fails; the other folders may lie on another one.
                continue
            finally:
                folder.close()

    async def _read(self, folder: Folder, parts: list[bytes], waiting: list[list[bytes]]) -> None:
        """One folder; those in it are `waiting` then."""

        def look(stopped: Callable[[], bool]) -> _Piece:
            return _look(folder, self._catalog.known, lambda: stopped() or self._stopped)

        last = False
        while not last and not self._stopped:
            try:
                piece = await self._catalog.behind_others(look)
            except Stopped:
                return
            self._catalog.learn(piece.learned)
            waiting += [[*parts, name] for name in piece.folders]
            for name in piece.others:
                await self._ask([*parts, name], waiting)
            last = piece.last
            # Half of a thread's time.
            await pause(self._reactor, piece.took_s)

    async def _ask(self, parts: list[bytes], waiting: list[list[bytes]]) -> None:
        """A long file, or a link to something in the tree."""
        if self._stopped:
            return
        try:
            await self._catalog.want(self._tree.open(parts), hits=0)
        except IsDirectory:
            waiting.append(parts)
        except (NotHere, Overloaded, FileChanged, OSError):
            return
