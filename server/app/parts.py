"""Start and stop of a process as a service tree: its parts begin in order and end in reverse.

A room is built whole from the configuration, gives its parts, and follows a reload by itself.

Twisted's service tree has no types: hence the ignored calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from twisted.application.service import MultiService, Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger

if TYPE_CHECKING:
    from .settings import ServerConfig


class Part(Service):
    """One part: `begin` opens it, `end` closes it (and may give a Deferred or a coroutine)."""

    def __init__(
        self,
        name: str,
        begin: Callable[[], object] = lambda: None,
        end: Callable[[], Any] = lambda: None,
    ) -> None:
        self.what = name
        self._begin = begin
        self._end = end

    def startService(self) -> None:
        """See `IService`. What cannot begin does not run, and is not ended either."""
        self._begin()
        super().startService()  # type: ignore[no-untyped-call]

    def stopService(self) -> Any:
        super().stopService()  # type: ignore[no-untyped-call]
        return self._end()


class InOrder(MultiService):
    """Parts that stand on those before them.

    `MultiService` stops all at once; here each stops when all that stand on it have.
    """

    log = Logger()

    def __init__(self, parts: Iterable[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        for part in parts:
            self.addService(part)  # type: ignore[no-untyped-call]

    def startService(self) -> None:
        """See `IService`: begin all; when one cannot, those after it do not begin."""
        super().startService()  # type: ignore[no-untyped-call]

    def stopService(self) -> Deferred[None]:
        """End all that run, the last one first; a part that fails does not keep the others."""
        Service.stopService(self)  # type: ignore[no-untyped-call]
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        for part in reversed(self.services):
            if not part.running:
                continue
            try:
                await maybeDeferred(part.stopService)
            except Exception:  # noqa: BLE001 - the parts below must end all the same
                self.log.failure("{part} did not stop in order", part=getattr(part, "what", part))


class ServerRoom(Protocol):
    """One room of a process, complete when its builder returns it."""

    def parts(self) -> Iterable[Part]:
        """What starts and stops, each on top of those before it."""

    def reconfigure(self, config: ServerConfig) -> None:
        """Follow a configuration that was read again."""
