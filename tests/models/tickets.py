"""The life of tickets: who has one, what the journal knows of it, and what its client gets for it.

One queue, led by one of three machines at a time, and four clients, told apart by their tickets
alone. A former leader that was cut off or paused may still decide, until its first write is fenced.

| action | code |
|---|---|
| `issue` | `Gate.enter`, `AdmissionPolicy._newcomer` |
| `return` | `Gate._decide`, `AdmissionPolicy._returning`; where it has a lease, `_join` |
| `wait here`, `leave` | `AdmissionPolicy.present`, `Gate.left`, `AdmissionPolicy.absent` |
| `call` | `PolicyDriver.settle`, `AdmissionPolicy.call_in_turn`, `Gate.call` |
| `replay` | `Gate._decide` with a ticket that is over: `Numbers.is_over`, `_why_not` |
| `restore` | `Gate._take_up`, `TicketQueue.restore`: one that the journal lost is proved |
| `lose start`, `break off` | `LeaseManager.delivered`, `PolicyDriver.end`, `detach` |
| `idle out` | `AdmissionPolicy._end_idle`, `_close`, `_give_back` |
| `last bytes` | `LeaseManager.ending`: on record first |
| `commit` | `Store._flush`, `journal.write_tickets`, and what waited in `Store.after_commit` |
| `end` | a turn that passed or was taken back: `AdmissionPolicy._expire`, `withdraw` |
| `lead` | the leader ends: `bootstrap.open_memory`, `journal.read_journal`, `LeaseManager.open` |
| `lead, landed` | the same, and its last batch was committed although it never heard so |
| `lead, stale` | the same, but the former leader does not know yet |
| `stale start`, `stale commit` | what that one does; `Database.fence` refuses its first write |

A waiting and a ready ticket are one state here: time decides between them, and whatever it decides
may happen at any moment. Tickets have no order in the states that are explored, so any that waits
may be called; the replay holds the order of their numbers against the code.

Out of the model: tickets that nodes issue without a leader, and the record that a node waits for
0.5 s at most; see `Tickets.patient`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from tests.models.explorer import Fault, Step

#: As many as clients: one that comes with nothing in its hands is a new one.
TICKETS = 4
SLOTS = 1


class Life(IntEnum):
    """Where a ticket is in a leader's memory, and what a row of the journal says of it."""

    UNKNOWN = 0
    QUEUED = 1
    STARTED = 2
    #: All but the last bytes have left, and they wait for the record; in the journal: used.
    ENDING = 3
    #: Its lease has no connection, and its client not one byte.
    LOST = 4
    #: The same, but its client has some.
    BROKEN = 5
    OVER = 6


#: These hold a slot.
LEASED = (Life.STARTED, Life.ENDING, Life.LOST, Life.BROKEN)
#: What a journal's row says.
ROWS = (
    Life.UNKNOWN,
    Life.QUEUED,
    Life.STARTED,
    Life.OVER,
    Life.STARTED,
    Life.STARTED,
    Life.OVER,
)


class Ticket(NamedTuple):
    """One ticket.

    `here`: a request waits with it. `first`: it had started under an earlier leader. `unasked`: and
    no client has asked with it since, so that nothing of it is written. `spent`: a lost start is
    not given back. `told`: its client knows of it; only counted where it may hear
    before the commit. `token`: it can prove one that the journal has not. `uses`: how often its
    client got the last bytes. `stale`: it runs under a former leader, perhaps up to its last bytes.
    """

    memory: Life = Life.UNKNOWN
    journal: Life = Life.UNKNOWN
    here: bool = False
    first: bool = False
    unasked: bool = False
    spent: bool = False
    told: bool = False
    token: bool = False
    uses: int = 0
    stale: bool = False


#: One that nothing can happen to any more.
CLOSED = Ticket(Life.OVER, Life.OVER)


class Queue(NamedTuple):
    """All tickets by number, and whether a former leader still decides."""

    tickets: tuple[Ticket, ...] = ()
    stale: bool = False


