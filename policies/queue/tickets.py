"""The ticket queue: who waits, in which order, who may start, and who never came.

Laws: a ticket is in exactly one of wait list, ready list and started; numbers grow by one and are
never used twice, not even across `restore`, but those of nodes without a leader, which stand where
their time of issue says (`policies.queue.turns`); one client has at most one waiting or ready
ticket for a file; `place` counts those that are before a ticket in the order of turn, ready ones
first.

The order of turn is a key given by the policy when the ticket is issued (lower is earlier, equal
keys by number). Tickets that *stand back* (`policies.laws`) come after all others, in the same
order among themselves. The queue holds tickets; when to move them is decided by
`policies.admission`.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import islice

from ...protocol.bounded_table import BoundedTable
from ..contract import ELSEWHERE, Job, Ranked, TicketRow, TicketState
from ..leases import Lease
from ..network_order import NO_HANDICAP, Handicap
from .ranked import RankedList
from .table import BACK, BACK_FROM, CODES, MOST_POLLS, TicketTable
from .turns import IssueTimes

WAITING = CODES[TicketState.WAITING]
READY = CODES[TicketState.READY]
STARTED = CODES[TicketState.STARTED]

#: How many tickets that are over are remembered, to tell a used one from an unknown one.
_REMEMBERED = 10_000

#: What an order of turn is made from; see `policies.hooks.Policy.rank`.
Rank = Callable[[Ranked], float]


class TicketQueue:
    """All live tickets. Methods take rows of `table`, which are valid until the ticket ends."""

    def __init__(self) -> None:
        self.table = TicketTable()
        #: Those that wait and those that are ready, with what they want, in the order of turn.
        self.line = RankedList()
        self.ready = RankedList()
        #: Keys and numbers of all whose clients wait inside their request, and the same by the line
        #: of a fleet at which they do.
        self.here: list[tuple[float, int]] = []
        self.here_on: dict[str, list[tuple[float, int]]] = {}
        #: Strangers' tickets that do not stand back, by network; and all that do, by subnet: turn
        #: and number, in order.
        self.front: dict[str, set[int]] = {}
        self.back: dict[str, list[tuple[float, int]]] = {}
        #: When ready tickets run out, and their numbers.
        self._deadlines: list[tuple[float, int]] = []
        self.next_number = 1
        #: Tickets of downloads that ended with their server; their clients have not asked since.
        self._returned: set[int] = set()
        self._times_of_issue = IssueTimes()
        #: Key of the latest ticket that came to its turn: the virtual clock of the queue.
        self.served = 0.0
        self.rank: Rank = self.by_number
        #: What the order counts of each ticket of this network.
        self.handicap: Callable[[str], Handicap] = lambda network: NO_HANDICAP
        self.ended: BoundedTable[int, TicketRow] = BoundedTable(_REMEMBERED)
        #: Rows of the places that each client holds.
        self._index: dict[str, tuple[int, ...]] = {}
        self._changed: dict[int, TicketRow | None] | None = None

    def __len__(self) -> int:
        """Tickets that wait or are ready."""
        return self.line.count + self.ready.count

    # -- order ---------------------------------------------------------------------------------

    def by_number(self, ticket: Ranked) -> float:
        """First come, first served by weight: weight w enters at 1/w of the queue's length.

        As numbers grow with each ticket, only finitely many can overtake a given one.
        """
        if ticket.weight == 1.0:
            return float(ticket.number)
        return self.served + (ticket.number - self.served) / ticket.weight

    def set_rank(self, rank: Rank) -> bool:
        """Order the queue by another rule; every ticket stays in it, and none stands back.

        Returns whether it was another rule.
        """
        if rank == self.rank:
            return False
        self.rank = rank
        # The virtual clock has a meaning for numbers only; it starts again at the oldest ticket.
        self.served = min(self.line, default=self.next_number) - 1.0
        table, rows = self.table, self.table.rows
        queued = [rows[number] for number in sorted((*self.ready, *self.line))]
        self.ready, self.line = RankedList(), RankedList()
        for book in (self.here, self.here_on, self.front, self.back):
            book.clear()
        for row in queued:
            first = table.key[row] == -math.inf
            self._put(row, -math.inf if first else self._key_of(row))
            self._count(row, True)
        return True

    def turn(self, row: int) -> float:
        """Where this ticket stands among the numbers: its own, if a leader gave it."""
        return self._times_of_issue.turn_of(self.table.number[row])

    def ranked(self, row: int) -> Ranked:
        """What the order of turn of this ticket is made from."""
        table = self.table
        left = table.remaining[row]
        if network := table.network[row]:
            left = self.handicap(network).counted(left)
        return Ranked(self.turn(row), table.size[row], left, table.weight[row], table.issued_s[row])

    def _key_of(self, row: int) -> float:
        return self.rank(self.ranked(row))

    def is_overrated(self, row: int) -> bool:
        """Whether its network has had more since, so that it stands too far in front."""
        key = self.table.key[row]
        if not (self.table.network[row] and 0.0 <= key < BACK_FROM):
            return False
        return key < self._key_of(row)

    def present_key(self, row: int) -> float:
        """Its key as its network's downloads stand now: never less than the one it has."""
        return self._key_of(row) if self.is_overrated(row) else self.table.key[row]

    def set_key(self, row: int, key: float) -> None:
        """Give a ticket another key; one that stands back stays behind the others."""
        self._move(row, key + BACK if self.stands_back(row) else key)

    def _move(self, row: int, key: float) -> None:
        self._take(row)
        self._put(row, key)

    def stands_back(self, row: int) -> bool:
        """Whether all those go before this ticket that do not stand back."""
        return self.table.key[row] >= BACK_FROM

    def goes_first(self, row: int) -> bool:
        """Whether this ticket goes before all others, whatever its crowd does.

        It had its turn before a restart, or the operator has promoted it.
        """
        return self.table.key[row] == -math.inf

    def stand_back(self, row: int) -> None:
        """Put a ticket behind all that do not stand back."""
        if not (self.stands_back(row) or self.goes_first(row)):
            self._rebook(row, self.table.key[row] + BACK)

    def come_forward(self, row: int) -> None:
        """A ticket that stands back does so no longer."""
        if self.stands_back(row):
            # A policy puts urgent ones below zero; the others lose precision beside so large a sum.
            key = self.table.key[row] - BACK
            self._rebook(row, key if key < 0.0 else self._key_of(row))

    def _rebook(self, row: int, key: float) -> None:
        self._count(row, False)
        self._move(row, key)
        self._count(row, True)
        self._note(self.table.number[row])

    def stand_alone(self, row: int) -> None:
        """A ticket counts with no network any more, and comes forward."""
        self.come_forward(row)
        self._count(row, False)
        self.table.network[row] = ""

    def _count(self, row: int, there: bool) -> None:
        """Note that a ticket is among those of its network from now on, or no more."""
        table, number = self.table, self.table.number[row]
        if self.stands_back(row):
            subnet, entry = table.subnet[row], (self.turn(row), number)
            entries = self.back.setdefault(subnet, [])
            if there:
                insort(entries, entry)
            else:
                del entries[bisect_left(entries, entry)]
            if not entries:
                del self.back[subnet]
        elif network := table.network[row]:
            numbers = self.front.setdefault(network, set())
            (numbers.add if there else numbers.discard)(number)
            if not numbers:
                del self.front[network]

    def forward_ready(self) -> int:
        """How many ready tickets do not stand back."""
        return self.ready.rank(BACK_FROM, 0)

    def forward(self) -> int:
        """How many wait or are ready that do not stand back."""
        return self.forward_ready() + self.line.rank(BACK_FROM, 0)

    def place_forward(self, row: int) -> int:
        """The place that a ticket would have if it did not stand back."""
        entry = (self._key_of(row), self.table.number[row])
        if self.table.state[row] == READY:
            return self.ready.rank(*entry) + 1
        return self.forward_ready() + self.line.rank(*entry) + 1

    def back_before(self, row: int) -> int:
        """How many that stand back would go before this ticket, which does not, if they did not."""
        # The first of all has no key of its own.
        entry = (max(BACK_FROM, BACK + self.table.key[row]), self.table.number[row])
        return self.line.rank(*entry) - self.line.rank(BACK_FROM, 0)

    def is_among_ready(self, row: int) -> bool:
        """Whether a ready ticket comes after this one by its key: those that stand back apart."""
        ready = self.ready.count if self.stands_back(row) else self.forward_ready()
        return self.ready.rank(self.table.key[row], self.table.number[row]) < ready

    def place(self, row: int) -> int:
        """How many are before this ticket, plus one."""
        entry = (self.table.key[row], self.table.number[row])
        back = entry[0] >= BACK_FROM
        if self.table.state[row] == READY:
            before = self.line.rank(BACK_FROM, 0) if back else 0
            return before + self.ready.rank(*entry) + 1
        ready = self.ready.count if back else self.forward_ready()
        return ready + self.line.rank(*entry) + 1

    def shown_place(self, row: int) -> int:
        """`place` without the returned tickets that no client has asked with since the restore.

        They count once their clients ask. Otherwise the loss of a server would raise all places.
        """
        place = self.place(row)
        if self._returned:
            entry = (self.table.key[row], self.table.number[row])
            place -= sum((-math.inf, number) < entry for number in self._returned)
        return place

    def in_order(self, start: int = 0) -> Iterator[int]:
        """Numbers of all waiting and ready tickets in the order of turn, without the first `start`.

        Ready ones come first, but those that stand back after all that do not.
        """
        ready, waiting = self.forward_ready(), self.line.rank(BACK_FROM, 0)
        for entries, first, stop in (
            (self.ready, 0, ready),
            (self.line, 0, waiting),
            (self.ready, ready, self.ready.count),
            (self.line, waiting, self.line.count),
        ):
            passed = min(start, stop - first)
            yield from islice(entries.numbers_from(first + passed), stop - first - passed)
            start -= passed

    # -- coming in -----------------------------------------------------------------------------

    def find(self, client: str, file: str) -> int | None:
        """The row of the place that this client holds for this file."""
        files = self.table.file
        for row in self._index.get(client, ()):
            if files[row] == file:
                return row
        return None

    def held_by(self, client: str) -> int:
        """How many places this client holds."""
        return len(self._index.get(client, ()))

    def issue(self, job: Job, remaining_bytes: int, now: float) -> int:
        """Give the job the next number and a place in the wait list; returns its row.

        `remaining_bytes` is what the order counts, whatever the job claims.
        """
        row = self._give_number(job, job.stranger_network, remaining_bytes, now, now)
        self.table.priority_class[row] = sys.intern(job.priority_class)
        self.table.line[row] = sys.intern(job.line)
        self._put(row, self._key_of(row))
        self._hold(row)
        return row

    def issue_started(self, lease: Lease, now: float) -> int:
        """A ticket for a download that began without one; returns its number."""
        row = self._give_number(lease, lease.network, lease.believed_bytes, lease.started_s, now)
        self.table.state[row] = STARTED
        return self.table.number[row]

    def _give_number(
        self, of: Job | Lease, network: str, remaining_bytes: int, issued_s: float, now: float
    ) -> int:
        number, size_bytes = self.next_number, of.size_bytes
        self.next_number += 1
        self._times_of_issue.issued(number, now)
        self._note(number)
        return self.table.add(
            number,
            of.client,
            of.file,
            size_bytes,
            remaining_bytes,
            of.weight,
            issued_s,
            now,
            network=network,
            subnet=of.subnet,
        )

    def restore(
        self, ticket: TicketRow, now: float, ready_until_s: float, is_large: Callable[[int], bool]
    ) -> None:
        """Take up a ticket from elsewhere; one that is known or over already stays out.

        A started one, and one whose size is not large, is ready before all others; a ready one is
        so again, all until `ready_until_s`. One that waits is no change. A started one stays so in
        the journal until its client asks: else the next server would count it, and keep it anew.
        """
        number, client, file, size, left, weight, issued_s, state, lost_s = ticket[:9]
        polls, early, word, network, back = ticket[9:]
        table, returned = self.table, state is TicketState.STARTED
        if number in table.rows or number in self.ended:
            return
        if number < ELSEWHERE:
            self.next_number = max(self.next_number, number + 1)
        if state.is_over:
            self._remember(ticket)
            return
        if self.find(client, file) is not None:
            return
        lost_s = min(lost_s, now) if returned and back else now
        large, subnet = is_large(size), network
        network = network if large else ""
        row = table.add(
            *(number, client, file, size, left, weight, issued_s, lost_s, word, network, subnet)
        )
        table.polls[row] = min(polls, MOST_POLLS)
        table.early[row] = min(early, MOST_POLLS)
        turn = self._times_of_issue.taken_up(number, issued_s)
        first = returned or not large
        key = -math.inf if first else self.rank(Ranked(turn, size, left, weight, issued_s))
        if returned:
            self._returned.add(number)
            self._note(number)
        if back and network and not first:
            key += BACK
        if first or state is TicketState.READY:
            self._serve(key)
            table.state[row] = READY
            self.keep_until(row, ready_until_s - now + lost_s)
        self._put(row, key)
        self._hold(row)

    def _hold(self, row: int) -> None:
        client = self.table.client[row]
        self._index[client] = (*self._index.get(client, ()), row)
        self._count(row, True)

    # -- moving on -----------------------------------------------------------------------------

    def first_waiting(self) -> int | None:
        """The row whose turn is next in the wait list."""
        first = self.line.first()
        return None if first is None else self.table.rows[first[1]]

    def make_ready(self, row: int, now: float, deadline_s: float, first: bool = False) -> None:
        """Move a waiting ticket to the ready list, good until `deadline_s` unless at the door."""
        if first:
            self.stand_alone(row)
        self._take(row)
        key = -math.inf if first else self.table.key[row]
        if not first:
            self._serve(key)
        self._set_state(row, READY, now)
        self._put(row, key)
        self.keep_until(row, deadline_s)

    def _serve(self, key: float) -> None:
        if key < BACK_FROM:
            self.served = max(self.served, key)

    def keep_until(self, row: int, deadline_s: float) -> None:
        """A ready ticket expires at `deadline_s` (inf: while its owner is at the door)."""
        table, number = self.table, self.table.number[row]
        deadline_s = math.inf if table.present[row] else deadline_s
        before_s, table.deadline_s[row] = table.deadline_s[row], deadline_s
        if before_s == deadline_s:
            return
        if before_s < math.inf:
            del self._deadlines[bisect_left(self._deadlines, (before_s, number))]
        if deadline_s < math.inf:
            insort(self._deadlines, (deadline_s, number))

    def set_present(self, row: int, present: bool) -> None:
        """The owner asks now or has left: note whether it waits in its request."""
        table = self.table
        if table.number[row] in self._returned:
            self._returned.remove(table.number[row])
            self._note(table.number[row])
        if bool(table.present[row]) == present:
            return
        if present:
            table.present[row] = True
            self._comes(row)
        else:
            self._goes(row)
            table.present[row] = False

    def _comes(self, row: int) -> None:
        entry, line = (self.table.key[row], self.table.number[row]), self.table.line[row]
        insort(self.here, entry)
        insort(self.here_on.setdefault(line, []), entry)

    def _goes(self, row: int) -> None:
        entry, line = (self.table.key[row], self.table.number[row]), self.table.line[row]
        del self.here[bisect_left(self.here, entry)]
        here = self.here_on[line]
        del here[bisect_left(here, entry)]
        if not here:
            del self.here_on[line]

    def set_line(self, row: int, line: str) -> None:
        """At which line of a fleet its client asks now, or waits; empty: at none that is known."""
        table = self.table
        if table.line[row] == line:
            return
        if table.present[row]:
            self._goes(row)
        table.line[row] = sys.intern(line)
        if table.present[row]:
            self._comes(row)

    def resize(self, row: int, remaining_bytes: int) -> None:
        """The client wants more or less than before; its place follows if size decides it."""
        table = self.table
        if table.remaining[row] == remaining_bytes:
            return
        before = self._key_of(row)
        self._take(row)
        table.remaining[row] = remaining_bytes
        after = self._key_of(row)
        moves = table.state[row] == WAITING and after != before
        back = BACK if self.stands_back(row) else 0.0
        self._put(row, after + back if moves else table.key[row])

    def reweigh(self, row: int, weight: float, priority_class: str) -> None:
        """The client has shown a better priority class since; its place follows."""
        self.table.weight[row] = weight
        self.table.priority_class[row] = sys.intern(priority_class)
        if self.table.state[row] == WAITING:
            back = BACK if self.stands_back(row) else 0.0
            self._move(row, min(self.table.key[row], back + self._key_of(row)))

    def start(self, row: int, now: float) -> None:
        """The ticket's download runs: it leaves the queue, but stays known until it ends."""
        self._leave(row)
        self.table.line[row] = ""
        self._set_state(row, STARTED, now)

    def give_back(self, row: int, network: str, now: float) -> None:
        """The download of a started ticket came to nothing: it waits again, with its number.

        It counts with this network. The table remembers it, so that it happens once.
        """
        table = self.table
        table.given_back[row] = 1
        table.present[row] = 0
        table.network[row] = sys.intern(network)
        self._set_state(row, WAITING, now)
        self._put(row, self._key_of(row))
        self._hold(row)

    def end(self, row: int, state: TicketState, now: float) -> None:
        """The ticket is over."""
        if self.table.state[row] != STARTED:
            self._leave(row)
        table = self.table
        table.state[row] = CODES[state]
        table.changed_s[row] = now
        self._remember(table.view(row))
        self._times_of_issue.over(table.number[row])
        table.drop(table.number[row])

    def overdue(self, now: float, most: int) -> list[int]:
        """Rows of `most` ready tickets that were not claimed in time; they stay until ended."""
        due = self._deadlines[: min(most, self._index_after(now))]
        rows = [self.table.rows[number] for _, number in due]
        for row in rows:
            self.keep_until(row, math.inf)
        return rows

    def next_deadline(self) -> float | None:
        """When the next ready ticket runs out."""
        return self._deadlines[0][0] if self._deadlines else None

    def running_out(self, low_s: float, high_s: float) -> Iterator[int]:
        """Rows of ready tickets whose owners are away and whose time ends between these."""
        deadlines, rows = self._deadlines, self.table.rows
        for at in range(bisect_left(deadlines, (low_s, 0)), self._index_after(high_s)):
            yield rows[deadlines[at][1]]

    def count_running_out(self, low_s: float, high_s: float) -> int:
        """How many those are; it costs the same however many."""
        return max(0, self._index_after(high_s) - bisect_left(self._deadlines, (low_s, 0)))

    def _index_after(self, high_s: float) -> int:
        return bisect_right(self._deadlines, (high_s, math.inf))

    def _leave(self, row: int) -> None:
        table = self.table
        self._count(row, False)
        self._take(row)
        self.keep_until(row, math.inf)
        client = table.client[row]
        rest = tuple([other for other in self._index.pop(client) if other != row])
        if rest:
            self._index[client] = rest

    def _take(self, row: int) -> None:
        table = self.table
        key, number = table.key[row], table.number[row]
        self._returned.discard(number)
        (self.ready if table.state[row] == READY else self.line).remove(key, number)
        if table.present[row]:
            self._goes(row)

    def _put(self, row: int, key: float) -> None:
        table = self.table
        table.key[row] = key
        entries = self.ready if table.state[row] == READY else self.line
        entries.add(key, table.number[row], table.remaining[row])
        if table.present[row]:
            self._comes(row)

    def _set_state(self, row: int, state: int, now: float) -> None:
        self.table.state[row] = state
        self.table.changed_s[row] = now
        self._note(self.table.number[row])

    # -- telling -------------------------------------------------------------------------------

    def row_of(self, number: int) -> TicketRow | None:
        """The ticket as it stands or as it ended, if that is remembered."""
        row = self.table.rows.get(number)
        return self.ended.get(number) if row is None else self.table.view(row)

    def issued_s(self, number: int) -> float | None:
        """When it was issued, of a ticket that `row_of` knows."""
        row = self.table.rows.get(number)
        if row is not None:
            return self.table.issued_s[row]
        ended = self.ended.get(number)
        return None if ended is None else ended.issued_s

    def queue(self, start: int = 0) -> Iterator[TicketRow]:
        """All waiting and ready tickets in the order of turn, without the first `start`."""
        table = self.table
        for number in self.in_order(start):
            yield table.view(table.rows[number])

    def changes(self, everything: bool) -> list[TicketRow]:
        """Tickets that changed since the last call; the first call tells all live ones.

        Nothing is collected before the first call, so that a book without a journal costs nothing.
        """
        if everything or self._changed is None:
            self._changed = self._changed or {}
            return [self._written(number) for number in self.table.rows]
        if not self._changed:
            return []
        changed, self._changed = self._changed, {}
        return [self._written(number) if row is None else row for number, row in changed.items()]

    def _written(self, number: int) -> TicketRow:
        """What the journal has of a live ticket: of a lost download since when it is lost."""
        found, lost = self.table.view(self.table.rows[number]), number in self._returned
        return found._replace(state=TicketState.STARTED, stands_back=True) if lost else found

    def _note(self, number: int, ended: TicketRow | None = None) -> None:
        if self._changed is not None:
            self._changed[number] = ended

    def _remember(self, ticket: TicketRow) -> None:
        self.ended[ticket.number] = ticket
        self._note(ticket.number, ticket)
