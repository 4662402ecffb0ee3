"""The live side of the policy driver: leases with their transfers, the journal, passing time.

Everything that the policy decides by itself is carried out here: pauses, resumes, leases that
ended, tickets that are called. It looks at each download four times a second, a few in one go, and
ticks when it has seen all.
Others call the policy by `LeaseManager.driver`, then `settle`, and read `LeaseManager.policy`.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from twisted.logger import Logger

from ...policies.contract import Admit, Job, PolicyView, TicketRow
from ...policies.driver import PolicyDriver
from ...policies.registry import make_policy
from ...policies.settings import PolicySettings
from ..files.request_queue import network_of
from ..files.transfer import BodyPlan, Representation
from ..http.clock import DelayedCall, cancel
from .downloads import DOWNLOADS, Delivery, LeasedDownload, Rounds
from .gateparts import GateParts
from .parked import ParkedRequests

TICK_S = 0.25
_log = Logger()


@dataclass(frozen=True, slots=True)
class LeaseTuning:
    """When changes are settled, and how many downloads are looked at or moved in one go."""

    #: Changes that no client waits for are settled together after this time, seconds.
    moment_s: float = 0.01
    #: The same for visits that were told to come back, while no client could be called, seconds.
    calm_s: float = 0.1
    #: Downloads that are looked at, paused or resumed in one go (half a millisecond).
    at_once: int = 25
    #: From there to the next ones, seconds. Requests are answered in between.
    pause_s: float = 0.0015
    #: What remains at the next tick of how late this process was.
    less_late: float = 0.9
    #: Downloads of which last bytes may be missing are remembered up to this number.
    most_parted: int = 2_000


LEASES = LeaseTuning()


class LeaseManager:
    """Owns the policy and the downloads; the server's `policies.driver.Hands`.

    `check` looks at each tick that no request is parked for nothing.
    """

    def __init__(
        self,
        parts: GateParts,
        policy: str,
        settings: PolicySettings,
        parked: ParkedRequests,
        check: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.downloads: dict[int, LeasedDownload] = {}
        #: The same by client and file, of which one client has at most one lease.
        self._by_job: dict[tuple[str, str], LeasedDownload] = {}
        self._rounds = Rounds()
        #: How many there are of each file, and which of all are paused.
        self._of_file: Counter[str] = Counter()
        #: Downloads by the network of their client.
        self._networks: Counter[str] = Counter()
        self._paused: set[int] = set()
        #: Leases whose transfers do not follow the policy yet, in its order; how many did in this
        #: go, and when the next one comes.
        self._to_move: dict[int, None] = {}
        self._moved = 0
        self._move_call: DelayedCall | None = None
        self.now: Callable[[], float] = parts.now
        self._parts = parts
        self._rng: random.Random = parts.rng
        together = settings.of_machines(parts.machines)
        #: The policy to be called; `settle` follows each call.
        decides = make_policy(policy, together, self._rng, can_pause=parts.can_pause)
        self.driver = PolicyDriver(decides, self)
        #: Whether the doors are closed for maintenance.
        self.closed = False
        #: Bound once: it is asked for each small file.
        self.admit_small = self.driver.admit_small
        self.admit_single_write = self.driver.admit_single_write
        self.can_admit_single_write = self.driver.can_admit_single_write
        self._parked = parked
        self._check = check
        #: Downloads that are over and of which last bytes may be missing, and until when they
        #: are sent again.
        self._parted: dict[tuple[str, str], tuple[LeasedDownload, float]] = {}
        #: Downloads with a connection less than at the last settling.
        self._ended: dict[tuple[str, str], None] = {}
        self._settling = False
        self._soon_call: DelayedCall | None = None
        self._soon_s = 0.0
        self._wake_call: DelayedCall | None = None
        self._tick_call: DelayedCall | None = None
        self._due_s = math.inf
        #: By how much looking was late lately, seconds.
        self._late_s = 0.0
        #: What is still to be looked at before the tick.
        self._to_look: Iterator[int] = iter(())
        self._look_call: DelayedCall | None = None

    @property
    def policy(self) -> PolicyView:
        """The policy that decides at present, to look at."""
        return self.driver.view

    def close_doors(self, closed: bool) -> None:
        """Close the doors: no download starts. Or open them again."""
        self.closed = closed
        self.driver.close(closed)
        self.settle()

    # -- the life of the lease manager ---------------------------------------------------------

    def open(self, rows: Iterable[TicketRow]) -> None:
        """Take up the tickets of an earlier run and begin to tick."""
        # Changes are collected from now on: what is restored is none, the journal has it.
        self._record()
        self._restore(rows)
        self._record()
        self._due_s = self.now() + TICK_S
        self._tick_call = self._parts.reactor.callLater(TICK_S, self._begin_round)
        self.settle()

    def close(self) -> None:
        """Stop the clocks and write the last changes."""
        cancel(self._soon_call, self._wake_call, self._tick_call, self._look_call, self._move_call)
        self._record()

    def switch(self, name: str, settings: PolicySettings) -> None:
        """Another policy, or the same with other settings; it takes over everything."""
        self._record()
        together = settings.of_machines(self._parts.machines)
        self.driver.switch(lambda old: make_policy(name, together, self._rng, old))
        self.settings = settings
        self._pass_time()

    # -- tickets ---------------------------------------------------------------------------------

    def restore(self, row: TicketRow) -> None:
        """Take up a ticket that its token proves; its times are of the wall clock."""
        self._restore([row])
        restored = self.policy.ticket(row.number)
        if restored is not None:
            self._keep([restored])

    # -- downloads -----------------------------------------------------------------------------

    def find(self, client: str, file: str) -> LeasedDownload | None:
        return self._by_job.get((client, file))

    def is_downloaded(self, file: str) -> bool:
        """Whether any client has a lease of it."""
        return file in self._of_file

    @property
    def holds_nobody_back(self) -> bool:
        """Whether no download is paused and no cap slows a client now."""
        return not (self._paused or self._parts.line.busy)

    def begin(self, download: LeasedDownload) -> LeasedDownload:
        self.downloads[download.lease] = download
        self._rounds.add(download)
        self._of_file[download.file] += 1
        self._networks[network_of(download.address)] += 1
        self._by_job[download.client, download.file] = download
        self._parts.popularity.count(download.file, 1, 0, 0)
        return download

    def left(self, download: LeasedDownload) -> None:
        """The request for this lease left before the first byte, or is yet to come."""
        self.driver.end(download.lease, self.now(), download.remaining_bytes(), done=False)
        self.settle()

    def end(self, download: LeasedDownload, reason: str) -> None:
        """Cut a download off and free its slot."""
        if self._drop(download.lease) is None:
            return
        download.abort(reason)
        self._ended[download.client, download.file] = None
        self.driver.cut(download.lease, self.now())
        self._parts.passes.end(download.client, download.file)
        self.settle()

    def ending(self, delivery: Delivery, safe: Callable[[], None]) -> None:
        """A body is about to end; `safe` lets it, once its ticket is on record as used up.

        A ticket that has started and of which nothing is wanted any more counts as used.
        """
        download, row = delivery.download, None
        running = self.downloads.get(download.lease) is download
        ticket = self.driver.ticket_of(download.lease) if running else None
        if ticket is not None and download.about_to_complete():
            row = self.policy.ticket(ticket)
        if row is None:
            safe()
            return
        download.ending = True
        self._keep([row._replace(remaining_bytes=0)])
        self._parts.journal.after_commit(safe)

    def delivered(self, delivery: Delivery) -> None:
        """A body has ended: its lease is done, or idles for a while."""
        download, parts, now = delivery.download, self._parts, self.now()
        running = self.downloads.get(download.lease) is download
        complete = running and download.became_complete()
        parts.popularity.count(download.file, 0, complete, delivery.delivered_bytes)
        if not running:
            delivery.transfer = None
            return
        # Asking the kernel for each of its other connections would cost the more, the more it has.
        left = download.left_when_seen()
        wanted = download.wanted_bytes
        parts.evidence.took(download.client, wanted - left, wanted, parts.wall())
        self._ended[download.client, download.file] = None
        if delivery.transfer is not None:
            parts.line.ended(delivery.transfer, now)
            # It knows us as well: no work for the garbage collector.
            delivery.transfer = None
        done = download.complete()
        if done:
            self._drop(download.lease)
            self._part(download, now)
            parts.passes.end(download.client, download.file)
        self.driver.end(download.lease, now, left, done=done)
        if download.ending and not done:
            # Its connection was lost in its last bytes: the ticket counts again.
            download.ending = False
            ticket = self.driver.ticket_of(download.lease)
            row = self.policy.ticket(ticket) if ticket is not None else None
            self._keep([row] if row is not None else [])
        if self._somebody_waits():
            self.settle()
        else:
            # Nothing follows from it that would not have time until the next tick.
            self._record()

    def _part(self, download: LeasedDownload, now: float) -> None:
        """All is delivered, as far as its kernel took it: a connection may still lose the last."""
        key = download.client, download.file
        self._forget(key)
        if download.parted:
            self._parted[key] = download, now + self.settings.lease_idle_s
            if len(self._parted) > LEASES.most_parted:
                self._forget(next(iter(self._parted)))

    def _forget(self, key: tuple[str, str]) -> None:
        parted = self._parted.pop(key, None)
        if parted is not None:
            # They know it as well: no work for the garbage collector.
            parted[0].parted.clear()

    def with_missing(self, job: Job, rep: Representation, plan: BodyPlan) -> LeasedDownload | None:
        """The download that is over, if all that is asked for are bytes of it that got lost.

        They are sent again without a slot. There are no more than its socket held.
        """
        download, until_s = self._parted.get((job.client, job.file), (None, 0.0))
        if download is None or self.now() >= until_s or download.etag != rep.etag:
            return None
        if len(download.deliveries) >= self.settings.connections_per_lease:
            return None
        count = sum(stop - start for start, stop in plan.ranges)
        if count > download.missing_bytes() or self.find(job.client, job.file) is not None:
            return None
        download.sent_again_bytes += count
        download.paused = download.share.background = False
        return download

    def _drop(self, lease: int) -> LeasedDownload | None:
        download = self.downloads.pop(lease, None)
        if download is None:
            return None
        self._rounds.discard(lease)
        self._paused.discard(lease)
        _count_less(self._of_file, download.file)
        _count_less(self._networks, network_of(download.address))
        if self.find(download.client, download.file) is download:
            del self._by_job[download.client, download.file]
        return download

    # -- the passing of time -------------------------------------------------------------------

    def settle(self, *, hurry: bool = True) -> None:
        """After calls to the policy: journal what changed, and let it decide what follows.

        Without `hurry` no client waits for that: visits that changed nothing settle together.
        """
        self._record()
        if self._settling:
            return
        # Changes that no client waits for are settled together a moment later.
        if hurry:
            delay_s = 0.0 if self._somebody_waits() else LEASES.moment_s
        else:
            delay_s = LEASES.moment_s if self._paused or self._parked else LEASES.calm_s
        call = self._soon_call
        if call is None:
            self._soon_call = self._parts.reactor.callLater(delay_s, self._pass_time)
            self._soon_s = delay_s
        elif delay_s < self._soon_s:
            call.reset(delay_s)
            self._soon_s = delay_s

    def _somebody_waits(self) -> bool:
        if self._paused or self._parked:
            return True
        return self.driver.view.anybody_waits()

    def _record(self) -> None:
        rows = self.driver.changes()
        if rows:
            self._keep(rows)

    def _keep(self, rows: Sequence[TicketRow]) -> None:
        if not rows:
            return
        for row in rows:
            if row.state.is_over:
                self._parts.numbers.end(row.number)
        ahead_s = self._parts.wall_ahead_s()
        if ahead_s:
            rows = [moved(row, ahead_s) for row in rows]
        self._parts.journal.keep_tickets(rows)

    def live_tickets(self) -> list[TicketRow]:
        """All tickets that a journal must have: waiting, ready and started, on the wall clock."""
        numbers = map(self.driver.ticket_of, self.downloads)
        started = (self.policy.ticket(number) for number in numbers if number is not None)
        ahead_s = self._parts.wall_ahead_s()
        rows = [*self.policy.tickets(), *(row for row in started if row is not None)]
        return [moved(row, ahead_s) for row in rows]

    def _restore(self, rows: Iterable[TicketRow]) -> None:
        """Journal and tokens have wall time, the policy has the process clock."""
        now, ahead_s = self.now(), self._parts.wall_ahead_s()
        if ahead_s:
            rows = (moved(row, -ahead_s) for row in rows)
        # The clock may have been set back since. No ticket was issued in the future.
        rows = [row if row.issued_s <= now else row._replace(issued_s=now) for row in rows]
        self.driver.restore(rows, now, self._parts.numbers.first)

    def _pass_time(self) -> None:
        cancel(self._soon_call)
        self._soon_call = None
        self._moved = 0
        now = self.now()
        self._settling = True
        try:
            wake_s = self.driver.settle(now)
            while self._ended:
                ended, self._ended = self._ended, {}
                if self._parked:
                    for client, file in ended:
                        self._parked.connection_ended(client, file)
                    wake_s = self.driver.settle(now)
        finally:
            self._settling = False
        self._record()
        cancel(self._wake_call)
        self._wake_call = None
        if wake_s is not None:
            delay_s = max(0.001, wake_s - now)
            self._wake_call = self._parts.reactor.callLater(delay_s, self._pass_time)

    def _begin_round(self) -> None:
        now = self.now()
        late_s = min(now - self._due_s, DOWNLOADS.most_late_s)
        self._late_s = max(late_s, LEASES.less_late * self._late_s)
        self._tick_call = self._parts.reactor.callLater(TICK_S, self._begin_round)
        self._due_s = now + TICK_S
        if self._look_call is None:
            self._to_look = iter(self._rounds.begin(now))
            self._look(now)

    def _tick(self) -> None:
        now, line, rounds = self.now(), self._parts.line, self._rounds
        line.tick(now, rounds.awake, rounds.asleep_bytes)
        # A network of which some downloads run and others wait counts twice.
        line.wanted_by(len(self._networks) + self._parked.how_many_networks())
        goodput = line.goodput_bytes_s()
        self.driver.observe(goodput, line.busy, now, line.line_bytes_s, line.lines)
        self._seat(now)
        self._pass_time()
        for key, (download, until_s) in list(islice(self._parted.items(), LEASES.at_once)):
            gone = not download.deliveries and download.missing_bytes() <= 0
            if gone or now >= until_s:
                self._forget(key)
        self._check()

    def _look(self, due_s: float) -> None:
        """Look how far downloads are, a few at a time, and tick once all were looked at.

        This piece was due at `due_s`; one that comes late does not put off those after it.
        """
        self._look_call = None
        now, rounds, line = self.now(), self._rounds, self._parts.line
        late_s = self._late_s = max(min(now - due_s, DOWNLOADS.most_late_s), self._late_s)
        leases = list(islice(self._to_look, LEASES.at_once))
        looked = []
        for lease in leases:
            download = rounds.take(lease, now)
            if download is None:
                continue
            looked.append(download)
            with _log.failuresHandled("A download could not be measured"):
                if download.still:
                    download.look()
                    rounds.looked(download)
                    continue
                download.measure(now, late_s)
                rounds.looked(download)
                held_back = line.held_back(download)
                rate = download.rate.told_bytes_s(held_back)
                reads = download.reads_bytes_s
                self.driver.progress(lease, now, download.left_bytes, rate, held_back, reads)
                if download.still_leaves(now):
                    self.driver.end(lease, now, None, done=False)
        line.looked(now, looked)
        if len(leases) == LEASES.at_once:
            due_s += LEASES.pause_s
            delay_s = max(0.0, due_s - now)
            self._look_call = self._parts.reactor.callLater(delay_s, self._look, due_s)
        else:
            self._tick()

    def _seat(self, now: float) -> None:
        """Give drawn entries their places. A slot given to one waits for it like a resume does."""
        wall_s = self._parts.wall()
        for entry in self._parts.prequeue.due(wall_s):
            size = entry.rep.size_bytes
            job = Job(entry.client, entry.rep.url_path, size, size, network=entry.network)
            decision = self.driver.offer(job, now)
            if isinstance(decision, Admit):
                if decision.lease not in self.downloads:
                    self.begin(LeasedDownload(decision, job, entry.rep, now))
                self.driver.end(decision.lease, now, size, done=False)
        self._parts.prequeue.tend(wall_s)

    # -- the driver's hands (see `policies.driver.Hands`) --------------------------------------

    def put_behind(self, lease: int, now: float, *, background: bool) -> None:
        download = self.downloads.get(lease)
        if download is not None:
            download.put_behind(background=background)

    def pause(self, lease: int, now: float) -> None:
        download = self.downloads.get(lease)
        if download is not None:
            self._paused.add(lease)
            # It is not measured from now on.
            download.paused = True
            self._move_in_turn(lease, now)

    def resume(self, lease: int, now: float) -> None:
        if lease in self.downloads:
            self._paused.discard(lease)
            self._move_in_turn(lease, now)

    def _move_in_turn(self, lease: int, now: float) -> None:
        self._to_move[lease] = None
        if self._move_call is None:
            self._move_next(now)

    def _move_some(self) -> None:
        self._move_call, self._moved = None, 0
        while self._to_move and self._move_call is None:
            self._move_next(self.now())

    def _move_next(self, now: float) -> None:
        """Pause or resume a download as the policy said last."""
        lease = next(iter(self._to_move))
        del self._to_move[lease]
        download = self.downloads.get(lease)
        if download is not None and lease in self._paused:
            download.pause()
        elif download is not None:
            download.resume(now)
            self._rounds.wake(lease)
        self._moved += 1
        if self._moved == LEASES.at_once:
            self._move_call = self._parts.reactor.callLater(LEASES.pause_s, self._move_some)

    def idled_out(self, lease: int, now: float) -> None:
        """The lease was not used. What is left of its connections is cut."""
        download = self._drop(lease)
        if download is not None:
            self._parts.evidence.left(
                download.client,
                download.taken_bytes(),
                download.wanted_bytes,
                self._parts.wall(),
            )
            download.abort("the lease is over")
            self._ended[download.client, download.file] = None
            self._parts.passes.end(download.client, download.file)

    def expired(self, ticket: int, now: float) -> None:
        """A place has passed unused; requests that are parked with it ask anew."""
        row = self.policy.ticket(ticket)
        if row is not None:
            self._parts.evidence.wasted(row.client, self._parts.wall())
        self._parked.call(ticket)

    def parked(self, client: str, file: str) -> bool:
        return self._parked.has_place(client, file)

    def call(self, ticket: int, now: float) -> bool:
        """Offer the requests again that are parked with this ticket."""
        return self._parked.call(ticket)


def moved(row: TicketRow, by_s: float) -> TicketRow:
    """A ticket with its times on another clock."""
    return row._replace(issued_s=row.issued_s + by_s, changed_s=row.changed_s + by_s)


def _count_less(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
