"""Counts what the server logs as an error, for the page and for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.logger import ILogObserver, LogLevel
from zope.interface import implementer


@implementer(ILogObserver)
class FaultCount:
    """Counts what is logged as an error."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, event: Mapping[str, Any]) -> None:
        level = event.get("log_level")
        if level is not None and level >= LogLevel.error:
            self.total += 1
