"""The options that every profile understands, beside Locust's own; in its web page too.

A headless run asks the server once before it begins, so that a wrong address is told at once.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import gevent
from locust import events
from locust.env import Environment
from locust.runners import WorkerRunner

from .catalogue import CATALOGUE
from .probe import ServerProbe
from .registry import find_workload
from .tally import Objective, is_figure


def _objective(text: str) -> str:
    try:
        objective = Objective.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not is_figure(objective.figure):
        raise argparse.ArgumentTypeError(
            f"{objective.figure!r} is no figure of a run, such as p95_wait_small, failed_fraction "
            "or eta_within_p90; --figures-json writes all of them"
        )
    return text


def _workload(text: str) -> str:
    try:
        find_workload(text, 1)
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _number(what: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not fits(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return read


_fraction = _number("a fraction from 0 to 1", lambda value: 0 <= value <= 1)
_positive = _number("a number above 0", lambda value: value > 0)


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    """Locust's hook: extend its parser."""
    group = parser.add_argument_group("tidegate", "What comes, and what must hold")

    def field(*names: str, **given: Any) -> None:
        """An option that is a field of the page's start form, too."""
        group.add_argument(*names, **given).include_in_web_ui = True

    field(
        "--workload",
        type=_workload,
        default="release-artefacts",
        help="The population that is replayed: its name, FILE.jsonl or FILE.py[:FUNCTION]",
    )
    field("--seed", type=int, default=1, help="Which drawing of that population")
    field(
        "--time-scale",
        type=_positive,
        default=1.0,
        help="10 runs ten times faster: arrivals, patience, and the clients' rates",
    )
    field(
        "--thin",
        type=_positive,
        default=1.0,
        help="Keep one arrival in N, for a smaller server",
    )
    field(
        "--rude-fraction",
        type=_fraction,
        default=0.0,
        help="This part of the clients polls every second whatever it is told",
    )
    field(
        "--addresses",
        choices=("forwarded", "own"),
        default="forwarded",
        help="forwarded: each client names an address of its own in X-Forwarded-For (the server "
        "must trust this machine as a proxy); own: all share this machine's",
    )
    field(
        "--manner",
        choices=("tickets", "held"),
        default="tickets",
        help="tickets: clients come back as told; held: they know no waiting, like wget, and are "
        "kept inside their request",
    )
    field(
        "--slo",
        action="append",
        type=_objective,
        help="An objective such as p95_wait_small<2s; a missed one makes the exit code 1. Give "
        "it as often as you like",
    )
    group.add_argument("--ca", default="", help="Certificates (PEM) to trust beside the system's")
    group.add_argument(
        "--progress", action="store_true", help="Say every few seconds how far the run is"
    )
    # No fields: a visitor of the page may start a run, but not write files on this machine.
    group.add_argument(
        "--figures-json", default="", help="Write all figures of the run to this JSON file"
    )


def why_not(host: str, ca: str | None) -> str | None:
    """None as soon as the server at this URL answers anything; else what speaks against it."""
    if not host.startswith(("http://", "https://")):
        return f"{host!r} is no address of a server; write for example --host http://127.0.0.1:8080"
    probe = ServerProbe(host, ca, sleep=gevent.sleep)
    until = time.monotonic() + 10.0
    while True:
        try:
            probe.get("/", "HEAD")
        except OSError as fault:
            if time.monotonic() > until:
                return f"{fault}. Start the server, or name it by --host"
            gevent.sleep(0.5)
        else:
            return None


@events.init.add_listener
def _ask(environment: Environment, **_: Any) -> None:
    CATALOGUE.ca = getattr(environment.parsed_options, "ca", None) or None
    if isinstance(environment.runner, WorkerRunner) or environment.web_ui is not None:
        return
    fault = why_not(environment.host or "", CATALOGUE.ca)
    if fault is not None:
        sys.stderr.write(f"{fault}.\n")
        # What Locust has started besides must not keep the process.
        if environment.runner is not None:
            environment.runner.quit()
        sys.exit(1)
