"""The store as the reactor sees it: reads are Deferreds, writes are batches, nothing ever blocks.

A dead or full database never stops a download. While writes fail the state is `degraded`, the
newest row of every changed ticket is kept in memory and tried again at growing intervals; what
only informs (events, samples, arrivals) is dropped beyond a bound, oldest first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...policies.contract import TicketRow
from ..http.clock import Clock, DelayedCall, cancel
from .cluster import Fenced
from .database import Database
from .journal import write_tickets

T = TypeVar("T")
Work = Callable[[Connection], T]
#: Runs a blocking function elsewhere and answers on the reactor's thread.
RunInThread = Callable[[Callable[[], T]], "Deferred[T]"]

BATCH_S = 0.002
#: A caller waits no longer than this for a commit, whatever the database does; in a cluster for
#: the second time: there a place must survive its leader, not only the next start.
LATE_S, CLUSTER_LATE_S = 0.5, 5.0
#: An operator's change waits so long for its commit until it is answered as not stored yet.
STORED_S = 2.0
RETRY_FIRST_S = 0.5
RETRY_MOST_S = 15.0
MOST_NOTES = 20_000
#: Of them no more go with one batch.
_NOTES_AT_ONCE = 4
#: A write that has not ended by then is given up: its connection is cut, and it is tried again.
DEADLINE_S = 20.0
#: The last writes of a server that stops may take so long, and so much longer once they were cut.
CLOSE_S, CUT_S = 5.0, 3.0
#: How often it is looked whether the database is still the one that was opened.
LOOK_S = 30.0


@dataclass(frozen=True, slots=True)
class StoreState:
    """Whether the store keeps up. `reason` and `since_s` say why not and since when."""

    ok: bool
    reason: str = ""
    since_s: float = 0.0
    pending: int = 0


class Store:
    """Batches writes to one database and runs reads beside them.

    `fenced` hears that another machine leads, before anybody is told that something is safe.
    `late_s` is how long answers wait for a commit, failed attempts included; once one had to go
    without, the others follow at once until the database works again.
    """

    log = Logger()

    def __init__(
        self,
        database: Database,
        reactor: Clock,
        write_in_thread: RunInThread[None],
        read_in_thread: Callable[[Callable[[], object]], Deferred[object]],
        now: Callable[[], float],
        fenced: Callable[[], None] = lambda: None,
        late_s: float = LATE_S,
    ) -> None:
        self._database = database
        self._fenced = fenced
        self._late_s = late_s
        self._memory: Callable[[], list[Work[None]]] = list
        self._reactor = reactor
        self._write_in_thread = write_in_thread
        self._read_in_thread = read_in_thread
        self._now = now
        self._tickets: dict[int, TicketRow] = {}
        self._musts: list[Work[None]] = []
        self._notes: deque[Work[None]] = deque(maxlen=MOST_NOTES)
        self._waiters: list[Callable[[], None]] = []
        #: Those who must know whether it is stored, and are not told that it is before it is.
        self._askers: list[Callable[[], None]] = []
        self._flying_waiters: list[Callable[[], None]] = []
        self._call: DelayedCall | None = None
        self._look_call: DelayedCall | None = None
        self._flying: Deferred[None] | None = None
        self._flying_count = 0
        #: Whether the database must be made anew before the next write.
        self._renew = False
        self._retry_s = RETRY_FIRST_S
        self._closed = False
        #: When the last batch began.
        self._flushed_s = -BATCH_S
        self._late = False
        self._late_call: DelayedCall | None = None
        self._reason = ""
        self._since_s = 0.0
        self.failures_total = 0
        #: How many writes were given that an answer waits for, ever.
        self.musts_total = 0

    @property
    def state(self) -> StoreState:
        """Whether writes arrive."""
        pending = len(self._tickets) + len(self._musts) + len(self._notes)
        return StoreState(not self._reason, self._reason, self._since_s, pending)

    def keep_tickets(self, rows: Iterable[TicketRow]) -> None:
        """Journal tickets with the next batch; of one ticket only the newest row is written."""
        for row in rows:
            self._tickets[row.number] = row
        self._schedule()

    def must(self, work: Work[None]) -> None:
        """Do a write with the next batch, and again until it succeeds."""
        self._musts.append(work)
        self.musts_total += 1
        self._schedule()

    def owe(self) -> None:
        """What was given so far must be done, too: an operator has changed tickets."""
        self.musts_total += 1

    def note(self, work: Work[None]) -> None:
        """Do a write with the next batch; it may be dropped while the database is ill."""
        self._notes.append(work)
        self._schedule()

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call back when all that was given so far is safe, or was waited for long enough."""
        idle = self._call is None and self._flying is None
        if self._late or idle:
            callback()
        else:
            self._waiters.append(callback)
            if self._late_call is None:
                self._late_call = self._reactor.callLater(self._late_s, self._go_without)

    def stored(self) -> Deferred[bool]:
        """True once all that was given so far is committed; False when that takes `STORED_S`.

        While the database has been ill for that long already, False comes at once.
        """
        done: Deferred[bool] = Deferred()
        if self._call is None and self._flying is None:
            done.callback(True)
            return done
        ill_s = self._now() - self._since_s if self._reason else 0.0
        if ill_s >= STORED_S:
            done.callback(False)
            return done

        def settle(stored: bool) -> None:
            if not done.called:
                done.callback(stored)
            cancel(limit)

        limit = self._reactor.callLater(STORED_S, settle, False)
        self._askers.append(lambda: settle(True))
        return done

    def _go_without(self) -> None:
        self._late_call = None
        self._late = True
        self._tell(self._flying_waiters)
        self._tell(self._waiters)

    def _in_time(self) -> None:
        """The database took a batch: the time of those who wait for the next one begins anew."""
        self._late = False
        if self._late_call is not None:
            self._late_call.cancel()
            self._late_call = None
        if self._waiters:
            self._late_call = self._reactor.callLater(self._late_s, self._go_without)

    def read(self, work: Work[T]) -> Deferred[T]:
        """Run a query (or a write that wants its answer) in a transaction of its own."""

        def in_thread() -> object:
            with self._database.engine.begin() as connection:
                return work(connection)

        return self._read_in_thread(in_thread)  # type: ignore[return-value]

    def open(self, memory: Callable[[], list[Work[None]]]) -> None:
        """Begin to look after the database; the threads run.

        `memory` gives the writes that bring what the server knows into a database that was lost.
        """
        self._memory = memory
        self._look_call = self._reactor.callLater(LOOK_S, self._look)

    def close(self) -> Deferred[bool]:
        """Write what is pending, then call back; the caller ends the threads.

        What comes in meanwhile is written, too, such as the ends of downloads that a stop cut. An
        ill database has two attempts.

        False when a thread still waits for the database: it may hang for ever.
        """
        self._closed = True
        cancel(self._look_call, self._call)
        self._call = None
        done: Deferred[bool] = Deferred()
        limits: list[DelayedCall] = []
        failures = 0

        def cut() -> None:
            # What waits on a dead connection fails now, and the next attempt opens another one.
            self._database.interrupt()
            limits.append(self._reactor.callLater(CUT_S, end, False))

        def end(free: bool) -> None:
            cancel(*limits, self._late_call)
            if done.called:
                return
            pending = self.state.pending + self._flying_count
            if pending:
                self.log.error(
                    "The database did not take the last {pending} changes. Clients that show their "
                    "tickets keep their places.",
                    pending=pending,
                )
            done.callback(free)

        limits.append(self._reactor.callLater(CLOSE_S, cut))

        def landed(_: object) -> None:
            nonlocal failures
            failures += bool(self._reason)
            if failures == 2:
                end(True)
            else:
                last()

        def last(_: object = None) -> None:
            if done.called:
                return
            self._flush()
            if self._flying is None:
                end(True)
            else:
                self._flying.addBoth(landed)

        if self._flying is not None:
            self._flying.addBoth(last)
        else:
            last()
        return done

    def _schedule(self, delay_s: float = 0.0) -> None:
        """Write after `delay_s`, and not sooner than `BATCH_S` after the last batch began."""
        if self._call is None and self._flying is None and not self._closed:
            pause_s = self._flushed_s + BATCH_S - self._reactor.seconds()
            delay_s = max(delay_s, min(BATCH_S, pause_s), 0.0)
            self._call = self._reactor.callLater(delay_s, self._flush)

    def _flush(self) -> None:
        self._call = None
        self._flushed_s = self._reactor.seconds()
        if not (self._tickets or self._musts or self._notes):
            self._tell(self._askers)
            self._tell(self._waiters)
            self._in_time()
            return
        # A note that can never succeed must not poison what has to be kept: notes are tried once.
        tickets, self._tickets = self._tickets, {}
        musts, self._musts = self._musts, []
        # Nor are many to keep answers waiting that wait for this commit.
        most = len(self._notes) if self._closed else _NOTES_AT_ONCE
        notes = [self._notes.popleft() for _ in range(min(most, len(self._notes)))]
        self._flying_waiters, self._waiters = self._waiters, []
        askers, self._askers = self._askers, []

        renew, self._renew = self._renew, False

        def in_thread() -> None:
            if renew:
                self._database.renew()
            with self._database.engine.begin() as connection:
                self._database.fence(connection)
                write_tickets(connection, tickets.values())
                for work in musts:
                    work(connection)
                for work in notes:
                    work(connection)

        def overdue() -> None:
            self._fell_ill(f"no answer in {DEADLINE_S:.0f} s")
            self._database.interrupt()

        overdue_call = self._reactor.callLater(DEADLINE_S, overdue)
        self._flying_count = len(tickets) + len(musts) + len(notes)

        def landed() -> None:
            self._flying = None
            self._flying_count = 0
            cancel(overdue_call)

        def succeeded(_: None) -> None:
            landed()
            self._retry_s = RETRY_FIRST_S
            if self._reason:
                self.log.info("The database works again.")
                self._reason = ""
            self._tell(askers)
            self._tell(self._flying_waiters)
            self._in_time()
            if self._tickets or self._musts or self._notes or self._waiters or self._askers:
                self._schedule()

        def failed(failure: Failure) -> None:
            if isinstance(failure.value, Fenced):
                self._fenced()
            landed()
            self.failures_total += 1
            self._renew = self._renew or renew
            # What changed meanwhile is newer than what failed.
            self._tickets = tickets | self._tickets
            self._musts = musts + self._musts
            # SQLAlchemy adds a link to its own manual in a second line.
            reason = (failure.getErrorMessage() or "unknown fault").splitlines()[0][:300]
            self._fell_ill(reason)
            self._flying_waiters, self._waiters = [], self._flying_waiters + self._waiters
            self._askers = askers + self._askers
            self._schedule(self._retry_s)
            self._retry_s = min(RETRY_MOST_S, self._retry_s * 2)

        self._flying = flying = self._write_in_thread(in_thread)
        flying.addCallbacks(succeeded, failed)

    def _fell_ill(self, reason: str) -> None:
        if not self._reason:
            self._since_s = self._now()
            self.log.error(
                "The database does not take writes; downloads go on. {reason}", reason=reason
            )
        self._reason = reason

    def _look(self) -> None:
        """Is it still our database? A file may be deleted or replaced under a running server."""

        def found(fault: str | None) -> None:
            if fault is None or self._closed or self._renew:
                # Said before, and all that is known waits to be written already.
                return
            self.log.error("{fault}; what the server knows is written anew.", fault=fault)
            works = self._memory()
            self._musts = [*works, *self._musts]
            self._renew = True
            self._schedule()

        def ill(failure: Failure) -> None:
            self._fell_ill(failure.getErrorMessage().splitlines()[0][:300])

        if not self._closed:
            self._look_call = self._reactor.callLater(LOOK_S, self._look)
            if self._flying is None:
                looked: Deferred[Any] = self._write_in_thread(self._database.fault)  # type: ignore[arg-type]
                looked.addCallbacks(found, ill)

    @staticmethod
    def _tell(waiters: list[Callable[[], None]]) -> None:
        callbacks = waiters[:]
        waiters.clear()
        for callback in callbacks:
            callback()
