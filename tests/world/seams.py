"""What the modules of the server ask of the system, answered by the world while one runs.

The server's own code is the installed one: only names of the system (`select.epoll`, `os.sendfile`,
`time.time`, thread pools, secrets) stand for others in the modules that use them.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import importlib
import os
import random
import secrets
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyotp
from argon2 import PasswordHasher
from sqlalchemy import Float, literal
from twisted.protocols import tls

from tidegate.server.accounts import stored
from tidegate.server.accounts.hash_process import kept_hash
from tidegate.server.admin.render import make_pages
from tidegate.server.app import (
    admin_service,
    machine,
    meeting,
    node_service,
    run,
    service,
    state_room,
    workers,
)
from tidegate.server.cluster import election
from tidegate.server.control import metrics, server
from tidegate.server.files import digests, disk, folder_watch, sender
from tidegate.server.http import factory, front, outbox
from tidegate.server.store import cluster

from .groups import put_groups
from .links import Event, LinkEndpoint
from .mover import put_mover
from .secure import MemoryTls, put_tls
from .wire import MemoryEpoll, MemoryNetwork, ServerEnd

if TYPE_CHECKING:
    from .fleet import FleetLife
    from .mover import Kernel

# Loaded before the first world, or that one alone would draw what they draw as they are loaded.
importlib.import_module("tidegate.server.admin.site")
make_pages()


class KeptOrder(dict[Any, None]):
    """A set that is walked in the order in which it was filled: the same in each run."""

    def add(self, one: Any) -> None:
        """See `set`."""
        self[one] = None

    def discard(self, one: Any) -> None:
        """See `set`."""
        self.pop(one, None)

    def remove(self, one: Any) -> None:
        """See `set`."""
        del self[one]


class _Poll:
    """`select.poll`, as far as `front` asks whether a socket is broken."""

    def __init__(self, network: Callable[[], MemoryNetwork]) -> None:
        self._network = network
        self._fd = -1

    def register(self, fd: int, events: int) -> None:
        self._fd = fd

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        one = self._network().sockets.get(self._fd)
        broken = select.EPOLLERR | select.EPOLLHUP
        return [(self._fd, broken)] if one is not None and one.events() & broken else []


class Secrets:
    """`secrets`, drawn by the seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.choice = rng.choice
        self.randbits = rng.getrandbits

    def token_bytes(self, count: int = 32) -> bytes:
        """See `secrets`."""
        return self._rng.randbytes(count)

    def token_hex(self, count: int = 32) -> str:
        """See `secrets`."""
        return self.token_bytes(count).hex()

    def token_urlsafe(self, count: int = 32) -> str:
        """See `secrets`."""
        return base64.urlsafe_b64encode(self.token_bytes(count)).rstrip(b"=").decode()