@dataclass(frozen=True)
class Tickets:
    """The model. Each field is a guard of the code; without one a fault must be found."""

    #: The last bytes leave once the ticket is on record as used (`LeaseManager.ending`).
    patient: bool = True
    #: A stale leader's writes are refused (`Database.fence`).
    fenced: bool = True
    #: Numbers are promised before they are given (`bootstrap.open_memory`).
    reserved: bool = True
    #: Numbers of tickets that are over are known (`Numbers.is_over`).
    remembered: bool = True
    #: A client hears of its place after the commit (`Gate._ask_back`).
    answered_late: bool = True
    #: Tickets that had started are taken up (`TicketQueue.restore`).
    restored: bool = True
    #: How many clients.
    most: int = TICKETS
    #: The journal lags behind by this many tickets at most.
    lag: int = 1

    def check(self, state: Queue) -> None:
        """No ticket is used twice, and none that the journal has is unknown."""
        for ticket in state.tickets:
            if ticket.uses > 1:
                raise Fault("a ticket is used twice")
            if not ticket.memory and ticket.journal in (Life.QUEUED, Life.STARTED):
                raise Fault("a place is lost: the leader does not know a ticket of the journal")

    def steps(self, state: Queue) -> Iterator[Step[Queue]]:
        """All that may happen next; the journal lags no more than `lag` behind."""
        for action, _, after in self.actions(state):
            if sum(one.journal is not ROWS[one.memory] for one in after.tickets) <= self.lag:
                yield action, canonical(after, action)

    def actions(self, state: Queue) -> Iterator[tuple[str, int, Queue]]:
        """All that may happen next, with the ticket that it happens to, if to one (else -1)."""
        tickets = state.tickets
        free = sum(one.memory in LEASED for one in tickets) < SLOTS
        if len(tickets) < self.most:
            yield from self._issue(state, free=free)
        for at, ticket in enumerate(tickets):
            for action, changed in _of_one(ticket, free, self.patient):
                yield action, at, _with(state, at, changed)
        if free:
            for at, ticket in enumerate(tickets):
                if ticket.here:
                    yield "call", at, _with(state, at, started(ticket))
        yield "commit", -1, state._replace(tickets=tuple(map(_committed, tickets)))
        yield "lead", -1, self._lead(state)
        yield "lead, landed", -1, self._lead(_landed(state))
        if state.stale:
            yield from self._stale(state)
        else:
            yield "lead, stale", -1, self._lead(state, stale=True)

    def _issue(self, state: Queue, *, free: bool) -> Iterator[tuple[str, int, Queue]]:
        at = len(state.tickets)
        if not self.reserved and any(not one.memory and not one.journal for one in state.tickets):
            # The leader begins behind the highest number that the journal has.
            raise Fault("issue: a number has two owners")
        told = not self.answered_late
        for here in (False, True):
            waits = Ticket(Life.QUEUED, here=here, told=told)
            yield "issue", at, state._replace(tickets=(*state.tickets, waits))
        if free:
            starts = Ticket(Life.STARTED, spent=True, token=True)
            yield "issue", at, state._replace(tickets=(*state.tickets, starts))

    def _lead(self, state: Queue, *, stale: bool = False) -> Queue:
        taken = []
        for before in state.tickets:
            running = stale and before.memory in LEASED
            taken.append(
                before._replace(
                    memory=self._taken_up(before.journal),
                    here=False,
                    first=before.journal is Life.STARTED,
                    unasked=before.journal is Life.STARTED,
                    spent=False,
                    stale=running,
                )
            )
        return Queue(tuple(taken), stale)

    def _taken_up(self, row: Life) -> Life:
        """What a leader makes of a row."""
        if row is Life.STARTED:
            return Life.QUEUED if self.restored else Life.UNKNOWN
        return row if row is not Life.OVER or self.remembered else Life.UNKNOWN

    def _stale(self, state: Queue) -> Iterator[tuple[str, int, Queue]]:
        """One that leads no more. It may start whatever it knows, which is more than it does."""
        tickets = state.tickets
        if sum(one.stale for one in tickets) < SLOTS:
            for at, one in enumerate(tickets):
                if not one.stale and not (one.memory is Life.OVER and one.journal is Life.OVER):
                    changed = one._replace(stale=True, token=True)
                    yield "stale start", at, _with(state, at, changed)
        written = _refused if self.fenced else _written_by_stale
        yield "stale commit", -1, Queue(tuple(map(written, tickets)))


# Few tickets differ, and each is met in thousands of states: what is known of one is kept.
@cache
def _of_one(ticket: Ticket, free: bool, patient: bool) -> tuple[tuple[str, Ticket], ...]:
    return tuple(_happens(ticket, free, patient))


