"""Unix time that never runs backwards, whatever somebody does to the machine's clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def steady_clock(reactor: Any) -> Callable[[], float]:
    """A function that gives the reactor's time in seconds, held still while that steps back."""
    seconds: Callable[[], float] = reactor.seconds
    latest = seconds()

    def now() -> float:
        nonlocal latest
        moment = seconds()
        if moment > latest:
            latest = moment
        return latest

    return now
