"""The store of the reactor: reads are Deferreds, writes are batches, and nothing blocks.

A dead or full database stops no download. While writes fail, the newest row of every changed ticket
stays in memory and is retried at growing intervals. Events, samples and arrivals (notes) are
dropped beyond a bound, oldest first.
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
from .database import Database, words_of
from .journal import write_tickets

T = TypeVar("T")
Work = Callable[[Connection], T]
#: Runs a blocking function on another thread; the Deferred fires on the reactor's.
RunInThread = Callable[[Callable[[], T]], "Deferred[T]"]


@dataclass(frozen=True, slots=True)
class StoreTimes:
    """How the store batches, waits and gives up; times in seconds."""

    #: Batches begin at least this far apart: a commit takes about as long.
    batch_s: float = 0.002
    #: On a single machine an answer waits no longer for a commit; its signed token proves the
    #: ticket as well.
    late_s: float = 0.5
    #: An operator's change is answered as not stored yet after this time.
    stored_s: float = 2.0
    #: A failed write is tried again after this time, then after twice as long each time.
    retry_first_s: float = 0.5
    retry_most_s: float = 15.0
    #: Notes that wait for an ill database; older ones are dropped.
    most_notes: int = 20_000
    #: Notes in one batch: answers wait for the same commit.
    notes_in_batch: int = 4
    #: A write that takes longer is cut and tried again.
    deadline_s: float = 20.0
    #: The last writes of a stopping server are cut after this time.
    close_s: float = 5.0
    #: The server gives up this long after the cut.
    cut_s: float = 3.0
    #: How often the store checks that the file is still the one that was opened.
    look_s: float = 30.0


TIMES = StoreTimes()


@dataclass(frozen=True, slots=True)
class StoreState:
    """Whether writes succeed; otherwise why not and since when, and how many are pending."""

    ok: bool
    reason: str = ""
    since_s: float = 0.0
    pending: int = 0


class Store:
    """Batches writes to one database and runs reads beside them.

    Answers wait `TIMES.late_s` for a commit, failed attempts included. After the first answer
    without a commit, none waits until the database works again.

    With `fenced`, the store of a cluster's leader, no answer leaves without its commit: a client
    without a token would lose its place with the leader. `fenced` is called, before any waiting
    answer, when another machine leads, and when the database has taken nothing for
    `TIMES.deadline_s`. It hears why.
    """

    log = Logger()

    def __init__(
        self,
        database: Database,
        reactor: Clock,
        write_in_thread: RunInThread[None],
        read_in_thread: Callable[[Callable[[], object]], Deferred[object]],
        now: Callable[[], float],
        fenced: Callable[[str], None] | None = None,
    ) -> None:
        self._database = database
        self._fenced = fenced
        self._memory: Callable[[], list[Work[None]]] = list
        self._reactor = reactor
        self._write_in_thread = write_in_thread
        self._read_in_thread = read_in_thread
        self._now = now
        self._tickets: dict[int, TicketRow] = {}
        self._musts: list[Work[None]] = []
        self._notes: deque[Work[None]] = deque(maxlen=TIMES.most_notes)
        self._waiters: list[Callable[[], None]] = []
        #: Callers of `stored`, which never answer before the commit.
        self._askers: list[Callable[[], None]] = []
        self._flying_waiters: list[Callable[[], None]] = []
        self._call: DelayedCall | None = None
        self._look_call: DelayedCall | None = None
        self._flying: Deferred[None] | None = None
        self._flying_count = 0
        #: Whether the next write must create the database first.
        self._renew = False
        self._retry_s = TIMES.retry_first_s
        self._closed = False
        #: When the last batch began.
        self._flushed_s = -TIMES.batch_s
        self._late = False
        self._late_call: DelayedCall | None = None
        self._reason = ""
        self._since_s = 0.0
        self.failures_total = 0
        #: Counts writes that an answer waits for.
        self.musts_total = 0

    @property
    def state(self) -> StoreState:
        """Whether writes succeed."""
        pending = len(self._tickets) + len(self._musts) + len(self._notes)
        return StoreState(not self._reason, self._reason, self._since_s, pending)

    def keep_tickets(self, rows: Iterable[TicketRow]) -> None:
        """Journal tickets with the next batch; only the newest row of each ticket is written."""
        for row in rows:
            self._tickets[row.number] = row
        self._schedule()

    def must(self, work: Work[None]) -> None:
        """Write with the next batch, and retry until it succeeds."""
        self._musts.append(work)
        self.musts_total += 1
        self._schedule()

    def owe(self) -> None:
        """Let the answer to an operator wait for the tickets that were journalled so far."""
        self.musts_total += 1

    def note(self, work: Work[None]) -> None:
        """Write with the next batch; the write may be dropped while the database fails."""
        self._notes.append(work)
        self._schedule()

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call back when all writes so far are committed, or have taken too long."""
        idle = self._call is None and self._flying is None
        if self._late or idle:
            callback()
        else:
            self._waiters.append(callback)
            self._bound_waiting()

    def stored(self) -> Deferred[bool]:
        """True when all writes so far are committed; False after `TIMES.stored_s`.

        False at once if the database has failed for that long already.
        """
        done: Deferred[bool] = Deferred()
        if self._call is None and self._flying is None:
            done.callback(True)
            return done
        ill_s = self._now() - self._since_s if self._reason else 0.0
        if ill_s >= TIMES.stored_s:
            done.callback(False)
            return done

        def settle(stored: bool) -> None:
            if not done.called:
                done.callback(stored)
            cancel(limit)

        limit = self._reactor.callLater(TIMES.stored_s, settle, False)
        self._askers.append(lambda: settle(True))
        return done

    def _bound_waiting(self) -> None:
        if self._fenced is None and self._late_call is None:
            self._late_call = self._reactor.callLater(TIMES.late_s, self._go_without)

    def _go_without(self) -> None:
        self._late_call = None
        self._late = True
        self._tell(self._flying_waiters)
        self._tell(self._waiters)

    def _in_time(self) -> None:
        """The database committed a batch: answers wait for the next one again."""
        self._late = False
        if self._late_call is not None:
            self._late_call.cancel()
            self._late_call = None
        if self._waiters:
            self._bound_waiting()

    def read(self, work: Work[T]) -> Deferred[T]:
        """Run a query, or a write with a result, in a transaction of its own."""

        def in_thread() -> object:
            with self._database.engine.begin() as connection:
                return work(connection)

        return self._read_in_thread(in_thread)  # type: ignore[return-value]

    def open(self, memory: Callable[[], list[Work[None]]]) -> None:
        """Begin to check the database; call this once the threads run.

        `memory` returns the writes that restore the server's state in a database that was lost.
        """
        self._memory = memory
        self._look_call = self._reactor.callLater(TIMES.look_s, self._look)

    def close(self) -> Deferred[bool]:
        """Write everything pending, in two attempts at most; the caller then ends the threads.

        Writes that arrive meanwhile count, such as the ends of downloads that the stop cut. False
        if a thread still waits for the database: it may hang for ever.
        """
        self._closed = True
        cancel(self._look_call, self._call)
        self._call = None
        done: Deferred[bool] = Deferred()
        limits: list[DelayedCall] = []
        failures = 0

        def cut() -> None:
            # A wait on a dead connection fails now; the next attempt opens another connection.
            self._database.interrupt()
            limits.append(self._reactor.callLater(TIMES.cut_s, end, False))

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

        limits.append(self._reactor.callLater(TIMES.close_s, cut))

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
        """Write after `delay_s`, and not sooner than `TIMES.batch_s` after the last batch began."""
        if self._call is None and self._flying is None and not self._closed:
            pause_s = self._flushed_s + TIMES.batch_s - self._reactor.seconds()
            delay_s = max(delay_s, min(TIMES.batch_s, pause_s), 0.0)
            self._call = self._reactor.callLater(delay_s, self._flush)

    def _flush(self) -> None:
        self._call = None
        self._flushed_s = self._reactor.seconds()
        if not (self._tickets or self._musts or self._notes):
            self._tell(self._askers)
            self._tell(self._waiters)
            self._in_time()
            return
        # A note is tried once: one that can never succeed must not block the other writes.
        tickets, self._tickets = self._tickets, {}
        musts, self._musts = self._musts, []
        # Answers wait for this commit: it takes few notes.
        most = len(self._notes) if self._closed else TIMES.notes_in_batch
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
            self._fell_ill(f"no answer in {TIMES.deadline_s:.0f} s", TIMES.deadline_s)
            self._database.interrupt()

        overdue_call = self._reactor.callLater(TIMES.deadline_s, overdue)
        self._flying_count = len(tickets) + len(musts) + len(notes)

        def landed() -> None:
            self._flying = None
            self._flying_count = 0
            cancel(overdue_call)

        def succeeded(_: None) -> None:
            landed()
            self._retry_s = TIMES.retry_first_s
            if self._reason:
                self.log.info("The database works again.")
                self._reason = ""
            self._tell(askers)
            self._tell(self._flying_waiters)
            self._in_time()
            if self._tickets or self._musts or self._notes or self._waiters or self._askers:
                self._schedule()

        def failed(failure: Failure) -> None:
            landed()
            if isinstance(failure.value, Fenced) and self._fenced is not None:
                self._fenced("the database says so")
            self.failures_total += 1
            self._renew = self._renew or renew
            # Newer rows replace those that failed.
            self._tickets = tickets | self._tickets
            self._musts = musts + self._musts
            self._fell_ill(words_of(failure.value))
            self._flying_waiters, self._waiters = [], self._flying_waiters + self._waiters
            self._askers = askers + self._askers
            self._schedule(self._retry_s)
            self._retry_s = min(TIMES.retry_most_s, self._retry_s * 2)

        self._flying = flying = self._write_in_thread(in_thread)
        flying.addCallbacks(succeeded, failed)

    def _fell_ill(self, reason: str, hung_s: float = 0.0) -> None:
        if not self._reason:
            self._since_s = self._now()
            self.log.error(
                "The database does not take writes; downloads go on. {reason}", reason=reason
            )
        self._reason = reason
        ill_s = self._now() - self._since_s
        if self._fenced is not None and max(ill_s, hung_s) >= TIMES.deadline_s:
            # Another machine may reach the database better.
            self._fenced(f"the database takes no writes: {reason}")

    def _look(self) -> None:
        """Check that the database file was not deleted or replaced under the running server."""

        def found(fault: str | None) -> None:
            if fault is None or self._closed or self._renew:
                # Reported before: everything waits to be written already.
                return
            self.log.error("{fault}; what the server knows is written anew.", fault=fault)
            self._musts = [*self._memory(), *self._musts]
            self._renew = True
            self._schedule()

        def ill(failure: Failure) -> None:
            self._fell_ill(words_of(failure.value))

        if not self._closed:
            self._look_call = self._reactor.callLater(TIMES.look_s, self._look)
            if self._flying is None:
                looked: Deferred[Any] = self._write_in_thread(self._database.fault)  # type: ignore[arg-type]
                looked.addCallbacks(found, ill)

    @staticmethod
    def _tell(waiters: list[Callable[[], None]]) -> None:
        callbacks = waiters[:]
        waiters.clear()
        for callback in callbacks:
            callback()
