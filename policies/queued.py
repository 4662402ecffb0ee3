"""The queue before the slots: who gets a ticket, when it is ready, who is called.

Paper A's mechanism with its open ends tied: the ready list grows with the slots and with the
measured no-shows; a ticket's time to live counts from the return that was promised; visits before
that return are counted, soon start nothing and only move the return; clients that wait at the door
are called in turn the instant a slot is free, but do not push past one that is due any moment.

A policy that gives no tickets (`gives_tickets` false) still serves those it took over, first.
"""

from __future__ import annotations

from collections.abc import Iterable

from policies.book import READY, WAITING
from policies.job import (
    Admit,
    Decision,
    Estimate,
    Job,
    Reason,
    Snapshot,
    TicketRow,
    TicketState,
    Wait,
)
from policies.shelf import MOST_POLLS
from policies.telling import Telling


class QueuedPolicy(Telling):
    """Tickets in order of the book; subclasses choose caps, order and whether tickets are given."""

    # -- offers --------------------------------------------------------------------------------

    def _offer_small(self, job: Job, now: float) -> Decision:
        row = self._book.find(job.client, job.file) if len(self._book) else None
        if row is not None:
            return self._returning(row, job, now)
        if self._slots - len(self._pool) > self._small_owed(now) or self._make_room(now):
            return self._start(job, now, None, False)
        if not self.gives_tickets:
            return Wait(self.settings.busy_retry_s)
        return self._newcomer(job, now)

    def _offer_large(self, job: Job, now: float, ticket: int | None) -> Decision:
        row = self._book.find(job.client, job.file)
        if row is not None:
            return self._returning(row, job, now)
        if not self.gives_tickets:
            return self._without_ticket(job, now)
        if ticket is not None:
            reason = self._why_not(ticket)
            if reason is not None:
                return self._refuse(reason)
        return self._newcomer(job, now)

    def _without_ticket(self, job: Job, now: float) -> Decision:
        if self.large_free() > len(self._book):
            return self._start(job, now, None, True)
        return Wait(self._plain_retry_s())

    def _why_not(self, ticket: int) -> Reason | None:
        """Why a ticket without a place for this download is no good."""
        if ticket in self._book.shelf.rows:
            return Reason.TICKET_FOREIGN
        ended = self._book.ended.get(ticket)
        if ended is not None and ended.state is TicketState.DONE:
            return Reason.TICKET_USED
        return Reason.TICKET_EXPIRED

    def _newcomer(self, job: Job, now: float) -> Decision:
        book, settings = self._book, self.settings
        if book.held_by(job.client) >= settings.tickets_per_client:
            return self._refuse(Reason.TOO_MANY_TICKETS, settings.retry_max_s)
        if len(book) >= settings.tickets_max:
            return Wait(settings.busy_retry_s)
        row = book.issue(job, now)
        self._tally.tickets_issued += 1
        book.set_present(row, job.present)
        if self._is_small(row):
            self._make_ready(row, now, first=True)
        else:
            self._fill_ready(now)
        if self._turn_has_come(row, now):
            return self._start_ticket(row, job, now)
        return self._slowly(self._wait(row, now), self.hall.idlers.times(job.client))

    def _turn_has_come(self, row: int, now: float) -> bool:
        if self._book.shelf.state[row] != READY:
            return False
        if self._is_small(row):
            return self._small_may_start(row, now) or self._make_room(now)
        return self._may_start(row, now)

    def _returning(self, row: int, job: Job, now: float) -> Decision:
        book, shelf, settings = self._book, self._book.shelf, self.settings
        if not shelf.polls[row]:
            self._eta.newcomers.seen(shelf.number[row])
        if shelf.polls[row] < MOST_POLLS:
            shelf.polls[row] += 1
        book.set_present(row, job.present)
        book.resize(row, job.remaining_bytes)
        if job.weight > shelf.weight[row]:
            book.reweigh(row, job.weight)
        early = not job.present and now < shelf.promise_s[row] - settings.early_tolerance_s
        if early:
            self._tally.early_polls += 1
            shelf.early[row] = min(shelf.early[row] + 1, MOST_POLLS)
            extra = shelf.early[row] - settings.early_polls_free
            if extra > 0:
                if extra * settings.early_penalty_s <= settings.early_penalty_max_s:
                    shelf.promise_s[row] += settings.early_penalty_s
                return self._slowly(self._wait_on(row, now), extra)
        if shelf.state[row] == WAITING:
            self._fill_ready(now)
        if self._turn_has_come(row, now):
            return self._start_ticket(row, job, now)
        if early:
            return self._wait_on(row, now)
        return self._wait(row, now)

    def _start_ticket(self, row: int, job: Job, now: float) -> Admit:
        shelf = self._book.shelf
        if shelf.state[row] == READY and shelf.polls[row] and not shelf.present[row]:
            self._eta.claimed(True)
        if shelf.raw[row]:
            stated = Estimate(shelf.expected[row], shelf.bound[row])
            waited = now - shelf.issued_s[row]
            # A slot that stood empty until its owner came back would have been there sooner.
            idle_since = now if self._idle_since_s is None else self._idle_since_s
            needed = waited - (now - idle_since)
            self._eta.started(shelf.raw[row], shelf.away[row], stated, waited, needed)
        self._book.start(row, now)
        return self._start(job, now, shelf.number[row], not self._is_small(row))

    # -- the other words of the seam -------------------------------------------------------------

    def withdraw(self, ticket: int, now: float) -> None:
        """See `AdmissionPolicy.withdraw`."""
        row = self._queued_row(ticket)
        if row is not None:
            self._eta.left()
            self._book.end(row, TicketState.WITHDRAWN, now)

    def absent(self, ticket: int, now: float) -> None:
        """See `AdmissionPolicy.absent`."""
        row = self._queued_row(ticket)
        if row is not None and self._book.shelf.present[row]:
            self._book.set_present(row, False)
            self._book.shelf.promise_s[row] = now
            if self._book.shelf.state[row] == READY:
                self._book.keep_until(row, now + self.settings.ticket_ttl_s)

    def promote(self, ticket: int, now: float) -> bool:
        """See `AdmissionPolicy.promote`."""
        row = self._queued_row(ticket)
        if row is None:
            return False
        shelf = self._book.shelf
        if shelf.state[row] == READY:
            self._book.move_first(row)
        else:
            self._make_ready(row, now, first=True)
        # It was told a later return; it need not wait for that any more.
        shelf.promise_s[row] = min(shelf.promise_s[row], now)
        return True

    def estimate(self, ticket: int, now: float) -> Estimate | None:
        """See `AdmissionPolicy.estimate`."""
        row = self._queued_row(ticket)
        return None if row is None else self._stated(row, now)

    def ticket(self, number: int) -> TicketRow | None:
        """See `AdmissionPolicy.ticket`."""
        return self._book.row_of(number)

    def place(self, ticket: int) -> int | None:
        """See `AdmissionPolicy.place`."""
        row = self._queued_row(ticket)
        return None if row is None else self._book.place(row)

    def tickets(self, start: int = 0) -> Iterable[TicketRow]:
        """See `AdmissionPolicy.tickets`."""
        return self._book.queue(start)

    def changes(self) -> list[TicketRow]:
        """See `AdmissionPolicy.changes`."""
        return self._book.changes()

    def restore(self, rows: Iterable[TicketRow], now: float, next_number: int) -> None:
        """See `AdmissionPolicy.restore`."""
        book = self._book
        for ticket in sorted(rows, key=lambda ticket: ticket.number):
            row = book.restore(ticket, now)
            if row is None:
                continue
            if ticket.state is TicketState.STARTED or self._is_small(row):
                self._make_ready(row, now, first=True)
            elif ticket.state is TicketState.READY:
                self._make_ready(row, now)
        book.next_number = max(book.next_number, next_number)

    def snapshot(self, now: float) -> Snapshot:
        """See `AdmissionPolicy.snapshot`."""
        pool, tally, book = self._pool, self._tally, self._book
        next_wait = self._eta.state(self._next_raw_s(now)) if len(book) else None
        return Snapshot(
            policy=self.name,
            mode=self.mode,
            slots=self._slots,
            large_slots=self.large_cap,
            small_active=pool.small_active,
            large_active=pool.large_active,
            paused=sum(lease.paused for lease in self._leases.values()),
            waiting=len(book.line),
            ready=len(book.ready),
            ready_target=self.ready_target,
            offers_total=tally.offers,
            admitted_small_total=tally.admitted_small,
            admitted_large_total=tally.admitted_large,
            completed_total=tally.completed,
            tickets_issued_total=tally.tickets_issued,
            tickets_expired_total=tally.tickets_expired,
            no_show_fraction=self._eta.no_show_fraction,
            early_polls_total=tally.early_polls,
            refused_total=tally.refused,
            last_wait=next_wait,
            eta_within_p90=self._eta.within_p90,
            eta_median_error=self._eta.median_error,
            link_bound=self.link_bound,
        )
