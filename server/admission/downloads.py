"""The live side of leases: the transfers of each, what they delivered, and how fast.

A lease is done when every byte that its client wanted was delivered, over any number of
connections. Bytes count as delivered when the peer's kernel has them. So a resume after a broken
connection finds its lease open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import InitVar, dataclass, field

from ...policies.contract import Admit, Job
from ...policies.reading import ReadingPace, RunningRate
from ...protocol.intervals import IntervalSet, Span
from ..files.pacer import Share
from ..files.transfer import BodyPlan, Representation, TcpState, Transfer
from .client_keys import address_of


@dataclass(frozen=True, slots=True)
class DownloadTuning:
    """How a running download is watched, and what it may have in the kernel."""

    #: A rate is measured over this time of running, seconds.
    look_s: float = 0.2
    #: A download that took nothing for this time is looked at after the same time again.
    still_s: float = 2.0
    #: But at least this often, seconds.
    seldom_s: float = 10.0
    #: The same while its peers take no more, seconds. A socket tells when they do, but not when
    #: what lies in it has left.
    rarely_s: float = 30.0
    #: Bytes in flight beyond what the peer took in this time stand still, seconds.
    stands_s: float = 1.0
    #: The reader limits a download when its window was shut for this part of the time.
    shut: float = 0.9
    #: Downloads that are due within this time are looked at in the same round, seconds.
    span_s: float = 0.25
    #: What may lie unsent in the kernel, in seconds of the download's rate. A pause, or a trial of
    #: the line, acts only when that has left.
    unsent_s: float = 0.25
    #: And at least, bytes.
    unsent_bytes: int = 16 * 1024
    #: More is allowed by how late this process was lately, up to this, seconds. A client that finds
    #: its socket empty cannot catch up.
    most_late_s: float = 0.25
    #: How many of its last bodies a download asks for bytes that got lost.
    parted: int = 8


DOWNLOADS = DownloadTuning()


def unsent_most(rate_bytes_s: float, late_s: float = 0.0) -> int:
    """The bytes that may lie unsent in the kernel for a download of this rate.

    `late_s` is how late the process was lately.
    """
    return int(max(DOWNLOADS.unsent_bytes, rate_bytes_s * (DOWNLOADS.unsent_s + late_s)))


def was_shut(shut_s: float, passed_s: float) -> bool:
    """Whether a window that was shut for `shut_s` was shut nearly all of the time."""
    return shut_s >= DOWNLOADS.shut * passed_s


@dataclass(eq=False, repr=False, slots=True)
class Delivery:
    """One response body on a lease; the listener of its transfer."""

    download: LeasedDownload
    _plan: BodyPlan
    _ending: Callable[[Delivery, Callable[[], None]], None]
    _ended: Callable[[Delivery], None]
    share: Share | None = field(init=False)
    transfer: Transfer | None = None
    over: bool = False
    delivered_bytes: int = 0
    #: The size of its ranges together.
    planned_bytes: int = field(init=False)
    #: Whether its last bytes may leave, and what then sends them.
    _may_end: bool = False
    _go_on: Callable[[], None] | None = None
    #: What had arrived at the last look, those beyond a gap too, and what the kernel said then.
    seen_bytes: int = 0
    tcp: TcpState = field(default_factory=TcpState)
    #: For how long its peer's window had been shut by the last call of `shut`, seconds.
    _shut_s: float = 0.0

    def __post_init__(self) -> None:
        self.share = self.download.share
        self.planned_bytes = sum([stop - start for start, stop in self._plan.ranges])

    def may_end(self, go_on: Callable[[], None]) -> bool:
        asked, self._go_on = self._go_on is not None, go_on
        if not asked:
            self._ending(self, self._let_end)
        return self._may_end

    def _let_end(self) -> None:
        self._may_end = True
        if self._go_on is not None and not self.over:
            self._go_on()

    def spans(self, count: int) -> Iterator[Span]:
        """The places of its first `count` bytes in the file."""
        for start, stop in self._plan.ranges:
            if count <= 0:
                return
            yield start, min(stop, start + count)
            count -= stop - start

    @property
    def in_one_piece(self) -> bool:
        """Whether it is one range of the file."""
        return len(self._plan.ranges) == 1

    def wanted_end_bytes(self) -> int:
        """What it will deliver: all if its end waits for `may_end`, else what it has sent."""
        if self._go_on is not None:
            return self.planned_bytes
        return self.transfer.sent_bytes if self.transfer is not None else 0

    def moves(self) -> None:
        self.download.look_again()

    def transfer_done(self, transfer: Transfer, complete: bool) -> None:
        """See `TransferListener`: count what arrived, and tell the gate."""
        if self.over:
            return
        self.over = True
        self.delivered_bytes = transfer.delivered_bytes()
        download = self.download
        if complete or self.in_one_piece:
            count = self._plan.body_bytes if complete else self.delivered_bytes
            for start, stop in self.spans(count):
                download.coverage.add(start, stop)
        download.ended_bytes += transfer.delivered_bytes()
        download.flowed_bytes += max(0, transfer.delivered_bytes() - self.seen_bytes)
        if (complete and transfer.flying_bytes()) or download.sent_again_bytes:
            download.parted.append(transfer)
            del download.parted[: -DOWNLOADS.parted]
        download.leave(self)
        self._ended(self)
        # It would keep the sender, which has this.
        self._go_on = None

    def in_flight_bytes(self) -> int:
        """Bytes of this body that have arrived and are not in the coverage yet."""
        return self.transfer.delivered_bytes() if self.transfer is not None else 0

    def look(self, transfer: Transfer) -> int:
        """Ask the kernel, which is most of the cost of a look; how much more has arrived."""
        here, sent = transfer.delivered_bytes(), transfer.sent_bytes
        if here < sent or transfer.blocked:
            self.tcp = transfer.tcp_state()
            # What was lost is missing still, a byte of it at least.
            here = max(here, min(here + self.tcp.beyond_gaps_bytes, sent - 1))
        else:
            self.tcp = TcpState(self.tcp.shut_s, round_trip_s=self.tcp.round_trip_s)
        fresh, self.seen_bytes = here - self.seen_bytes, here
        return max(0, fresh)

    def shut(self) -> float:
        """For how long its peer's window was shut since the look before the last call, seconds."""
        passed_s, self._shut_s = self.tcp.shut_s - self._shut_s, self.tcp.shut_s
        return passed_s


