"""A quiet walk over the whole tree, so that digests are known before anybody asks."""

from __future__ import annotations

from typing import Any

from twisted.internet import defer
from twisted.logger import Logger
from twisted.python.failure import Failure

from server.files.digests import Catalog, FileChanged
from server.files.tree import IsDirectory, NotHere, Overloaded, Tree
from server.http.clock import Clock, pause

_log = Logger()
#: So many files are looked at before requests have their turn.
_AT_ONCE = 8


class Survey:
    """Walks `tree` and has every file digested, one at a time, behind all other wishes.

    `start` may be called again at any time (for instance on SIGHUP); a walk that runs goes on.
    """

    def __init__(self, reactor: Clock, tree: Tree, catalog: Catalog) -> None:
        self._reactor = reactor
        self._tree = tree
        self._catalog = catalog
        self._stopped = False
        self.running = False

    def start(self) -> None:
        """Begin, unless a walk runs already."""
        self._stopped = False
        if not self.running:
            self.running = True
            defer.Deferred.fromCoroutine(self._walk()).addBoth(self._ended)

    def stop(self) -> None:
        """End the walk after the file at hand."""
        self._stopped = True

    def _has_to_end(self) -> bool:
        return self._stopped

    def _ended(self, result: Any) -> None:
        self.running = False
        if isinstance(result, Failure):
            _log.failure("the walk over the served directory failed", result)

    async def _walk(self) -> None:
        folders: list[list[bytes]] = [[]]
        # Links may lead round in circles: every directory is entered once.
        entered: set[int] = set()
        seen = 0
        while folders and not self._has_to_end():
            folder = folders.pop()
            try:
                entries = self._tree.entries(folder)
            except (NotHere, Overloaded):
                continue
            for entry in entries:
                if self._has_to_end():
                    return
                parts = [*folder, entry.name]
                if entry.is_directory:
                    if entry.key.inode not in entered:
                        entered.add(entry.key.inode)
                        folders.append(parts)
                    continue
                seen += 1
                if seen % _AT_ONCE == 0:
                    await pause(self._reactor)
                if self._catalog.known(entry.key) is None:
                    try:
                        file = self._tree.open(parts)
                        if self._catalog.if_cheap(file) is None:
                            await self._catalog.want(file, hits=0)
                    except (NotHere, IsDirectory, Overloaded, FileChanged, OSError):
                        continue
            await pause(self._reactor)
