"""The two clocks of a server.

Durations count on the process clock. It runs with CLOCK_MONOTONIC: setting the machine's clock
moves no deadline. It stands still while the process is stopped or the machine sleeps: nothing
expires meanwhile. It begins at Unix time only for logs. People, tokens and the database read the
wall clock, `time.time`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

from twisted.logger import Logger
from twisted.python import log

# Twisted's transports would import pyOpenSSL and cryptography, 10 MB that are not used here: files
# and pages use `ssl`, and so do the links of a cluster.
_OPENSSL = sys.modules.get("OpenSSL")
sys.modules["OpenSSL"] = cast(ModuleType, None)
try:
    from twisted.internet.epollreactor import EPollReactor
finally:
    del sys.modules["OpenSSL"]
    if _OPENSSL is not None:
        sys.modules["OpenSSL"] = _OPENSSL

_log = Logger()
#: The reactor looks at its clock at least as often as this, in seconds.
LOOK_S = 1.0
#: A process that did not read its clock for this time, in seconds, was stopped.
STOPPED_S = 3.0


class ProcessClock:
    """Seconds during which the process could run; call it to read it."""

    __slots__ = ("_latest_s", "_monotonic", "_offset_s")

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._monotonic = monotonic
        self._latest_s = monotonic()
        self._offset_s = wall() - self._latest_s

    def __call__(self) -> float:
        moment_s = self._monotonic()
        passed_s = moment_s - self._latest_s
        self._latest_s = moment_s
        if passed_s > STOPPED_S:
            self._offset_s -= passed_s
        return moment_s + self._offset_s


class LoopLag:
    """How long a turn of the loop took at most, in this minute and the one before.

    So a scrape each minute misses no turn.
    """

    def __init__(self) -> None:
        self._began_s = -math.inf
        self._longest_s = self._before_s = 0.0

    def add(self, now_s: float, turn_s: float) -> None:
        if now_s - self._began_s >= 60.0:
            stale = now_s - self._began_s >= 120.0
            self._before_s = 0.0 if stale else self._longest_s
            self._began_s, self._longest_s = now_s, 0.0
        self._longest_s = max(self._longest_s, turn_s)

    def __call__(self) -> float:
        """In seconds."""
        return max(self._longest_s, self._before_s)


class ProcessClockReactor(EPollReactor):
    """Twisted's reactor, but its timers run on the process clock instead of the wall clock.

    `loop_lag_s` tells how long everything else had to wait for one turn of the loop.

    A reader with `logs_its_faults` is called without the context that Twisted makes for the log of
    each event: of a wake-up for a large body that took a third.
    """

    _poller: Any
    _selectables: dict[int, Any]

    def __init__(self) -> None:
        self.seconds = ProcessClock()
        self.loop_lag_s = LoopLag()
        #: When the last turn began, which ends when the loop waits again.
        self._turn_began_s: float | None = None
        super().__init__()  # type: ignore[no-untyped-call]

    def timeout(self) -> float:
        """How long it may sleep: never so long that it seems to have been stopped."""
        due_s: float | None = super().timeout()
        return LOOK_S if due_s is None else min(LOOK_S, due_s)

    def doIteration(self, delay: float | None) -> None:
        """Wait for events, at most this many seconds, and tell their descriptors of them."""
        if self._turn_began_s is not None:
            now_s = time.monotonic()
            self.loop_lag_s.add(now_s, now_s - self._turn_began_s)
        events = self._poller.poll(delay, len(self._selectables))
        self._turn_began_s = time.monotonic()
        for fd, event in events:
            selectable: Any = self._selectables.get(fd)
            if getattr(selectable, "logs_its_faults", False):
                try:
                    selectable.doRead()
                except Exception:  # noqa: BLE001 - as Twisted does: the loop goes on
                    _log.failure("a batch of connections failed")
            elif selectable is not None:
                log.callWithLogger(  # type: ignore[no-untyped-call]
                    selectable, self._doReadOrWrite, selectable, fd, event
                )