@dataclass(eq=False, repr=False, slots=True)
class LeasedDownload:
    """One lease as the gate sees it."""

    admit: InitVar[Admit]
    job: InitVar[Job]
    rep: InitVar[Representation | None]
    started_s: float
    #: When its ticket was issued, on the process clock; None without one.
    issued_s: float | None = None
    small_below_bytes: InitVar[int] = 0
    waited_s: float = field(init=False)
    #: The token that its answers carry, and the ticket and class that it was signed for.
    token: bytes = field(default=b"", repr=False)
    signed: tuple[int, str] | None = None
    lease: int = field(init=False)
    share: Share = field(init=False)
    client: str = field(init=False)
    address: str = field(init=False)
    file: str = field(init=False)
    #: Known once the client comes, if the policy started a waiting page's download.
    size_bytes: int = field(init=False)
    etag: str = field(init=False)
    wanted_bytes: int = field(init=False)
    paused: bool = False
    #: Paused for a moment, to see what the line carries without it.
    held: bool = False
    #: What bodies that are over have delivered.
    ended_bytes: int = 0
    _looked_s: float = field(init=False)
    #: When `came_to_stand` counted last, and what had arrived then; what it found to stand.
    _counted: tuple[float, int] = field(init=False)
    _standing_bytes: int = 0
    #: The time of the next look (0: at once), and for how long it has taken nothing.
    look_at_s: float = 0.0
    _still_s: float = 0.0
    #: Called when it moves again; None while it is looked at anyway.
    woken: Callable[[int], None] | None = None
    rate: RunningRate = field(default_factory=RunningRate)
    pace: ReadingPace = field(default_factory=ReadingPace)
    #: The rate at which its program reads; 0 if that is not known.
    reads_bytes_s: float = 0.0
    #: What has arrived since its rate was measured.
    flowed_bytes: int = 0
    #: What had arrived of all its bodies at the last `look`, and what had been sent and had not.
    arrived_bytes: int = 0
    flying_bytes: int = 0
    #: Whether all its sockets were full then, and whether TCP's slow start held one of them back.
    stuck: bool = False
    in_slow_start: bool = False
    #: What the client still wanted then.
    left_bytes: int = field(init=False)
    coverage: IntervalSet = field(default_factory=IntervalSet)
    _was_complete: bool = False
    deliveries: dict[Delivery, None] = field(default_factory=dict)
    #: The sum of their sizes.
    planned_bytes: int = 0
    #: Whether its ticket is journalled as used, although its last bytes may be here yet.
    ending: bool = False
    #: Bodies that were handed over whole, the last of which had not arrived by then.
    parted: list[Transfer] = field(default_factory=list)
    #: What was sent again of these once all was delivered.
    sent_again_bytes: int = 0
    #: After a body of one write: what its connection has queued, the same at the last look, and
    #: until when its slot does not idle for it.
    leaving: Callable[[], int] | None = None
    _leaving_bytes: int = 0
    leaves_until_s: float = 0.0

    def __post_init__(
        self, admit: Admit, job: Job, rep: Representation | None, small_below_bytes: int
    ) -> None:
        now, issued_s = self.started_s, self.issued_s
        self.waited_s = 0.0 if issued_s is None else max(0.0, now - issued_s)
        self.lease, self.client, self.file = admit.lease, job.client, job.file
        self.address = address_of(job.client)
        small = job.size_bytes < small_below_bytes and len(job.network) > 0
        self.share = Share(counts_body=job.counts_body, address=job.network[0] if small else "")
        self.size_bytes = job.size_bytes if rep is None else rep.size_bytes
        self.etag = "" if rep is None else rep.etag
        self.wanted_bytes = self.left_bytes = job.remaining_bytes
        self._looked_s, self._counted = now, (now, 0)

    @property
    def rate_bytes_s(self) -> float:
        """What arrives a second, smoothed; 0 before the first look."""
        return self.rate.bytes_s

    def join(self, delivery: Delivery) -> None:
        self.deliveries[delivery] = None
        self.planned_bytes += delivery.planned_bytes
        self.look_again()

    def look_again(self) -> None:
        """It may move: look at each tick from now on."""
        if self.woken is not None:
            self.woken(self.lease)

    def leave(self, delivery: Delivery) -> None:
        if delivery in self.deliveries:
            del self.deliveries[delivery]
            self.planned_bytes -= delivery.planned_bytes

    def renew(self, rep: Representation, wanted_bytes: int) -> None:
        """If the file was replaced, what was delivered of the old one counts no longer."""
        if rep.etag != self.etag:
            self.etag, self.size_bytes = rep.etag, rep.size_bytes
            self.wanted_bytes = wanted_bytes
            self.coverage = IntervalSet()

    def remaining_bytes(self) -> int:
        """What the client still wants, bytes on their way not counted."""
        return self._left((delivery, delivery.in_flight_bytes()) for delivery in self.deliveries)

    def left_when_seen(self) -> int:
        """`remaining_bytes` as of the last look; asks no socket."""
        if not self.deliveries:
            return max(0, self.wanted_bytes - self.coverage.total)
        # Most bodies of a download in many small parts were never looked at.
        return self._left([(one, one.seen_bytes) for one in self.deliveries if one.seen_bytes])

    def _left(self, arrived: Iterable[tuple[Delivery, int]]) -> int:
        """What is wanted beyond the coverage and what arrived of each body.

        A byte that arrives over several connections counts once: copies bring nothing nearer.
        """
        spans = [span for delivery, count in arrived for span in delivery.spans(count)]
        return max(0, self.wanted_bytes - self.coverage.total_with(spans))

    def taken_bytes(self) -> int:
        """What the client has of what it wanted."""
        return self.wanted_bytes - self.remaining_bytes()

    def look(self) -> None:
        """Ask each body once for its progress."""
        arrived, flying, stuck = self.ended_bytes, 0, True
        for delivery in self.deliveries:
            transfer = delivery.transfer
            if transfer is None:
                stuck = False
                continue
            self.flowed_bytes += delivery.look(transfer)
            arrived += delivery.seen_bytes
            flying += transfer.sent_bytes - delivery.seen_bytes
            stuck = stuck and transfer.blocked
        self.arrived_bytes, self.flying_bytes, self.stuck = arrived, flying, stuck
        self.in_slow_start = self.stuck and any(one.tcp.in_slow_start for one in self.deliveries)
        self.left_bytes = self.left_when_seen()

    def came_to_stand(self, now: float) -> int:
        """The growth of the bytes that wait in its sockets for a peer that takes almost none.

        Those are the bytes under way (`look`) that the peer would not take within a second, so they
        are not on the line. It is negative if some have left.
        """
        since_s, before = self._counted
        passed_s = now - since_s
        if passed_s < DOWNLOADS.stands_s:
            return 0
        arrived, flying = self.arrived_bytes, self.flying_bytes
        self._counted = now, arrived
        if self.paused and not self.held:
            # Nothing is measured while it is paused: keep-alive bytes are too few to look for.
            self._still_s = 0.0 if flying and arrived > before else self._still_s + passed_s
            self.look_at_s = self._next_look_s(now)
        taken = int((arrived - before) * DOWNLOADS.stands_s / passed_s)
        standing, self._standing_bytes = self._standing_bytes, max(0, flying - max(0, taken))
        return self._standing_bytes - standing

    @property
    def unclaimed(self) -> bool:
        """Whether its client got nothing yet, and is not connected."""
        return not (self.deliveries or self.ended_bytes)

    @property
    def still(self) -> bool:
        """Whether its transfers send nothing now, whatever the reason."""
        return self.paused or self.held

    @property
    def has_lost(self) -> bool:
        """Whether bytes of any connection were lost, and had not arrived again at the last look."""
        return any(one.tcp.has_lost for one in self.deliveries)

    def missing_bytes(self) -> int:
        """What was handed over whole, never arrived, and was not sent again."""
        return sum(one.missing_bytes() for one in self.parted) - self.sent_again_bytes

    def complete(self) -> bool:
        """Whether everything wanted was delivered."""
        return not self.deliveries and self.coverage.total >= self.wanted_bytes

    def became_complete(self) -> bool:
        """Whether the whole file is delivered under this lease; true at the first such call only.

        What the client wanted does not matter here: a lease for a range is no complete download.
        """
        if self._was_complete or self.coverage.total < self.size_bytes:
            return False
        self._was_complete = True
        return True

    def about_to_complete(self) -> bool:
        """Whether the bodies that send their last bytes are all that is wanted."""
        if self.coverage.total + self.planned_bytes < self.wanted_bytes:
            return False  # not even if all of it arrived, and nothing twice
        coming = [(delivery, delivery.wanted_end_bytes()) for delivery in self.deliveries]
        if self.coverage.total + sum(count for _, count in coming) < self.wanted_bytes:
            return False  # not even if nothing arrived twice
        if len(coming) == 1 and not self.coverage.total and coming[0][0].in_one_piece:
            return True  # nothing arrived twice
        return self._left(coming) == 0

    def measure(self, now: float, late_s: float = 0.0) -> None:
        """`look`, and update the smoothed rate over the time it has run; not while paused.

        The process has been late by `late_s`, see `unsent_most`.
        """
        self.look()
        running_s = now - self._looked_s
        if running_s < DOWNLOADS.look_s:
            return
        fresh, self.flowed_bytes = self.flowed_bytes, 0
        self._looked_s = now
        self._still_s = 0.0 if fresh else self._still_s + running_s
        self.look_at_s = self._next_look_s(now)
        self.rate.look(fresh, running_s)
        self.reads_bytes_s = self.pace.look(now, self.arrived_bytes, self._was_shut(running_s))
        most_bytes = unsent_most(self.rate.bytes_s, late_s)
        for delivery in self.deliveries:
            if delivery.transfer is not None:
                delivery.transfer.limit_unsent(most_bytes)

    def _next_look_s(self, now: float) -> float:
        """The time of the next look, later the longer it stands still: thousands may."""
        still_s = self._still_s
        if still_s < DOWNLOADS.still_s:
            return 0.0
        told = self.paused or self.stuck
        return now + (
            min(DOWNLOADS.rarely_s, 2.0 * still_s) if told else min(DOWNLOADS.seldom_s, still_s)
        )

    def _was_shut(self, passed_s: float) -> bool:
        """Whether its peers' windows were shut nearly all of this time, on every connection."""
        if not self.deliveries or not self.stuck:
            return False
        return was_shut(min([delivery.shut() for delivery in self.deliveries]), passed_s)

    def still_leaves(self, now: float) -> bool:
        """Whether queued bytes of a body that is over have left since the last look."""
        if self.leaving is None or self.deliveries or now > self.leaves_until_s:
            return False
        before, self._leaving_bytes = self._leaving_bytes, self.leaving()
        if self._leaving_bytes >= before:
            return False
        self._still_s = self.look_at_s = 0.0
        return True

    def put_behind(self, *, background: bool) -> None:
        """Send only in the background from now on, or with its own share again."""
        self.share.background = background
        for delivery in self.deliveries:
            if delivery.transfer is not None:
                delivery.transfer.share_changed()

    def pause(self) -> None:
        """Stop all transfers, and those to come."""
        self.paused = True
        self._stop()

    def hold(self) -> None:
        """The same for a moment, whatever the policy decides, until `let_go`."""
        self.held = True
        self._stop()

    def let_go(self, now: float) -> None:
        self.held = False
        self._go_on(now)

    def _stop(self) -> None:
        for delivery in tuple(self.deliveries):
            if delivery.transfer is not None:
                delivery.transfer.pause()

    def resume(self, now: float) -> None:
        self.paused = False
        self._go_on(now)

    def _go_on(self, now: float) -> None:
        if self.still:
            return
        # Keep-alive bytes of the pause say nothing about its rate.
        self.look()
        self.flowed_bytes = 0
        self.rate.resume()
        self.pace.forget()
        self.reads_bytes_s = 0.0
        self._looked_s = now
        self.look_at_s = self._still_s = 0.0
        for delivery in tuple(self.deliveries):
            if delivery.transfer is not None:
                delivery.transfer.resume()

    def abort(self, reason: str) -> None:
        """Cut all connections; their ends do not count any more."""
        for delivery in tuple(self.deliveries):
            delivery.over = True
            if delivery.transfer is not None:
                delivery.transfer.abort(reason)
        self.deliveries.clear()
        self.parted.clear()
        self.planned_bytes = 0


