"""Virtual time: what happens next, a reactor for one life of a server, and pools of threads.

Events of one moment come in an order that the seed draws.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

_log = Logger()
#: The wall clock at the beginning, Unix seconds.
WALL_S = 1_800_000_000.0
#: A process that did not run for this time does not count it (`app.clock.STOPPED_S`).
_STOPPED_S = 3.0
#: So many calls may come in one moment.
_MOST_AT_ONCE = 20_000


class ProcessEnded(BaseException):
    """A process of the world has ended itself: nothing after this is done."""


class StandingStill(Exception):
    """Calls make calls, and time does not pass."""


def _nothing() -> None:
    """What the timers of a dead process call."""


class ScheduledEvent:
    """A call to come."""

    __slots__ = ("call", "cancelled", "words")

    def __init__(self, call: Callable[..., Any], words: tuple[Any, ...]) -> None:
        self.call, self.words, self.cancelled = call, words, False


class Schedule:
    """What happens when. `wall_step_s` is how far the wall clock was set."""

    def __init__(self, rng: random.Random) -> None:
        self.now = 0.0
        self.wall_step_s = 0.0
        self.events_total = 0
        #: The process whose turn it is, or that is being built.
        self.running: VirtualReactor = None  # type: ignore[assignment]
        self._draw = rng.random
        self._count = 0
        self._heap: list[tuple[float, float, int, ScheduledEvent]] = []

    def wall(self) -> float:
        """Unix time."""
        return WALL_S + self.now + self.wall_step_s

    def after(self, delay_s: float, call: Callable[..., Any], *words: Any) -> ScheduledEvent:
        """Call in `delay_s` seconds."""
        self._count += 1
        event = ScheduledEvent(call, words)
        due_s = self.now + max(0.0, delay_s)
        heapq.heappush(self._heap, (due_s, self._draw(), self._count, event))
        return event

    def forget(self) -> None:
        """Nothing of what was to come happens, nor keeps what it would call."""
        self._heap.clear()
        self.running = None  # type: ignore[assignment]

    def run(self, until_s: float, going: Callable[[], bool]) -> None:
        """Let everything happen up to a moment, while `going`."""
        heap = self._heap
        at_once = 0
        while heap and going():
            due_s, _, _, event = heap[0]
            if due_s > until_s:
                break
            heapq.heappop(heap)
            if event.cancelled:
                continue
            at_once = 0 if due_s > self.now else at_once + 1
            if at_once > _MOST_AT_ONCE:
                raise StandingStill(f"{at_once} calls came in one moment, the last is {event.call}")
            self.now = max(self.now, due_s)
            self.events_total += 1
            event.call(*event.words)
        if going():
            self.now = max(self.now, until_s)


@implementer(IDelayedCall)
class VirtualCall:
    """Implements `server.http.clock.DelayedCall`."""

    __slots__ = ("_reactor", "call", "due_s", "event", "pending", "words")

    def __init__(
        self,
        reactor: VirtualReactor,
        due_s: float,
        call: Callable[..., Any],
        words: tuple[Any, ...],
    ) -> None:
        self._reactor, self.due_s, self.call, self.words = reactor, due_s, call, words
        self.pending = True
        self.event: ScheduledEvent | None = None

    def active(self) -> bool:
        """See `DelayedCall`."""
        return self.pending

    def getTime(self) -> float:
        """When it comes, by the reactor's clock (`IDelayedCall`)."""
        return self.due_s

    def cancel(self) -> None:
        """See `DelayedCall`."""
        self._reactor.forget(self)

    def reset(self, secondsFromNow: float) -> None:
        """See `DelayedCall`."""
        self._reactor.put_off(self, secondsFromNow)