def _happens(ticket: Ticket, free: bool, patient: bool) -> Iterator[tuple[str, Ticket]]:
    memory = ticket.memory
    if memory is Life.QUEUED:
        if ticket.here:
            yield "leave", ticket._replace(here=False)
        else:
            ticket = ticket._replace(unasked=False)
            yield "return", ticket
            yield "wait here", ticket._replace(here=True)
            if free:
                yield "return", started(ticket)
            yield "end", _over(ticket)
    elif memory is Life.STARTED:
        yield "lose start", ticket._replace(memory=Life.LOST)
        yield "break off", ticket._replace(memory=Life.BROKEN, spent=False)
        yield "last bytes", ticket._replace(memory=Life.ENDING, spent=False)
    elif memory is Life.LOST:
        yield "return", ticket._replace(memory=Life.STARTED)
        back = ticket._replace(memory=Life.QUEUED, spent=True)
        yield "idle out", _over(ticket) if ticket.spent else back
    elif memory is Life.BROKEN:
        yield "return", ticket._replace(memory=Life.STARTED, spent=True)
        yield "idle out", _over(ticket)
    elif memory is Life.ENDING:
        yield "break off", ticket._replace(memory=Life.BROKEN)
        if not patient:
            yield "last bytes leave", _over(ticket, uses=1)
    elif memory is Life.OVER:
        yield "replay", ticket
    elif ticket.token or ticket.journal:
        yield "restore", ticket._replace(memory=Life.QUEUED)
        if free:
            yield "restore", started(ticket)


def in_order(state: Queue) -> list[int]:
    """The tickets that wait or are ready in the order of their turn."""
    queued = [at for at, one in enumerate(state.tickets) if one.memory is Life.QUEUED]
    return sorted(queued, key=lambda at: (not state.tickets[at].first, at))


def started(ticket: Ticket) -> Ticket:
    """A ticket that was in the queue has a lease."""
    return ticket._replace(memory=Life.STARTED, here=False, first=False, unasked=False, token=True)


def _over(ticket: Ticket, uses: int = 0) -> Ticket:
    return Ticket(
        Life.OVER,
        ticket.journal,
        token=ticket.token,
        uses=ticket.uses + uses,
        stale=ticket.stale,
    )


@cache
def _committed(ticket: Ticket) -> Ticket:
    ticket = _written(ticket)
    return _over(ticket, uses=1) if ticket.memory is Life.ENDING else ticket


def _landed(state: Queue) -> Queue:
    """Committed, but nobody has heard so."""
    return state._replace(tickets=tuple(map(_written, state.tickets)))


@cache
def _written(ticket: Ticket) -> Ticket:
    if not ticket.memory or ticket.unasked:
        return ticket
    return ticket._replace(journal=ROWS[ticket.memory], told=False)


def _refused(ticket: Ticket) -> Ticket:
    """What ran under the leader that is fenced now asks the next one again, as `return` does."""
    return ticket._replace(stale=False) if ticket.stale else ticket


def _written_by_stale(ticket: Ticket) -> Ticket:
    """The last bytes leave."""
    if not ticket.stale:
        return ticket
    return ticket._replace(journal=Life.OVER, stale=False, uses=ticket.uses + 1)


def _with(state: Queue, at: int, ticket: Ticket) -> Queue:
    return state._replace(tickets=(*state.tickets[:at], ticket, *state.tickets[at + 1 :]))


def canonical(state: Queue, action: str) -> Queue:
    """Without tickets that nobody has heard of, without an order, and all that are closed alike.

    Raises `Fault` where a client has heard of one that nothing proves since this action.
    """
    kept = []
    for one in state.tickets:
        seen = _seen(one)
        if seen is not None:
            kept.append(seen)
        elif one.told:
            raise Fault(f"{action}: a place is lost: nothing proves one that its client was told")
    return Queue(tuple(sorted(kept)), state.stale)


@cache
def _seen(ticket: Ticket) -> Ticket | None:
    """What counts of a ticket; nothing of one that nobody has heard of."""
    if ticket.journal:
        if ticket.memory is Life.OVER and ticket.journal is Life.OVER and not ticket.stale:
            ticket = CLOSED._replace(uses=ticket.uses)
        # The journal proves it.
        return ticket._replace(first=False, unasked=False, token=False)
    if ticket.memory or ticket.token or ticket.stale:
        return ticket._replace(first=False, unasked=False)
    return None