class Rounds:
    """Which running downloads are looked at: those that move at each tick, the others when due.

    So thousands that stand still cost nothing in between.
    """

    def __init__(self) -> None:
        self._awake: dict[int, LeasedDownload] = {}
        #: Those that stand still, with what was under way to them at the last look.
        self._asleep: dict[int, tuple[LeasedDownload, int]] = {}
        #: Leases by the span of time in which they are due, taken out together.
        self._due: dict[int, list[int]] = {}
        #: What is under way to all that stand still.
        self.asleep_bytes = 0
        #: Bound once for all of them.
        self._wake = self.wake

    @property
    def awake(self) -> Collection[LeasedDownload]:
        return self._awake.values()

    def add(self, download: LeasedDownload) -> None:
        self._awake[download.lease] = download

    def discard(self, lease: int) -> None:
        self._awake.pop(lease, None)
        self._forget(lease)

    def _forget(self, lease: int) -> LeasedDownload | None:
        download, flying = self._asleep.pop(lease, (None, 0))
        self.asleep_bytes -= flying
        if download is not None:
            download.woken = None
        return download

    def wake(self, lease: int) -> None:
        download = self._forget(lease)
        if download is not None:
            download.look_at_s = 0.0
            self._awake[lease] = download

    def begin(self, now: float) -> list[int]:
        """The leases of a new round: those awake, and those that may be due. `take` each."""
        past = [span for span in self._due if span * DOWNLOADS.span_s <= now]
        return [*self._awake, *(lease for span in past for lease in self._due.pop(span))]

    def take(self, lease: int, now: float) -> LeasedDownload | None:
        """The download, awake, if it is to be looked at now; `looked` follows."""
        known = self._asleep.get(lease)
        if known is not None:
            if known[0].look_at_s > now:
                # It moved and stands still again since: a later span has it as well.
                return None
            self.wake(lease)
        return self._awake.get(lease)

    def looked(self, download: LeasedDownload) -> None:
        """It was looked at: it sleeps until its next look, if it stands still."""
        lease = download.lease
        if not download.look_at_s or download.held:
            return
        if self._awake.pop(lease, None) is not None:
            download.woken = self._wake
            self._asleep[lease] = download, download.flying_bytes
            self.asleep_bytes += download.flying_bytes
            self._due.setdefault(int(download.look_at_s / DOWNLOADS.span_s) + 1, []).append(lease)
