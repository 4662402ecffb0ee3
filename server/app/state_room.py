"""What outlives a process: the lock of the state folder, the signing keys and the database."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from twisted.internet.defer import maybeDeferred
from twisted.python.threadpool import ThreadPool

from ...protocol.ticket import KeyRing
from ..control.key_values import KeyValues
from ..http.clock import Reactor, in_pool, pause
from ..store.accounts import OperatorTables
from ..store.store import Store, Work
from .bootstrap import open_memory
from .keys import KeyKeeper, load_keys
from .parts import Part
from .settings import ServerConfig
from .state_lock import LockKeeper, lock_state

if TYPE_CHECKING:
    from .fleet import ClusterSeat


class StateRoom:
    """The `ServerRoom` of one server's state; in a cluster its machine has the folder and keys.

    `use_keys` is called with keys that were renewed, `keys_lost` after the file was removed.
    `known` writes what this process knows into a database that was lost.
    """

    def __init__(
        self,
        config: ServerConfig,
        reactor: Reactor,
        now: Callable[[], float],
        cluster: ClusterSeat | None,
        use_keys: Callable[[KeyRing], None],
        keys_lost: Callable[[], None],
        known: Callable[[], list[Work[None]]],
    ) -> None:
        self._known = known
        self._reactor = reactor
        self._lock: LockKeeper | None = None
        self._keeper: KeyKeeper | None = None
        if cluster is None:
            self._lock = LockKeeper(reactor, config.state, lock_state(config.state), _end_process)
            file, rotate_s = config.state / "keys.json", config.keys_rotate_s
            self.keys = load_keys(file, now(), rotate_s)
            self._keeper = KeyKeeper(reactor, now, file, rotate_s, use_keys, keys_lost)
            self.memory = open_memory(config, now())
        else:
            self.keys = cluster.shared.keys
            self.memory = open_memory(config, now(), cluster.database)
        #: After the end: a thread waits for a database that does not answer. A thread cannot be
        #: ended, so the process must be.
        self.hung = False
        self._write_pool = ThreadPool(1, 1, "store-write")
        #: Threads that may wait for a disk.
        self.read_pool = ThreadPool(0, 3, "store-read")
        self.store = Store(
            self.memory.database,
            reactor,
            # A thread that the system does not give is a failed write or read like any other.
            lambda work: maybeDeferred(in_pool, reactor, self._write_pool, work),
            lambda work: maybeDeferred(in_pool, reactor, self.read_pool, work),
            now,
            None if cluster is None else cluster.retire,
        )
        self.tables = OperatorTables(self.memory.database, self.store)
        self.documents = KeyValues(self.tables)

    def parts(self) -> Iterator[Part]:
        if self._lock is not None:
            yield Part("lock", self._lock.timer.start, self._lock.close)

        def begin() -> None:
            self._write_pool.start()
            self.read_pool.start()
            self.store.open(self._known)

        yield Part("store", begin, self._end)
        if self._keeper is not None:
            yield Part("keys", self._keeper.start, self._keeper.timer.stop)

    def reconfigure(self, config: ServerConfig) -> None:
        if self._keeper is not None:
            self._keeper.reconfigure(config.keys_rotate_s)

    async def _end(self) -> None:
        # Connections that a stop has cut are lost in the next turn, and with them downloads end.
        await pause(self._reactor)
        self.hung = not await self.store.close()
        self.memory.database.interrupt()
        if not self.hung:
            self.read_pool.stop()
            self._write_pool.stop()
            self.memory.database.close()


def _end_process() -> None:
    """Stop at once: another server has the state folder."""
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
