"""One process of `tidegate serve`: reactor, signals, log lines, and the words on the screen."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import click
from twisted.internet import error
from twisted.internet.main import installReactor
from twisted.logger import (
    FileLogObserver,
    FilteringLogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    formatEvent,
    globalLogBeginner,
    textFileLogObserver,
)

from ...policies.registry import POLICIES
from ...protocol.units import format_rate, format_size
from ..gate.settings import absolute_place
from ..http.clock import Reactor
from .clock import ProcessClockReactor
from .config import CannotStart, ConfigError, LoadedConfig, start_fault
from .confinement import (
    Needs,
    become,
    confine,
    make_folders,
    needs_of,
    prepare,
    refuse_system_calls,
    user_to_become,
    writable,
)
from .log_bound import BoundedLines
from .settings import HANDED_OVER, ServerConfig

if TYPE_CHECKING:
    from ...policies.settings import PolicySettings
    from .listeners import OpenListener
    from .workers import Child


def run(loaded: LoadedConfig, load: Callable[[], LoadedConfig]) -> tuple[list[str], int]:
    """Serve until told to stop; what went wrong, and the exit status."""
    config, count = loaded.config, loaded.config.worker_count()
    alone = count == 1 and config.cluster is None
    from .listeners import handed_over, open_admin_early, open_early

    try:
        user = user_to_become(config.user)
        passed, passed_admin = handed_over(
            HANDED_OVER in config.listen, config.admin == HANDED_OVER
        )
        # Imported with the rights to write compiled files, which later starts then use. Children
        # share what is imported before they are forked.
        several = () if alone else ("node_service", "machine")
        for module in ("service", "start_checks", *several):
            importlib.import_module(f"tidegate.server.app.{module}")
        # No other user may read keys, queue and hashes of passwords.
        os.umask(0o077)
        if user is not None:
            make_folders(user, config)
        opened = list(open_early(config, passed, count))
        admin = open_admin_early(config, passed_admin)
        if user is not None:
            become(user)
        from .start_checks import start_faults

        faults = start_faults(loaded)
        if faults:
            return faults, 1
    except CannotStart as fault:
        return [str(fault)], 1
    if alone:
        return _serve(loaded, load, opened=opened, admin=admin)
    from .workers import Workers

    try:
        if loaded.config.cluster is not None:
            from .shared import machine_name

            # Before there are several processes that could each make one.
            prepare(loaded.config)
            machine_name(loaded.config.state)
        workers = Workers(loaded, count, lambda child: _be_child(child, load, admin), opened)
    except Exception as fault:  # noqa: BLE001 - `_told` tells faults of ours apart
        return [_told(fault)], 1
    return [], workers.run()


def _be_child(child: Child, load: Callable[[], LoadedConfig], admin: OpenListener | None) -> int:
    """The life of one process of several; its exit status."""
    from .workers import LEADER, ExitStatus

    status: int
    try:
        loaded = load()
    except ConfigError as fault:
        faults, status = fault.faults, ExitStatus.CANNOT
    else:
        if child.name == LEADER and loaded.config.cluster is not None:
            faults, status = _serve_machine(loaded, load, child, admin)
        elif child.name == LEADER:
            faults, status = _serve(loaded, load, child, admin=admin)
        else:
            if admin is not None:
                # A process that parses requests of clients must not have it.
                admin.sockets[0].close()
            faults, status = _serve_node(loaded, load, child)
    for text in faults:
        click.echo(f"tidegate: {text}", err=True)
    return ExitStatus.CANNOT if faults else status


def _serve(
    loaded: LoadedConfig,
    load: Callable[[], LoadedConfig],
    child: Child | None = None,
    opened: Sequence[OpenListener] = (),
    admin: OpenListener | None = None,
) -> tuple[list[str], int]:
    """Run the process that has the queue and serves, alone or by nodes."""
    from .service import Service

    service: Service | None = None

    def build(reactor: Reactor) -> _Life:
        nonlocal service
        service = Service(
            loaded, reactor, child.fleet if child is not None else None, opened, admin
        )
        again = child is not None and child.fleet.epoch > 1
        supervisor = _Supervisor(service, reactor, load, again)
        return _Life(
            supervisor.begin,
            supervisor.terminate,
            supervisor.reload,
            service.connections.reopen_log,
            supervisor.stop,
        )

    faults = _live(loaded, needs_of(loaded.config, several=child is not None), child, build)
    if service is not None and (service.hung or faults):
        # A thread waits for a database that does not answer, or was never told to end. Python
        # would wait for it.
        for text in faults:
            click.echo(f"tidegate: {text}", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        if child is None or not faults:
            os._exit(1)
        from .workers import ExitStatus

        os._exit(ExitStatus.CANNOT)
    return faults, 1 if faults else 0


def _serve_machine(
    loaded: LoadedConfig,
    load: Callable[[], LoadedConfig],
    child: Child,
    admin: OpenListener | None,
) -> tuple[list[str], int]:
    """Run the process of a machine that follows the cluster's leader, or leads."""
    from .machine import Machine
    from .service import Service

    def build(reactor: Reactor) -> _Life:
        machine = Machine(
            loaded,
            reactor,
            child.fleet,
            lambda fleet: Service(loaded, reactor, fleet, admin=admin),
            introduction,
            campaigns=child.campaigns,
            again=child.fleet.epoch > 1,
            admin=admin,
        )

        def reload() -> None:
            with contextlib.suppress(ConfigError):
                machine.reload(load())

        # Only nodes write an access log.
        return _Life(machine.begin, machine.terminate, reload, lambda: None, reactor.stop)

    faults = _live(loaded, needs_of(loaded.config, several=True), child, build)
    return faults, 1 if faults else 0


