"""`tidegate serve --workers`: the parent process, which starts and restarts the others.

The parent keeps the listening sockets open, so that no connection is refused while a child
restarts. One child is the leader with the queue and the admin page; the others are nodes, which
serve. The kernel spreads connections over the nodes (SO_REUSEPORT). Children are forks and share
the loaded modules.
"""

from __future__ import annotations

import contextlib
import enum
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from ..cluster.common_memory import CommonMemory
from .config import LoadedConfig
from .fleet import FleetPlan
from .listeners import OpenListener

_PASSED_ON = frozenset({signal.SIGHUP, signal.SIGUSR1})
_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}) | _PASSED_ON
LEADER = "leader"


class ExitStatus(enum.IntEnum):
    """How a child ends, where its parent does not just start it again."""

    #: A former leader: its successor begins as a follower.
    RETIRED = 75
    #: It cannot start: a restart would not help.
    CANNOT = 78


@dataclass(frozen=True, slots=True)
class Child:
    """The role of a child. `lifeline` reads end of file when the parent has ended.

    A machine that stops no longer `campaigns` in its cluster.
    """

    name: str
    fleet: FleetPlan
    sockets: list[socket.socket]
    lifeline: int
    campaigns: bool = True


@dataclass(slots=True)
class _Running:
    pid: int
    since_s: float


class Workers:
    """The parent of `count` nodes and their leader; `be` turns a fork into a child.

    `opened` is where they listen.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        count: int,
        be: Callable[[Child], int],
        opened: Sequence[OpenListener],
    ) -> None:
        self._clustered = loaded.config.cluster is not None
        #: Nodes that were told to stop are killed after this time. Those of a cluster finish their
        #: downloads; on a single machine the leader has waited for that.
        self._last_s = 5.0 + (loaded.config.drain_s if self._clustered else 0.0)
        self._count = count
        self._be = be
        self._running: dict[str, _Running] = {}
        self._due: dict[str, float] = {}
        self._young: dict[str, int] = {}
        self._epoch = 0
        self._stopping_since_s: float | None = None
        self._terminating = False
        #: Whether the leader of the stop ends by itself.
        self._hands_over = True
        self._failed = False
        state = loaded.config.state
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The path of a socket has at most 107 bytes: name its folder by a descriptor.
        folder = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
        self._meeting = Path(f"/proc/self/fd/{folder}/queue.sock")
        self._sockets: list[list[socket.socket]] = [[] for _ in range(count)]
        for place in opened:
            for mine, one in zip(self._sockets, place.sockets, strict=True):
                mine.append(one)
        self._urls = tuple(place.url for place in opened)
        self._lifeline, self._hold = os.pipe()
        #: A row for each node, and the leader's.
        self._memory = CommonMemory(count + 1)

    def run(self) -> int:
        """Start all, and go on until told to stop; the exit status."""
        gc.collect()
        gc.freeze()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for name in (LEADER, *self._node_names()):
            self._fork(name)
        while self._running or self._due:
            self._await_signal()
            self._reap()
            now = time.monotonic()
            for name in [one for one, at_s in self._due.items() if at_s <= now]:
                del self._due[name]
                self._fork(name)
        return 1 if self._failed else 0

    def _node_names(self) -> list[str]:
        return [f"node-{index}" for index in range(self._count)]

    # -- signals -----------------------------------------------------------------------------

    def _await_signal(self) -> None:
        now = time.monotonic()
        until = [at - now for at in self._due.values()]
        if self._stopping_since_s is not None:
            until.append(self._stopping_since_s + self._last_s - now)
        got = signal.sigtimedwait(_SIGNALS, max(0.0, min(until, default=60.0)))
        if got is None:
            if self._stopping_since_s is not None and now >= self._stopping_since_s + self._last_s:
                self._send_all(signal.SIGKILL)
                self._stopping_since_s = now
        elif got.si_signo in (signal.SIGTERM, signal.SIGINT):
            self._terminate()
        elif got.si_signo in _PASSED_ON:
            self._send_all(signal.Signals(got.si_signo))

    def _terminate(self) -> None:
        """The leader drains; the nodes go on until it says that all is finished.

        In a cluster another machine leads on, and the nodes finish what they send.
        """
        self._terminating = True
        self._due.clear()
        leader = None if self._clustered else self._running.get(LEADER)
        if leader is not None:
            os.kill(leader.pid, signal.SIGTERM)
        else:
            self._stop_nodes()

    def _stop_nodes(self) -> None:
        if self._stopping_since_s is None:
            self._stopping_since_s = time.monotonic()
        self._due.clear()
        for bound in self._sockets:
            for one in bound:
                one.close()
        self._send_all(signal.SIGTERM)

    def _send_all(self, number: signal.Signals) -> None:
        for child in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, number)

    # -- children ----------------------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for name, child in tuple(self._running.items()):
                if child.pid == pid:
                    del self._running[name]
                    self._ended(name, child, os.waitstatus_to_exitcode(status))

    def _ended(self, name: str, child: _Running, status: int) -> None:
        if self._stopping_since_s is not None:
            if self._clustered:
                self._end_with_nodes(name)
            return
        if self._clustered and name == LEADER and status in (0, ExitStatus.RETIRED):
            self._due[name] = time.monotonic()
            return
        if name == LEADER and (status == 0 or self._terminating):
            self._stop_nodes()
            return
        if status == ExitStatus.CANNOT and self._epoch <= 1:
            # No client has been served yet, and one child is missing.
            self._failed = True
            self._stop_nodes()
            return
        if self._terminating:
            return
        now = time.monotonic()
        young = now - child.since_s < 3.0
        self._young[name] = self._young.get(name, 0) + 1 if young else 0
        # One early end may be chance, and clients wait. Repeated ends are a fault: pause.
        self._due[name] = now + (1.0 if self._young[name] > 1 else 0.0)
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        click.echo(f"tidegate: {name} {how}; it is started again.", err=True)

    def _end_with_nodes(self, name: str) -> None:
        """While a machine stops, its nodes need the leader's place until their downloads end."""
        if self._running.keys() - {LEADER}:
            if name == LEADER:
                self._due[name] = time.monotonic()
                self._hands_over = False
            return
        self._due.clear()
        leader = self._running.get(LEADER)
        if leader is not None and not self._hands_over:
            os.kill(leader.pid, signal.SIGTERM)

    def _fork(self, name: str) -> None:
        if name == LEADER:
            self._epoch += 1
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become(name)
        self._running[name] = _Running(pid, time.monotonic())

    def _child(self, name: str) -> Child:
        names = self._node_names()
        row = names.index(name) if name != LEADER else self._count
        fleet = FleetPlan(
            frozenset(names), self._urls, self._meeting, self._epoch, self._memory, row
        )
        sockets = self._sockets[row] if name != LEADER else []
        return Child(name, fleet, sockets, self._lifeline, self._stopping_since_s is None)

    def _become(self, name: str) -> NoReturn:
        """The child's side of a fork."""
        status = 1
        try:
            os.close(self._hold)
            # Ctrl-C reaches the whole group; the parent tells the children what to do.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            child = self._child(name)
            for bound in self._sockets:
                if bound is not child.sockets:
                    for one in bound:
                        one.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            status = self._be(child)
        except BaseException:  # noqa: BLE001 - the last words of a fork
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
