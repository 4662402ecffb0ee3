"""Rate limits for the operator's log, by kind of warning and by network.

A client whose requests are logged as faults could otherwise fill the disk and hide other messages.
The first suppressed line is announced, and the number of suppressed lines is logged.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.logger import ILogObserver, Logger, LogLevel
from zope.interface import implementer

from ..http.proxies import prefixes_of


@dataclass(frozen=True, slots=True)
class LogBounds:
    """How many warnings and errors are written."""

    #: Lines of one kind in a window.
    of_kind: int = 60
    #: Those of them that one network may cause.
    of_network: int = 6
    window_s: float = 60.0


BOUNDS = LogBounds()
_Kind = tuple[str, str]


@implementer(ILogObserver)
class BoundedLines:
    """Passes log events to `lines`; warnings and errors only within the limits.

    The `client` of an event is the address whose request caused it.
    """

    def __init__(self, lines: Any, seconds: Callable[[], float]) -> None:
        self._lines = lines
        self._seconds = seconds
        self._ends_s = 0.0
        self._written: Counter[_Kind] = Counter()
        self._by_network: Counter[tuple[_Kind, str]] = Counter()
        self._left_out: Counter[_Kind] = Counter()
        # Several threads log.
        self._lock = threading.Lock()
        self._own = Logger(observer=lines)

    def __call__(self, event: Any) -> None:
        level = event.get("log_level")
        if level is None or level < LogLevel.warn:
            self._lines(event)
            return
        kind = (event.get("log_namespace") or "", event.get("log_format") or "")
        with self._lock:
            ended = self._end_window()
            taken = self._takes(kind, event.get("client"))
            first_left_out = not taken and self._left_out[kind] == 1
        for (_, text), count in ended.items():
            self._own.warn(
                "Lines like this one that were left out: {count} ({text})", count=count, text=text
            )
        if taken:
            self._lines(event)
        elif first_left_out:
            self._own.warn(
                "More lines like this one are left out for a minute: {text}", text=kind[1]
            )

    def _takes(self, kind: _Kind, client: str | None) -> bool:
        """Count one more line; whether it is within the limits."""
        network = (kind, prefixes_of(client)[-1]) if client is not None else None
        if self._written[kind] >= BOUNDS.of_kind or (
            network is not None and self._by_network[network] >= BOUNDS.of_network
        ):
            self._left_out[kind] += 1
            return False
        self._written[kind] += 1
        if network is not None:
            self._by_network[network] += 1
        return True

    def _end_window(self) -> Counter[_Kind]:
        """The suppressed lines of the last window, once it is over."""
        now = self._seconds()
        if now < self._ends_s:
            return Counter()
        self._ends_s = now + BOUNDS.window_s
        left_out, self._left_out = self._left_out, Counter()
        self._written.clear()
        self._by_network.clear()
        return left_out
