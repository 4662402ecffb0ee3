"""The kernel of admission: leases, the queue, expiry and calls, for every policy.

A policy is a few hooks (`policies.hooks.Policy`) that say who is next and how much room there is.
The kernel does the rest:

- A job joins the lease of its download, finds its place again, starts, or gets a ticket.
- Tickets wait, become ready and expire as in paper A (`policies.ready_list`).
- A client that waits inside its request is called in turn as soon as a slot is free, but not
  before an absent one that is due at any moment. A slot that stood idle while all clients whose
  turn it was stayed away goes to the first that asks.
- Small jobs that found every slot taken start before all large ones.
- A visit before the promised return is counted, moves that return, and starts nothing but what
  would take an idle slot.
- A ticket whose lease idled out before its client had a byte is given back once, with its number.
- While no client waits, a download for which there is room starts at once. Its lease is *fresh*:
  the policy is told of it as time passes, unless it is over by then. It gets a ticket, which keeps
  its place over a crash, once another client has to wait.
- While others wait, a download that takes too little of its slot's share goes on without one
  (`policies.laws.slot_use`).

A policy that gives no tickets serves those that it took over first.
"""

from __future__ import annotations

import math
import random
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, takewhile
from operator import itemgetter

from .contract import (
    ELSEWHERE,
    ONE_LINE,
    Admit,
    Advance,
    Decision,
    Estimate,
    Forecast,
    Job,
    LeaseView,
    LineSeen,
    Reason,
    Refuse,
    Snapshot,
    TicketRow,
    TicketState,
    Wait,
)
from .estimate.later_answers import later_answer
from .estimate.retry import RETRY, RetryAdvice, longest_return_s
from .hooks import Policy
from .laws.slot_use import SLOT_USE, SlotUse, was_used
from .leases import Lease
from .network_order import NO_HANDICAP, Handicap
from .queue.table import MOST_POLLS
from .queue.tickets import READY, WAITING
from .ready_list import ReadyList
from .room import DUE_S, Room
from .settings import PolicySettings
from .state import AdmissionState


@dataclass(frozen=True, slots=True)
class AdmissionTuning:
    """Whose turn a free slot is, how long a lost connection keeps one, and what is told.

    Halved and doubled in polled cells of `bench.policies.cells` and under Ticket, no field moves a
    mean session by more than 1 %. `kept_part`, `most_kept_s`, `near_s`, `held_s` and `fresh_s` move
    told times by 1 to 8 points. The others bound work or rare cases, and move nothing there.
    """

    #: A download that has taken nearly nothing keeps its slot for this part of `lease_idle_s` at
    #: least: a client that reconnects at once, for ranges or after a broken line.
    shortest_idle: float = 0.25
    #: An early poller gets an idle slot only if no other client is due within this time, seconds.
    #: Otherwise early polling would pay.
    early_poll_guard_s: float = 5.0
    #: Absent tickets that are looked at: when more are due, the first to come take all slots.
    most_due: int = 200
    #: A client that polls leaves a slot to earlier tickets that are due within this part of the
    #: time for which a download holds a slot. Otherwise the order would be that of visits.
    kept_part: float = 0.1
    #: It leaves the slot for no longer than this, seconds.
    most_kept_s: float = 5.0
    #: A client that would come back may wait in its request if its turn is as near as this.
    near_s: float = 5.0
    #: And for this long, seconds: all programs bear it, pacman no more than 10 s.
    held_s: float = 8.0
    #: The queue is laid out anew after this time, seconds: as time passes, and as a client asks.
    fresh_s: float = 0.5
    old_s: float = 2.0
    #: Tickets that become ready or expire, and leases that end, as time passes once. It bounds that
    #: to about 1 ms; the rest goes on after `yield_s`, in which requests are answered.
    per_tick: int = 100
    yield_s: float = 0.02
    #: Tickets that become ready as one client asks: the one that asks, and one whose slot is free.
    per_offer: int = 2
    #: A client without a ticket counts as waiting for this many times its Retry-After.
    interest: float = 1.5
    #: No wait longer than this many times `retry_max_s` is ever told.
    longest: float = 20.0


ADMISSION = AdmissionTuning()