@contextlib.contextmanager
def in_world(
    rng: random.Random,
    wall: Callable[[], float],
    monotonic: Callable[[], float],
    network: Callable[[], MemoryNetwork],
    pool: Callable[[int, str], Any],
    fleet: Callable[[], FleetLife],
    kernel: Callable[[], Kernel],
) -> Iterator[None]:
    """Have the server's modules ask the world instead of the system."""

    def sendfile(out: int, file: int, offset: int, count: int) -> int:
        end: ServerEnd = network().sockets[out]
        return end.send(os.pread(file, min(count, end.room_for_file()), offset))

    def ioctl(one: Any, request: int, argument: Any) -> Any:
        if isinstance(one, ServerEnd | MemoryTls):
            argument[0] = one.queued_bytes()
            return 0
        return fcntl.ioctl(one, request, argument)

    def make_pool(least: int, most: int, name: str) -> Any:
        return pool(most, name)

    drawn = Secrets(rng)
    epoll_names = {name: getattr(select, name) for name in dir(select) if name.startswith("EPOLL")}
    with contextlib.ExitStack() as stack:

        def put(place: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(place, name, value))

        put(time, "time", wall)
        put(time, "monotonic", monotonic)
        for name in ("choice", "randbits", "token_bytes", "token_hex", "token_urlsafe"):
            put(secrets, name, getattr(drawn, name))
        # `pyotp` draws from the system by itself.
        put(pyotp, "random", drawn)
        put(sender, "os", SimpleNamespace(sendfile=sendfile))
        # An epoll of the world knows no descriptors of the system.
        put(folder_watch, "_libc", SimpleNamespace(inotify_init1=lambda flags: -1))
        put(outbox, "fcntl", SimpleNamespace(ioctl=ioctl))
        # Its threads work in line: the process of the tests would stand behind all others for ever.
        put(digests, "_stand_behind_others", lambda: None)
        put(front, "_accept", lambda port: port.socket.accept())
        put(
            front,
            "select",
            SimpleNamespace(
                epoll=lambda: MemoryEpoll(network()), poll=lambda: _Poll(network), **epoll_names
            ),
        )
        for module in (service, node_service):
            drawn_random = SimpleNamespace(Random=lambda: random.Random(rng.getrandbits(64)))
            put(module, "random", drawn_random)
        for module in (state_room, admin_service, digests, disk):
            put(module, "ThreadPool", make_pool)
        put(server, "descriptors_part", lambda: 0.01)
        # Its memory and CPU time are never the same twice.
        put(metrics, "ProcessCollector", lambda registry: None)
        # A hash of a password costs as much as a whole world.
        quick = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
        put(stored, "password_hasher", lambda: quick)
        put(stored, "kept_hash_apart", kept_hash)
        defaults = dict(factory.HttpFactory.__init__.__kwdefaults__ or {}, wall=wall)
        put(factory.HttpFactory.__init__, "__kwdefaults__", defaults)
        _put_fleet(put, wall, fleet)
        put_groups(put, lambda: network().groups)
        put_mover(put, kernel)
        put_tls(put)
        yield


def _put_fleet(
    put: Callable[[Any, str, Any], None], wall: Callable[[], float], fleet: Callable[[], FleetLife]
) -> None:
    """Have processes, their connections and their parents in the world."""

    def other(module: Any, **names: Any) -> Any:
        """The names of a module, some of them others."""
        return SimpleNamespace(**{**vars(module), **names})

    def getpid() -> int:
        return fleet().running.pid

    def end(status: int) -> None:
        fleet().end_process(status)

    def lives(*words: Any) -> list[str]:
        return fleet().live(*words)

    silent = SimpleNamespace(echo=lambda text, err=False: None)
    idle = SimpleNamespace(
        **{name: lambda: None for name in ("collect", "freeze", "disable", "enable")}
    )
    put(run, "_live", lives)
    put(run, "os", other(os, _exit=end))
    put(run, "gc", idle)
    put(run, "click", silent)
    put(service, "Service", lambda *words, **named: fleet().make_service(*words, **named))
    put(machine, "Machine", lambda *words, **named: fleet().make_machine(*words, **named))
    put(node_service, "NodeService", lambda *words, **named: fleet().make_node(*words, **named))
    put(machine, "Database", lambda *words, **named: fleet().make_database(*words, **named))
    put(machine, "os", other(os, _exit=end, getpid=getpid))
    put(machine, "gc", idle)
    put(machine, "click", silent)
    # The database needs no network here.
    put(machine, "warn_unverified", lambda url: None)
    put(node_service, "os", other(os, getpid=getpid))
    put(node_service, "UNIXClientEndpoint", LinkEndpoint)
    put(meeting, "UNIXClientEndpoint", LinkEndpoint)
    put(meeting, "HostnameEndpoint", LinkEndpoint)
    make_thread = SimpleNamespace(
        Lock=threading.Lock,
        Event=Event,
        Thread=lambda **named: fleet().make_thread(**named),
    )
    put(election, "threading", make_thread)
    put(tls, "_get_default_clock", lambda: fleet().running.reactor)
    # The clock of the database.
    put(cluster, "_clock", lambda now_s: literal(wall() if now_s is None else now_s, Float))
    put(workers, "gc", idle)
    put(workers, "click", silent)
    put(
        workers,
        "os",
        other(
            os,
            kill=lambda pid, number: fleet().signal(pid, number),
            waitpid=lambda pid, flags: fleet().reaps(pid, flags),
            waitstatus_to_exitcode=lambda status: status,
        ),
    )
    put(
        workers,
        "signal",
        other(
            signal,
            pthread_sigmask=lambda how, which: None,
            sigtimedwait=lambda which, seconds: fleet().waits(which, seconds),
        ),
    )
