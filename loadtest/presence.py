"""Asks the server once before a headless run, so that a wrong address is told at once."""

from __future__ import annotations

import sys
import time
from typing import Any

import gevent
from locust import events
from locust.env import Environment
from locust.runners import WorkerRunner

from .catalogue import CATALOGUE
from .probe import ServerProbe

#: A server that is just being started is waited for this long.
PATIENCE_S = 10.0
PAUSE_S = 0.5


def why_not(host: str, patience_s: float = PATIENCE_S, ca: str | None = None) -> str | None:
    """None as soon as the server at this URL answers anything; else what speaks against it."""
    if not host.startswith(("http://", "https://")):
        return f"{host!r} is no address of a server; write for example --host http://127.0.0.1:8080"
    probe = ServerProbe(host, ca, sleep=gevent.sleep)
    until = time.monotonic() + patience_s
    while True:
        try:
            probe.get("/", "HEAD")
        except OSError as fault:
            if time.monotonic() > until:
                return f"{fault}. Start the server, or name it by --host"
            gevent.sleep(PAUSE_S)
        else:
            return None


@events.init.add_listener
def _ask(environment: Environment, **_: Any) -> None:
    CATALOGUE.ca = getattr(environment.parsed_options, "ca", None) or None
    if isinstance(environment.runner, WorkerRunner) or environment.web_ui is not None:
        return
    fault = why_not(environment.host or "", ca=CATALOGUE.ca)
    if fault is not None:
        sys.stderr.write(f"{fault}.\n")
        # What Locust has started besides must not keep the process.
        if environment.runner is not None:
            environment.runner.quit()
        sys.exit(1)