def _serve_node(
    loaded: LoadedConfig, load: Callable[[], LoadedConfig], child: Child
) -> tuple[list[str], int]:
    """Run a node, which asks its leader."""
    from .node_service import NodeService

    def build(reactor: Reactor) -> _Life:
        stopping = False

        def stop() -> None:
            nonlocal stopping
            if not stopping:
                stopping = True
                _stop(node, reactor)

        def terminate() -> None:
            # The leader of one machine drains for all, and says when they may stop.
            if loaded.config.cluster is not None:
                node.drain(stop)
            else:
                stop()

        def reload() -> None:
            with contextlib.suppress(ConfigError):  # the leader tells of it
                node.reload(load().config)

        node = NodeService(loaded, reactor, child.fleet, child.name, child.sockets)
        return _Life(node.start, terminate, reload, node.connections.reopen_log, stop)

    faults = _live(loaded, needs_of(loaded.config, several=True, asks=True), child, build)
    return faults, 1 if faults else 0


def _reactor(loaded: LoadedConfig, needs: Needs | None) -> Any:
    """This process's reactor; log lines go to standard error from now on."""
    with contextlib.suppress(error.ReactorAlreadyInstalledError):
        installReactor(ProcessClockReactor())  # type: ignore[no-untyped-call]
    from twisted.internet import reactor as installed

    reactor: Reactor = installed
    level: Any = LogLevelFilterPredicate(defaultLogLevel=LogLevel.info)
    for namespace in ("twisted", "log_legacy"):
        level.setLogLevelForNamespace(namespace, LogLevel.warn)
    as_json = loaded.config.log_format == "json"
    lines: Any = (
        FileLogObserver(sys.stderr, json_line) if as_json else textFileLogObserver(sys.stderr)
    )
    bounded: Any = BoundedLines(lines, time.monotonic)
    observer: Any = FilteringLogObserver(bounded, [level])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    if needs is not None:
        prepare(loaded.config)
        if not confine(writable(loaded.config), needs):
            Logger().info("This kernel has no Landlock: files are protected by their modes alone.")
    return reactor


@dataclass(frozen=True, slots=True)
class _Life:
    """What a process does at its start, at each signal, and when it could not start."""

    begin: Callable[[], None]
    terminate: Callable[[], None]
    reload: Callable[[], None]
    reopen_logs: Callable[[], None]
    stop: Callable[[], object]