class VirtualReactor:
    """Implements `server.http.clock.Reactor` for one life of a process; dead after `kill`.

    A process can be stopped for a while (`stall`): nothing of it runs meanwhile.
    """

    def __init__(self, schedule: Schedule, rng: random.Random) -> None:
        self._schedule = schedule
        self._rng = rng
        self._begin_s = schedule.wall()
        self._base_s = schedule.now
        self._stopped_s = 0.0
        self._runs_from_s = 0.0
        self._threads: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self.calls: dict[VirtualCall, None] = {}
        self.alive = True
        #: Its pools of threads.
        self.pools: list[VirtualPool] = []
        #: Is given each reader.
        self.on_reader: Callable[[Any], object] = lambda reader: None

    def loop_lag_s(self) -> float:
        """Turns take no time here."""
        return 0.0

    def seconds(self) -> float:
        """See `Reactor`."""
        return self._begin_s + self._schedule.now - self._base_s - self._stopped_s

    def callLater(self, delay: float, callable: Callable[..., Any], *args: Any) -> VirtualCall:
        """See `Reactor`."""
        found = VirtualCall(self, self.seconds() + delay, callable, args)
        self._plan(found, delay)
        return found

    def _plan(self, found: VirtualCall, delay_s: float) -> None:
        if self.alive:
            self.calls[found] = None
            found.event = self._schedule.after(delay_s, self._fire, found)

    def forget(self, found: VirtualCall) -> None:
        """It is cancelled."""
        found.pending = False
        self.calls.pop(found, None)
        if found.event is not None:
            found.event.cancelled = True

    def put_off(self, found: VirtualCall, delay_s: float) -> None:
        """It is to come then instead."""
        if found.event is not None:
            found.event.cancelled = True
        found.due_s = self.seconds() + delay_s
        self._plan(found, delay_s)

    def _fire(self, found: VirtualCall) -> None:
        if not self.alive or not found.pending:
            return
        wait_s = max(self._runs_from_s - self._schedule.now, found.due_s - self.seconds())
        if wait_s > 1e-7:
            # Its process was stopped meanwhile.
            found.event = self._schedule.after(wait_s, self._fire, found)
            return
        found.pending = False
        self.calls.pop(found, None)
        self.turn(found.call, *found.words)

    def turn(self, call: Callable[..., Any], *words: Any) -> None:
        """One turn of the loop: what fails is logged, and the loop goes on."""
        if not self.alive:
            return
        wait_s = self._runs_from_s - self._schedule.now
        if wait_s > 1e-7:
            self._schedule.after(wait_s, self.turn, call, *words)
            return
        self._schedule.running = self
        try:
            call(*words)
        except ProcessEnded:
            pass
        except Exception:  # noqa: BLE001 - as the real loop does
            _log.failure("Unhandled error in the loop")

    def stall(self, seconds: float) -> None:
        """Stop the process for this time."""
        now = self._schedule.now
        since_s = max(self._runs_from_s, now)
        self._runs_from_s = until_s = max(since_s, now + seconds)
        if seconds > _STOPPED_S:
            # Its clock has stood still once it goes on.
            self._schedule.after(until_s - now - 1e-6, self._slept, until_s - since_s)

    def _slept(self, seconds: float) -> None:
        self._stopped_s += seconds

    def callFromThread(self, callable: Callable[..., Any], *args: Any) -> None:
        """See `Reactor`: in the order of the calls."""
        self._threads.append((callable, args))
        self._schedule.after(self._rng.random() * 0.001, self.turn, self._from_thread)

    def _from_thread(self) -> None:
        call, words = self._threads.popleft()
        call(*words)

    def kill(self) -> None:
        """Nothing of this process happens any more."""
        self.alive = False
        for one in self.calls:
            # What it would call is gone with its process; far timers would keep all of it.
            one.pending, one.call, one.words = False, _nothing, ()
        self.calls.clear()
        self._threads.clear()
        for pool in self.pools:
            pool.kill()

    def callWhenRunning(self, callable: Callable[[], None]) -> object:
        """See `Reactor`."""
        return self.callLater(0, callable)

    def addReader(self, reader: Any) -> None:
        """See `Reactor`: an epoll calls its reader by itself, see `wire.MemoryEpoll`."""
        self.on_reader(reader)

    def removeReader(self, reader: Any) -> None:
        """See `Reactor`."""


class VirtualPool:
    """Stands for `twisted.python.threadpool.ThreadPool`: work is done in one moment, some time on.

    `latency` says how long a piece of work takes and raises what it must fail with, by the pool's
    name.
    """

    def __init__(
        self,
        schedule: Schedule,
        rng: random.Random,
        latency: Callable[[str], tuple[float, Exception | None]],
        most: int,
        name: str,
    ) -> None:
        self._schedule, self._rng, self._latency = schedule, rng, latency
        self._most = max(1, most)
        self.name = name
        #: How much work was done.
        self.works_total = 0
        self._running = 0
        self._queue: deque[tuple[Callable[..., Any], Callable[..., Any], Any, Any]] = deque()
        self.alive = True
        self.threadFactory: Any = None

    def start(self) -> None:
        """See `ThreadPool`."""
        self._next()

    def stop(self) -> None:
        """See `ThreadPool`: what is queued is still done."""

    def adjustPoolsize(self, least: int | None = None, most: int | None = None) -> None:
        """See `ThreadPool`."""

    def kill(self) -> None:
        """Its process is gone."""
        self.alive = False
        self._queue.clear()

    def callInThreadWithCallback(
        self, onResult: Callable[..., Any], func: Callable[..., Any], *args: Any, **kw: Any
    ) -> None:
        """See `ThreadPool`."""
        self._queue.append((onResult, func, args, kw))
        self._next()

    def callInThread(self, func: Callable[..., Any], *args: Any, **kw: Any) -> None:
        """See `ThreadPool`."""
        self.callInThreadWithCallback(lambda *_: None, func, *args, **kw)

    def _next(self) -> None:
        if self._queue and self._running < self._most:
            self._running += 1
            on_result, func, args, kw = self._queue.popleft()
            took_s, fault = self._latency(self.name)
            # A crash in between leaves the work undone, or done and untold.
            first_s = took_s * self._rng.random()
            self._schedule.after(
                first_s, self._work, took_s - first_s, on_result, func, args, kw, fault
            )

    def _work(
        self,
        rest_s: float,
        on_result: Callable[..., Any],
        func: Callable[..., Any],
        args: Any,
        kw: Any,
        fault: Exception | None,
    ) -> None:
        if not self.alive:
            return
        self.works_total += 1
        try:
            if fault is not None:
                raise fault
            found: tuple[bool, Any] = True, func(*args, **kw)
        except Exception:  # noqa: BLE001 - as the real pool does
            found = False, Failure()  # type: ignore[no-untyped-call]
        self._schedule.after(rest_s, self._told, on_result, found)

    def _told(self, on_result: Callable[..., Any], found: tuple[bool, Any]) -> None:
        if not self.alive:
            return
        self._running -= 1
        on_result(*found)
        self._next()
