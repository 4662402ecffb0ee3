"""Is anybody there? Asked once before a headless run, so that a wrong address is told at once."""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from typing import Any

import gevent
from locust import events
from locust.env import Environment
from locust.runners import WorkerRunner

#: A server that is just being started is waited for this long.
PATIENCE_S = 10.0


def why_not(host: str, patience_s: float = PATIENCE_S) -> str | None:
    """None as soon as the server at this URL answers anything; else what speaks against it."""
    if not host.startswith(("http://", "https://")):
        return f"{host!r} is no address of a server; write for example --host http://127.0.0.1:8080"
    until = time.monotonic() + patience_s
    while True:
        try:
            with urllib.request.urlopen(host, timeout=max(1.0, patience_s)):
                return None
        except urllib.error.HTTPError as error:
            error.close()
            return None
        except (OSError, ValueError) as error:
            fault = getattr(error, "reason", error)
            if time.monotonic() > until:
                return f"{host} does not answer ({fault}). Start the server, or name it by --host"
            gevent.sleep(0.5)


@events.init.add_listener
def _ask(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner) or environment.web_ui is not None:
        return
    fault = why_not(environment.host or "")
    if fault is not None:
        sys.stderr.write(f"{fault}.\n")
        # What Locust has started besides must not keep the process.
        if environment.runner is not None:
            environment.runner.quit()
        sys.exit(1)
