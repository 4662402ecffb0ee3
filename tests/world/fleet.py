"""Several processes, on one machine or on several: one of them leads, the others serve.

Each is composed as `tidegate serve` composes it. The parent of a machine's processes, the thread
that asks the database who leads, and the connections between processes are the real ones on
strands and memory (`links.py`). The cluster's database is a SQLite file, with the world's clock.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from tidegate.server.accounts.accounts import Scope
from tidegate.server.app import run
from tidegate.server.app.config import Flag, LoadedConfig, load_config
from tidegate.server.app.listeners import OpenListener
from tidegate.server.app.machine import Machine
from tidegate.server.app.node_service import NodeService
from tidegate.server.app.service import Service
from tidegate.server.app.workers import LEADER, Child, Workers, _Running
from tidegate.server.store.database import Database, sqlite_url

from .life import FrontTurns, close_files, forget_service
from .links import LinkNetwork, ProcessReactor, Strand, sleep
from .schedule import ProcessEnded, Schedule, VirtualReactor
from .wire import ADMIN_PORT, FILES_PORT, Listener, MemoryNetwork, MemoryPort

#: A process needs so long to begin, and to end by a signal, at most.
_BEGINS_S, _SIGNAL_S = 0.3, 0.002
#: A machine that has stopped is started again after this time.
_AGAIN_S = 1.0
#: The number of the database among the machines.
DATABASE = -1


class Process:
    """One process. `service` is what it leads with, `node` what it serves with."""

    def __init__(self, parent: Parent, name: str, pid: int, reactor: ProcessReactor) -> None:
        self.parent, self.name, self.pid, self.reactor = parent, name, pid, reactor
        self.life: Any = None
        self.machine: Machine | None = None
        self.service: Service | None = None
        self.node: NodeService | None = None
        self.strands: list[Strand] = []
        #: Whether it was asked to stop.
        self.stopping = False


class Parent(Workers):
    """The parent of the processes of one machine: only forks, signals and waits are the world's."""

    def __init__(self, fleet: FleetLife, number: int) -> None:
        self.fleet, self.number = fleet, number
        loaded = fleet.load(number)
        nodes = [fleet.port(FILES_PORT) for _ in range(fleet.nodes)]
        self.admin = OpenListener("http://127.0.0.1:9000", [fleet.port(ADMIN_PORT)])  # type: ignore[list-item]
        files: Any = OpenListener("http://127.0.0.1:8080", nodes)  # type: ignore[arg-type]
        super().__init__(loaded, fleet.nodes, self._begin, [files])
        self.loaded = loaded
        self.signals: list[int] = []
        self.ended: list[tuple[int, int]] = []
        self.strand = Strand(fleet.schedule, self._life, lambda call, *words: call(*words))
        self.strand.start()

    def _life(self) -> None:
        self.run()
        self.close()
        self.fleet.machine_stopped(self.number)

    def _begin(self, child: Child) -> int:
        mine = None
        if child.name == LEADER:
            mine = replace(self.admin, sockets=[self.admin.sockets[0].dup()])
        return run._be_child(child, lambda: self.loaded, mine)

    def _fork(self, name: str) -> None:
        if name == LEADER:
            self._epoch += 1
        pid = self.fleet.fork(self, name)
        self._running[name] = _Running(pid, self.fleet.schedule.now)

    def be(self, name: str) -> int:
        """The child's side of a fork."""
        child = self._child(name)
        return self._begin(replace(child, sockets=[one.dup() for one in child.sockets]))

    def tell(self, number: int) -> None:
        """It gets a signal."""
        self.signals.append(number)
        self.strand.wake()

    def close(self) -> None:
        """Its descriptors are closed."""
        for one in (*self.admin.sockets, *(one for bound in self._sockets for one in bound)):
            one.close()
        for descriptor in (self._lifeline, self._hold, int(self._meeting.parts[-2])):
            os.close(descriptor)


