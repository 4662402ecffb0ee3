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

from tidegate.server.app.config import Flag, load_config
from tidegate.server.app.listeners import OpenListener
from tidegate.server.app.service import Service

from .schedule import Schedule, VirtualPool, VirtualReactor
from .seams import KeptOrder
from .wire import MemoryNetwork, MemoryPort

#: The loop of a server comes to what has happened within this time.
_TURN_S = 0.0005
#: So many batches of events are dealt with in one turn.
_BATCHES = 4


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
        self._schedule, self._rng, self._network = schedule, rng, network
        self.reactor = VirtualReactor(schedule, rng)
        self.pools: list[VirtualPool] = []
        self.alive = True
        self.stopping = False
        self.ended_s = math.inf
        self._woken = False
        values = {
            "directory": str(root / "release"),
            "state": str(root / "state"),
            "admin": "off",
            "policy": policy,
            **({} if bandwidth_bytes_s is None else {"bandwidth": f"{bandwidth_bytes_s:.0f}B/s"}),
            **settings,
        }
        self._values = values
        self.port = MemoryPort(network)
        self.service: Service = None  # type: ignore[assignment]

    def load(self) -> Any:
        """The configuration."""
        flags = {name: Flag(value, name) for name, value in self._values.items()}
        return load_config(None, {}, flags)

    def start(self) -> None:
        """Build and start it; the pools are made meanwhile."""
        opened = OpenListener("http://127.0.0.1:8080", [self.port])  # type: ignore[list-item]
        reactor: Any = self.reactor
        self.service = Service(self.load(), reactor, opened=[opened])
        self.service.connections.factory.connections = KeptOrder()  # type: ignore[assignment]
        front = self.service.connections._front
        front._epoll.wake = self._wake  # type: ignore[attr-defined]
        self.service.start(lambda urls: None)

    def _wake(self) -> None:
        if not self._woken and self.alive:
            self._woken = True
            self._schedule.after(self._rng.random() * _TURN_S, self.reactor.turn, self._turn)

    def _turn(self) -> None:
        self._woken = False
        front = self.service.connections._front
        self._network.polls_left = _BATCHES
        front.doRead()
        if front._epoll.hot:  # type: ignore[attr-defined]
            self._wake()

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
        self.ended_s = self._schedule.now
        self.reactor.kill()
        for pool in self.pools:
            pool.kill()
        self.port.close()
        for one in tuple(self._network.sockets.values()):
            one.close()
