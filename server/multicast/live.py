"""One running session: its offers, its members' reports, and repair by HTTP."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...protocol.fec import BlockLayout, FecParameters, scheme_for
from ...protocol.marks import MarkSigner
from ...protocol.packet import PAYLOAD_OFFSET
from ...protocol.session import INLINE_HASHES, Offer, ReceiverReport, ReportAnswer
from ...protocol.units import format_duration
from ..files.openfile import OpenFile
from ..http.clock import Clock
from ..http.proxies import prefixes_of
from .carousel import Carousel
from .rate import RateControl
from .schedule_steps import CarouselSettings, Phase
from .symbols import ObjectChanged, SymbolSource
from .transmitter import Framer, Sender, Transmitter


@dataclass(frozen=True, slots=True)
class CohortReports:
    """Bounds the reports of a cohort to 2 000 a second.

    A cohort of up to `small_cohort` members reports its joins, so that the session can start early,
    and every `every_s` during a pass. Larger ones report less often in proportion.
    """

    small_cohort: int = 64
    window_per_member_s: float = 0.0005
    least_window_s: float = 0.002
    most_window_s: float = 10.0
    every_s: float = 0.2
    most_every_s: float = 10.0


_REPORTS = CohortReports()


class LiveTuning(NamedTuple):
    """What a pass leaves for repair."""

    #: The share of the object that one address may fetch by repair; more is for the unicast queue.
    repair_share: float = 0.3
    #: The burst of its token bucket, in time at the session's rate.
    repair_ahead_s: float = 2.0


TUNING = LiveTuning()


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """A session's group and port, the sender's address, and the TTL."""

    group: str
    port: int
    source: str
    ttl: int
    family: str = "4"


@dataclass(frozen=True, slots=True)
class SentContent:
    """The object of a session, its code, and the hashes of its blocks. `key`: see `object_key`."""

    key: str
    file: OpenFile
    fec: FecParameters
    hashes: tuple[bytes, ...]

    @property
    def layout(self) -> BlockLayout:
        fec = self.fec
        return BlockLayout(self.file.rep.size_bytes, fec.symbol_bytes, fec.block_symbols)


@dataclass(slots=True)
class SessionCounters:
    """A session's figures for metrics and the status page."""

    members: int = 0
    reports: int = 0


