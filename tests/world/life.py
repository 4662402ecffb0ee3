"""One life of a server in the world: built as `tidegate serve` builds it, killed or stopped."""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import globalLogPublisher

from tidegate.server.accounts.accounts import Scope
from tidegate.server.app.config import Flag, load_config
from tidegate.server.app.listeners import OpenListener
from tidegate.server.app.service import Service
from tidegate.server.gate.datagrams import DatagramReader

from .schedule import Schedule, VirtualReactor
from .seams import KeptOrder
from .wire import (
    ADMIN_PORT,
    FILES_PORT,
    GATE_PORT,
    Listener,
    MemoryNetwork,
    MemoryPort,
    ServerEnd,
)

#: The loop of a server comes to what has happened within this time.
_TURN_S = 0.0005
#: So many batches of events are dealt with in one turn.
_BATCHES = 4


class FrontTurns:
    """Lets a front of connections see its events a moment after they happened."""

    def __init__(
        self,
        schedule: Schedule,
        rng: random.Random,
        network: MemoryNetwork,
        reactor: VirtualReactor,
        front: Any,
    ) -> None:
        self._schedule, self._rng, self._network = schedule, rng, network
        self._reactor, self._front = reactor, front
        self._woken = False
        front._epoll.wake = self.wake
        # A set is walked in another order in each run.
        front._factory.connections = KeptOrder()
        if front._epoll.hot:
            # Clients came before the process did.
            self.wake()

    def wake(self) -> None:
        """Something may have happened."""
        if not self._woken and self._reactor.alive:
            self._woken = True
            soon_s = self._rng.random() * _TURN_S
            self._schedule.after(soon_s, self._reactor.turn, self._turn)

    def _turn(self) -> None:
        self._woken = False
        network = self._network
        network.polls_left, moves = _BATCHES, network.moves
        self._front.doRead()
        network.idle_turns += network.moves == moves
        if self._front._epoll.hot:
            self.wake()


def forget_service(service: Service) -> None:
    """Its process is gone: it counts no fault more, and has no connection to its database."""
    faults: Any = service.admin.server.vitals.faults
    with contextlib.suppress(ValueError):
        globalLogPublisher.removeObserver(faults)
    service._state.memory.database.engine.dispose()


def close_files(place: Path) -> None:
    """Close what a process had open there, as the kernel does at its end."""
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{one}") == str(place):
                os.close(int(one))


class ServerLife:
    """From a start to its end. `alive`: it runs, or is stopping."""

    def __init__(
        self,
        schedule: Schedule,
        rng: random.Random,
        network: MemoryNetwork,
        root: Path,
        settings: Mapping[str, Any],
    ) -> None:
        self.schedule, self.rng, self.network = schedule, rng, network
        self.reactor = VirtualReactor(schedule, rng)
        self.reactor.on_reader = self._watch
        self.alive = True
        self.stopping = False
        self.ended_s = math.inf
        self._token = ""
        self._state = root / "state"
        values = {
            "directory": str(root / "release"),
            "state": str(self._state),
            "admin": f"127.0.0.1:{ADMIN_PORT}",
            **settings,
        }
        self._values = values
        files = GATE_PORT if settings.get("gate.enabled") else FILES_PORT
        self._ports = [MemoryPort(network, Listener(one)) for one in (files, ADMIN_PORT)]
        self.service: Service = None  # type: ignore[assignment]

    @property
    def leads(self) -> bool:
        """Whether it runs, and is not stopping."""
        return self.alive and not self.stopping

    def _watch(self, reader: Any) -> None:
        """A front of connections, or a socket that has datagrams."""
        if isinstance(reader, DatagramReader):
            source: Any = reader._source
            source.watch = partial(self.schedule.after, _TURN_S, self.reactor.turn, reader.doRead)
        else:
            FrontTurns(self.schedule, self.rng, self.network, self.reactor, reader)

    def reactors(self) -> tuple[VirtualReactor]:
        """That of its process."""
        return (self.reactor,)

    def factories(self) -> tuple[Any]:
        """What has connections of clients."""
        return (self.service.connections.factory,)

    def left(self) -> dict[str, int]:
        """What else it has of clients."""
        service = self.service
        addresses: Any = service.connections.factory.per_address
        return {
            "addresses": len(addresses.open),
            "requests in line": len(service._line.pacer.requests),
        }

    def load(self) -> Any:
        """The configuration."""
        flags = {name: Flag(value, name) for name, value in self._values.items()}
        return load_config(None, {}, flags)

    def start(self) -> None:
        """Build and start it; the pools are made meanwhile."""
        self.schedule.running = self.reactor
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
        forget_service(self.service)
        for name in ("lock", "moves"):
            close_files(self._state / name)
        self._bury()

    def _bury(self) -> None:
        self.alive = False
        self.ended_s = self.schedule.now
        self.reactor.kill()
        for one in tuple(self.network.sockets.values()):
            if not (isinstance(one, ServerEnd) and one.is_movers):
                one.close()
        if self.network.kernel is not None:
            self.network.kernel.process_ended()
