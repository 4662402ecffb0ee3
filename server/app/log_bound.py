"""What clients can have written into the operator's log: bounded for each of them, and in all.

A client that finds a request which is logged as a fault could fill a disk with it, and hide other
messages in the flood. So a kind of warning has a number of lines a minute, of which one client's
network may cause a few; the first that is left out is announced, and how many there were is told.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from twisted.logger import ILogObserver, Logger, LogLevel
from zope.interface import implementer

from ..http.proxies import prefixes_of

#: Lines of one kind a minute, and how many of them one network may cause.
MOST_OF_KIND, MOST_OF_NETWORK = 60, 6
WINDOW_S = 60.0
_Kind = tuple[str, str]


@implementer(ILogObserver)
class BoundedLines:
    """Hands log events on to `lines`, warnings and worse only as many as the bounds allow.

    An event says by `client` (an address) whose request caused it.
    """

    def __init__(self, lines: Any, seconds: Callable[[], float]) -> None:
        self._lines = lines
        self._seconds = seconds
        self._ends_s = 0.0
        self._written: Counter[_Kind] = Counter()
        self._by_network: Counter[tuple[_Kind, str]] = Counter()
        self._left_out: Counter[_Kind] = Counter()
        # Threads log, too.
        self._lock = threading.Lock()
        self._own = Logger(observer=lines)

    def __call__(self, event: Any) -> None:
        """See `ILogObserver`."""
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
                "{count} lines like this one were left out: {text}", count=count, text=text
            )
        if taken:
            self._lines(event)
        elif first_left_out:
            self._own.warn(
                "More lines like this one are left out for a minute: {text}", text=kind[1]
            )

    def _takes(self, kind: _Kind, client: str | None) -> bool:
        """Whether one more is written; counts it either way."""
        network = (kind, prefixes_of(client)[-1]) if client is not None else None
        if self._written[kind] >= MOST_OF_KIND or (
            network is not None and self._by_network[network] >= MOST_OF_NETWORK
        ):
            self._left_out[kind] += 1
            return False
        self._written[kind] += 1
        if network is not None:
            self._by_network[network] += 1
        return True

    def _end_window(self) -> Counter[_Kind]:
        """What the last minute left out, once it is over."""
        now = self._seconds()
        if now < self._ends_s:
            return Counter()
        self._ends_s = now + WINDOW_S
        left_out, self._left_out = self._left_out, Counter()
        self._written.clear()
        self._by_network.clear()
        return left_out
