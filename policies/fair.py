"""Fair: shortest remaining first, guarded by virtual processor sharing; the link always full.

The downloads with the fewest bytes left run, as many as it takes to fill the link with their own
speeds, and a few with what these leave (`policies.preemption`); the others are paused, or wait in
their request. So a finished page or archive leaves room at once for the next shortest, and a slow
client costs no slot that a fast one could use: there are as many slots as the link has use for (up
to `slots_max`).

The guard: a download goes first once its slack is used up, the time until a plain web server would
have it done (`policies.virtual_sharing`) less the time that it still needs. A client that such a
server would give all it can take has no slack at all, and runs before those too: standing back
would cost it the whole delay, and nobody else gains more than the little that it takes. Within each
of these groups the shortest goes first; the earliest end would leave the slowest, who cannot catch
up, to the last. So nobody is done later than without admission, as far as speeds are known.

Short downloads of a network of strangers beyond its share (`policies.network_order`) count as
longer in both: their rank is that of the longer one, and so is the time until their slack is used
up. They are not measured before their turn either.

Newcomers run for a moment first, to give them their first bytes and to see what they can take;
some are then paused. As many may be paused as cost the link little to keep alive; the others wait
and start in turn, or out of turn as they were told (`policies.backfill`). A paused download is not
silent (`policies.keep_alive`); a waiting one whose program would give up gets as much
(`policies.openings`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from .backfill import Backfill
from .contract import Forecast, Ranked
from .estimate.shorter_load import ShorterLoad
from .hooks import AdmissionView, Policy
from .leases import Lease
from .openings import Openings
from .preemption import Preemption
from .queue.tickets import WAITING
from .running import Running
from .settings import LINK, TICKETS
from .virtual_sharing import VirtualSharing

#: The slack is that to this part of the virtual time left: speeds are known roughly, several may
#: run out of slack together, and a virtual share grows when others leave.
_SURE_PART = 0.75
#: Those that take up to this many times the most that a plain server would give anybody come next
#: to those that it gives all they can take: nearly no slack, and a level that moves.
_NEARLY = 1.25
#: Ranks of downloads without slack, and of those that a plain server would give all they can take:
#: below all others, the fewest bytes first.
_URGENT, _NEARLY_LIMITED, _LIMITED = -1e14, -2e14, -3e14
#: A ticket's slack is looked at again when half of it has gone, at the soonest after this, seconds.
_LOOK_S = 0.25
#: One that polls looks after this part of a wait of more than so many seconds, and once more near
#: its end: the last of a rush would else come back to a line that has long been free.
_LOOK_PART, _LONG_S = 0.75, 20.0
#: How often a ticket whose network is beyond its share is looked at, seconds: its network may be
#: within it again before its guard ends.
_BEYOND_LOOK_S = 5.0
#: No more slacks are looked at in one go, so that requests are answered in between; what is left of
#: them goes on after so many seconds.
_LOOKS_AT_ONCE, _GO_ON_S = 200, 0.02
#: Nor of more leases than these, which takes about half a millisecond.
_LEASES_AT_ONCE = 500
_OVER = object()
#: So many clients are in the virtual sharing at once; those beyond wait for room there.
_TRACKED = 50_000


def _stretched_s(begun_s: float, late_s: float, times: float) -> float:
    """When the guard of a download ends that counts as so many times as long as it is."""
    return begun_s + (late_s - begun_s) * times


class FairPolicy(Policy):
    """Ranks by remaining bytes and slack; pauses and resumes."""

    name = "fair"
    summary = "Shortest remaining first, guarded by what a plain server would need; fills the link."
    reads = ("reserve_small", "small_below_bytes", *TICKETS, *LINK)
    link_bound = True
    prefers_present = True
    keeps_word = True

    def __init__(self, admission: AdmissionView) -> None:
        super().__init__(admission)
        settings = self.settings
        self._slots = slots = max(settings.slots, settings.slots_max)
        self._large_slots = slots - min(settings.reserve_small, slots - 1)
        self._queue = admission.queue
        self._capacity = admission.capacity
        self._preemption = Preemption(admission.pool)
        self._openings = Openings(admission)
        #: The ticket that may start now although its turn has not come; 0: none.
        self._opening = 0
        self._shorter = ShorterLoad()
        self._virtual = VirtualSharing()
        #: Tickets by when their slack is looked at again.
        self._looks: list[tuple[float, int]] = []
        #: Since when a plain server would have tickets done that count as longer than they are.
        self._late: dict[int, float] = {}
        #: What each client takes with all that it fetches at once, as of the last look.
        self._speeds: dict[str, float] = {}
        #: Large leases; their keys are of the last look at capacity and speeds, see `_sort`.
        self._running = Running()
        #: A look at all that run which is under way, when it goes on, and whether one just ended.
        self._look: Iterator[None] | None = None
        self._go_on_s = -math.inf
        self._looked = False
        #: See `_last_key`, by line; without what must be found again.
        self._last: dict[str, float] = {}
        self._now = -math.inf
        for lease in admission.pool.leases.values():
            if lease.large and not lease.fresh:
                lease.mark = math.inf
                self._running.add(lease)
                if lease.opened and lease.paused:
                    self._openings.opened(lease)
                elif lease.opened:
                    # Another policy let it go on: it has had its turn.
                    lease.opened = False
                elif lease.paused:
                    self._preemption.inherit()
        table = self._queue.table
        for number, row in table.rows.items():
            if admission.row(number) is not None:
                table.mark[row] = math.inf
                heappush(self._looks, (-math.inf, number))
        self._backfill = Backfill(admission, self._preemption, self._mean_left)

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

    def ready_slots(self) -> int:
        """Fair needs no long ready list: a ticket starts when it asks and the link has use."""
        return max(1, self.settings.slots - self.settings.reserve_small)

    @property
    def _known(self) -> bool:
        """Whether it is known what the link carries; until then nothing is ranked or paused."""
        return self._capacity.known

    # -- the guard ---------------------------------------------------------------------------------

    def _virtual_now(self, now: float) -> None:
        self._now = now
        if self._known:
            self._virtual.run_to(now, self._capacity.rate_bytes_s)

    def _enter(self, client: str, size_bytes: int, speed_bytes_s: float) -> float:
        """Take a download into the virtual sharing; its mark, infinite while there is no room."""
        if not self._known or len(self._virtual) >= _TRACKED:
            return math.inf
        speed_bytes_s = min(speed_bytes_s, self._capacity.rate_bytes_s)
        network, most = self.admission.strangers.network_of(client), self.settings.network_shares
        return self._virtual.add(client, max(1, size_bytes), speed_bytes_s, network, most)

    def _slack_s(self, client: str, mark: float, needs_s: float) -> float:
        """How long a download may still stand back."""
        if mark == math.inf:
            return math.inf
        return _SURE_PART * self._virtual.left_s(client, mark) - needs_s

    def _ticket_slack_s(self, row: int) -> float:
        table, capacity = self._queue.table, self._capacity
        client = table.client[row]
        speed = capacity.recall(client)
        if speed == math.inf:
            speed = capacity.typical_client_bytes_s
        speed = min(speed, capacity.rate_of(self._queue.line_of(row)))
        if table.mark[row] == math.inf:
            table.mark[row] = self._enter(client, table.remaining[row], speed)
        return self._slack_s(client, table.mark[row], table.remaining[row] / speed)

    def _look_at_tickets(self, now: float) -> None:
        """Put tickets whose slack is used up before all others."""
        if not self._known:
            return
        table = self._queue.table
        for _ in range(_LOOKS_AT_ONCE):
            if not self._looks or self._looks[0][0] > now:
                return
            _, number = heappop(self._looks)
            row = self.admission.row(number)
            if row is None or table.key[row] < 0.0:
                continue
            slack_s = self._ticket_slack_s(row)
            if slack_s <= 0.0:
                left = table.remaining[row]
                counted = self._queue.ranked(row).remaining_bytes
                if counted > left:
                    late_s = self._late.setdefault(number, now)
                    due_s = _stretched_s(table.issued_s[row], late_s, counted / max(1, left))
                    if now < due_s:
                        heappush(self._looks, (min(due_s, now + _BEYOND_LOOK_S), number))
                        continue
                key = table.remaining[row] / table.weight[row]
                self._queue.set_key(row, _URGENT + key)
            else:
                again_s = min(60.0, max(_LOOK_S, 0.5 * slack_s))
                heappush(self._looks, (now + again_s, number))

    def _ranks(self, leases: Iterable[Lease]) -> tuple[list[float], list[float]]:
        """Keys and speeds of these that run. For all, many times a second: it looks up little."""
        now = self._now
        known, speed_of, together_of = self._known, self._capacity.speed, self._speeds.get
        most_of = self._virtual.most_bytes_s
        keys: list[float] = []
        speeds: list[float] = []
        least_of: dict[str, float] = {"": 0.0}
        for lease in leases:
            least = least_of.get(lease.network)
            if least is None:
                least = least_of[lease.network] = self.admission.least_bytes(lease.network)
            left, speed = lease.rank_bytes, speed_of(lease)
            counted = max(left, least)
            key = counted / lease.weight
            if known:
                client = lease.client
                if lease.mark == math.inf:
                    lease.mark = self._enter(client, left, speed)
                together = together_of(client, 0.0)
                if together < speed:
                    together = speed
                most = most_of(client)
                if together <= most and counted == left:
                    key += _LIMITED
                elif together <= _NEARLY * most and counted == left:
                    key += _NEARLY_LIMITED
                elif self._slack_s(client, lease.mark, left / speed) <= 0.0:
                    if lease.late_s == math.inf:
                        lease.late_s = now
                    if counted == left or now >= _stretched_s(
                        lease.started_s, lease.late_s, counted / max(1, left)
                    ):
                        key += _URGENT
            keys.append(key)
            speeds.append(speed)
        return keys, speeds

    def _together(self, leases: Iterable[Lease], speeds: dict[str, float]) -> None:
        """Add what the clients of these take to what all that each fetches takes."""
        speed_of = self._capacity.speed
        for lease in leases:
            if lease.mark < math.inf:
                # A plain server would serve all that a client fetches at once.
                client, speed = lease.client, speed_of(lease)
                speeds[client] = speeds[client] + speed if client in speeds else speed

    def _look_in_pieces(self) -> Iterator[None]:
        """Speeds of clients and keys of leases, a few in one go; then all are put in order."""
        running, step = self._running, _LEASES_AT_ONCE
        leases = list(running.all())
        speeds: dict[str, float] = {}
        for at in range(0, len(leases), 2 * step):
            self._together(leases[at : at + 2 * step], speeds)
            yield
        self._speeds, clients = speeds, list(speeds.items())
        for at in range(0, len(clients), step):
            self._virtual.set_speeds(dict(clients[at : at + step]))
            yield
        looked_at: list[Lease] = []
        keys: list[float] = []
        own: list[float] = []
        for at in range(0, len(leases), step):
            # Some may have ended meanwhile.
            piece = [lease for lease in leases[at : at + step] if lease in running]
            looked_at += piece
            for known, found in zip((keys, own), self._ranks(piece), strict=True):
                known += found
            yield
        running.reorder(looked_at, keys, own)
        self._last.clear()

    def _mean_left(self) -> float:
        """Bytes that a running download has left in the mean; 0 while none runs."""
        self._sort()
        running = self._running
        return running.left_in_all() / len(running) if len(running) else 0.0

    def _sort(self) -> None:
        if self._running.stale:
            running = self._running.all()
            self._running.reorder(running, *self._ranks(running))
            self._last.clear()

    # -- who fills the link ------------------------------------------------------------------------

    def _last_key(self, line: str) -> float:
        """The rank of the lease whose speed fills the line with those before it; else infinite."""
        if not self._known:
            return math.inf
        self._sort()
        last = self._last.get(line)
        if last is None:
            last = self._running.filled_at(self._capacity.demand_of(line), line)
            self._last[line] = last
        return last

    def may_start(self, row: int, now: float) -> bool:
        """Whether the link has use for this download, or it may have a place out of turn."""
        if self.admission.large_room(now) <= 0:
            return False
        if self._backfill.may_have_place(row, now) or self._in_turn(row):
            self._opening = 0
            return True
        if self._backfill.may_advance(row, now) and self._starts_soon(row, now):
            self._opening = 0
            return True
        opens = self._known and self._openings.may_open(row, now)
        self._opening = self._queue.table.number[row] if opens else 0
        return opens

    def spare(self, now: float) -> tuple[int, float]:
        """As much of the line as those that run leave, while none of them stands back."""
        slots = self.admission.large_room(now)
        if not self._known:
            return slots, math.inf
        if slots <= 0 or self._preemption.count or self._capacity.lines:
            return 0, 0.0
        self._sort()
        taken = self._running.speed_before(math.inf, "")
        return slots, self._capacity.demand_bytes_s - taken

    def _starts_soon(self, row: int, now: float) -> bool:
        """Whether it would start sooner than it could be told to come back."""
        told = self.forecast(row, now)
        return told is not None and told.wait_s <= self._backfill.soon_s

    def opens(self, row: int) -> bool:
        """It was called for its first bytes only."""
        return self._queue.table.number[row] == self._opening > 0

    def has_place(self, now: float) -> bool:
        """Slots there are enough; what a returning client may lack is a place."""
        return not self._known or self._preemption.count < self._backfill.most_paused()

    def _in_turn(self, row: int) -> bool:
        """Whether its line has use for this one beside those that come first."""
        if not self._known:
            return True
        table = self._queue.table
        entry = (table.key[row], table.number[row])
        line = self._queue.line_of(row)
        if entry[0] > self._last_key(line):
            return False
        order = self._running.in_order()
        if order and order[0].key >= entry[0]:
            return True
        # Those before it that wait here have been called, or will be at once.
        here = bisect_left(self._queue.here_on(line), entry)
        taken = here * self._capacity.typical_client_bytes_s
        taken += self._running.speed_before(entry[0], line)
        return taken < self._capacity.demand_of(line)

    def call(self, now: float) -> tuple[tuple[int, ...], bool]:
        """Clients that wait here and rank before what the link is busy with, or are due."""
        free = self.admission.large_room(now)
        if free <= 0 or not self._queue.here:
            return (), False
        called = self._call_in_turn(free) or self._backfill.next_place(now)
        return called or (self._openings.next(now) if self._known else ()), False

    def _call_in_turn(self, free: int) -> tuple[int, ...]:
        call: list[tuple[float, int]] = []
        for line, here in self._queue.lines_here():
            if here[0][0] <= self._last_key(line):
                call += self._call_on(line, here, free)
        # Slots are for all lines together.
        return tuple(number for _, number in sorted(call)[:free])

    def _call_on(
        self, line: str, here: Iterable[tuple[float, int]], free: int
    ) -> list[tuple[float, int]]:
        """Those of one line that come before what it is busy with."""
        table, capacity = self._queue.table, self._capacity
        last_key, demand = self._last_key(line), capacity.demand_of(line)
        typical = min(capacity.typical_client_bytes_s, capacity.rate_of(line))
        call: list[tuple[float, int]] = []
        for key, number in here:
            if key > last_key or len(call) >= free:
                break
            if not self.admission.is_large(table.size[table.rows[number]]):
                continue
            if self._running.speed_before(key, line) + len(call) * typical >= demand:
                break
            call.append((key, number))
        return call

    def preempt(self, now: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which leases stop and which go on, by rank until the link is full."""
        self._virtual_now(now)
        self._look_at_tickets(now)
        if not (self._known or self._preemption.count):
            return (), ()
        self._sort()
        self._looked = False
        if self._look is not None and now >= self._go_on_s:
            self._go_on_s = now + _GO_ON_S
            self._looked = next(self._look, _OVER) is _OVER
            if self._looked:
                self._look = None
        pause, resume = self._preemption.choose(self._running, self._capacity, now)
        if len(self._queue) and not self._looked:
            # As time passes, so that hardly any offer has to pay for it.
            self._running.sum_up(left=True)
        if len(self._openings):
            for number in self._openings.leases():
                lease = self.admission.pool.leases[number]
                if not lease.paused:
                    # Its turn: nobody knows yet what its client can take.
                    self._openings.over(lease)
                    self._preemption.probe(lease, now)
        return pause, resume

    def turned(self, now: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The last that fill the link, and some beyond, only take what is left of it."""
        return self._preemption.turned() if self._known else self.admission.bring_ahead()

    def wake_s(self, now: float) -> float | None:
        """When a probe is over, somebody is due, or a slack must be looked at."""
        wakes = [self._preemption.next_s(now), self._backfill.next_s(now)]
        wakes.append(self._openings.next_s(now))
        if self._look is not None:
            wakes.append(max(self._go_on_s, now))
        if self._looked and len(self._queue):
            wakes.append(now)
        if self._looks and self._known:
            next_s = self._looks[0][0]
            wakes.append(now + _GO_ON_S if next_s <= now else max(next_s, now + _LOOK_S))
        return min((wake for wake in wakes if wake is not None), default=None)

    # -- what is told ------------------------------------------------------------------------------

    def forecast(self, row: int, now: float) -> Forecast | None:
        """Its turn or a place out of turn, whatever comes first; who polls looks before."""
        if not self._known:
            return None
        self._virtual_now(now)
        slack_s = self._ticket_slack_s(row)
        turn_s, soonest_s = self._until_turn_s(row)
        told = self._backfill.forecast(row, min(turn_s, max(0.0, slack_s)), now)
        soonest_s = min(soonest_s, told.wait_s)
        if soonest_s > _LONG_S:
            soonest_s *= _LOOK_PART
        return Forecast(told.wait_s, told.at_least_s, soonest_s)

    def next_forecast(self, now: float) -> Forecast | None:
        """The same for a newcomer that ranks last."""
        if not self._known:
            return None
        self._virtual_now(now)
        self._sort()
        before = self._running.left_in_all() + self._queue.line.total_bytes
        before += self._queue.ready_bytes()
        in_turn_s = before / self._capacity.rate_bytes_s
        return Forecast(min(in_turn_s, self._backfill.until_place_s(len(self._queue), now)))

    def _until_turn_s(self, row: int) -> tuple[float, float]:
        """Bytes before this one at the speed of the link, stretched by those that overtake.

        And the same if hardly anybody more comes.
        """
        queue, table = self._queue, self._queue.table
        link = self._capacity.rate_bytes_s
        key, number = table.key[row], table.number[row]
        self._sort()
        before = int(self._running.left_before(key))
        before += queue.ready_bytes_before(row)
        shows = 1.0 - self.admission.estimator.no_show_fraction
        if table.state[row] == WAITING:
            before += int(shows * queue.line.bytes_before(key, number))
        return self._shorter.wait_s(before, table.remaining[row], link, self._now)

    # -- what has happened -------------------------------------------------------------------------

    def waits(self, row: int, now: float) -> None:
        """A ticket waits: look at its slack, and keep what it was told if its client is here."""
        table = self._queue.table
        if not table.polls[row]:
            heappush(self._looks, (now, table.number[row]))
            self._shorter.note(table.remaining[row], now)
        self._backfill.waits(row, now)

    def wants_body(self, row: int, now: float) -> None:
        """Its turn may come too late for it."""
        self._openings.wants(self._queue.table.number[row], now)

    def comes_back(self, row: int, now: float) -> None:
        """What it had virtually ended with its lease: look at its slack anew."""
        table = self._queue.table
        table.mark[row] = math.inf
        heappush(self._looks, (now, table.number[row]))

    def leaves(self, row: int, now: float) -> None:
        """A ticket left the queue: nothing is owed to it virtually either."""
        table = self._queue.table
        self._late.pop(table.number[row], None)
        if table.mark[row] < math.inf:
            self._virtual.end(table.client[row], False)

    def starts(self, lease: Lease, row: int | None, now: float) -> None:
        """A lease has begun: it runs for a moment whatever its rank."""
        opens = row is not None and self.opens(row)
        if row is not None:
            self._late.pop(self._queue.table.number[row], None)
            self._backfill.starts(row, opens or self._in_turn_lease(lease), now)
        self._virtual_now(now)
        if self._known:
            self._sort()
            (lease.key,), (lease.speed_bytes_s,) = self._ranks((lease,))
        # Nobody asks for the order before the line is known; thousands may run until then.
        self._running.add(lease)
        self._last.clear()
        if row is None or self._queue.table.raw[row] == 0.0:
            # Clients that were told a time were noted as they came.
            self._shorter.note(lease.rank_bytes, now)
        if opens:
            self._openings.opened(lease)
        elif self.admission.least_bytes(lease.network) <= lease.rank_bytes:
            # Of those that began at once it is heard a moment later.
            self._preemption.probe(lease, lease.started_s)

    def _in_turn_lease(self, lease: Lease) -> bool:
        left = max(lease.rank_bytes, self.admission.least_bytes(lease.network))
        return left / lease.weight <= self._last_key(lease.line)

    def changes(self, lease: Lease) -> None:
        """A connection counts at once; progress once capacity and speeds are looked at."""
        if self._running.connected(lease):
            self._last.clear()

    def ends(self, lease: Lease, now: float, done: bool) -> None:
        """A lease is over: its virtual share runs on if it was finished."""
        self._running.remove(lease)
        self._last.clear()
        self._preemption.drop(lease)
        self._openings.over(lease)
        if lease.mark < math.inf:
            self._virtual_now(now)
            self._virtual.end(lease.client, done)

    def observes(self, now: float) -> None:
        """Capacity and speeds are known anew, and with them slacks."""
        self._virtual_now(now)
        self._last.clear()
        if self._known and len(self._running) > _LEASES_AT_ONCE and not self._running.stale:
            if self._look is None:
                self._look = self._look_in_pieces()
            return
        self._look = None
        if self._known:
            speeds: dict[str, float] = {}
            self._together(self._running.all(), speeds)
            self._speeds = speeds
            self._virtual.set_speeds(speeds)
        self._running.stale = True
