"""Looks at the figures every few seconds and sends what the alert rules say."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from ..http.clock import Clock, Repeat
from .alert_settings import AlertPlace, AlertSettings
from .alerts import LOOK_S, RULES, AlertBook, AlertChange, AlertRule
from .events import EventLog

_log = Logger()


@dataclass(frozen=True, slots=True)
class SentTest:
    """What became of one test message; an empty `fault`: it was taken."""

    place: str
    fault: str


@dataclass(slots=True)
class _Line:
    """What a place is still to be sent, in its order, and how often the first was tried."""

    place: AlertPlace
    waiting: list[AlertChange] = field(default_factory=list)
    tries: int = 0
    is_sending: bool = False


class Alerting:
    """The alerts of a running server. `off` runs blocking work on a thread of its own."""

    def __init__(
        self,
        settings: AlertSettings,
        reactor: Clock,
        now: Callable[[], float],
        figures: Callable[[], Mapping[str, Any]],
        off: Callable[[Callable[[], None]], Awaitable[None]],
        events: EventLog,
    ) -> None:
        self._settings = settings
        self._now = now
        self._figures = figures
        self._off = off
        self._events = events
        self._name = socket.gethostname()
        self.book = AlertBook(RULES)
        self.outlets = tuple(map(AlertPlace.of, settings.to))
        self._lines = tuple(map(_Line, self.outlets))
        self.timer = Repeat(reactor, LOOK_S, self.look)

    def look(self) -> None:
        """Judge the figures, write changes to the log, and send them."""
        now = self._now()
        for change in self.book.look(now, self._figures()):
            state = "fires" if change.firing else "is over"
            level = "warn" if change.firing else "info"
            self._events.add("alert", f"{change.rule.name} {state}: {change.rule.summary}", level)
            for line in self._lines:
                line.waiting.append(change)
        for line in self._lines:
            if line.waiting and not line.is_sending:
                Deferred.fromCoroutine(self._send(line))

    async def _send(self, line: _Line) -> None:
        line.is_sending = True
        while line.waiting:
            fault = await self._try(line.place, line.waiting[0])
            line.tries = line.tries + 1 if fault else 0
            # It is tried again at the next looks, 20 times in all.
            if 0 < line.tries < 20:
                break
            if fault:
                told = "an alert could not be sent to {place}: {fault}"
                _log.warn(told, place=line.place.shown, fault=fault)
            del line.waiting[0]
        else:
            line.tries = 0
        line.is_sending = False

    async def _try(self, outlet: AlertPlace, change: AlertChange) -> str:
        """The fault; empty if the message was taken."""

        def send() -> None:
            # 2 MB of modules that a server without alerts never needs.
            from . import alert_messages

            alert_messages.send(self._settings, outlet, change, self._name)

        try:
            await self._off(send)
        except OSError as fault:
            return str(fault) or type(fault).__name__
        return ""

    async def test(self) -> list[SentTest]:
        words = "This is a test message.", "An operator asked for it. Nothing is wrong."
        trial = AlertRule("TidegateTest", "warning", 0.0, *words, lambda seen: False)
        change = AlertChange(trial, True, self._now())
        tries = [(one, Deferred.fromCoroutine(self._try(one, change))) for one in self.outlets]
        return [SentTest(one.shown, await tried) for one, tried in tries]


def descriptors_part() -> float:
    """The part of this process's file descriptors in use: all if none is left to look with."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        # Linux tells the number from 6.2 on. To list 20 000 takes 14 ms.
        return (os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))) / most
    except OSError:
        return 1.0
