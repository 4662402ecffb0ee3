"""What parts of a server ask of the reactor that only keep time (`IReactorTime`, with types)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class DelayedCall(Protocol):
    """A call to come (`IDelayedCall`)."""

    def active(self) -> bool:
        """Whether it is still to come."""
        ...

    def cancel(self) -> None:
        """Do not call."""
        ...


class Clock(Protocol):
    """Tells the time and calls later."""

    def seconds(self) -> float:
        """The reactor's time."""
        ...

    def callLater(self, delay: float, callable: Callable[..., Any], *args: object) -> DelayedCall:
        """Call when so many seconds have passed."""
        ...
