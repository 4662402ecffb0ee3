"""The store with its threads, from the open database to the end of both."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import maybeDeferred
from twisted.python.threadpool import ThreadPool

from ..http.clock import Reactor, in_pool, pause
from ..store.database import Database
from ..store.store import LATE_S, Store, Work
from .parts import Part

_READ_THREADS = 3


class StoreService:
    """A store on threads of its own; work is queued from the beginning and done once it runs.

    `fenced` hears that another machine leads; `late_s` is how long answers wait for a commit.
    """

    def __init__(
        self,
        reactor: Reactor,
        database: Database,
        now: Callable[[], float],
        fenced: Callable[[], None] = lambda: None,
        late_s: float = LATE_S,
    ) -> None:
        self._reactor = reactor
        self._database = database
        self._write_pool = ThreadPool(1, 1, "store-write")
        #: Threads that may wait for a disk.
        self.read_pool = ThreadPool(0, _READ_THREADS, "store-read")
        #: After the end: a thread waits for a database that does not answer. A thread cannot be
        #: ended, so the process must be.
        self.hung = False
        self.store = Store(
            database,
            reactor,
            # Where the system gives no thread, that is a failed write or read like any other.
            lambda work: maybeDeferred(in_pool, reactor, self._write_pool, work),
            lambda work: maybeDeferred(in_pool, reactor, self.read_pool, work),
            now,
            fenced,
            late_s,
        )

    def part(self, memory: Callable[[], list[Work[None]]]) -> Part:
        """Its place in the tree; `memory` brings what is known into a database that was lost."""

        def begin() -> None:
            self._write_pool.start()
            self.read_pool.start()
            self.store.open(memory)

        return Part("store", begin, self._end)

    async def _end(self) -> None:
        # Connections that a stop has cut are lost in the next turn, and with them downloads end.
        await pause(self._reactor)
        self.hung = not await self.store.close()
        self._database.interrupt()
        if not self.hung:
            self.read_pool.stop()
            self._write_pool.stop()
            self._database.close()