def _live(
    loaded: LoadedConfig,
    needs: Needs | None,
    child: Child | None,
    build: Callable[[Reactor], _Life],
) -> list[str]:
    """Run a process until its reactor is stopped; why it could not start.

    It answers signals, and the end of the parent. A confined process gives up system calls once it
    has begun.
    """
    reactor = _reactor(loaded, needs)
    try:
        life = build(reactor)
    except Exception as fault:  # noqa: BLE001 - `_told` tells faults of ours apart
        return [_told(fault)]
    faults: list[str] = []

    def begin() -> None:
        try:
            life.begin()
        except Exception as fault:  # noqa: BLE001 - `_told` tells faults of ours apart
            faults.append(_told(fault))
            life.stop()

    # Requests leave no garbage in cycles, and a full collection delays all clients: collect rarely.
    gc.set_threshold(20_000, 20, 20)
    reactor.callWhenRunning(begin)
    if needs is not None:
        reactor.callWhenRunning(lambda: _give_up(needs))
    actions = [
        (signal.SIGTERM, life.terminate),
        (signal.SIGHUP, life.reload),
        (signal.SIGUSR1, life.reopen_logs),
    ]
    if child is None:
        actions.append((signal.SIGINT, life.terminate))
    else:
        reactor.addReader(_Lifeline(child.lifeline, reactor, life.terminate))
    for number, action in actions:
        signal.signal(number, lambda *_, act=action: reactor.callFromThread(act))
    reactor.run(installSignalHandlers=False)
    return faults


def _give_up(needs: Needs) -> None:
    if not refuse_system_calls(needs):
        Logger().info("This machine has no filter of system calls: all of them are open.")


def _told(fault: Exception) -> str:
    """The sentence for a server that could not start; faults of our code are logged."""
    text = start_fault(fault)
    if text is None:
        Logger().failure("The server could not start")
        text = "The server failed while it started; its log says where."
    return text


def _stop(service: Any, reactor: Reactor) -> None:
    from twisted.internet.defer import Deferred

    Deferred.fromCoroutine(service.stop()).addBoth(lambda _: reactor.stop())


