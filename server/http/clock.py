"""What a server asks of the reactor, with types: mypy cannot read the interfaces of Twisted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from twisted.internet import task, threads
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorFromThreads, IReactorTime
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

P = ParamSpec("P")
T = TypeVar("T")


class DelayedCall(Protocol):
    """A call to come (`IDelayedCall`)."""

    def active(self) -> bool:
        """Whether it is still to come."""

    def cancel(self) -> None:
        """Do not call."""

    def reset(self, secondsFromNow: float) -> None:
        """Call then instead, in seconds from now."""


class Clock(Protocol):
    """Tells the time and calls later (`IReactorTime`)."""

    def seconds(self) -> float:
        """The reactor's time."""

    def callLater(self, delay: float, callable: Callable[..., Any], *args: object) -> DelayedCall:
        """Call after `delay` seconds."""


class Threads(Protocol):
    """Hears from other threads (`IReactorFromThreads`)."""

    def callFromThread(self, callable: Callable[..., Any], *args: object) -> None:
        """Call on the reactor's thread, soon."""


class Reactor(Clock, Threads, Protocol):
    """The whole of it: its life, descriptors and ports too."""

    def callWhenRunning(self, callable: Callable[[], None]) -> object:
        """Call at the beginning of `run`."""

    def run(self, installSignalHandlers: bool = True) -> None:
        """Serve until `stop`."""

    def stop(self) -> None:
        """End `run`."""

    def addReader(self, reader: Any) -> None:
        """Watch an `IReadDescriptor`."""

    def removeReader(self, reader: Any) -> None:
        """Watch it no more."""

    def listenTCP(self, port: int, factory: Any, *, interface: str) -> Any:
        """See `IReactorTCP`."""

    def listenUNIX(self, address: str, factory: Any, *, backlog: int, mode: int) -> Any:
        """See `IReactorUNIX`."""


class Repeat:
    """Calls `work` every `every_s` seconds from `start` to `stop`. A fault in it ends nothing."""

    def __init__(self, clock: Clock, every_s: float, work: Callable[[], None]) -> None:
        self._clock, self._every_s, self._work = clock, every_s, work
        self._call: DelayedCall | None = None

    def start(self) -> None:
        """The first call comes after one period."""
        self._call = self._clock.callLater(self._every_s, self._turn)

    def stop(self) -> None:
        cancel(self._call)

    def _turn(self) -> None:
        self.start()
        self._work()


def cancel(*calls: DelayedCall | None) -> None:
    """Call none of them that is still to come."""
    for call in calls:
        if call is not None and call.active():
            call.cancel()


class Waiters(Generic[T]):
    """Several who wait for one result."""

    def __init__(self) -> None:
        self._waiting: list[Deferred[T]] = []

    def wait(self) -> Deferred[T]:
        """Fires with what `tell` is given next; fails where that is a Failure."""
        result: Deferred[T] = Deferred()
        self._waiting.append(result)
        return result

    def tell(self, result: T | Failure) -> None:
        """To all who wait now, in the order in which they came."""
        for one in self._leave():
            one.callback(result)

    def fail(self, error: Exception) -> None:
        """The same of a fault."""
        for one in self._leave():
            one.errback(error)

    def _leave(self) -> list[Deferred[T]]:
        waiting, self._waiting = self._waiting, []
        return waiting


def pause(clock: Clock, delay_s: float = 0) -> Deferred[None]:
    """Fires after `delay_s` seconds; after 0 in a later turn of the reactor."""
    return task.deferLater(cast(IReactorTime, clock), delay_s)


def in_pool(
    reactor: Threads, pool: ThreadPool, work: Callable[P, T], *args: P.args, **options: P.kwargs
) -> Deferred[T]:
    """Run it on a thread of the pool; fires on the reactor's thread."""
    return threads.deferToThreadPool(
        cast(IReactorFromThreads, reactor), pool, work, *args, **options
    )