class LiveSession:
    """Connects carousel, framer and transmitter for one object.

    `ended(session, reason)` is called once; `complete(session)` is called when a session that
    gathers members has enough. The file stays open, so it may be replaced under its name. If it is
    written to, the session ends.
    """

    def __init__(
        self,
        reactor: Clock,
        session_id: int,
        content: SentContent,
        place: SessionPlace,
        sender: Sender,
        rate: RateControl,
        settings: CarouselSettings,
        ended: Callable[[LiveSession, str], None],
        *,
        charge: Callable[[int], None] = lambda size: None,
        complete: Callable[[LiveSession], None] = lambda session: None,
    ) -> None:
        self.id = session_id
        self.object_key = content.key
        self.fec = fec = content.fec
        self.place = place
        self.counters = SessionCounters()
        self.hashes = content.hashes
        self._reactor = reactor
        self._file = content.file
        self._key = secrets.token_bytes(32)
        self._marks = MarkSigner(secrets.token_bytes(32))
        self._settings = settings
        self.rate = rate
        #: Member -> its networks and its declared rate. Members that left stay in it.
        self._offered: dict[str, tuple[Sequence[str], float]] = {}
        #: Address -> time of its first repair, and the bytes since.
        self._repaired: dict[str, tuple[float, int]] = {}
        self.layout = content.layout
        scheme = scheme_for(fec)
        source = SymbolSource(self.layout, scheme, self._pread)
        self.carousel = Carousel(self.layout, scheme, settings, reactor.seconds())
        self._ended = ended
        self._complete = complete
        self.transmitter = Transmitter(
            reactor,
            self.carousel,
            source,
            Framer(session_id, self._key, self._marks),
            sender,
            PAYLOAD_OFFSET + fec.symbol_bytes,
            rate.rate_bytes_s,
            lambda reason: self._ended(self, reason),
            extra_overhead_bytes=20 if place.family == "6" else 0,
            charge=charge,
        )

    def start(self) -> None:
        """Start the transmitter. The carousel decides when pass 0 starts."""
        self.transmitter.start()

    def stop(self, reason: str) -> None:
        """End now. Receivers fetch the rest by unicast."""
        self.transmitter.stop(reason)

    @property
    def url_path(self) -> str:
        return self._file.rep.url_path

    @property
    def waiting(self) -> bool:
        """Whether it is gathering members, or ended before it had enough."""
        return self.carousel.waiting

    @property
    def stage(self) -> str:
        """What it does now, for the admin page."""
        if self.waiting or self.carousel.phase is not Phase.GATHER:
            return "gathering" if self.waiting else "sending"
        return f"starts in {format_duration(self.starts_in_s)}"

    @property
    def starts_in_s(self) -> float:
        """The time until its first symbol at the latest; 0 once it has started."""
        gathering = self.carousel.phase is Phase.GATHER
        return max(0.0, self.carousel.starts_at - self._reactor.seconds()) if gathering else 0.0

    @property
    def saved_bytes(self) -> int:
        """About the bytes that receivers have, less the bytes sent."""
        size, carousel = self.layout.size_bytes, self.carousel
        had = carousel.receivers.done * size + carousel.receivers.on_time * carousel.front_bytes
        return max(0, had - self.transmitter.sent_bytes)

    @property
    def takes_joiners(self) -> bool:
        """Whether a receiver that joins now gets the whole object."""
        if self.carousel.phase is Phase.CLOSED:
            return False
        return self._settings.repair or self.carousel.phase is Phase.GATHER

    def _peers_of(self, member: str) -> int:
        """How many members share the rate of reports. Late ones do not slow down those on time."""
        receivers = self.carousel.receivers
        return len(receivers) if receivers.is_late(member) else receivers.on_time

    def report_window_s(self, member: str) -> float:
        """The time over which reports about a pass are spread."""
        window = self._peers_of(member) * _REPORTS.window_per_member_s
        return min(_REPORTS.most_window_s, max(_REPORTS.least_window_s, window))

    def _report_every_s(self, member: str) -> float:
        every = _REPORTS.every_s * max(1.0, self._peers_of(member) / _REPORTS.small_cohort)
        return min(every, _REPORTS.most_every_s)

    def accepts(self, declared_bytes_s: float) -> bool:
        """Whether a receiver of that rate can join now. A late one must not be slower."""
        if not self.takes_joiners or not self.rate.acceptable(declared_bytes_s):
            return False
        gathering = self.carousel.phase is Phase.GATHER
        return gathering or declared_bytes_s >= self.transmitter.rate_bytes_s

    def offer(self, declared_bytes_s: float, address: str) -> Offer:
        """Add a member with this address. Returns its offer."""
        now = self._reactor.seconds()
        member = secrets.token_urlsafe(12)
        waiting = self.carousel.waiting
        networks = prefixes_of(address)
        self._offered[member] = networks, declared_bytes_s
        self.carousel.join(member, now, networks[0])
        if waiting and not self.carousel.waiting:
            self._complete(self)
        self.counters.members += 1
        self.adapt()
        prefix = f"/-/multicast/{self.id:016x}"
        inline = len(self.hashes) <= INLINE_HASHES
        gathering = self.carousel.phase is Phase.GATHER
        offer = Offer(
            session=self.id,
            member=member,
            key=self._key,
            mark_key=self._marks.public,
            group=self.place.group,
            port=self.place.port,
            source=self.place.source,
            size_bytes=self.layout.size_bytes,
            etag=self._file.rep.etag,
            fec=self.fec,
            rate_bytes_s=self.transmitter.rate_bytes_s,
            start_in_s=self.starts_in_s,
            report_url=f"{prefix}/report",
            ssm=True,
            ttl=self.place.ttl,
            hashes=self.hashes if inline else (),
            hashes_url="" if inline else f"{prefix}/hashes",
            repair_url=f"{prefix}/repair",
            report_window_s=self.report_window_s(member),
            report_every_s=self._report_every_s(member) if self._settings.repair else 0.0,
            report_joined=gathering and len(self.carousel.receivers) <= _REPORTS.small_cohort,
            meanwhile=self.carousel.waiting,
            # It waits for eight of the slowest marks.
            silence_s=8 * self._settings.slowest_mark_s,
        )
        self.transmitter.poke()
        return offer

    def is_member(self, name: str) -> bool:
        """Whether a receiver got an offer with this secret name."""
        return name in self._offered

    def report(self, report: ReceiverReport) -> ReportAnswer:
        """Add a report. Returns the answer. A report without a member's name changes nothing."""
        now = self._reactor.seconds()
        before = self.report_window_s(report.member)
        if report.member not in self.carousel.receivers:
            return ReportAnswer("closed", before)
        self.counters.reports += 1
        late = self.carousel.receivers.is_late(report.member)
        action = self.carousel.report(report, now)
        if report.expected and not late:
            self.rate.report(report, now, self.carousel.sent_s_ago(report.sequence, now))
        started = self.carousel.phase is not Phase.GATHER
        if action == "continue" and started and self.rate.is_too_fast_for(report.member, now):
            self.carousel.send_away(report.member, now)
            action = "unicast"
        self.adapt()
        self.transmitter.poke()
        return ReportAnswer(action, max(before, self.report_window_s(report.member)))

    def repair(self, member: str, address: str, ranges: list[tuple[int, int]]) -> bytes | None:
        """These ranges of the object for a member at this address.

        None when it is not a member, requests more than `_allowed_bytes`, or blocks that were not
        sent yet.
        """
        wanted = sum(end - first for first, end in ranges)
        last = max(end for _, end in ranges) - 1
        if member not in self._offered or wanted > self._allowed_bytes(address):
            return None
        if not self.carousel.has_sent(last // self.layout.block_bytes):
            return None
        try:
            data = b"".join(self._pread(first, end - first) for first, end in ranges)
        except (OSError, ObjectChanged):
            return None
        if len(data) != wanted:
            return None
        since, had = self._repaired.get(address, (self._reactor.seconds(), 0))
        self._repaired[address] = since, had + wanted
        return data

    def _allowed_bytes(self, address: str) -> int:
        """The repair bytes that this address may get now: a token bucket at the session's rate."""
        now: float = self._reactor.seconds()
        since, had = self._repaired.get(address, (now, 0))
        paced = (now - since + TUNING.repair_ahead_s) * self.transmitter.rate_bytes_s
        return int(min(paced, self.layout.size_bytes * TUNING.repair_share)) - had

    def adapt(self) -> None:
        """Send at the rate that the members and the session's share of the line allow."""
        self._count_votes()
        self.transmitter.rate_bytes_s = self.rate.rate_bytes_s

    def _count_votes(self) -> None:
        """Make the members on time the voters on the rate."""
        counted, on_time = self.rate.members, self.carousel.receivers.punctual
        if counted == on_time:
            return
        here = set(on_time)
        for member in counted:
            if member not in here:
                self.rate.forget(member)
        before = set(counted)
        for member in on_time:
            if member not in before:
                self.rate.join(member, *self._offered[member])

    def _pread(self, offset: int, length: int) -> bytes:
        if not self._file.unchanged():
            raise ObjectChanged("the file was written to while it was being sent")
        return os.pread(self._file.fd, length, offset)