class _Lifeline:
    """A pipe whose other end the parent holds: it ends when the parent does."""

    def __init__(self, descriptor: int, reactor: Reactor, ended: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._reactor = reactor
        self._ended = ended

    def fileno(self) -> int:
        return self._descriptor

    def doRead(self) -> None:
        """The parent ended: it never writes."""
        self._reactor.removeReader(self)
        self._ended()

    def connectionLost(self, reason: Any) -> None:
        """The parent ended, or the reactor stops; then the call has no effect."""
        self._reactor.removeReader(self)
        self._ended()

    def logPrefix(self) -> str:
        return "lifeline"


def json_line(event: Any) -> str:
    """One log event as a line of JSON; a failure's traceback has no values of variables."""
    level, failure = event.get("log_level"), event.get("log_failure")
    line = {
        "time": round(event.get("log_time", 0.0), 3),
        "level": level.name if level is not None else "info",
        "source": event.get("log_namespace", ""),
        "text": formatEvent(event),
    }
    if failure is not None:
        line["traceback"] = failure.getTraceback()
    return json.dumps(line) + "\n"


class _Supervisor:
    """Answers signals."""

    def __init__(
        self,
        service: Any,
        reactor: Reactor,
        load: Callable[[], LoadedConfig],
        again: bool,
    ) -> None:
        self._service = service
        self._reactor = reactor
        self._load = load
        self._again = again
        self._stopping = False

    def begin(self) -> None:
        """Open the listeners and say so."""
        self._service.start(self._introduce)
        # The objects built so far live as long as the server: exclude them from collections.
        gc.collect()
        gc.freeze()

    def _introduce(self, urls: list[str]) -> None:
        """Say what is served where, once it is."""
        if self._again:
            self._service.log.info("The queue is back.")
            return
        for line in introduction(self._service, urls):
            click.echo(line)
        for line in self._service.admin.introduction():
            click.echo(line)
        for url in urls:
            click.echo(f"ready {url}")
        sys.stdout.flush()

    def terminate(self) -> None:
        """First signal: drain. Second: stop now."""
        if self._service.draining:
            self.stop()
        else:
            self._service.drain(self.stop)

    def reload(self) -> None:
        """Read the configuration again; a bad one changes nothing."""
        log = self._service.log
        try:
            loaded = self._load()
        except ConfigError as fault:
            for text in fault.faults:
                log.error("Not reloaded, the old configuration goes on: {fault}", fault=text)
            self._service.note_event("config", f"Not reloaded: {fault}", "error")
            return
        for name in self._service.reload(loaded.config):
            log.warn("{name} has changed: it takes effect at the next start.", name=name)
        log.info("The configuration was read again.")

    def stop(self) -> None:
        """Close everything, once."""
        if self._stopping:
            return
        self._stopping = True
        _stop(self._service, self._reactor)


def introduction(service: Any, urls: list[str]) -> list[str]:
    """What is served, under which policy, and the command to download it."""
    config, gate = service.config, service.gate
    name = gate.policy.name
    lines = [
        f"Serving   {config.gate.origin or config.directory}",
        f"Policy    {name}: {POLICIES[name].summary}",
        *(f"          {text}" for text in _limits(name, gate.settings, config)),
    ]
    if service.nodes is not None:
        lines.append(f"Nodes     {len(service.nodes)} processes serve, and one has the queue")
    if service.movers is not None:
        lines += [f"Gate      {url}" for url in urls]
        lines.append(f"Reports   {service.movers.place}")
        files, apart = f"--root {config.directory.absolute()}", "--part http"
        if config.gate.origin:
            files = f"--if-absent closed --origin {config.gate.origin}"
            apart = f"--origin {config.gate.origin} --part http"
        gate = f"--gate {absolute_place(config.listen[0])}"
        snippet = f"{_program()} gate snippet nginx"
        lines.append(f"Next      {snippet} {apart} {gate}")
        if config.gate.report:
            gate += f" --report {absolute_place(config.gate.report)}"
        lines.append(f"          {snippet} {files} {gate}")
        return lines
    lines += [f"Files     {url}/" for url in urls]
    example = _example(service)
    if example is not None:
        lines.append(f"Next      {_next_command(urls[0], example)}")
    return lines


def _limits(name: str, settings: PolicySettings, config: ServerConfig) -> list[str]:
    """What limits downloads: the line under some policies, slots under others."""
    size = format_size(settings.small_below_bytes)
    cap = f"at most {format_rate(config.bandwidth)}" if config.bandwidth else ""
    if POLICIES[name].link_bound:
        found = "What the line carries is found by measuring"
        texts = [f"The line: {cap}" if config.gate.enabled else f"{found}, {cap}".rstrip(", ")]
        return [*texts, f"Files below {size} wait for no larger one"]
    keeps = name != "fcfs" and settings.reserve_small > 0
    small = f", {settings.reserve_small} of them only for files below {size}" if keeps else ""
    slots = "1 slot" if settings.slots == 1 else f"{settings.slots} slots"
    texts = [f"{slots}{small}", *([f"The line: {cap}"] if cap else [])]
    remedy = "" if config.gate.enabled else ": use fair for a public address"
    return [*texts, f"Does not bound what one network takes{remedy}"]


def _next_command(url: str, example: str) -> str:
    """The command that downloads the example."""
    if url.startswith("http+unix://"):
        path = unquote(url.removeprefix("http+unix://"))
        return f"curl --unix-socket {path} -O http://localhost{example}"
    for everywhere in ("//0.0.0.0:", "//[::]:"):
        url = url.replace(everywhere, f"//{socket.gethostname()}:")
    return f"{_program()} get {url}{example}"


def _program() -> str:
    """How a shell in the present folder calls this program."""
    if shutil.which("tidegate") is not None:
        return "tidegate"
    called = Path(sys.argv[0])
    if called.name != "tidegate":
        return f"{sys.executable} -m tidegate"
    with contextlib.suppress(ValueError):
        called = called.absolute().relative_to(Path.cwd())
    return str(called)


def _example(service: Any) -> str | None:
    """The URL path of the largest file at the top of the tree that a visitor may have."""
    from ..files.paths import url_of
    from ..files.tree import NotHere

    try:
        entries = [entry for entry in service.tree.entries([]) if not entry.is_directory]
    except NotHere:
        return None
    seen = service.gate.reception
    urls = [url_of(entry.name) for entry in sorted(entries, key=lambda one: -one.size_bytes)]
    return next((url for url in urls if not (seen.hidden(url) or seen.secret(url))), None)
