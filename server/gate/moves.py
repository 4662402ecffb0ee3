"""Bodies that a mover sends: how far they are, and how each of them ends.

A mover is the program in front that has the client's socket, such as nginx. A body ends by the
mover's report, which comes when the kernel has the last byte, and when the client has acknowledged
what the kernel had then. Where the report is lost, it ends by its socket: the mover has closed it,
has begun another answer on it, or sends nothing more. Streams of one HTTP/2
connection share what the connection delivers evenly, until their reports tell them apart.

Law: each body ends exactly once, and none outlives its socket by more than `TUNING.gone_s` and
one look.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from twisted.logger import Logger

from ..files.transfer import TcpState, Transfer, TransferListener
from ..http.accesslog import without_tokens
from ..http.clock import Clock, Repeat
from .inet_diag import SocketName, SocketState
from .reports import EndReport

_log = Logger()


class MoveTuning(NamedTuple):
    """When a body without a report is over, and how often sockets are looked at."""

    #: The report of a body whose socket is gone may still come: nginx finds that a client has left
    #: when it sends next, which `limit_rate` puts off. Looked at each second: 5 s for a slot.
    gone_s: float = 3.5
    #: A mover that has nothing unacknowledged and sends nothing for this long has given up, unless
    #: its client has all: nginx cuts one that takes nothing after 60 s (`send_timeout`).
    silent_s: float = 75.0
    #: Connections are looked at in turns: each once a second, those of reported bodies each time.
    turn_s: float = 0.05
    turns: int = 20
    #: A reported body outlasts its report by no more, however slow its client is.
    held_s: float = 5.0
    #: Bounds a turn to 2 ms: a look takes 8 µs. A dump of all sockets would take 200 µs and more.
    most_held: int = 200
    #: A body asks the kernel no more often.
    fresh_s: float = 0.1
    #: A body that cannot be seen from here is given up when a client this slow would have it.
    unseen_bytes_s: float = 10_000.0


TUNING = MoveTuning()


class MovedOn(msgspec.Struct, frozen=True):
    """Where a body is sent. `socket` is None if the mover does not tell it.

    `multiplexed`: it carries several answers at once. `root` is the percent-encoded folder of the
    release, where the mover needs to be told. A body without a report counts as sent at
    `assumed_bytes_s`; 0: it has one.
    """

    mover: str
    socket: SocketName | None
    multiplexed: bool
    root: str = ""
    assumed_bytes_s: float = 0.0


@dataclass(slots=True)
class MoveCounts:
    """How bodies ended, since the start."""

    reported: int = 0
    #: The report was lost.
    unreported: int = 0
    #: The mover began nothing.
    unclaimed: int = 0
    #: Posted lines of a body that is over, or never was.
    unknown: int = 0


class MovedBody(Transfer):
    """One body that a mover sends. No mover can pause it, or is told its rate twice."""

    def __init__(
        self, moves: Moves, listener: TransferListener, lease: str, total_bytes: int, target: str
    ) -> None:
        self._moves = moves
        self._listener = listener
        self.lease = lease
        self.target = target
        self.total_bytes = total_bytes
        self.sent_bytes = self._earlier_bytes = 0
        self.logged_bytes = 0
        #: No mover says whether its client is the limit.
        self.blocked = False
        self.over = False
        #: Whether its report says that not all was sent.
        self.cut_short = False
        self.began_s = 0.0
        #: What its mover was told to keep below; infinite: nothing.
        self.rate_bytes_s = math.inf
        self.connection: MoverConnection | None = None
        #: Since when the mover sends another answer on the same connection.
        self.followed_s: float | None = None
        #: What its socket must have acknowledged; unknown before the first look after its report.
        self.due_bytes: int | None = None

    def abort(self, reason: str) -> None:
        """Count it no more. No mover can be told to stop: it goes on sending."""
        if not self.over:
            text = "{target} is counted no more: {reason}. Its mover goes on sending."
            _log.info(text, target=without_tokens(self.target.encode("latin-1")), reason=reason)
            self._moves.end(self, self.sent_bytes, complete=False)

    def delivered_bytes(self) -> int:
        """See `Transfer`."""
        if not self.over and self.connection is not None:
            self._moves.refresh(self.connection)
        return self.sent_bytes

    def arrived_bytes(self) -> int:
        """What its client has, also what came before its time."""
        here = self.connection
        early = here.early_bytes if here is not None and len(here.bodies) == 1 else 0
        return min(self.total_bytes - 1, self.sent_bytes + early)

    def tcp_state(self) -> TcpState:
        """Its mover has just begun: what it sent in less than a second tells nothing."""
        return TcpState(in_slow_start=self._moves.age_s(self) < 1.0)

    def room(self, now: float) -> int:
        """How many bytes may count now. The last byte counts at the end.

        nginx sends what is for a whole second at once: its bursts are not its client's speed.
        """
        due = self.total_bytes - 1
        if self.rate_bytes_s < math.inf:
            due = min(due, self._earlier_bytes + int(self.rate_bytes_s * (now - self.began_s)))
        return max(0, due - self.sent_bytes)

    def was_found(self) -> None:
        """What counts of it by now came before this process knew of it."""
        self._earlier_bytes = self.sent_bytes

    def advance(self, count: int, now: float) -> int:
        """Count delivered bytes; how many were counted."""
        count = max(0, min(count, self.room(now)))
        self.sent_bytes += count
        return count

    def ended(self, delivered_bytes: int, *, complete: bool) -> None:
        """Tell the listener; for `Moves.end` alone."""
        self.over = True
        self.sent_bytes = delivered_bytes
        self._listener.transfer_done(self, complete)


@dataclass(slots=True, eq=False)
class MoverConnection:
    """A connection of a client to the mover, and the bodies on it, the oldest first."""

    where: MovedOn
    bodies: list[MovedBody] = field(default_factory=list)
    #: Whether this process sees the socket.
    seen: bool = False
    acked_bytes: int = 0
    queued_bytes: int = 0
    #: What was delivered since its last body began, header included.
    since_bytes: int = 0
    #: What was delivered and has not counted yet.
    early_bytes: int = 0
    looked_s: float = 0.0
    #: When bytes were delivered last.
    moved_s: float = 0.0
    #: Since when the socket is gone.
    gone_s: float | None = None


class Moves:
    """All bodies that movers send now.

    `look` asks the kernel for a socket, `moved` is told of delivered bytes. `claim_s` is how long
    a mover may take to begin, and `ended` is told the lease of each body that is over. `find`
    completes the name of a socket.
    """

    def __init__(
        self,
        clock: Clock,
        look: Callable[[SocketName], SocketState | None],
        moved: Callable[[int], None],
        rng: random.Random,
        claim_s: float,
        ended: Callable[[str], None] = lambda lease: None,
        find: Callable[[SocketName], SocketName] = lambda name: name,
    ) -> None:
        self._clock = clock
        self._look = look
        self._moved = moved
        self._rng = rng
        self._claim_s = claim_s
        self._ended = ended
        self._find = find
        self.counts = MoveCounts()
        self._bodies: dict[str, MovedBody] = {}
        #: Bodies that were reported, with the time of the report.
        self._held: dict[MovedBody, float] = {}
        #: The connections with bodies on them; by name those whose socket is known.
        self._connections: dict[MoverConnection, None] = {}
        self._by_name: dict[SocketName, MoverConnection] = {}
        self._turn: list[MoverConnection] = []
        self._repeat = Repeat(clock, TUNING.turn_s, self._take_turn)

    def __len__(self) -> int:
        return len(self._bodies)

    def start(self) -> None:
        """Begin to look."""
        self._repeat.start()

    def stop(self) -> None:
        """Look no more."""
        self._repeat.stop()

    def prepare(
        self, listener: TransferListener, total_bytes: int, target: str, lease: str = ""
    ) -> MovedBody:
        """A body that a mover will be told to send, or sends already on this `lease`."""
        lease = lease or self._rng.randbytes(16).hex()
        return MovedBody(self, listener, lease, total_bytes, target)

    def hand_over(
        self, body: MovedBody, where: MovedOn, acked_bytes: int | None = None
    ) -> int | None:
        """The mover is told to send this body now.

        Its socket had `acked_bytes` before it, where the mover sends it already. Returns what it
        has had before this body; None where nothing is known of it.
        """
        now = self._clock.seconds()
        name = where.socket
        if name is not None and not name.mover_port:
            name = self._find(name)
            where = replace(where, socket=name)
        connection = self._by_name.get(name) if name is not None else None
        if connection is None:
            connection = MoverConnection(where, moved_s=now)
            self._connections[connection] = None
            if name is not None:
                self._by_name[name] = connection
                state = self._look(name)
                if state is not None:
                    before = state.acked_bytes if acked_bytes is None else acked_bytes
                    connection.seen, connection.acked_bytes = True, before
        else:
            self._refresh(connection, now)
            if not where.multiplexed:
                # It sends one answer after another: those before are over.
                for earlier in connection.bodies:
                    earlier.followed_s = earlier.followed_s or now
            connection.moved_s = now
        connection.since_bytes = connection.early_bytes = 0
        connection.bodies.append(body)
        body.began_s, body.connection = now, connection
        self._bodies[body.lease] = body
        has_had = connection.acked_bytes if connection.seen else None
        if acked_bytes is not None and not where.multiplexed:
            self._refresh(connection, now)
            body.was_found()
        return has_had

    def age_s(self, body: MovedBody) -> float:
        """For how long it has been its mover's."""
        return self._clock.seconds() - body.began_s

    def receive(self, report: EndReport) -> None:
        """A mover says that a body is over."""
        body = self._bodies.get(report.lease)
        if body is None or body in self._held or _is_elsewhere(body):
            return
        self.counts.reported += 1
        well = report.status in (200, 206)
        if not well:
            _log.warn(
                "The mover answered {status} for {target}: can it read the file, and is its root "
                "the directory of this gate?",
                status=report.status,
                target=without_tokens(body.target.encode("latin-1")),
            )
        sent = min(report.sent_bytes, body.total_bytes) if well else 0
        complete = well and report.whole and sent == body.total_bytes
        connection, body.cut_short = body.connection, well and not complete
        # Most of a body that was cut short is in the kernel's buffers, until the mover closes them.
        awaited = well and connection is not None and connection.seen and body.followed_s is None
        if not awaited or (body.cut_short and connection and connection.where.multiplexed):
            self.end(body, sent, complete=complete)
            return
        self._held[body] = self._clock.seconds()
        if len(self._held) > TUNING.most_held:
            self._whole(next(iter(self._held)))

    def logged(self, lease: str, count: int) -> None:
        """The origin has sent this many bytes more to a client that was sent there.

        The client can have its lease logged early, by a request for a part. So the body ends with
        all its bytes, however many requests they take, or when it is taken to be over.
        """
        body = self._bodies.get(lease)
        if body is None or not _is_elsewhere(body):
            self.counts.unknown += 1
            return
        body.logged_bytes += count
        if body.logged_bytes >= body.total_bytes:
            self.counts.reported += 1
            self._whole(body)
        else:
            self._moved(body.advance(body.logged_bytes - body.sent_bytes, self._clock.seconds()))

    def next_asked(self, where: MovedOn) -> None:
        """A client asks for another file: on this connection it has all that it asked for."""
        name = where.socket
        if name is None or where.multiplexed:
            return
        here = self._by_name.get(name) if name.mover_port else None
        for body in tuple(self._held):
            if body.connection is here if here is not None else _is_client_of(body, name):
                self._whole(body)

    def _whole(self, body: MovedBody) -> None:
        """End a reported body: with all its bytes, or with those that its client has."""
        whole = not body.cut_short
        self.end(body, body.total_bytes if whole else body.arrived_bytes(), complete=whole)

    def end(self, body: MovedBody, delivered_bytes: int, *, complete: bool) -> None:
        """A body is over, whatever tells so. Harmless for one that is over already."""
        if body.over:
            return
        connection, body.connection = body.connection, None
        self._bodies.pop(body.lease, None)
        self._held.pop(body, None)
        self._ended(body.lease)
        if connection is not None:
            connection.bodies.remove(body)
            if not connection.bodies:
                del self._connections[connection]
                name = connection.where.socket
                if name is not None and self._by_name.get(name) is connection:
                    del self._by_name[name]
        self._moved(max(0, delivered_bytes - body.sent_bytes))
        body.ended(delivered_bytes, complete=complete)

    def refresh(self, connection: MoverConnection) -> None:
        """Ask the kernel how far the bodies of a connection are, unless that was just asked."""
        now = self._clock.seconds()
        if now - connection.looked_s >= TUNING.fresh_s:
            self._refresh(connection, now)

    def _refresh(self, connection: MoverConnection, now: float) -> SocketState | None:
        """What the kernel has of a socket; None: nothing."""
        connection.looked_s = now
        name = connection.where.socket
        if not connection.seen or name is None:
            return None
        state = self._look(name)
        if state is not None:
            self._count(connection, state, now)
        if (state is None or state.closing) and connection.gone_s is None:
            connection.gone_s = now
        return state

    def _count(self, connection: MoverConnection, state: SocketState, now: float) -> None:
        fresh = state.acked_bytes - connection.acked_bytes
        connection.queued_bytes = state.queued_bytes
        if fresh > 0:
            connection.acked_bytes = state.acked_bytes
            connection.since_bytes += fresh
            connection.early_bytes += fresh
            connection.moved_s = now
        bodies = [one for one in connection.bodies if one.followed_s is None]
        counted = _spread(connection.early_bytes, bodies, now)
        connection.early_bytes -= counted
        self._moved(counted)

    def destroyed(self, name: SocketName, state: SocketState) -> None:
        """A socket has ended, whatever it was for."""
        connection = self._by_name.get(name)
        if connection is not None:
            now = self._clock.seconds()
            # A look may have found it gone before.
            self._count(connection, state, now)
            connection.gone_s = now if connection.gone_s is None else connection.gone_s
            for body in [one for one in connection.bodies if one in self._held]:
                body.cut_short |= not _has_arrived(body, connection)
                self._whole(body)

    def _take_turn(self) -> None:
        """Look at some of the connections; at each of them once a second."""
        self._settle()
        if not self._turn:
            self._turn = list(self._connections)
        count = -(-len(self._connections) // TUNING.turns)
        now = self._clock.seconds()
        looked, self._turn = self._turn[:count], self._turn[count:]
        for connection in looked:
            self._refresh(connection, now)
            for body in tuple(connection.bodies):
                self._judge(body, connection, now)

    def _settle(self) -> None:
        """End the reported bodies that have arrived."""
        now = self._clock.seconds()
        for body, since_s in tuple(self._held.items()):
            connection = body.connection
            state = self._refresh(connection, now) if connection is not None else None
            if connection is not None and state is not None and not body.cut_short:
                # Envoy reports an end with 64 KiB in its own buffers.
                if body.due_bytes is None or not connection.where.multiplexed:
                    body.due_bytes = state.acked_bytes + state.queued_bytes
                if state.acked_bytes < body.due_bytes:
                    if now - since_s < TUNING.held_s:
                        continue
                    # One of which nothing has arrived has not begun.
                    body.cut_short = connection.since_bytes == 0
            self._whole(body)

    def _judge(self, body: MovedBody, connection: MoverConnection, now: float) -> None:
        """End a body whose report was lost."""
        if body in self._held:
            return
        if body.followed_s is not None:
            if now - body.followed_s >= TUNING.gone_s:
                self._unreported(body, complete=True)
        elif connection.where.assumed_bytes_s:
            sent = int((now - body.began_s) * connection.where.assumed_bytes_s)
            self._moved(body.advance(sent - body.sent_bytes, now))
            if sent >= body.total_bytes:
                self.end(body, body.total_bytes, complete=True)
        elif not connection.seen:
            patience_s = self._claim_s + body.total_bytes / TUNING.unseen_bytes_s
            if now - body.began_s >= patience_s:
                self._unreported(body, complete=False)
        elif connection.gone_s is not None:
            if now - connection.gone_s >= TUNING.gone_s:
                self._unreported(body, complete=_has_all(body, connection))
        elif connection.queued_bytes == 0:
            silent_s, whole = now - connection.moved_s, _has_all(body, connection)
            if connection.since_bytes == 0:
                if silent_s >= self._claim_s:
                    self.counts.unclaimed += 1
                    self.end(body, 0, complete=False)
            elif silent_s >= (TUNING.gone_s if whole else TUNING.silent_s):
                self._unreported(body, complete=whole)

    def _unreported(self, body: MovedBody, *, complete: bool) -> None:
        self.counts.unreported += 1
        self.end(body, body.total_bytes if complete else body.arrived_bytes(), complete=complete)


def _is_elsewhere(body: MovedBody) -> bool:
    """Whether its client was sent to the origin, and knows its lease."""
    return body.connection is not None and bool(body.connection.where.assumed_bytes_s)


def _is_client_of(body: MovedBody, name: SocketName) -> bool:
    """Whether a body goes to the client's end of this name."""
    one = body.connection and body.connection.where.socket
    return bool(one and (one.client_port, one.client) == (name.client_port, name.client))


def _has_arrived(body: MovedBody, connection: MoverConnection) -> bool:
    """Whether a reported body has come whole at a client that has left."""
    if not connection.where.multiplexed and connection.since_bytes >= body.total_bytes:
        return True
    if body.due_bytes is None:
        return connection.where.multiplexed
    # The end of a connection counts as one byte.
    return connection.acked_bytes + 1 >= body.due_bytes


def _has_all(body: MovedBody, connection: MoverConnection) -> bool:
    """Whether a body that is alone on its connection has come whole."""
    return len(connection.bodies) == 1 and connection.since_bytes >= body.total_bytes


def _spread(count: int, bodies: list[MovedBody], now: float) -> int:
    """Count this many bytes for these bodies, evenly (max-min); how many were counted."""
    left = count
    by_room = sorted(bodies, key=lambda one: one.room(now))
    for at, body in enumerate(by_room):
        left -= body.advance(left // (len(by_room) - at), now)
    return count - left
