"""Fair: shortest remaining first (SRPT), guarded by virtual processor sharing, with preemption.

The downloads with the fewest bytes left run: as many as fill the line with their own speeds, and a
few in the background (`policies.preemption`). The others are paused, or wait in their request. So a
finished download leaves room at once for the next shortest, and a slow client costs no slot that a
fast one could use.

The guard: a download goes first once its slack is used up. Its slack is the time until a server
without admission would have it done (`policies.virtual_sharing`) less the time that it still needs.
So no client is done later than without admission, as far as speeds are known. Among downloads
without slack the shortest goes first: the earliest end would leave the slowest, which cannot catch
up, to the last.

Downloads of networks beyond their shares (`policies.network_order`) count as longer ones. Meanwhile
those that wait and the short ones have no guard.

A newcomer runs for a moment first (a probe), which shows its speed and gives it its first bytes.
Other clients wait until the link has use for them, with the same guard (`policies.overdue`), and
then run to their end.

Behind a gate nothing can be paused (`LeasePool.can_pause`): downloads start in this order, with
this guard, while those that run leave something of the line.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .contract import Estimate, Forecast, Ranked
from .estimate.calibrator import next_below
from .estimate.ends import EndForecast, unsure_of
from .estimate.paces import Paces
from .estimate.shorter_load import ShorterLoad
from .estimate.told_places import ToldPlaces
from .first_bytes import FirstBytes, place_of
from .hooks import AdmissionView, Policy
from .keep_alive import KEEP_ALIVE, most_paused
from .leases import Lease
from .network_order import NO_HANDICAP
from .overdue import Overdue
from .preemption import Preemption
from .queue.tickets import WAITING
from .running import FilledLine, Running
from .settings import LINK, TICKETS
from .virtual_sharing import VirtualSharing


@dataclass(frozen=True, slots=True)
class FairTuning:
    """Times are seconds."""

    #: Added to the key of a download without slack: below all keys without it, in the same order.
    urgent: float = -1e14
    #: The same for a client that a server without admission would give all it can take: standing
    #: back would cost it the whole delay. Without this, 16 clients that always download cost the
    #: others two and a half times as much.
    unshared: float = -2e14
    #: That is one that takes no more than this times what such a server would give it: the level
    #: moves, and nearly no slack is left.
    nearly: float = 1.25
    #: The virtual time left counts as this part of itself: speeds are known roughly, and several
    #: may run out of slack together. With 1 two to four times as many are later.
    sure_part: float = 0.75
    #: A speed that may be a guess counts in full once the client took the bytes of this time ...
    second_look_s: float = 1.0
    #: ... and before that as this part of itself: kernel buffers make the first half second look
    #: too fast. With 0.5 the mean is 1 to 2 % longer.
    guessed_part: float = 0.7
    #: The guard counts on this part of the usual speed for a waiting client that was never seen, or
    #: on less where speeds differ much (without that up to 6 % are later than without admission).
    #: With 0.4 more start without slack than can run: 84 instead of 98 % of the told starts of
    #: Experiment 2 are kept. With 1 the others need 37 instead of 26 s beside 16 clients that
    #: always download.
    unseen_part: float = 0.7
    #: The bound of an end is told by the speed that this part of the clients exceed. By the usual
    #: one, 63 % of the ends are kept where seven in ten are slow.
    not_slow_part: float = 0.9
    #: Before any was seen, the others are taken to be slower than usual by this.
    first_slower: float = 4.0
    #: Leases whose speeds and keys are looked at in one go, about 2 ms; the next ones follow at the
    #: next look. With 500 a look takes 5 ms, and small files wait for it.
    most_at_once: int = 200
    #: A rush or slow speeds make a start no more unsure than this, as a part of it. Without it 4 %
    #: fewer of the first told starts of new servers are kept, and with 1.7 no more.
    most_unsure: float = 1.2
    #: Times below this count there as this.
    moment_s: float = 0.25
    #: The greatest rate of a download that cannot be paused is this part of the line, as 1 / it.
    #: The mean of 150 mixed downloads is 4 % longer with 2, and 16 % with 8.
    unpaused_shares: int = 4
    #: Clients in the virtual sharing at once bound its memory. Those beyond wait for room in it.
    most_virtual: int = 50_000


FAIR = FairTuning()


class FairPolicy(Policy):
    """Ranks by remaining bytes and slack; pauses and resumes."""

    name = "fair"
    summary = "Short downloads first, but none much later than from a plain server."
    reads = ("reserve_small", "small_below_bytes", *TICKETS, *LINK)
    link_bound = True
    prefers_present = True

    def __init__(self, admission: AdmissionView) -> None:
        super().__init__(admission)
        settings = self.settings
        self._slots = slots = max(settings.slots, settings.slots_max)
        self._large_slots = slots - min(settings.reserve_small, slots - 1)
        self._queue = admission.queue
        self._can_pause = admission.pool.can_pause
        self._capacity = admission.capacity
        #: Large leases; their keys are of the last look at them.
        self._running = Running(admission.capacity)
        self._preemption = Preemption(admission.pool, self._running)
        self._first_bytes = FirstBytes(admission)
        #: The ticket that may start now for its first bytes only; 0: none.
        self._opening = 0
        self._shorter = ShorterLoad()
        self._places = ToldPlaces(self._queue.table)
        #: Seconds for a byte of the clients of the latest downloads, for what is told; the median,
        #: and that of a slow one.
        self._paces = Paces()
        self._usual_pace = 1.0 / self._capacity.typical_client_bytes_s
        self._slow_pace = FAIR.first_slower * self._usual_pace
        self._virtual = VirtualSharing()
        self._overdue = Overdue(admission, self._slack_s)
        self._take_over()

    def _take_over(self) -> None:
        """Leases and tickets that another policy left."""
        admission, table = self.admission, self._queue.table
        for lease in admission.pool.leases.values():
            if lease.large and not lease.fresh:
                lease.mark = math.inf
                # One that another policy let go on has had its turn.
                lease.opened = lease.opened and lease.paused
                if lease.opened:
                    self._first_bytes.started(lease)
                else:
                    self._running.add(lease)
                self._preemption.add(lease)
        for number, row in table.rows.items():
            table.mark[row], table.place[row] = math.inf, 0
            if admission.row(number) is not None and admission.is_large(table.size[row]):
                self._places.told(row)

    # -- order and room ----------------------------------------------------------------------------

    def rank(self, ticket: Ranked) -> float:
        """By remaining bytes; a priority class with weight 4 counts a quarter of them."""
        return ticket.remaining_bytes / ticket.weight

    def slots(self) -> int:
        """A limit for safety: the link decides how many run."""
        return self._slots

    def large_slots(self) -> int:
        """All slots, running or paused, but the reserved ones."""
        return self._large_slots

    def line_shares(self) -> int:
        """As many as hold no client up for long: the line decides how many run."""
        return FAIR.unpaused_shares

    def ready_slots(self) -> int:
        """Fair needs no long ready list: a ticket starts when it asks and the link has use."""
        return max(1, self.settings.slots - self.settings.reserve_small)

    @property
    def _known(self) -> bool:
        """Whether it is known what the link carries; until then nothing is ranked or paused."""
        return self._capacity.known

    # -- the guard ---------------------------------------------------------------------------------

    def _virtual_now(self, now: float) -> None:
        if self._known:
            self._virtual.run_to(now, self._capacity.large_bytes_s)

    def _enter(self, client: str, size_bytes: int, speed_bytes_s: float) -> float:
        """Take a download into the virtual sharing; its mark, infinite while there is no room."""
        if not self._known or len(self._virtual) >= FAIR.most_virtual:
            return math.inf
        speed_bytes_s = min(speed_bytes_s, self._capacity.rate_bytes_s)
        return self._virtual.add(client, max(1, size_bytes), speed_bytes_s)

    def _enter_ticket(self, row: int, now: float) -> None:
        table, capacity = self._queue.table, self._capacity
        speed = capacity.recall(table.client[row])
        if speed == math.inf:
            speed = capacity.typical_client_bytes_s
        self._virtual_now(now)
        table.mark[row] = self._enter(table.client[row], table.remaining[row], speed)

    def _set_keys(self, leases: Sequence[Lease]) -> None:
        """Let these stand in the order by what is left of them, and before it without slack."""
        virtual, sure_part = self._virtual, FAIR.sure_part
        handicaps = {one: self.admission.handicap(one) for one in {one.network for one in leases}}
        for lease in leases:
            handicap = handicaps[lease.network]
            left, speed = lease.rank_bytes, lease.speed_bytes_s
            key = handicap.counted(left) / lease.weight
            if lease.mark == math.inf:
                lease.mark = self._enter(lease.client, left, speed)
            lease.yields = handicap.behind_bytes > 0.0
            if handicap.keeps_guard(lease.started_bytes) and lease.mark < math.inf:
                client, together = lease.client, max(speed, self._running.speed_of(lease.client))
                if together <= FAIR.nearly * virtual.level_bytes_s:
                    key += FAIR.unshared
                elif sure_part * virtual.left_s(client, lease.mark) <= left / _sure_speed(lease):
                    key += FAIR.urgent
            lease.key = key if self._can_pause or lease.opened else -math.inf

    def _speed_of(self, row: int) -> float:
        """What the client of a waiting download takes: what it took last, else the usual."""
        seen, capacity = self._capacity.recall(self._queue.table.client[row]), self._capacity
        speed = capacity.typical_client_bytes_s if seen == math.inf else seen
        return min(speed, capacity.rate_bytes_s)

    def _slack_s(self, row: int, now: float) -> float:
        """How long a waiting download can wait still; infinite where the guard is not for it."""
        table, virtual = self._queue.table, self._virtual
        client, left = table.client[row], table.remaining[row]
        if not self._known or self.admission.handicap(table.network[row]) != NO_HANDICAP:
            return math.inf
        if table.mark[row] == math.inf:
            self._enter_ticket(row, now)
            if table.mark[row] == math.inf:
                return math.inf
        self._virtual_now(now)
        speed = self._speed_of(row)
        if self._capacity.recall(client) == math.inf:
            speed = min(FAIR.unseen_part * speed, self._capacity.slower_client_bytes_s)
        elif speed <= FAIR.nearly * virtual.level_bytes_s:
            return 0.0
        return FAIR.sure_part * virtual.left_s(client, table.mark[row]) - left / speed

    def _look(self) -> None:
        """Look at the speeds of clients and the slack of downloads, and put them in order."""
        leases = self._running.some(FAIR.most_at_once)
        for lease in leases:
            lease.speed_bytes_s = self._capacity.speed(lease)
        self._look_at_paces(leases)
        # A plain server would serve all that a client fetches at once.
        clients = dict.fromkeys(lease.client for lease in leases if lease.mark < math.inf)
        self._virtual.set_speeds({one: self._running.speed_of(one) for one in clients})
        self._set_keys(leases)
        self._set_keys(self._first_bytes.some(FAIR.most_at_once))
        self._running.reorder()

    def _look_at_paces(self, leases: Sequence[Lease]) -> None:
        known = [lease for lease in leases if lease.cap_bytes_s < math.inf]
        self._paces.look((lease.id, 1.0 / lease.speed_bytes_s) for lease in known)
        self._paces.keep(0)
        # A client that takes less than programs demand tells nothing of others: it is idle.
        paces = self._paces.below(1.0 / KEEP_ALIVE.alive_bytes_s(counts=True))
        if paces:
            self._usual_pace = next_below(paces, 0.5)
            self._slow_pace = next_below(paces, FAIR.not_slow_part)

    # -- who fills the link ------------------------------------------------------------------------

    def may_start(self, row: int, now: float) -> bool:
        """Whether the link has use for this download, or it may have its first bytes."""
        self._opening = 0
        if self.admission.large_room(now) <= 0:
            return False
        if self._in_turn(row, now):
            return True
        if self._known and self._first_bytes.may_start(row, now):
            self._opening = self._queue.table.number[row]
        return self._opening > 0

    def spare(self, now: float) -> tuple[int, float]:
        """As much of the line as those that run leave, while none of them stands back."""
        slots = self.admission.large_room(now)
        if not self._known:
            return slots, math.inf
        if slots <= 0 or self._preemption.count or self._first_bytes or self._capacity.lines:
            return 0, 0.0
        filled = self._running.filled("")
        # What cannot be paused is counted before the next one starts.
        if filled.is_full or not self._can_pause:
            return 0, 0.0
        return slots, self._capacity.demand_bytes_s - filled.before(math.inf)

    def opens(self, row: int) -> bool:
        """It was called for its first bytes only."""
        return self._queue.table.number[row] == self._opening > 0

    def has_place(self, now: float) -> bool:
        """Slots there are enough; what a returning client may lack is a place."""
        return not self._known or self._preemption.count < most_paused(self._capacity.rate_bytes_s)

    def _in_turn(self, row: int, now: float) -> bool:
        """Whether its line has use for this one beside those that come first."""
        if not self._known:
            return True
        table, line = self._queue.table, self._queue.table.line[row]
        urgent = FAIR.urgent if self._slack_s(row, now) <= 0.0 else 0.0
        key = self._queue.present_key(row) + urgent
        entry = (table.key[row] + urgent, table.number[row])
        room = self._room_for(key, entry, line)
        if room <= 0.0 or table.present[row] or room == math.inf:
            return room > 0.0
        takes_s = table.remaining[row] / self._speed_of(row)
        return not self.admission.others_are_due(entry, now, math.ceil(room), takes_s)

    def _room_for(self, key: float, entry: tuple[float, int], line: str) -> float:
        """For how many clients a line has use after those before this one, run or wait here."""
        filled = self._running.filled(line)
        if key >= filled.filled_at:
            return 0.0
        order = self._running.in_order()
        if order and order[0].key > key:
            return math.inf
        # Those before it that wait here have been called, or will be at once.
        here = bisect_left(self._queue.here_on.get(line, ()), entry)
        here += self._first_bytes.before(entry, line)
        room_bytes_s = self._capacity.demand_of(line) - filled.before(key)
        return room_bytes_s / self._capacity.typical_client_bytes_s - here

    def call(self, now: float) -> tuple[tuple[int, ...], bool]:
        """Clients that wait here and rank before what the link is busy with, or are due."""
        free = self.admission.large_room(now)
        if free <= 0 or not self._queue.here:
            return (), False
        called = self._call_in_turn() or self._call_late(now)
        return called or (self._first_bytes.next(now) if self._known else ()), False

    def _call_late(self, now: float) -> tuple[int, ...]:
        """The shortest without slack, if the link has use for it before all that have slack."""
        number = self._overdue.first(now) if self._known else None
        if number is None or not self._in_turn(self._queue.table.rows[number], now):
            return ()
        return (number,)

    def _call_in_turn(self) -> tuple[int, ...]:
        """The next one, by itself: what its client takes is counted before another is called."""
        overrated: list[int] = []
        first = min(
            (
                entry
                for line, here in self._queue.here_on.items()
                if (entry := self._next_on(line, here, overrated)) is not None
            ),
            default=None,
        )
        for row in overrated:
            self._queue.set_key(row, self._queue.present_key(row))
        return () if first is None else (first[1],)

    def _next_on(
        self, line: str, here: Iterable[tuple[float, int]], overrated: list[int]
    ) -> tuple[float, int] | None:
        """The first of one line that comes before what it is busy with.

        `overrated` gets those that were passed over.
        """
        table, demand = self._queue.table, self._capacity.demand_of(line)
        filled = self._running.filled(line) if self._known else FilledLine(math.inf)
        for key, number in here:
            if key >= filled.filled_at or len(overrated) >= FAIR.most_at_once:
                return None
            row = table.rows[number]
            if not self.admission.is_large(table.size[row]):
                continue
            present_key = self._queue.present_key(row)
            if present_key < filled.filled_at:
                opened = self._first_bytes.before((key, number), line)
                taken = opened * self._capacity.typical_client_bytes_s
                return (key, number) if taken + filled.before(present_key) < demand else None
            overrated.append(row)
        return None

    def preempt(self, now: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which leases stop and which go on, by rank until the link is full."""
        self._virtual_now(now)
        if not (self._known or self._preemption.count or self._first_bytes):
            self.admission.pool.set_background({})
            return (), ()
        if self._running.stale:
            self._look() if self._known else self._running.reorder()
        self._begin_after_first_bytes(now)
        return self._preemption.choose(now)

    def _begin_after_first_bytes(self, now: float) -> None:
        """The turn of those has come that only had first bytes and have room now."""
        full: set[str] = set()
        for lease in self._first_bytes.leases():
            line = lease.line
            if line not in full and self._room_for(lease.key, place_of(lease), line) <= 0.0:
                full.add(line)
            if line in full and self._known:
                continue
            self._first_bytes.over(lease)
            self._running.add(lease)
            # The speed of its client is not known yet.
            self._preemption.probe(lease, now)

    def wake_s(self, now: float) -> float | None:
        """When a probe is over, or first bytes are due.

        Slack is looked at whenever time passes: progress is told several times a second.
        """
        wakes = (self._preemption.next_s(now), self._first_bytes.next_s(now))
        return min((wake for wake in wakes if wake is not None), default=None)

    # -- what is told ------------------------------------------------------------------------------

    def forecast(self, row: int, now: float) -> Forecast | None:
        """Its turn. A polling client looks before, when it may be without slack.

        Slack tells no start: it grows as others come.
        """
        if not self._known:
            return None
        told = self._until_turn(row, now)
        slack_s = max(0.0, self._slack_s(row, now))
        return told._replace(soonest_s=min(told.soonest_s, slack_s))

    def place(self, row: int) -> int | None:
        """The order of told starts: the order of turn changes with each shorter newcomer."""
        return self._places.place(row)

    def next_forecast(self, now: float) -> Forecast | None:
        """The same for a newcomer that ranks last."""
        if not self._known:
            return None
        before = self._running.left_before(math.inf) + self._queue.line.total_bytes
        before += self._first_bytes.bytes_before((math.inf, 0))
        return Forecast((before + self._queue.ready.total_bytes) / self._capacity.rate_bytes_s)

    def _until_turn(self, row: int, now: float) -> Forecast:
        """When the line has room for it after those before it, stretched by those that overtake.

        The soonest: if only those come that have come for far longer.
        """
        queue, line_bytes_s = self._queue, self._capacity.rate_bytes_s
        line, key = queue.table.line[row], queue.present_key(row)
        room_s = self._running.room_in_s(line, key, line_bytes_s)
        waiting, wanted = self._waiting_before(row), queue.table.remaining[row]
        before = waiting + int(room_s * line_bytes_s)
        wait_s, soonest_s = self._shorter.wait_s(before, wanted, line_bytes_s, now)
        unsure = unsure_of(wait_s * line_bytes_s + wanted, before + wanted, wanted)
        # A rush may go on for longer. Or speeds are higher than seen: then the line has no room
        # until all before it are done.
        soonest_s, moment_s = min(wait_s, soonest_s), FAIR.moment_s
        rush = max(moment_s, wait_s) / max(moment_s, soonest_s)
        latest_s = (waiting + self._running.left_before(key)) / line_bytes_s
        later = max(rush, latest_s / max(moment_s, wait_s)) - 1.0
        unsure = max(unsure, min(FAIR.most_unsure, later))
        return Forecast(wait_s, wait_s, soonest_s, unsure)

    def _waiting_before(self, row: int) -> int:
        """Bytes of those before it that wait."""
        queue, table = self._queue, self._queue.table
        entry = table.key[row], table.number[row]
        before = int(queue.ready.bytes_before(*entry)) + self._first_bytes.bytes_before(entry)
        if table.state[row] == WAITING:
            shows = 1.0 - self.admission.estimator.no_show_fraction
            before += int(shows * queue.line.bytes_before(*entry))
        return before

    def ticket_end(self, row: int, start: Estimate, now: float) -> EndForecast:
        """Its bytes after those before it, stretched by those that overtake; by its own speed.

        The bound is no sooner than a slow client has it.
        """
        table = self._queue.table
        if not self._known or not self.admission.is_large(table.size[row]):
            return super().ticket_end(row, start, now)
        seen, left = self._capacity.recall(table.client[row]), table.remaining[row]
        least_pace, paces = 1.0 / self._capacity.rate_bytes_s, (self._usual_pace, self._slow_pace)
        if seen < math.inf:
            paces = 1.0 / seen, 1.0 / seen
        own_s, slow_s = (start.expected_s + left * max(pace, least_pace) for pace in paces)
        key, before = self._queue.present_key(row), self._waiting_before(row)
        return self._end(key, before, left, own_s, now)._replace(slow_s=slow_s)

    def lease_end(self, lease: Lease, now: float) -> EndForecast:
        """The same for a download that has begun."""
        if not self._known:
            return super().lease_end(lease, now)
        before = 0
        if lease.opened:
            before = int(self._queue.line.bytes_before(*place_of(lease)))
            before += self._first_bytes.bytes_before(place_of(lease))
        own_s = lease.remaining_bytes / self._capacity.speed(lease)
        return self._end(lease.key, before, lease.remaining_bytes, own_s, now)

    def _end(
        self, key: float, waiting_bytes: int, wanted_bytes: int, own_s: float, now: float
    ) -> EndForecast:
        """When the line has carried all that come first and this, or `own_s`, its own time."""
        line_bytes_s, through = self._capacity.rate_bytes_s, waiting_bytes + wanted_bytes
        through += self._running.taken_before(key, through, line_bytes_s)
        end_s = self._shorter.wait_s(through, wanted_bytes, line_bytes_s, now)[0]
        unsure = unsure_of(end_s * line_bytes_s, through, wanted_bytes)
        return EndForecast(max(end_s, own_s), unsure)

    # -- what has happened -------------------------------------------------------------------------

    def waits(self, row: int, now: float) -> None:
        """A ticket waits: it enters the virtual sharing, and its slack is looked at."""
        table = self._queue.table
        if table.mark[row] == math.inf:
            self._enter_ticket(row, now)
        if not table.polls[row] and self.admission.is_large(table.size[row]):
            self._shorter.note(table.remaining[row], table.remaining[row], now)
        self._places.told(row)
        self._overdue.waits(row, now)

    def wants_body(self, row: int, now: float) -> None:
        """Its turn may come too late for it."""
        self._first_bytes.wants(self._queue.table.number[row], now)

    def comes_back(self, row: int, now: float) -> None:
        """What it had virtually ended with its lease, and begins anew."""
        self._enter_ticket(row, now)

    def leaves(self, row: int, now: float) -> None:
        """A ticket left the queue: nothing is owed to it virtually either."""
        table = self._queue.table
        self._places.over(row)
        if table.mark[row] < math.inf:
            self._virtual.end(table.client[row], False)

    def starts(self, lease: Lease, row: int | None, now: float) -> None:
        """A lease has begun: it runs for a moment whatever its rank."""
        opens = row is not None and self.opens(row)
        handicap = self.admission.handicap(lease.network)
        if row is not None:
            self._places.over(row)
        self._virtual_now(now)
        if not self._can_pause and lease.cap_bytes_s == math.inf:
            # It cannot be stopped if it takes more than is usual, so it counts in full at first.
            lease.cap_bytes_s = self._capacity.rate_bytes_s / FAIR.unpaused_shares
            lease.cap_is_floor = True
        if self._known:
            lease.unwarned = False
            lease.speed_bytes_s = self._capacity.speed(lease)
            self._set_keys((lease,))
        if opens:
            self._first_bytes.started(lease)
        else:
            # The order is not asked for before the line is known; thousands may run until then.
            self._running.add(lease)
        if row is None or self._queue.table.raw[row] == 0.0:
            # Clients that were told a time were noted as they came.
            self._shorter.note(lease.rank_bytes, lease.rank_bytes, now)
        if not opens and handicap.least_bytes <= lease.rank_bytes:
            # Of those that began at once it is heard a moment later.
            self._preemption.probe(lease, lease.started_s)
        self._preemption.add(lease)

    def changes(self, lease: Lease) -> None:
        """A connection counts at once; progress once capacity and speeds are looked at."""
        if lease in self._running:
            self._running.touch(lease)

    def ends(self, lease: Lease, now: float, done: bool) -> None:
        """A lease is over: its virtual share runs on if it was finished."""
        if lease.opened:
            self._first_bytes.over(lease)
        else:
            self._running.remove(lease)
        self._preemption.remove(lease)
        if lease.mark < math.inf:
            self._virtual_now(now)
            self._virtual.end(lease.client, done)

    def observes(self, now: float) -> None:
        """Capacity and speeds are known anew, and with them slacks."""
        self._shorter.note(0, self._capacity.small_past_bytes, now)
        self._virtual_now(now)
        if self._known:
            self._look()
        else:
            self._running.stale = True


def _sure_speed(lease: Lease) -> float:
    """What the guard counts on of a speed that is a guess: a guess must not make slack."""
    speed, taken = lease.speed_bytes_s, lease.started_bytes - lease.remaining_bytes
    guessed = lease.cap_is_floor and taken < FAIR.second_look_s * speed
    return FAIR.guessed_part * speed if guessed else speed