class AdmissionPolicy:
    """Who may start now, by the hooks of one policy.

    One object decides for one server; it is not thread-safe.
    """

    def __init__(
        self,
        kind: type[Policy],
        settings: PolicySettings,
        rng: random.Random,
        state: AdmissionState,
    ) -> None:
        self.name = kind.name
        self.settings = settings
        self.state = state
        self.pool = state.pool
        self.queue = state.queue
        self.estimator = state.estimator
        self.capacity = state.capacity
        self.network_order = state.network_order
        self.crowds = state.crowds
        self.capacity.configure(settings.bandwidth_bytes_s)
        self.advice = RetryAdvice(settings, rng)
        self._tally = state.tally
        self._advanced_s: float | None = None
        #: Whether anything was told since the last `advance` that may have consequences.
        self.changed = True
        #: Since when a slot for large jobs has been free although tickets wait.
        self._idle_since_s: float | None = None
        #: Leases that began with their first bytes only: their turn judges what they were told.
        self._untold: set[int] = set()
        # Nothing runs in the background unless this policy wants it.
        self.pool.set_background({})
        self.policy = kind.build(self)
        self._room = Room(state, settings, self.policy)
        self._ready = ReadyList(state, settings, self.policy, self._room)
        self.slot_use = SlotUse(state, settings, self.policy, self._room)
        has_rule = type(self.policy).stands_aside is not Policy.stands_aside
        rule = self.policy.stands_aside if has_rule else None
        self.crowds.configure(self.policy.large_slots, self._room.network_shares, rule)
        #: For `progress`, which is told of each download many times a second.
        self._measured = state.capacity.measured
        #: What `Policy.spare` answered as time passed last, less what has started since; whether
        #: it was asked since then.
        self._spare_slots, self._spare_bytes_s = 0, 0.0
        self._spare_known = False
        # What `build` chose may have an order of its own.
        by_number = type(self.policy).rank is Policy.rank
        self.queue.handicap = self.handicap
        if self.queue.set_rank(self.queue.by_number if by_number else self.policy.rank):
            self.crowds.order_changes()
        #: The latest client sent away without a ticket, and the one before it of another network.
        self._sent_away: list[tuple[str, float]] = []

    # -- room ------------------------------------------------------------------------------------

    def handicap(self, network: str) -> Handicap:
        """See `AdmissionView`."""
        if not (network and self.settings.network_shares):
            return NO_HANDICAP
        return self.network_order.handicap(network)

    def is_large(self, size_bytes: int) -> bool:
        """Large jobs are those that may have to wait for small ones (in paper A: of 20 KB)."""
        return size_bytes >= self.settings.small_below_bytes

    def line_shares(self) -> int:
        """See `hooks.Policy`."""
        return self.policy.line_shares()

    def large_room(self, now: float) -> int:
        """Slots that a large job could take without keeping a small one waiting."""
        return self._room.for_large(now)

    def close(self, closed: bool) -> None:
        """Let no download start (True) until told otherwise; running downloads go on, places count.

        It outlives a switch of policy. Follow it with `advance`.
        """
        self.changed = True
        self.state.closed = closed
        self._spare_known = False

    # -- offers ----------------------------------------------------------------------------------

    def admit_small(self, body_bytes: int, now: float) -> bool:
        """Whether a small job that ends within this very instant may go; counts it if so.

        For bodies that leave in one write: they hold their slot for no time at all, so no lease
        is made. False means: `offer` it like any other.
        """
        if self._room.free() > 0:
            self._tally.admitted_small_total += 1
            self.capacity.small_took(body_bytes)
            return True
        return False

    def admit_single_write(self, now: float) -> bool:
        """Whether a large job that ends within this very instant may go; counts it if so.

        For bodies that leave in one write, like `admit_small`: yes only while there is room for
        them, see `can_admit_single_write`. False means: `offer` it.
        """
        if not self.can_admit_single_write(now):
            return False
        self._tally.admitted_large_total += 1
        self._tally.completed_total += 1
        return True

    def can_admit_single_write(self, now: float) -> bool:
        """Whether a slot for large jobs is free and no client waits that could be overtaken.

        A client that was told to come back waits, with a ticket or without.
        """
        if len(self.queue) or self._room.large_free() <= 0:
            return False
        # Without tickets, clients that were sent away wait, too, although they are not counted.
        since_s = now - ADMISSION.interest * self.policy.retry_s()
        return not any(at_s > since_s for _, at_s in self._sent_away)

    def offer(self, job: Job, now: float, ticket: int | None = None) -> Decision:
        """Ask to start `job`; `ticket` is the number from a token that was already verified.

        Without a ticket, the place that the same client holds for the same file is found again.
        Admit opens a connection on the lease (see `detach`).
        """
        self.changed = True
        self._tally.offers_total += 1
        lease = self.pool.find(job.client, job.file)
        if lease is not None:
            return self._join(lease, job, now)
        if ticket is None and self._finds_room(job, now):
            return self._start(job, now, None, fresh=True)
        self._report_immediate_starts(now)
        row = self.queue.find(job.client, job.file) if len(self.queue) else None
        if job.running:
            return self._start(job, now, None) if row is None else self._start_ticket(row, job, now)
        if row is not None:
            return self._returning(row, job, now)
        if not self.is_large(job.size_bytes):
            return self._offer_small(job, now)
        if not self.policy.gives_tickets:
            # Tickets of an earlier policy go first, while their owners come for them.
            free = self._room.large_free()
            has_room = free > 0 if self._stood_idle(now) else free > len(self.queue)
            if has_room and not self._gives_way(job, now):
                return self._start(job, now, None)
            return self._send_away(job, now)
        if ticket is not None:
            reason = self._why_not(ticket)
            if reason is not None:
                return self._refuse(reason)
        return self._newcomer(job, now)

    def _finds_room(self, job: Job, now: float) -> bool:
        """Whether there is room for this large job and more, so that nothing is to be decided."""
        if job.size_bytes < self.settings.small_below_bytes or job.line or job.elsewhere:
            return False
        if job.weight != 1.0 or job.priority_class:
            return False
        if self.queue.ready.count or self.queue.line.count:
            return False
        if not self._spare_known:
            self._report_immediate_starts(now)
            self._spare_known = True
            self._spare_slots, self._spare_bytes_s = 0, 0.0
            unsure = self.state.closed or self.pool.doubted or self.crowds.rule
            # Without a leader others have to be shown where each download stands.
            if not unsure and self.queue.next_number < ELSEWHERE:
                self._spare_slots, self._spare_bytes_s = self.policy.spare(now)
        if self._spare_slots <= 0 or self._spare_bytes_s <= 0.0:
            return False
        if not self._room.network_shares:
            return True
        # What a crowd may not use shows in its slots, so these are counted at once.
        return not self.crowds.holds_newcomer(job.stranger_network, now)

    def _report_immediate_starts(self, now: float) -> None:
        """Tell the policy about downloads that started without a ticket."""
        fresh = self.pool.fresh
        if not fresh:
            return
        leases = list(fresh.values())
        fresh.clear()
        for lease in leases:
            lease.fresh = False
            self.policy.starts(lease, None, now)

    def _give_tickets(self, now: float) -> bool:
        """A client waits, so downloads that began without a ticket get one; whether more follow."""
        without = self.pool.without_ticket
        for number in list(islice(without, ADMISSION.per_tick)):
            lease = without.pop(number)
            lease.ticket = self.queue.issue_started(lease, now)
            self._tally.tickets_issued_total += 1
        return bool(without)

    def _offer_small(self, job: Job, now: float) -> Decision:
        if self._room.for_small(now):
            return self._start(job, now, None)
        if not self.policy.gives_tickets:
            return Wait(self.settings.busy_retry_s)
        return self._newcomer(job, now)

    def _join(self, lease: Lease, job: Job, now: float) -> Decision:
        # One that has every byte is over once its last connection is: nothing more is sent on it.
        is_whole = lease.connections > 0 and lease.remaining_bytes <= 0
        if is_whole or lease.connections >= self.settings.connections_per_lease:
            return self._refuse(Reason.TOO_MANY_CONNECTIONS, self.settings.busy_retry_s)
        if not lease.connections:
            self._spare_known = False
        self.pool.attach(lease, now)
        lease.line = job.line
        if not lease.fresh:
            self.policy.changes(lease)
        return Admit(lease.id, lease.ticket, joined=True)

    def _why_not(self, ticket: int) -> Reason | None:
        """Why a ticket without a place for this download is no good."""
        if ticket in self.queue.table.rows:
            return Reason.TICKET_FOREIGN
        ended = self.queue.ended.get(ticket)
        if ended is not None and ended.state is TicketState.DONE:
            return Reason.TICKET_USED
        return Reason.TICKET_EXPIRED

    def _believed_bytes(self, job: Job) -> int:
        """What the order counts: all of the file but what was really delivered of it.

        A claim to want little is not held against what is sent, so it is not believed.
        """
        has = self.state.delivered.bytes(job.client, job.file)
        return max(job.remaining_bytes, min(job.size_bytes - has, job.size_bytes))

    def _newcomer(self, job: Job, now: float) -> Decision:
        queue, settings = self.queue, self.settings
        if queue.held_by(job.client) >= settings.tickets_per_client:
            return self._refuse(Reason.TOO_MANY_TICKETS, settings.retry_max_s)
        if len(queue) >= settings.tickets_max:
            return Wait(settings.busy_retry_s)
        if self.pool.without_ticket:
            # Running downloads came before this one.
            self._give_tickets(now)
        row = queue.issue(job, self._believed_bytes(job), now)
        self._tally.tickets_issued_total += 1
        queue.set_present(row, job.present)
        if self._room.is_small(row):
            self._ready.make_ready(row, now, first=True)
        else:
            self.crowds.ticket_waits(row, now)
            self._note_newcomer(job, queue.table.remaining[row], now)
            self._ready.promote(now, ADMISSION.per_offer)
        told = self._start_or_wait(row, job, now)
        if isinstance(told, Admit):
            return told
        return self.advice.slowly(told, self.state.reputation.times(job.client))

    def _returning(self, row: int, job: Job, now: float) -> Decision:
        queue, table, settings = self.queue, self.queue.table, self.settings
        if not table.polls[row]:
            self.estimator.no_shows.seen(table.number[row])
        table.polls[row] = min(table.polls[row] + 1, MOST_POLLS)
        queue.set_present(row, job.present)
        queue.set_line(row, job.line)
        if job.network and not (table.subnet[row] or queue.stands_back(row)):
            table.subnet[row] = sys.intern(job.subnet)
        queue.resize(row, self._believed_bytes(job))
        if job.known and table.network[row]:
            queue.stand_alone(row)
        if job.weight > table.weight[row]:
            queue.reweigh(row, job.weight, job.priority_class)
        early = not job.present and now < table.promise_s[row] - settings.early_tolerance_s
        if table.given_back[row] == 1:
            # It was called before the return that it was told.
            early, table.given_back[row] = False, 2
        if early:
            self._tally.early_polls_total += 1
            table.early[row] = min(table.early[row] + 1, MOST_POLLS)
            extra = table.early[row] - settings.early_polls_free
            if extra > 0 and not (table.state[row] == READY and self._forsaken(row, now)):
                if extra * settings.early_penalty_s <= settings.early_penalty_max_s:
                    self._promise(row, table.promise_s[row] + settings.early_penalty_s)
                return self.advice.slowly(self._wait_on(row, now), extra)
        if table.state[row] == WAITING:
            self._ready.promote(now, ADMISSION.per_offer)
        return self._start_or_wait(row, job, now, early=early)

    def _start_or_wait(
        self, row: int, job: Job, now: float, *, early: bool = False
    ) -> Admit | Wait:
        if self._room.is_small(row):
            may_start = self._room.for_small(now, self.queue.table.number[row])
        else:
            may_start = not self.crowds.stands_aside(row, now) and self.policy.may_start(row, now)
            if job.counts_body and job.present and not may_start:
                self.policy.wants_body(row, now)
        if may_start:
            return self._start_ticket(row, job, now)
        return self._wait_on(row, now) if early else self._wait(row, now)

    def turn_has_come(self, row: int, now: float) -> bool:
        """Whether a slot is free for this ticket of a large job beside those before it."""
        free = self._room.for_large(now)
        if free <= 0:
            return False
        table = self.queue.table
        waits = self.crowds.makes_way(row) or table.state[row] == WAITING
        if waits and not self._nobody_comes(row, now):
            return False
        entry = (table.key[row], table.number[row])
        free -= self._here_before(entry, now, free)
        kept_s = DUE_S
        if not table.present[row]:
            kept_s = max(DUE_S, _kept_for_due_s(self.estimator.held_by_next_s))
        return free > 0 and not self._are_due_before(entry, now, free, kept_s)

    def _here_before(self, entry: tuple[float, int], now: float, most: int) -> int:
        """How many clients that wait here may start before this ticket, as far as `most`."""
        before = bisect_left(self.queue.here, entry)
        if not self.crowds.holds_any:
            return before
        rows = self.queue.table.rows
        at_once = (
            number
            for _, number in islice(self.queue.here, before)
            if not self.crowds.stands_aside(rows[number], now)
        )
        return sum(1 for _ in islice(at_once, most))

    def others_are_due(
        self, entry: tuple[float, int], now: float, count: int, takes_s: float
    ) -> bool:
        """See `AdmissionView.others_are_due`."""
        return self._are_due_before(entry, now, count, _kept_for_due_s(takes_s))

    def _nobody_comes(self, row: int, now: float) -> bool:
        """Whether a slot stood idle, as all whose turn it was are away, until this one asked."""
        if not self._stood_idle(now):
            return False
        table = self.queue.table
        return bool(table.present[row]) or not table.polls[row] or now >= table.promise_s[row]

    def _stood_idle(self, now: float) -> bool:
        """Whether a slot has stood idle for a while although tickets wait."""
        return self._idle_since_s is not None and now - self._idle_since_s >= DUE_S

    def _forsaken(self, row: int, now: float) -> bool:
        """Whether a slot has stood idle, and no other client is about to come for it."""
        if not self._stood_idle(now):
            return False
        ttl_s = self.settings.ticket_ttl_s
        due = self.queue.running_out(
            now + ttl_s - DUE_S, now + ttl_s + ADMISSION.early_poll_guard_s
        )
        return all(other == row for other in islice(due, 2))

    def _start(self, job: Job, now: float, row: int | None, *, fresh: bool = False) -> Admit:
        """Open a lease, by the ticket of this row; a `fresh` one is reported as time passes."""
        table, pool, large = self.queue.table, self.pool, self.is_large(job.size_bytes)
        number = None if row is None else table.number[row]
        lease = pool.open(job, now, number, large)
        if not large:
            self._spare_known = False
            self._tally.admitted_small_total += 1
            return Admit(lease.id, number)
        self._tally.admitted_large_total += 1
        lease.network = job.stranger_network
        if row is None:
            lease.believed_bytes = self._believed_bytes(job)
        else:
            lease.believed_bytes, lease.mark = table.remaining[row], table.mark[row]
        self.slot_use.lease_begins(lease, now)
        self.capacity.remember(lease)
        if fresh:
            lease.fresh = True
            pool.fresh[lease.id] = pool.without_ticket[lease.id] = lease
            self._spare_slots -= 1
            self._spare_bytes_s -= self.capacity.speed(lease)
            self._note_newcomer(job, lease.believed_bytes, now)
        else:
            self._spare_known = False
            self.policy.starts(lease, row, now)
        return Admit(lease.id, number)

    def _note_newcomer(self, job: Job, believed_bytes: int, now: float) -> None:
        self.state.newcomers.note(now, job.size_bytes, believed_bytes, job.weight)
        self.network_order.note(job.stranger_network, job.client, job.size_bytes)

    def _start_ticket(self, row: int, job: Job, now: float) -> Admit:
        self._ready.presented(row)
        opens = not self._room.is_small(row) and self.policy.opens(row)
        if not opens:
            self._judge_told(row, now)
        self.queue.start(row, now)
        admit = self._start(job, now, row)
        if opens:
            self._untold.add(admit.lease)
        return admit

    def _judge_told(self, row: int, now: float) -> None:
        """The turn of a ticket has come: learn from what it was told."""
        table = self.queue.table
        if not table.raw[row] or table.given_back[row]:
            return
        stated = Estimate(table.expected[row], table.bound[row])
        waited = now - table.issued_s[row]
        # A slot that stood empty until its owner came back would have been there sooner.
        idle_since = now if self._idle_since_s is None else self._idle_since_s
        needed = waited - (now - idle_since)
        small = self._room.is_small(row)
        self.estimator.started(
            table.raw[row], table.away[row], stated, waited, needed, now, small=small
        )

    def _judge_overdue(self, now: float) -> None:
        """Learn from the tickets that wait beyond their bounds before they start."""
        table = self.queue.table
        for number in self.estimator.overdue(now):
            row = self.row(number)
            if row is not None and table.bound[row] >= 0.0:
                waits_s = now - table.issued_s[row] + self._forecast(row, now).wait_s
                small, away_s = self._room.is_small(row), table.away[row]
                self.estimator.late(away_s, table.expected[row], waits_s, now, small=small)
                table.bound[row] = -1.0

    def _judge_end(self, row: int, now: float, done: bool) -> None:
        """A download that was told its end is whole, or it is over without its last byte."""
        table = self.queue.table
        if not table.end_raw[row] or table.given_back[row]:
            return
        told = Estimate(table.end_told[row], table.end_bound[row])
        took_s = now - table.issued_s[row]
        small, away = self._room.is_small(row), table.away[row] > 0.0
        ends = self.estimator.ends
        if done:
            as_told_s = self.estimator.served.as_told_s(table.issued_s[row], now)
            ends.ended(table.end_raw[row], told, took_s, as_told_s, now, small=small, away=away)
        elif took_s > told.p90_s:
            ends.broken(told, now, small=small, away=away)

    def _refuse(self, reason: Reason, retry_after_s: float | None = None) -> Refuse:
        self._tally.refused_total += 1
        return Refuse(reason, retry_after_s)

    def _gives_way(self, job: Job, now: float) -> bool:
        """Without tickets: whether a full crowd would take a slot that others have asked for."""
        network, is_held = job.stranger_network, self.crowds.holds_newcomer
        since_s = now - ADMISSION.interest * self.policy.retry_s()
        others = (other for other, at_s in self._sent_away if other != network and at_s > since_s)
        # No client would start if those to whom it gives way gave way, too.
        return is_held(network, now) and not all(is_held(other, now) for other in others)

    def _send_away(self, job: Job, now: float) -> Wait:
        network = job.stranger_network
        others = [other for other in self._sent_away if other[0] != network]
        self._sent_away = [*others[-1:], (network, now)]
        return Wait(self.policy.retry_s())

    # -- the life of a lease -----------------------------------------------------------------------

    def progress(
        self,
        lease: int,
        now: float,
        remaining_bytes: int,
        rate_bytes_s: float,
        held_back: bool | None = False,
        reads_bytes_s: float = 0.0,
    ) -> None:
        """Tell how far a lease is and what its client took lately while it was not paused.

        `held_back`: the server let it have no more, so its client may be faster; None: perhaps
        its line did. `reads_bytes_s`: what its program is known to read; 0: that is not known.
        """
        held = self.pool.leases[lease]
        if held.fresh:
            self._report_immediate_starts(now)
        self._took(held, remaining_bytes)
        held.rate_bytes_s = rate_bytes_s
        if held.large:
            self._measured(held, rate_bytes_s, held_back, reads_bytes_s)
            self.slot_use.lease_measured(held, now)

    def _took(self, lease: Lease, remaining_bytes: int) -> None:
        taken = lease.remaining_bytes - remaining_bytes
        lease.took(remaining_bytes)
        if taken > 0 and not lease.large:
            self.capacity.small_took(taken)
        if taken > 0 and lease.network:
            self.network_order.took(lease.network, taken)

    def detach(self, lease: int, now: float, remaining_bytes: int | None) -> None:
        """One connection of the lease has ended (`remaining_bytes` of None: the last one had, but
        its bytes leave still); the lease idles from now on once it has none."""
        self.changed = True
        held = self.pool.leases[lease]
        if remaining_bytes is None:
            held.idle_from_s = now
        else:
            self._took(held, remaining_bytes)
        self.pool.detach(held, now, self._kept_s(held, now))
        if held.large and not held.fresh:
            self.policy.changes(held)

    def _kept_s(self, held: Lease, now: float) -> float:
        """How long the slot stays with a download that has lost its last connection.

        One that has taken nearly nothing keeps it no longer than it used it, all times without a
        connection together, so that asking and hanging up at once, even again and again, holds
        little up; and each time that such a slot ran out, the next is kept half as long. A small
        download is sooner begun anew than resumed: its slot is not kept once it has begun. One
        whose client waited for its turn has yet to come for it.
        """
        if not held.large and (held.ticket is None or not held.untouched):
            return 0.0
        whole_s = self.settings.lease_idle_s
        if was_used(held):
            return whole_s
        shortest_s = ADMISSION.shortest_idle * whole_s
        shortest_s *= 0.5 ** self.state.reputation.times(held.client)
        used_s = now - held.started_s - held.idled_s
        return min(whole_s, max(0.0, max(shortest_s, used_s) - held.idled_s))

    def release(self, lease: int, now: float, done: bool) -> None:
        """The lease is over (`done`: every byte arrived): its slot is free."""
        self.changed = True
        held = self.pool.leases[lease]
        if done:
            self._took(held, 0)
        self._close(held, now, done)

    def _close(self, lease: Lease, now: float, done: bool, *, idled: bool = False) -> None:
        """A fresh lease is over before the policy has heard of it."""
        fresh, taken = lease.fresh, lease.started_bytes - lease.remaining_bytes
        used = was_used(lease)
        self.slot_use.lease_ends(lease, now, used=done or used)
        self.pool.close(lease)
        self._untold.discard(lease.id)
        self._tally.completed_total += done
        if done:
            self.state.reputation.used(lease.client)
        if lease.large:
            self.state.delivered.note(lease.client, lease.file, 0 if done else taken)
            if used and not lease.slotless and (now > lease.started_s or not fresh):
                self.estimator.ended(lease, now, self.slot_use.least_rate_bytes_s())
                if lease.ticket is None and not self.policy.gives_tickets:
                    self.estimator.no_shows.learn(True)
            if fresh:
                self._spare_slots += 1
                self._spare_bytes_s += self.capacity.speed(lease)
            else:
                self.policy.ends(lease, now, done)
                self.capacity.learn(lease)
        elif done:
            self.estimator.small_ended(now - lease.started_s)
        if lease.ticket is not None:
            row = self.queue.table.rows[lease.ticket]
            self._judge_end(row, now, done)
            if idled and lease.untouched and self._may_come_back(row):
                self._give_back(row, lease, now)
            else:
                self.queue.end(row, TicketState.DONE if done else TicketState.EXPIRED, now)

    def _may_come_back(self, row: int) -> bool:
        """Whether its owner knows of this ticket, and it was not given back before."""
        table = self.queue.table
        return bool(table.polls[row]) and not table.given_back[row]

    def _give_back(self, row: int, lease: Lease, now: float) -> None:
        """Let a ticket wait again whose start was lost on the way; it is ready among younger ones.

        Its told times are judged by its first start only.
        """
        queue, table = self.queue, self.queue.table
        queue.give_back(row, lease.network, now)
        table.bound[row] = -1.0
        if self._room.is_small(row):
            self._ready.make_ready(row, now, first=True)
            return
        self.crowds.ticket_waits(row, now)
        self.policy.comes_back(row, now)
        if queue.is_among_ready(row):
            self._ready.make_ready(row, now)

    def _end_idle(self, now: float) -> tuple[int, ...]:
        idled = self.pool.idled_out(now, ADMISSION.per_tick)
        if not idled:
            return ()
        for lease in idled:
            if lease.large and not was_used(lease):
                if not self.state.reputation.times(lease.client):
                    self.estimator.no_shows.learn(False)
                self.state.reputation.idled(lease.client)
                self.crowds.lease_idled(lease, now)
            self._close(lease, now, False, idled=True)
        return tuple(lease.id for lease in idled)

    def pause_slotless(self, now: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See `SlotUse.pauses`."""
        return self.slot_use.pauses(now)

    def observe(
        self,
        goodput_bytes_s: float,
        link_busy: bool,
        now: float,
        line_bytes_s: float | None = None,
        lines: Mapping[str, LineSeen] = ONE_LINE,
    ) -> None:
        """What left the server lately in all, and whether its cap held a client back.

        `line_bytes_s` is what its line was found to carry; infinite while that is not known, None
        if no finder looks: then it carries what is configured. `lines` are those that this is the
        sum of, by `Job.line`; empty where there is one.
        """
        self._report_immediate_starts(now)
        present, shares = len(self.pool) + len(self.queue), self.settings.network_shares
        owners = self.crowds.of_owners()
        self.network_order.earn(goodput_bytes_s, present, owners, shares, now)
        wanted = bool(self.queue.here) or self.pool.paused > 0
        running = self.pool.large_active
        self.capacity.observe(goodput_bytes_s, link_busy, wanted, line_bytes_s, running)
        self.capacity.observe_small(now)
        if lines or self.capacity.lines:
            wanted_on = set(self.queue.here_on)
            if self.pool.paused:
                wanted_on.update(one.line for one in self.pool.leases.values() if one.paused)
            self.capacity.observe_lines(lines, wanted_on)
        self.policy.observes(now)

    def leases(self) -> Sequence[LeaseView]:
        """All leases."""
        return [lease.view() for lease in self.pool.leases.values()]

    def lease(self, number: int) -> LeaseView | None:
        """One of them; None once it is over."""
        found = self.pool.leases.get(number)
        return None if found is None else found.view()

    # -- time --------------------------------------------------------------------------------------

    def advance(self, now: float) -> Advance:
        """Let time pass. Call it after every batch of the calls above, and at `wake_at`."""
        queue, self.changed = self.queue, False
        if self._advanced_s is not None:
            self.estimator.waited(len(queue) * max(0.0, now - self._advanced_s))
        self._advanced_s = now
        # What the schedule goes by.
        of_line = self.policy.link_bound and self.capacity.known
        speed = self.capacity.rate_bytes_s if of_line else 1.0 / self.estimator.s_per_byte
        self.estimator.served.run_to(now, speed, of_line=of_line)
        self._report_immediate_starts(now)
        self._spare_known = False
        idled = self._end_idle(now)
        expired = self._expire(now)
        self.slot_use.time_passes(now)
        self._ready.advance(now)
        goes_on = self._ready.promote(now, ADMISSION.per_tick)
        pause, resume = self.policy.preempt(now)
        behind, ahead = self.pool.background_changes()
        for lease in self._untold.intersection(resume) if self._untold else ():
            self._untold.discard(lease)
            self._judge_told(queue.table.rows[self.pool.leases[lease].ticket or 0], now)
        small = self._call_small(now)
        call, held_for_due = self._call_large(now)
        for number in call:
            if queue.table.state[queue.table.rows[number]] == WAITING:
                self._ready.make_ready(queue.table.rows[number], now)
        if len(queue):
            self._judge_overdue(now)
            # Here, as time passes, so that few offers have to pay for it.
            self._lay_out(now, needed=not self._ready.link_decides)
            goes_on |= self._give_tickets(now)
        wakes = [self.policy.wake_s(now)]
        for due_s in (self.pool.next_idle(), queue.next_deadline()):
            # What has been due is more than is done in one go.
            wakes.append(now + ADMISSION.yield_s if due_s is not None and due_s <= now else due_s)
        wakes.append(self.slot_use.wake_s(now))
        if held_for_due:
            wakes.append(now + DUE_S)
        if goes_on:
            wakes.append(now + ADMISSION.yield_s)
        free = len(queue) and self._room.large_free() > 0
        if free:
            wakes.append(self._ready.grows_s())
        if not free or not self.policy.has_place(now):
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now
        known = [wake for wake in wakes if wake is not None]
        return Advance(
            behind=behind,
            ahead=ahead,
            pause=pause,
            resume=resume,
            idled_out=idled,
            expired=expired,
            call=small + call,
            wake_at=min(known) if known else None,
        )

    def _expire(self, now: float) -> tuple[int, ...]:
        rows = self._ready.expire(now, ADMISSION.per_tick)
        expired = tuple([self.queue.table.number[row] for row in rows])
        for row in rows:
            self._tally.tickets_expired_total += 1
            self._end_ticket(row, TicketState.EXPIRED, now)
        return expired

    def _end_ticket(self, row: int, state: TicketState, now: float) -> None:
        if not self._room.is_small(row):
            self.policy.leaves(row, now)
        self.queue.end(row, state, now)

    def _call_small(self, now: float) -> tuple[int, ...]:
        """Small jobs of clients that wait here and may start now."""
        rows, room = self.queue.table.rows, self._room
        first = takewhile(lambda one: one[0] == -math.inf, self.queue.here)
        small = (number for _, number in first if room.is_small(rows[number]))
        # Where one may not start, those behind it may not either: more are before them.
        return tuple(takewhile(lambda number: room.for_small(now, number), small))

    def _call_large(self, now: float) -> tuple[tuple[int, ...], bool]:
        """What the policy calls, less what stands aside: at most one of each subnet at once.

        The start of one may be what the next one of its subnet stands aside for.
        """
        call, held_for_due = self.policy.call(now)
        if not call or not self.crowds.rule:
            return call, held_for_due
        table = self.queue.table
        by_subnet: dict[str, int] = {}
        for number in call:
            row = table.rows[number]
            if not self.crowds.stands_aside(row, now):
                by_subnet.setdefault(table.subnet[row], number)
        return tuple(by_subnet.values()), held_for_due

    def call_in_turn(self, now: float) -> tuple[tuple[int, ...], bool]:
        """Large jobs of clients that wait here, by rank; whether a slot is kept for one due."""
        free = self._room.for_large(now)
        call: list[int] = []
        if free <= 0:
            return (), False
        table = self.queue.table
        for entry in self.queue.here:
            if len(call) >= free:
                break
            row = table.rows[entry[1]]
            if self._room.is_small(row) or self.crowds.stands_aside(row, now):
                continue
            if self._are_due_before(entry, now, free - len(call)):
                return tuple(call), True
            if self.crowds.makes_way(row) and not self._stood_idle(now):
                return tuple(call), True
            call.append(entry[1])
        return tuple(call), False

    def _are_due_before(
        self, entry: tuple[float, int], now: float, count: int, soon_s: float = DUE_S
    ) -> bool:
        """Whether `count` absent ready tickets before this one, of large jobs, are due just now.

        A client that has come back once counts from `soon_s` before its return: it is likely to
        come again.
        """
        queue, table, ttl_s = self.queue, self.queue.table, self.settings.ticket_ttl_s
        low_s, high_s = now + ttl_s - min(soon_s, DUE_S), now + ttl_s + soon_s
        if count > min(ADMISSION.most_due, queue.count_running_out(low_s, high_s)):
            return False
        for row in islice(queue.running_out(low_s, high_s), ADMISSION.most_due):
            if not table.polls[row] and table.promise_s[row] > now + DUE_S:
                continue
            if (table.key[row], table.number[row]) >= entry or self._room.is_small(row):
                continue
            if not self.crowds.stands_aside(row, now):
                count -= 1
                if count <= 0:
                    return True
        return False

    # -- what is told ------------------------------------------------------------------------------

    def _forecast(self, row: int, now: float) -> Forecast:
        """The scheduled wait of a ticket, before calibration."""
        if self._room.is_small(row):
            slots = self.policy.slots() - self.pool.large_used
            wait_s = self.estimator.small_s(self.queue.place(row) - 1, slots)
            if slots <= 0:  # The first large one to end leaves it one.
                self._lay_out(now, asked=True)
                wait_s += self.estimator.raw_s(1, now)
            return self._sane(Forecast(wait_s))
        told = self.policy.forecast(row, now)
        if told is None:
            self._lay_out(now, asked=True)
            wait_s = self.estimator.raw_s(self.crowds.turn(row, self.queue.place(row), now), now)
            unsure = self.estimator.pace_unsure
            told = Forecast(wait_s / (1.0 - self._overtaking(row, now)), unsure=unsure)
        if self.crowds.rule:
            service_s = self.estimator.service_s(self.queue.table.remaining[row])
            least_s = self.crowds.least_wait_s(row, service_s)
            told = told._replace(wait_s=max(told.wait_s, least_s))
        return self._sane(told)

    def _next_forecast(self, now: float) -> Forecast:
        told = self.policy.next_forecast(now)
        if told is None:
            self._lay_out(now)
            told = Forecast(self.estimator.raw_s(len(self.queue) + 1, now))
        return self._sane(told)

    def _sane(self, told: Forecast) -> Forecast:
        longest_s = ADMISSION.longest * self.settings.retry_max_s
        wait_s = told.wait_s if told.wait_s < longest_s else longest_s
        return told._replace(wait_s=wait_s, at_least_s=min(told.at_least_s, wait_s))

    def _overtaking(self, row: int, now: float) -> float:
        """The part of the server's time that goes to newcomers of better rank."""
        queue = self.queue
        if queue.rank == queue.by_number:
            return 0.0
        slots = max(1, self.policy.large_slots())
        return self.state.newcomers.overtaking(
            queue.table.key[row],
            queue.rank,
            queue.next_number,
            now,
            lambda size: self.estimator.service_s(size) / slots,
        )

    def _estimate(self, told: Forecast, away_s: float = 0.0, *, small: bool = False) -> Estimate:
        longest_s = ADMISSION.longest * self.settings.retry_max_s
        stated = self.estimator.estimate(told.wait_s, away_s, told.unsure, small=small)
        return Estimate(min(stated.expected_s, longest_s), min(stated.p90_s, longest_s))

    def _wait(self, row: int, now: float) -> Wait:
        """Promise a return, and remember it."""
        table, advice = self.queue.table, self.advice
        told, small = self._forecast(row, now), self._room.is_small(row)
        slot_s = self._slot_s(row, told, small)
        new = not table.polls[row]
        doubtful = new and self.estimator.no_shows.doubtful
        retry = advice.retry_s(min(slot_s, told.soonest_s), doubtful)
        away = self._away_s(row, slot_s, retry)
        stated = self._later_start(row, self._estimate(told, away, small=small), now)
        stated = replace(stated, p90_s=max(stated.p90_s, away, retry))  # No return is later.
        if table.raw[row] == 0.0:
            table.raw[row], table.away[row] = max(told.wait_s, 0.25), away
            table.expected[row], table.bound[row] = stated.expected_s, stated.p90_s
            self.estimator.watch(table.number[row], table.issued_s[row] + stated.p90_s)
        if not table.present[row]:
            retry += advice.penalty_s(table.early[row])
        self._promise(row, now if table.present[row] else now + retry)
        if new and not table.present[row]:
            self.estimator.no_shows.told(table.number[row], table.promise_s[row])
        if not small:
            self.policy.waits(row, now)
        answer = self._answer(row, retry, self._with_end(row, stated, now))
        near_s, held_s = ADMISSION.near_s, ADMISSION.held_s
        if new:
            # A browser shows its page at once, unless its turn comes before it could return.
            near_s = held_s = min(self.settings.retry_min_s, near_s)
        if table.present[row] or told.wait_s > near_s:
            return answer
        return replace(answer, hold_s=held_s)

    def _promise(self, row: int, return_s: float) -> None:
        """Its client was told this return: if it is ready, it runs out some time later."""
        self.queue.table.promise_s[row] = return_s
        if self.queue.table.state[row] == READY:
            self.queue.keep_until(row, return_s + self.settings.ticket_ttl_s)

    def _with_end(self, row: int, stated: Estimate, now: float) -> Estimate:
        """The estimate of a start with that of the end; the first one is remembered."""
        table, small = self.queue.table, self._room.is_small(row)
        raw = self.policy.ticket_end(row, stated, now)
        done = self.estimator.ends.estimate(raw, small=small, away=not table.present[row])
        done = _no_sooner(done, stated, raw.own_s)
        if table.end_raw[row] == 0.0 and table.raw[row] > 0.0 and not table.polls[row]:
            table.end_raw[row] = raw.end_s
            table.end_told[row], table.end_bound[row] = done.expected_s, done.p90_s
            return replace(stated, done=done)
        return replace(stated, done=_no_sooner(self._later_end(row, done, now), stated, raw.own_s))

    def _slot_s(self, row: int, told: Forecast, small: bool) -> float:
        """When a slot is likely to be there for a client that waits elsewhere.

        What came of waits corrects first returns alone. Clients near their turn would be sent away
        by what short waits were when no client waited long, come late, and prove it right.
        """
        table = self.queue.table
        if small or table.polls[row] <= table.early[row]:
            return max(self.estimator.slot_s(told.wait_s, small=small), told.at_least_s)
        return max(told.wait_s, told.at_least_s)

    def _away_s(self, row: int, slot_s: float, retry: float) -> float:
        """When an absent owner should be back if no longest come-back time cut its wait."""
        return 0.0 if self.queue.table.present[row] else max(retry, RETRY.early * slot_s)

    def _answer(self, row: int, retry: float, stated: Estimate) -> Wait:
        table = self.queue.table
        if not table.present[row]:
            # It may come back to any line.
            self.queue.set_line(row, "")
        return Wait(
            retry_after_s=retry,
            ticket=table.number[row],
            place=self._place(row),
            ready=table.state[row] == READY,
            estimate=stated,
        )

    def _place(self, row: int) -> int | None:
        if self._room.is_small(row):
            return self.queue.shown_place(row)
        return self.policy.place(row)

    def _wait_on(self, row: int, now: float) -> Wait:
        """Repeat the promise to one that came too early."""
        promised_s = self.queue.table.promise_s[row] - now
        return self._answer(row, promised_s, self._stated(row, now))

    def _stated(self, row: int, now: float) -> Estimate:
        """The estimate for a ticket whose promise stands."""
        told = self._forecast(row, now)
        small = self._room.is_small(row)
        promised_s = self.queue.table.promise_s[row] - now
        away = self._away_s(row, self._slot_s(row, told, small), promised_s)
        stated = self._later_start(row, self._estimate(told, away, small=small), now)
        return self._with_end(row, stated, now)

    def _later_start(self, row: int, stated: Estimate, now: float) -> Estimate:
        """Beside the first one that was told; the bound of one given back is below 0."""
        table = self.queue.table
        first = Estimate(table.expected[row], table.bound[row])
        return later_answer(first, now - table.issued_s[row], stated)

    def _later_end(self, row: int, done: Estimate, now: float) -> Estimate:
        table = self.queue.table
        if table.given_back[row]:
            return done
        first = Estimate(table.end_told[row], table.end_bound[row])
        return later_answer(first, now - table.issued_s[row], done)

    def done(self, lease: int, now: float) -> Estimate | None:
        """When the last byte of this running or paused download is expected; None: unknown."""
        held = self.pool.leases.get(lease)
        if held is None:
            return None
        if not held.large:
            return Estimate(self.estimator.held_by_small_s, self.estimator.held_by_small_s)
        raw = self.policy.lease_end(held, now)
        done = self.estimator.ends.estimate(raw, small=False, away=False)
        if held.ticket is None:
            return done
        return self._later_end(self.queue.table.rows[held.ticket], done, now)

    # -- the queue laid out ------------------------------------------------------------------------

    def _lay_out(self, now: float, *, asked: bool = False, needed: bool = True) -> None:
        """Look who is late; and lay out the turns, where they tell when slots free (`needed`)."""
        fresh_s = ADMISSION.old_s if asked else ADMISSION.fresh_s
        stale = self.estimator.stale(now, fresh_s, len(self.queue))
        if stale or (needed and not self.estimator.laid_out):
            self.estimator.no_shows.check(now - self.advice.unpunctual_s())
            if not needed:
                self.estimator.skip(now, len(self.queue))
                return
            line = self.queue.line
            leases = (lease for lease in self.pool.leases.values() if lease.large)
            self.estimator.lay_out(
                now,
                self.policy.large_slots(),
                [lease for lease in leases if not lease.slotless],
                self._ahead(now),
                len(self.queue),
                line.total_bytes / len(line) if len(line) else None,
                self.slot_use.least_rate_bytes_s(),
                2.0 * SLOT_USE.look_s if self.settings.slot_use_fraction > 0.0 else math.inf,
                self.capacity.rate_bytes_s,
            )

    def _ahead(self, now: float) -> Iterator[tuple[float, float]]:
        """Bytes of all tickets in the order of turn, and how likely their owners still come."""
        queue, table, reputation = self.queue, self.queue.table, self.state.reputation
        shows, asks = self.estimator.no_shows.shows, self.crowds.holds_any
        late_s = now - self.advice.unpunctual_s()
        for number in queue.in_order():
            row = table.rows[number]
            there = self.crowds.weighs(row, now) if asks else 1.0
            if reputation.times(table.client[row]):
                # It will rarely use the slot.
                there = 0.0
            elif not table.present[row]:
                # One from an earlier run was told its return there.
                if table.raw[row] > 0.0 and table.promise_s[row] < late_s:
                    there = 0.0
                elif not table.polls[row]:
                    there = shows
            yield table.remaining[row], there

    # -- the other words of the seam ---------------------------------------------------------------

    def row(self, ticket: int) -> int | None:
        """The row of a waiting or ready ticket."""
        row = self.queue.table.rows.get(ticket)
        if row is None or self.queue.table.state[row] not in (WAITING, READY):
            return None
        return row

    def withdraw(self, ticket: int, now: float) -> None:
        """The ticket's owner has left, or an operator took it out. Unknown numbers are ignored."""
        self.changed = True
        row = self.row(ticket)
        if row is not None:
            self.estimator.left()
            self._end_ticket(row, TicketState.WITHDRAWN, now)

    def present(self, ticket: int, now: float, line: str = "") -> None:
        """The ticket's owner waits here from now on and can start the instant it is called.

        The return that it was told stands, should it leave. `line` is as in `Job`.
        """
        self.changed = True
        row, table = self.row(ticket), self.queue.table
        if row is None or table.present[row]:
            return
        if not table.polls[row]:
            self.estimator.no_shows.seen(ticket)
            table.polls[row] = 1
        self.queue.set_line(row, line)
        self.queue.set_present(row, True)
        if table.state[row] == READY:
            self.queue.keep_until(row, math.inf)
        if not self._room.is_small(row):
            self.policy.waits(row, now)

    def absent(self, ticket: int, now: float) -> None:
        """The client no longer waits inside its request, but may come back: keep its place."""
        self.changed = True
        row, table = self.row(ticket), self.queue.table
        if row is not None and table.present[row]:
            self.queue.set_present(row, False)
            self.queue.set_line(row, "")
            self._promise(row, max(now, table.promise_s[row]))

    def promote(self, ticket: int, now: float) -> bool:
        """An operator moves a waiting ticket to the head of the ready list; False if unknown."""
        self.changed = True
        row = self.row(ticket)
        if row is None:
            return False
        table = self.queue.table
        until_s = self._ready.told_before_until_s(row)
        if table.state[row] == READY:
            self.queue.stand_alone(row)
            self.queue.set_key(row, -math.inf)
        else:
            self._ready.make_ready(row, now, first=True)
        if now < until_s:
            self.queue.keep_until(row, until_s)
        # It was told a later return; it need not wait for that any more.
        table.promise_s[row] = min(table.promise_s[row], now)
        return True

    def estimate(self, ticket: int, now: float) -> Estimate | None:
        """When this waiting ticket is expected to start; None for an unknown one."""
        row = self.row(ticket)
        return None if row is None else self._stated(row, now)

    def ticket(self, number: int) -> TicketRow | None:
        """The ticket as it stands; None when it was never issued or is long over."""
        return self.queue.row_of(number)

    def ticket_of(self, lease: int) -> int | None:
        """The ticket of a running download; None while it has none."""
        held = self.pool.leases.get(lease)
        return None if held is None else held.ticket

    def issued_s(self, number: int) -> float | None:
        """When the ticket was issued; None when it was never, or is long over."""
        return self.queue.issued_s(number)

    def place(self, ticket: int) -> int | None:
        """How many start before this waiting ticket, plus one; None where it does not wait."""
        row = self.row(ticket)
        return None if row is None else self._place(row)

    def tickets(self, start: int = 0) -> Iterable[TicketRow]:
        """All waiting and ready tickets in the order of their turn, without the first `start`."""
        return self.queue.queue(start)

    def anybody_waits(self) -> bool:
        """Whether there is a waiting or ready ticket."""
        return len(self.queue) > 0

    def changes(self, *, everything: bool = False) -> list[TicketRow]:
        """Tickets that changed since the last call, for the journal; `everything`: all it has."""
        return self.queue.changes(everything)

    def holds(self, client: str, file: str) -> bool:
        """Whether this client has a place for this file."""
        return self.queue.find(client, file) is not None

    def restore(
        self, rows: Iterable[TicketRow], now: float, next_number: int, *, proven: bool = False
    ) -> None:
        """Take up tickets from a journal; numbers below `next_number` are never issued again.

        STARTED rows return as the next to start: their lease died with the process. `proven`: they
        are in no journal, but signed. They stand behind those of their crowd that stand back, and
        are ready among younger ones.
        """
        self.changed = True
        queue, rows = self.queue, sorted(rows, key=itemgetter(0))
        for row in rows if proven else ():
            queue.ended.pop(row.number, None)
        if not self._room.network_shares:
            rows = [
                row._replace(stands_back=False) if row.stands_back and row.state.is_queued else row
                for row in rows
            ]
        until_s = now + self.settings.ticket_ttl_s
        for row in rows:
            self._make_room(row, now)
            queue.restore(row, now, until_s, self.is_large)
        # The journal does not have the returns that clients were told.
        self.state.told_before_until_s = now + longest_return_s(self.settings)
        for one in rows:
            at = queue.table.rows.get(one.number)
            if at is None:
                continue
            waits = proven and queue.table.state[at] == WAITING
            if waits and self.crowds.stand_back_before(queue.turn(at), one.network):
                queue.stand_back(at)
            if waits and queue.is_among_ready(at):
                self._ready.make_ready(at, now)
        queue.next_number = max(queue.next_number, next_number)

    def _make_room(self, ticket: TicketRow, now: float) -> None:
        """Another leader or node gave its client this place before a younger one was given here.

        So the younger one goes, unless its client shows that one.
        """
        row, table = self.queue.find(ticket.client, ticket.file), self.queue.table
        if row is None or ticket.number in table.rows or (table.polls[row] and not ticket.polls):
            return
        if table.issued_s[row] >= ticket.issued_s:
            self._end_ticket(row, TicketState.WITHDRAWN, now)

    def snapshot(self, now: float) -> Snapshot:
        """The state at a glance."""
        pool, queue = self.pool, self.queue
        ends = self.estimator.ends.judged
        told = len(queue) and not self.state.closed
        next_wait = self._estimate(self._next_forecast(now)) if told else None
        return Snapshot(
            **asdict(self._tally),
            policy=self.name,
            mode=self.policy.name,
            slots=self.policy.slots(),
            closed=self.state.closed,
            large_slots=self.policy.large_slots(),
            small_active=pool.small_active,
            large_active=pool.large_active,
            paused=pool.paused,
            waiting=len(queue) if self.policy.link_bound else len(queue.line),
            ready=0 if self.policy.link_bound else len(queue.ready),
            ready_target=self._ready.target,
            no_show_fraction=self.estimator.no_show_fraction,
            last_wait=next_wait,
            eta_within_p90=self.estimator.judged.within_p90,
            eta_median_error=self.estimator.judged.median_error,
            end_within_p90=ends.within_p90,
            end_median_error=ends.median_error,
            ends_judged_total=ends.counts[0],
            ends_kept_total=ends.counts[1],
            link_bound=self.policy.link_bound,
            slotless=len(pool.slotless),
            doubted=pool.doubted,
        )


def _no_sooner(done: Estimate, start: Estimate, own_s: float) -> Estimate:
    """Starts and ends are corrected apart, and none ends before it starts."""
    least_s, bound_s = start.expected_s + own_s, start.p90_s + own_s
    return Estimate(max(done.expected_s, least_s), max(done.p90_s, bound_s))


def _kept_for_due_s(takes_s: float) -> float:
    """How long a polling client leaves its turn to others: its download takes `takes_s`."""
    return min(ADMISSION.most_kept_s, ADMISSION.kept_part * takes_s)
