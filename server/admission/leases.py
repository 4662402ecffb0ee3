"""The live side of the policy driver: leases with their transfers, the journal, passing time.

It carries out what the policy decides by itself: pauses, resumes, ended leases, called tickets. It
looks at each download four times a second, a few at a time, and ticks when it has seen all. Others
call the policy by `LeaseManager.driver`, or tell `LeaseManager.policy` something, then `settle`.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from twisted.logger import Logger

from ...policies.admission import AdmissionPolicy
from ...policies.contract import Admit, Job, TicketRow
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
    #: The same for requests that were told to come back, while no client can be called, seconds.
    calm_s: float = 0.1
    #: Downloads that are looked at, paused or resumed in one go (half a millisecond).
    at_once: int = 25
    #: From there to the next ones, seconds. Requests are answered in between.
    pause_s: float = 0.0015
    #: The part of the process's lateness that remains at the next tick.
    less_late: float = 0.9
    #: Ended downloads that are remembered because their last bytes may be missing.
    most_parted: int = 2_000


LEASES = LeaseTuning()


class LeaseManager:
    """Owns the policy and the downloads; the server's `policies.driver.Hands`.

    `check` is called at each tick, to find requests that are parked in vain.
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
        self._rounds = Rounds()
        #: Downloads by file.
        self._of_file: Counter[str] = Counter()
        #: Downloads by the network of their client.
        self._networks: Counter[str] = Counter()
        #: Leases whose transfers still have to pause (True) or resume, in the policy's order. At
        #: most `at_once` of them move at a time.
        self._to_move: dict[int, bool] = {}
        self._moved = 0
        self._move_call: DelayedCall | None = None
        self.now: Callable[[], float] = parts.now
        self._parts = parts
        self._rng: random.Random = parts.rng
        together = settings.of_machines(parts.machines)
        decides = make_policy(policy, together, self._rng, can_pause=parts.can_pause)
        #: Calls the policy; `settle` follows each call.
        self.driver = PolicyDriver(decides, self)
        #: Whether the doors are closed for maintenance.
        self.closed = False
        self._parked = parked
        self._check = check
        #: Ended downloads whose last bytes may be missing, and until when these are sent again.
        self._parted: dict[tuple[str, str], tuple[LeasedDownload, float]] = {}
        #: Downloads that lost a connection since the last settling.
        self._ended: dict[tuple[str, str], None] = {}
        self._settling = False
        self._soon_call: DelayedCall | None = None
        self._soon_s = 0.0
        self._wake_call: DelayedCall | None = None
        self._tick_call: DelayedCall | None = None
        self._due_s = math.inf
        #: How late the looks were recently, seconds.
        self._late_s = 0.0
        #: What is still to be looked at before the tick.
        self._to_look: Iterator[int] = iter(())
        self._look_call: DelayedCall | None = None

    @property
    def policy(self) -> AdmissionPolicy:
        """The present one; `settle` follows each call that tells it something."""
        return self.driver.policy

    def close_doors(self, closed: bool) -> None:
        """Close the doors: no download starts. Or open them again."""
        self.closed = closed
        self.policy.close(closed)
        self.settle()

    # -- the life of the lease manager ---------------------------------------------------------

    def open(self, rows: Iterable[TicketRow]) -> None:
        """Restore the tickets of an earlier run, and begin to tick."""
        # The journal has the restored tickets already: they are no changes.
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
        """Use another policy or other settings; all leases and tickets stay."""
        self._record()
        together = settings.of_machines(self._parts.machines)
        self.driver.switch(lambda old: make_policy(name, together, self._rng, old))
        self.settings = settings
        self._pass_time()

    # -- tickets ---------------------------------------------------------------------------------

    def restore(self, row: TicketRow) -> None:
        """Restore a ticket that its token proves. It has wall times."""
        self._restore([row], proven=True)
        restored = self.policy.ticket(row.number)
        if restored is not None:
            self._keep([restored])

    # -- downloads -----------------------------------------------------------------------------

    def find(self, client: str, file: str) -> LeasedDownload | None:
        lease = self.policy.pool.find(client, file)
        return None if lease is None else self.downloads.get(lease.id)

    def is_downloaded(self, file: str) -> bool:
        return file in self._of_file

    @property
    def holds_nobody_back(self) -> bool:
        """Whether no download is paused and no cap slows a client now."""
        return not (self.policy.pool.paused or self._parts.line.busy)

    def begin(self, download: LeasedDownload) -> LeasedDownload:
        self.downloads[download.lease] = download
        self._rounds.add(download)
        self._of_file[download.file] += 1
        self._networks[network_of(download.address)] += 1
        self._parts.popularity.count(download.file, 1, 0, 0)
        return download

    def left(self, download: LeasedDownload) -> None:
        """The client left before the first byte, or has not come yet."""
        self.driver.end(download.lease, self.now(), download.remaining_bytes(), done=False)
        self.settle()

    def end(self, download: LeasedDownload, reason: str) -> None:
        """Cut a download off and free its slot."""
        if self._drop(download.lease) is None:
            return
        download.abort(reason)
        self._ended[download.client, download.file] = None
        self.policy.release(download.lease, self.now(), False)
        self._parts.passes.end(download.client, download.file)
        self.settle()

    def ending(self, delivery: Delivery, safe: Callable[[], None]) -> None:
        """A body is about to end. `safe` lets it end, once its ticket is journalled as used.

        A started ticket without wanted bytes counts as used.
        """
        download, row = delivery.download, None
        running = self.downloads.get(download.lease) is download
        ticket = self.policy.ticket_of(download.lease) if running else None
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
        # The kernel is not asked: a download may have many other connections.
        left = download.left_when_seen()
        wanted = download.wanted_bytes
        parts.evidence.took(download.client, wanted - left, wanted, parts.wall())
        self._ended[download.client, download.file] = None
        if delivery.transfer is not None:
            parts.line.ended(delivery.transfer, now)
            # Break the reference cycle: no work for the garbage collector.
            delivery.transfer = None
        done = download.complete()
        if done:
            self._drop(download.lease)
            self._part(download, now)
            parts.passes.end(download.client, download.file)
        self.driver.end(download.lease, now, left, done=done)
        if download.ending and not done:
            # The connection was lost in its last bytes: the ticket is not used after all.
            download.ending = False
            ticket = self.policy.ticket_of(download.lease)
            row = self.policy.ticket(ticket) if ticket is not None else None
            self._keep([row] if row is not None else [])
        if self._somebody_waits():
            self.settle()
        else:
            # Whatever follows has time until the next tick.
            self._record()

    def _part(self, download: LeasedDownload, now: float) -> None:
        """All is in the kernel. A connection may still lose the last bytes: remember it."""
        key = download.client, download.file
        self._forget(key)
        if download.parted:
            self._parted[key] = download, now + self.settings.lease_idle_s
            if len(self._parted) > LEASES.most_parted:
                self._forget(next(iter(self._parted)))

    def _forget(self, key: tuple[str, str]) -> None:
        parted = self._parted.pop(key, None)
        if parted is not None:
            # Break the reference cycle: no work for the garbage collector.
            parted[0].parted.clear()

    def with_missing(self, job: Job, rep: Representation, plan: BodyPlan) -> LeasedDownload | None:
        """The ended download if the request is only for lost bytes of it; else None.

        They are sent again without a slot. They are no more than its socket held.
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
        _count_less(self._of_file, download.file)
        _count_less(self._networks, network_of(download.address))
        return download

    # -- the passing of time -------------------------------------------------------------------

    def settle(self, *, hurry: bool = True) -> None:
        """After calls to the policy: journal the changes, and let the policy decide what follows.

        Without `hurry` no client waits for that, and several calls settle together.
        """
        self._record()
        if self._settling:
            return
        if hurry:
            delay_s = 0.0 if self._somebody_waits() else LEASES.moment_s
        else:
            calm = not (self.policy.pool.paused or self._parked)
            delay_s = LEASES.calm_s if calm else LEASES.moment_s
        call = self._soon_call
        if call is None:
            self._soon_call = self._parts.reactor.callLater(delay_s, self._pass_time)
            self._soon_s = delay_s
        elif delay_s < self._soon_s:
            call.reset(delay_s)
            self._soon_s = delay_s

    def _somebody_waits(self) -> bool:
        return bool(self.policy.pool.paused or self._parked) or self.policy.anybody_waits()

    def _record(self) -> None:
        rows = self.policy.changes()
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
        """All that a journal must have (waiting, ready, started), with wall times."""
        ahead_s = self._parts.wall_ahead_s()
        return [moved(row, ahead_s) for row in self.policy.changes(everything=True)]

    def _restore(self, rows: Iterable[TicketRow], *, proven: bool = False) -> None:
        """Restore rows with wall times. The policy has the process clock."""
        now, ahead_s = self.now(), self._parts.wall_ahead_s()
        if ahead_s:
            rows = (moved(row, -ahead_s) for row in rows)
        # The clock may have been set back since: no ticket was issued in the future.
        rows = [row if row.issued_s <= now else row._replace(issued_s=now) for row in rows]
        self.policy.restore(rows, now, self._parts.numbers.first, proven=proven)

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
        # A network with running and waiting downloads counts twice.
        line.wanted_by(len(self._networks) + self._parked.how_many_networks())
        self.policy.observe(line.goodput_bytes_s(), line.busy, now, line.line_bytes_s, line.lines)
        self._seat(now)
        self._pass_time()
        for key, (download, until_s) in list(islice(self._parted.items(), LEASES.at_once)):
            gone = not download.deliveries and download.missing_bytes() <= 0
            if gone or now >= until_s:
                self._forget(key)
        self._check()

    def _look(self, due_s: float) -> None:
        """Look at a few downloads, then at the next ones; tick once all were looked at.

        This call was due at `due_s`. If it is late, the next ones are not later.
        """
        self._look_call = None
        now, rounds, line = self.now(), self._rounds, self._parts.line
        late_s = self._late_s = max(min(now - due_s, DOWNLOADS.most_late_s), self._late_s)
        leases = list(islice(self._to_look, LEASES.at_once))
        looked, progress = [], self.policy.progress
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
                rate = download.rate.client_bytes_s(held_back)
                progress(lease, now, download.left_bytes, rate, held_back, download.reads_bytes_s)
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
        """Give drawn entries their places. A slot for one idles until its client comes."""
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
            # Its rate is not measured from now on.
            download.paused = True
            self._move_in_turn(lease, now, pause=True)

    def resume(self, lease: int, now: float) -> None:
        if lease in self.downloads:
            self._move_in_turn(lease, now, pause=False)

    def _move_in_turn(self, lease: int, now: float, *, pause: bool) -> None:
        self._to_move[lease] = pause
        if self._move_call is None:
            self._move_next(now)

    def _move_some(self) -> None:
        self._move_call, self._moved = None, 0
        while self._to_move and self._move_call is None:
            self._move_next(self.now())

    def _move_next(self, now: float) -> None:
        """Pause or resume a download by the policy's last decision."""
        lease = next(iter(self._to_move))
        pause, download = self._to_move.pop(lease), self.downloads.get(lease)
        if download is not None and pause:
            download.pause()
        elif download is not None:
            download.resume(now)
            self._rounds.wake(lease)
        self._moved += 1
        if self._moved == LEASES.at_once:
            self._move_call = self._parts.reactor.callLater(LEASES.pause_s, self._move_some)

    def idled_out(self, lease: int, now: float) -> None:
        """The lease was not used: its connections are cut."""
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
        """A place was not used. Requests that are parked with it are offered again."""
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
