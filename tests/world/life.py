"""One life of a server in the world: built as `tidegate serve` builds it, killed or stopped."""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred

from tidegate.server.accounts.accounts import Scope
from tidegate.server.app.config import Flag, load_config
from tidegate.server.app.listeners import OpenListener
from tidegate.server.app.service import Service

from .schedule import Schedule, VirtualPool, VirtualReactor
from .seams import KeptOrder
from .wire import ADMIN_PORT, FILES_PORT, MemoryNetwork, MemoryPort

#: The loop of a server comes to what has happened within this time.
_TURN_S = 0.0005
#: So many batches of events are dealt with in one turn.
_BATCHES = 4


class _FrontTurns:
    """Lets a front of connections see its events a moment after they happened."""

    def __init__(self, life: ServerLife, front: Any) -> None:
        self._life, self._front = life, front
        self._woken = False
        front._epoll.wake = self.wake
        # A set is walked in another order in each run.
        front._factory.connections = KeptOrder()

    def wake(self) -> None:
        """Something may have happened."""
        life = self._life
        if not self._woken and life.alive:
            self._woken = True
            life.schedule.after(life.rng.random() * _TURN_S, life.reactor.turn, self._turn)

    def _turn(self) -> None:
        self._woken = False
        network = self._life.network
        network.polls_left, moves = _BATCHES, network.moves
        self._front.doRead()
        network.idle_turns += network.moves == moves
        if self._front._epoll.hot:
            self.wake()


class ServerLife:
    """From a start to its end. `alive`: it runs, or is stopping."""

    def __init__(
        self,
        schedule: Schedule,
        rng: random.Random,
        network: MemoryNetwork,
        root: Path,
        policy: str,
        bandwidth_bytes_s: float | None,
        settings: Mapping[str, Any],
    ) -> None:
        self.schedule, self.rng, self.network = schedule, rng, network
        self.reactor = VirtualReactor(schedule, rng)
        self.reactor.on_reader = lambda front: _FrontTurns(self, front)
        self.pools: list[VirtualPool] = []
        self.alive = True
        self.stopping = False
        self.ended_s = math.inf
        self._token = ""
        values = {
            "directory": str(root / "release"),
            "state": str(root / "state"),
            "admin": f"127.0.0.1:{ADMIN_PORT}",
            "policy": policy,
            **({} if bandwidth_bytes_s is None else {"bandwidth": f"{bandwidth_bytes_s:.0f}B/s"}),
            **settings,
        }
        self._values = values
        self._ports = [MemoryPort(network, number) for number in (FILES_PORT, ADMIN_PORT)]
        self.service: Service = None  # type: ignore[assignment]

    def load(self) -> Any:
        """The configuration."""
        flags = {name: Flag(value, name) for name, value in self._values.items()}
        return load_config(None, {}, flags)

    def start(self) -> None:
        """Build and start it; the pools are made meanwhile."""
        ports: Any = self._ports
        files, admin = (OpenListener(f"http://{one.getsockname()}", [one]) for one in ports)
        reactor: Any = self.reactor
        self.service = Service(self.load(), reactor, opened=[files], admin=admin)
        self.service.start(lambda urls: None)

    def operators_token(self) -> str:
        """An API token that may do everything."""
        if not self._token:
            accounts, now = self.service.admin.open_accounts().accounts, self.schedule.wall()
            self._token, _ = accounts.issue_token("world", Scope, "admin", now, None)
        return self._token

    def stop(self, done: Callable[[], None]) -> None:
        """As SIGTERM does: drain, then stop."""
        self.stopping = True

        def finished(_: object) -> None:
            if self.alive:
                self._bury()
                done()

        def drained() -> None:
            stopped = Deferred.fromCoroutine(self.service.stop())
            stopped.addBoth(finished)

        self.service.drain(drained)

    def kill(self) -> None:
        """As SIGKILL does: the kernel closes what was open."""
        state = self.service._state
        faults: Any = self.service.admin.server.vitals.faults
        from twisted.logger import globalLogPublisher

        with contextlib.suppress(ValueError):
            globalLogPublisher.removeObserver(faults)
        state.memory.database.engine.dispose()
        if state._lock is not None:
            with contextlib.suppress(OSError):
                os.close(state._lock._descriptor)
        self._bury()

    def _bury(self) -> None:
        self.alive = False
        self.ended_s = self.schedule.now
        self.reactor.kill()
        for pool in self.pools:
            pool.kill()
        for one in tuple(self.network.sockets.values()):
            one.close()