class FleetLife:
    """All processes of all machines. `service` is that of the process that leads, or led last."""

    def __init__(
        self,
        schedule: Schedule,
        rng: random.Random,
        network: MemoryNetwork,
        root: Path,
        settings: Mapping[str, Any],
        machines: int,
        nodes: int,
        begins: Callable[[], None],
        dies: Callable[[], None],
        stopped: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self.schedule, self.rng, self.network, self.root = schedule, rng, network, root
        self.links = LinkNetwork(schedule, rng)
        self.nodes, self._settings = nodes, settings
        self.is_cluster = machines > 1
        self._begins, self._dies, self._stopped, self._note = begins, dies, stopped, note
        self._pids = itertools.count(100)
        self.processes: dict[int, Process] = {}
        self.machines: list[Parent | None] = [None] * machines
        self.leader: Process | None = None
        self.service: Service = None  # type: ignore[assignment]
        self.alive = True
        self.stopping = False
        self.ended_s = math.inf
        self._token: tuple[Service, str] | None = None

    # -- what the world asks --------------------------------------------------------------------

    @property
    def running(self) -> Process:
        """The process whose turn it is."""
        reactor = self.schedule.running
        return next(one for one in self.processes.values() if one.reactor is reactor)

    @property
    def leads(self) -> bool:
        """Whether a process leads, and is not stopping."""
        leader = self.leader
        return leader is not None and leader.reactor.alive and not leader.stopping

    @property
    def reactor(self) -> ProcessReactor:
        """That of the leader."""
        assert self.leader is not None
        return self.leader.reactor

    def reactors(self) -> Iterator[ProcessReactor]:
        """Those of all processes."""
        return (one.reactor for one in self.processes.values())

    def factories(self) -> Iterator[Any]:
        """What has connections of clients."""
        for one in self.processes.values():
            found = one.node or one.service
            if found is not None:
                yield found.connections.factory

    def left(self) -> dict[str, int]:
        """What its nodes have of clients."""
        nodes = [one.node for one in self.processes.values() if one.node is not None]
        return {"asked by nodes": sum(len(one.admission._asked) for one in nodes)}

    def operators_token(self) -> str:
        """An API token that may do everything."""
        if self._token is None or self._token[0] is not self.service:
            accounts = self.service.admin.open_accounts().accounts
            token, _ = accounts.issue_token("world", Scope, "admin", self.schedule.wall(), None)
            self._token = self.service, token
        return self._token[1]

    # -- machines -------------------------------------------------------------------------------

    def load(self, number: int) -> LoadedConfig:
        """The configuration of a machine."""
        state = self.root / f"machine-{number}"
        state.mkdir(mode=0o700, exist_ok=True)
        (state / "machine").write_text(f"machine-{number}\n")
        values = {
            "directory": str(self.root / "release"),
            "state": str(state),
            "admin": f"127.0.0.1:{ADMIN_PORT}",
            "workers": self.nodes,
            **self._settings,
        }
        if self.is_cluster:
            values["cluster"] = "postgresql://world"
            values["cluster_address"] = f"10.0.0.{number + 1}:7000"
        return load_config(None, {}, {name: Flag(value, name) for name, value in values.items()})

    def port(self, number: int) -> MemoryPort:
        """A listening socket."""
        found = MemoryPort(self.network, Listener(number))
        found.listen(1)
        return found

    def start(self) -> None:
        """Start all machines."""
        for number in range(len(self.machines)):
            self.start_machine(number)

    def start_machine(self, number: int) -> None:
        """Start one that does not run."""
        if self.alive and self.machines[number] is None:
            self._note(f"machine {number} starts")
            self.machines[number] = Parent(self, number)

    def stop_machine(self, number: int) -> None:
        """As SIGTERM does."""
        parent = self.machines[number]
        if parent is not None:
            parent.tell(signal.SIGTERM)

    def machine_stopped(self, number: int) -> None:
        """Its parent has ended; it is started again, as in an upgrade."""
        self._note(f"machine {number} has stopped")
        self.machines[number] = None
        self.schedule.after(_AGAIN_S, self.start_machine, number)

    def lose_machine(self, number: int) -> None:
        """Its power fails: nobody is told but its clients."""
        parent, self.machines[number] = self.machines[number], None
        if parent is not None:
            parent.strand.end()
            for process in [one for one in self.processes.values() if one.parent is parent]:
                self._bury(process, told=False)
            parent.close()

    def kill(self) -> None:
        """End everything."""
        self.alive = False
        for number in range(len(self.machines)):
            self.lose_machine(number)

    # -- processes ------------------------------------------------------------------------------

    def fork(self, parent: Parent, name: str) -> int:
        """A new process begins; its number."""
        pid = next(self._pids)
        reactor = ProcessReactor(self.links, parent.number, self._exited)
        reactor.on_reader = partial(FrontTurns, self.schedule, self.rng, self.network, reactor)
        self.processes[pid] = process = Process(parent, name, pid, reactor)
        delay_s = self.rng.random() * _BEGINS_S
        self.schedule.after(delay_s, reactor.turn, self._become, process)
        return pid

    def _become(self, process: Process) -> None:
        status = process.parent.be(process.name)
        if status:
            self._exited(process.reactor, status)

    def live(
        self,
        loaded: LoadedConfig,
        needs: object,
        child: Child,
        build: Callable[[Any], Any],
    ) -> list[str]:
        """Stands for `run._live`: the process begins, and goes on by its reactor."""
        process = self.running
        try:
            process.life = build(process.reactor)
            process.life.begin()
        except Exception as fault:  # noqa: BLE001 - as there
            return [run._told(fault)]
        return []

    def _exited(self, reactor: VirtualReactor | None, status: int) -> None:
        process = next((one for one in self.processes.values() if one.reactor is reactor), None)
        if process is None:
            return
        if process is self.leader and process.stopping:
            self._stopped()
        self._bury(process, told=True)
        process.parent.ended.append((process.pid, status))
        process.parent.tell(signal.SIGCHLD)

    def end_process(self, status: int) -> None:
        """Stands for `os._exit`. Code of a process that has ended may still call it."""
        self._exited(self.schedule.running, status)
        raise ProcessEnded

    def kill_process(self, process: Process) -> None:
        """As SIGKILL does."""
        self._exited_by(process, signal.SIGKILL)

    def _exited_by(self, process: Process, number: int) -> None:
        if process.pid in self.processes:
            self._bury(process, told=True)
            process.parent.ended.append((process.pid, -number))
            process.parent.tell(signal.SIGCHLD)

    def signal(self, pid: int, number: int) -> None:
        """Stands for `os.kill`."""
        process = self.processes.get(pid)
        if process is None:
            raise ProcessLookupError
        self.schedule.after(self.rng.random() * _SIGNAL_S, self._signalled, process, number)

    def _signalled(self, process: Process, number: int) -> None:
        if number == signal.SIGKILL or process.life is None:
            self._exited_by(process, number)
        elif number == signal.SIGTERM:
            process.stopping = True
            process.reactor.turn(process.life.terminate)

    def _bury(self, process: Process, *, told: bool) -> None:
        if process is self.leader:
            if self.alive and not process.stopping:
                self._dies()
            self.ended_s, self.stopping = self.schedule.now, process.stopping
            self.leader = None
        del self.processes[process.pid]
        if process.service is not None:
            forget_service(process.service)
        if process.machine is not None:
            process.machine._database.engine.dispose()
        if process.name == LEADER:
            close_files(Path(process.parent.loaded.config.state) / "lock")
        for strand in process.strands:
            strand.end()
        process.reactor.kill()
        self.links.died(process.reactor, told=told)
        for one in tuple(self.network.sockets.values()):
            if one.process is process.reactor:
                one.close()

    # -- what the modules of the server ask of the system ---------------------------------------

    def make_service(self, *words: Any, **named: Any) -> Service:
        """Stands for `Service`: it leads from now on."""
        process = self.running
        process.service = found = Service(*words, **named)
        self._begins()
        self.leader, self.service, self.stopping = process, found, False
        return found

    def make_machine(self, *words: Any, **named: Any) -> Machine:
        """Stands for `Machine`."""
        self.running.machine = found = Machine(*words, **named)
        return found

    def make_node(self, *words: Any, **named: Any) -> NodeService:
        """Stands for `NodeService`."""
        self.running.node = found = NodeService(*words, **named)
        return found

    def make_database(self, url: str, *, clustered: bool = False) -> Database:
        """The database of all machines, which some may not reach."""
        found = Database(sqlite_url(self.root / "cluster.db"), clustered=clustered)
        # A file that was never opened looks replaced, which no cluster's database can be.
        found.migrate()
        machine = self.running.reactor.machine

        def begins(*_: object) -> None:
            asks = self.schedule.running is not None
            if asks and not self.links.reaches(machine, DATABASE):
                away = Exception("the server closed the connection unexpectedly")
                raise OperationalError("BEGIN", {}, away)

        event.listen(found.engine, "begin", begins)
        return found

    def make_thread(self, target: Callable[[], None], **_: object) -> Strand:
        """Stands for `threading.Thread`."""
        process = self.running
        process.strands.append(Strand(self.schedule, target, process.reactor.turn))
        return process.strands[-1]

    def waits(self, signals: object, seconds: float) -> Any:
        """Stands for `signal.sigtimedwait`."""
        parent = self._parent
        if not parent.signals:
            sleep(seconds)
        return SimpleNamespace(si_signo=parent.signals.pop(0)) if parent.signals else None

    def reaps(self, pid: int, flags: int) -> tuple[int, int]:
        """Stands for `os.waitpid`."""
        return self._parent.ended.pop(0) if self._parent.ended else (0, 0)

    @property
    def _parent(self) -> Parent:
        mine = getcurrent()
        return next(one for one in self.machines if one is not None and one.strand is mine)
