"""Reads what the page cache lacks, on threads, so that a slow disk stops no other request."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from twisted.internet.defer import Deferred, execute
from twisted.python.threadpool import ThreadPool

from ..http.clock import Threads, in_pool
from .openfile import OpenFile

#: A fetch reads at least so far ahead; it is read in pieces of the second.
AHEAD_BYTES = 1 << 20
_READ_BYTES = 256 * 1024
#: How many reads a server has under way that wait for a disk.
DISK_THREADS = 16


class Disk:
    """Fetches parts of files into the page cache, on `most` threads at a time; 0 reads in line."""

    def __init__(self, reactor: Threads, most: int = 0) -> None:
        self._reactor = reactor
        self._most = most
        self._pool: ThreadPool | None = None

    def fetch(self, file: OpenFile, start: int, stop: int) -> Deferred[None]:
        """Read this part; the result comes also when it cannot be read, as the next one learns."""
        if not self._most:
            return execute(_read, file, start, stop)
        self._pool = self._pool or disk_pool(self._most, "disk")
        return in_pool(self._reactor, self._pool, _read, file, start, stop)


def disk_pool(most: int, name: str) -> ThreadPool:
    """Running threads for reading what is served; end them by `let_go`.

    One that a dead disk never lets go of keeps no process from ending.
    """
    pool = ThreadPool(0, most, name)
    pool.threadFactory = _Forsaken
    pool.start()
    return pool


def let_go(pool: ThreadPool) -> None:
    """End the threads of a `disk_pool` once they have done what they were given; wait for none."""
    pool.adjustPoolsize(0, 0)


class _Forsaken(threading.Thread):
    """A thread that no process waits for at its end."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, daemon=True, **options)


def _read(file: OpenFile, start: int, stop: int) -> None:
    with contextlib.suppress(Exception):
        for offset in range(start, stop, _READ_BYTES):
            file.read_at(offset, min(_READ_BYTES, stop - offset))
