"""One process of `tidegate serve`: reactor, signals, log lines, and the words on the screen."""

from __future__ import annotations

import contextlib
import gc
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click
from twisted.internet import epollreactor, error
from twisted.logger import (
    FilteringLogObserver,
    LogLevel,
    LogLevelFilterPredicate,
    globalLogBeginner,
    textFileLogObserver,
)

from protocol.units import format_rate, format_size
from server.config import ConfigError, LoadedConfig

_POLICIES = {
    "fcfs": "whoever asks while a slot is free starts; all others come back",
    "reserve": "as first come, first served, but small files have slots of their own",
    "ticket": "large downloads get a numbered ticket and start in that order; small files have "
    "slots of their own",
    "fair": "the shortest download runs first, and the link is always full",
    "adaptive": "plain while it is quiet, tickets in a rush; slots follow the link",
}


def run(loaded: LoadedConfig, load: Callable[[], LoadedConfig]) -> tuple[list[str], int]:
    """Serve until told to stop; what went wrong, and the exit status."""
    install: Callable[[], None] = epollreactor.install
    with contextlib.suppress(error.ReactorAlreadyInstalledError):
        install()
    from twisted.internet import reactor as installed

    from server.keys import KeysUnreadable
    from server.listeners import CannotListen
    from server.opening import CannotServe
    from server.service import Service
    from server.statelock import StateTaken

    reactor: Any = installed
    level: Any = LogLevelFilterPredicate(defaultLogLevel=LogLevel.info)
    for namespace in ("twisted", "log_legacy"):
        level.setLogLevelForNamespace(namespace, LogLevel.warn)
    lines: Any = textFileLogObserver(sys.stderr)
    observer: Any = FilteringLogObserver(lines, [level])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    try:
        service = Service(loaded, reactor)
    except (CannotServe, CannotListen, KeysUnreadable, StateTaken, OSError) as fault:
        return [str(fault)], 1
    faults: list[str] = []
    supervisor = _Supervisor(service, reactor, load, faults)
    reactor.callWhenRunning(supervisor.begin)
    for number, action in (
        (signal.SIGTERM, supervisor.terminate),
        (signal.SIGINT, supervisor.terminate),
        (signal.SIGHUP, supervisor.reload),
    ):
        signal.signal(number, lambda *_, act=action: reactor.callFromThread(act))
    reactor.run(installSignalHandlers=False)
    return faults, 1 if faults else 0


class _Supervisor:
    """Answers signals."""

    def __init__(
        self, service: Any, reactor: Any, load: Callable[[], LoadedConfig], faults: list[str]
    ) -> None:
        self._service = service
        self._reactor = reactor
        self._load = load
        self._faults = faults
        self._stopping = False

    def begin(self) -> None:
        """Open the listeners and say so."""
        from server.listeners import CannotListen

        try:
            urls = self._service.start()
            # What was built so far lives as long as the server: spare the collector the walk.
            gc.collect()
            gc.freeze()
        except CannotListen as fault:
            self._faults.append(str(fault))
            self._stop()
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
            self._stop()
        else:
            self._service.drain(self._stop)

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
        for name in self._service.reload(loaded):
            log.warn("{name} has changed: it takes effect at the next start.", name=name)
        log.info("The configuration was read again.")

    def _stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        from twisted.internet.defer import Deferred

        stopped = Deferred.fromCoroutine(self._service.stop())
        stopped.addErrback(lambda failure: self._service.log.failure("Stopping", failure=failure))
        stopped.addBoth(lambda _: self._reactor.stop())


def introduction(service: Any, urls: list[str]) -> list[str]:
    """What is served, under which policy, and what the other person types."""
    config, gate = service.config, service.gate
    settings = gate.settings
    cap = f", at most {format_rate(config.bandwidth)}" if config.bandwidth else ""
    name = gate.policy.name
    small = f"{settings.reserve_small} of them only for files below "
    small += format_size(settings.small_below_bytes)
    reserved = f", {small}" if name != "fcfs" and settings.reserve_small else ""
    lines = [
        f"Serving   {config.directory}{cap}",
        f"Policy    {name}: {_POLICIES.get(name, name)}",
        f"          {settings.slots} slots{reserved}",
    ]
    lines += [f"Files     {url}/" for url in urls]
    example = _example(service)
    if example is not None:
        lines.append(f"Next      {_next_command(urls[0], example)}")
    return lines


def _next_command(url: str, example: str) -> str:
    """What the other person types."""
    if url.startswith("http+unix://"):
        path = unquote(url.removeprefix("http+unix://"))
        return f"curl --unix-socket {path} -O http://localhost{example}"
    for everywhere in ("//0.0.0.0:", "//[::]:"):
        url = url.replace(everywhere, f"//{socket.gethostname()}:")
    return f"{_program()} get {url}{example}"


def _program() -> str:
    """How this program is called in a shell that stands where the server was started."""
    if shutil.which("tidegate") is not None:
        return "tidegate"
    called = Path(sys.argv[0])
    if called.name != "tidegate":
        return f"{sys.executable} -m tidegate"
    with contextlib.suppress(ValueError):
        called = called.absolute().relative_to(Path.cwd())
    return str(called)


def _example(service: Any) -> str | None:
    """The URL path of the largest file at the top of the tree."""
    from server.files import NotHere
    from server.paths import url_of

    try:
        entries = [entry for entry in service.tree.entries([]) if not entry.is_directory]
    except NotHere:
        return None
    if not entries:
        return None
    largest = max(entries, key=lambda entry: entry.size_bytes)
    return url_of(largest.name)
