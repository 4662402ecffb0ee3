"""What the processes of a cluster have of each other: connections in memory, and strands.

A connection carries its bytes in order. It is cut with its process. Between machines that do not
reach each other nothing arrives, and neither side is told.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionDone
from twisted.python.failure import Failure

from .schedule import Schedule, VirtualReactor

#: One way between two processes, seconds, and how often a lost segment is sent again.
_TRIP_S, _AGAIN_S = 0.0005, 0.2


class LinkNetwork:
    """Who listens where, and which machines do not reach each other. A machine is a number."""

    def __init__(self, schedule: Schedule, rng: random.Random) -> None:
        self.schedule, self.rng = schedule, rng
        self.doors: dict[str, LinkDoor] = {}
        self.ends: dict[LinkEnd, None] = {}
        #: Pairs of machines; the database is machine -1.
        self.cut: set[frozenset[int]] = set()

    def reaches(self, one: int, other: int) -> bool:
        """Whether bytes arrive."""
        return frozenset((one, other)) not in self.cut

    def died(self, reactor: ProcessReactor, *, told: bool) -> None:
        """A process has ended; with the power of its machine nobody is told."""
        for place, door in tuple(self.doors.items()):
            if door.reactor is reactor:
                del self.doors[place]
        for end in [one for one in self.ends if one.reactor is reactor]:
            end.open = False
            del self.ends[end]
            if told:
                end.far.travel(end.far.lost)


class ProcessReactor(VirtualReactor):
    """The reactor of one process among several. `exits` hears that it has ended, and its status."""

    def __init__(
        self, network: LinkNetwork, machine: int, exits: Callable[[ProcessReactor, int], None]
    ) -> None:
        super().__init__(network.schedule, network.rng)
        self.links, self.machine, self._exits = network, machine, exits

    def stop(self) -> None:
        """See `Reactor`: the process ends by itself."""
        self._exits(self, 0)

    def listenTCP(self, port: int, factory: Any, *, interface: str) -> LinkDoor:
        """See `Reactor`."""
        return LinkDoor(self.links, self, f"{interface}:{port}", factory)

    def listenUNIX(self, address: str, factory: Any, *, backlog: int, mode: int) -> LinkDoor:
        """See `Reactor`."""
        return LinkDoor(self.links, self, address, factory)


class LinkDoor:
    """A listening port of one process."""

    def __init__(
        self, network: LinkNetwork, reactor: ProcessReactor, place: str, factory: Any
    ) -> None:
        self._network, self._place = network, place
        self.reactor, self.factory = reactor, factory
        network.doors[place] = self

    def getHost(self) -> Any:
        """See `IListeningPort`: it has a `port`."""
        return self

    @property
    def port(self) -> int:
        """See `IPv4Address`."""
        return int(self._place.rpartition(":")[2])

    def stopListening(self) -> None:
        """See `IListeningPort`."""
        self._network.doors.pop(self._place, None)


class LinkEnd:
    """One end of a connection: the transport of its protocol."""

    def __init__(self, network: LinkNetwork, reactor: ProcessReactor) -> None:
        self._network, self.reactor = network, reactor
        self._under_way: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._arrival_s = 0.0
        self.far: LinkEnd = None  # type: ignore[assignment]
        self.protocol: Any = None
        self.open = True
        network.ends[self] = None

    # -- what the protocol calls ----------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """See `ITransport`."""
        if self.open:
            self.far.travel(self.far.receive, bytes(data))

    def writeSequence(self, parts: Any) -> None:
        """See `ITransport`."""
        self.write(b"".join(parts))

    def loseConnection(self) -> None:
        """See `ITransport`."""
        if self.open:
            self.open = False
            self.far.travel(self.far.lost)
            self.reactor.callLater(0, self._gone)

    def abortConnection(self) -> None:
        """See `ITCPTransport`: what was sent before arrives here all the same."""
        self.loseConnection()

    def getPeer(self) -> Any:
        """See `ITransport`: no address is looked at."""
        return self

    def getHost(self) -> Any:
        """See `ITransport`."""
        return self

    # -- what happens on the way ----------------------------------------------------------------

    def travel(self, what: Callable[..., None], *words: Any) -> None:
        """Something is sent to this end; it comes after all that was sent before."""
        self._under_way.append((what, words))
        schedule, trip_s = self._network.schedule, _TRIP_S * (1 + self._network.rng.random())
        self._arrival_s = max(self._arrival_s + 1e-7, schedule.now + trip_s)
        schedule.after(self._arrival_s - schedule.now, self._arrive)

    def _arrive(self) -> None:
        if not self._network.reaches(self.reactor.machine, self.far.reactor.machine):
            self._network.schedule.after(_AGAIN_S, self._arrive)
        else:
            self.reactor.turn(self._take)

    def _take(self) -> None:
        what, words = self._under_way.popleft()
        what(*words)

    def made(self, factory: Any) -> None:
        """It is connected."""
        self.protocol = factory.buildProtocol(None)
        self.protocol.makeConnection(self)

    def receive(self, data: bytes) -> None:
        """Bytes of the other end."""
        if self.open:
            self.protocol.dataReceived(data)

    def lost(self) -> None:
        """The other end is closed."""
        if self.open:
            self.open = False
            self._gone()

    def _gone(self) -> None:
        self._network.ends.pop(self, None)
        if self.protocol is not None:
            self.protocol.connectionLost(Failure(ConnectionDone()))  # type: ignore[no-untyped-call]


class LinkEndpoint:
    """Stands for the endpoints of Twisted, by path, or by host and port."""

    def __init__(self, reactor: Any, *place: Any, timeout: float = 1.0) -> None:
        self._reactor: ProcessReactor = reactor
        self._place = ":".join(map(str, place))
        self._timeout_s = timeout

    def connect(self, factory: Any) -> Deferred[Any]:
        """See `IStreamClientEndpoint`."""
        found: Deferred[Any] = Deferred(lambda _: None)
        self._reactor.callLater(_TRIP_S, self._reach, factory, found)
        return found

    def _reach(self, factory: Any, found: Deferred[Any]) -> None:
        network: LinkNetwork = self._reactor.links
        door = network.doors.get(self._place)
        if door is None:
            self._fail(found)
        elif not network.reaches(door.reactor.machine, self._reactor.machine):
            self._reactor.callLater(self._timeout_s, self._fail, found)
        elif not found.called:
            near, far = LinkEnd(network, self._reactor), LinkEnd(network, door.reactor)
            near.far, far.far = far, near
            far.travel(far.made, door.factory)
            near.made(factory)
            found.callback(near.protocol)

    def _fail(self, found: Deferred[Any]) -> None:
        if not found.called:
            found.errback(ConnectError("nobody is there"))  # type: ignore[no-untyped-call]


class Strand(greenlet):
    """What blocks, in a process of its own or on a thread: it runs until it sleeps.

    `turn` makes a call, or later, or never if its process has ended.
    """

    def __init__(
        self, schedule: Schedule, work: Callable[[], object], turn: Callable[..., None]
    ) -> None:
        super().__init__(work)
        self._schedule, self._turn = schedule, turn
        self._sleeps = 0

    def start(self) -> None:
        """Run it soon."""
        self._schedule.after(0.0, self._turn, self._go_on, 0)

    def _go_on(self, sleep: int) -> None:
        """Run it up to its next sleep; nothing if it was woken from that sleep before."""
        if sleep == self._sleeps and not self.dead:
            self._sleeps += 1
            self.parent = getcurrent()
            self.switch()

    def wake(self) -> None:
        """End its sleep soon."""
        self._schedule.after(_TRIP_S, self._turn, self._go_on, self._sleeps)

    def end(self) -> None:
        """It goes on no more."""
        if not self.dead:
            self.parent = getcurrent()
            self.throw()


def sleep(seconds: float) -> None:
    """Let time pass, in what runs on a strand."""
    mine: Strand = getcurrent()  # type: ignore[assignment]
    mine._schedule.after(seconds, mine._turn, mine._go_on, mine._sleeps)
    mine.parent.switch()


class Event:
    """Stands for `threading.Event` on a strand."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        """See `threading.Event`."""
        self._set = True

    def is_set(self) -> bool:
        """See `threading.Event`."""
        return self._set

    def wait(self, seconds: float) -> bool:
        """See `threading.Event`: nothing wakes it before its time."""
        sleep(seconds)
        return self._set
