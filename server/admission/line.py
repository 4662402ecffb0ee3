"""The live side of `policies.bottleneck`: it reads sockets and pacer, and sets the pacer's cap."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Protocol

from twisted.logger import Logger

from ...policies.bottleneck import Bottleneck, LineOrders, Sample
from ...policies.contract import ONE_LINE, LineSeen
from ..files.transfer import Transfer
from ..http.unarrived import UnarrivedAnswers
from .downloads import LeasedDownload

_log = Logger()


class Outlet(Protocol):
    """What a process sends (the pacer)."""

    @property
    def sent_bytes_total(self) -> int:
        """All that was handed to sockets."""

    @property
    def link_busy(self) -> bool:
        """Whether the cap holds a download back."""

    def goodput_bytes_s(self) -> float:
        """The present rate."""

    def set_bandwidth(self, bandwidth_bytes_s: float | None) -> None:
        """Cap what leaves."""

    def give_back(self, count: int) -> None:
        """This many bytes stand still in sockets: others may send as much."""
        return None

    #: The number of networks with large downloads, running or not.
    waiting_networks: int


class Line(Protocol):
    """The line as the live side of a policy sees it."""

    @property
    def line_bytes_s(self) -> float:
        """What the line carries; infinite while unknown."""

    @property
    def lines(self) -> Mapping[str, LineSeen]:
        """The lines of its machines by their names; empty for one machine."""

    @property
    def busy(self) -> bool:
        """Whether the cap holds a download back now."""

    def goodput_bytes_s(self) -> float:
        """The present rate."""

    def set_ceiling(self, bandwidth_bytes_s: float | None) -> None:
        """Configure another bound."""

    def held_back(self, download: LeasedDownload) -> bool | None:
        """Whether this download may be faster than it is."""

    def ended(self, transfer: Transfer, now: float) -> None:
        """A body was handed over whole; a part of it may not have arrived yet."""
        return None

    def wanted_by(self, networks: int) -> None:
        """The number of networks with downloads: running, paused or parked."""
        return None

    def looked(self, now: float, downloads: Collection[LeasedDownload]) -> None:
        """These running downloads were looked at; a tick follows when all were."""

    def tick(self, now: float, downloads: Collection[LeasedDownload], asleep_bytes: int) -> None:
        """All of these were looked at. `asleep_bytes` are under way to those that stand still."""


@dataclass(frozen=True, slots=True)
class ToldSight:
    """What other processes sent: `flying_bytes` had not arrived at `at_s` by their clock."""

    at_s: float
    flying_bytes: int


class LingeringBodies:
    """Ended bodies whose last bytes are under way: at most 2 000, each for 20 s after its end."""

    def __init__(self) -> None:
        self._bodies: list[tuple[Transfer, float]] = []

    def add(self, transfer: Transfer, now: float) -> None:
        """A body ended. Its bytes in the kernel have not arrived."""
        if len(self._bodies) < 2_000 and transfer.flying_bytes():
            self._bodies.append((transfer, now))

    def flying_bytes(self, now: float) -> int:
        """All their bytes under way."""
        total, still = 0, []
        for transfer, since in self._bodies:
            flying = transfer.flying_bytes()
            if flying and now < since + 20.0:
                total += flying
                still.append((transfer, since))
        self._bodies = still
        return total


class LineKeeper:
    """The `Line` of one machine: finds what it carries and caps the pacer just below."""

    def __init__(
        self,
        link: Outlet,
        ceiling_bytes_s: float | None,
        answers: UnarrivedAnswers | None = None,
    ) -> None:
        self._link = link
        self._answers = answers
        self._bottleneck = Bottleneck(ceiling_bytes_s)
        self._orders = LineOrders(ceiling_bytes_s)
        self._held: dict[int, LeasedDownload] = {}
        self._lingering = LingeringBodies()
        #: The looks since the last tick: the number of downloads, and all bytes sent until then.
        self._looks: list[tuple[int, int]] = []
        #: Their samples, by lease.
        self._samples: dict[int, Sample] = {}

    @property
    def line_bytes_s(self) -> float:
        return self._orders.line_bytes_s

    @property
    def lines(self) -> Mapping[str, LineSeen]:
        return ONE_LINE

    @property
    def busy(self) -> bool:
        return self._link.link_busy

    def goodput_bytes_s(self) -> float:
        return self._link.goodput_bytes_s()

    def set_ceiling(self, bandwidth_bytes_s: float | None) -> None:
        self._bottleneck.ceiling_bytes_s = bandwidth_bytes_s

    def held_back(self, download: LeasedDownload) -> bool | None:
        return self._orders.held_back(download.lease, download.stuck, download.in_slow_start)

    def ended(self, transfer: Transfer, now: float) -> None:
        self._lingering.add(transfer, now)

    def wanted_by(self, networks: int) -> None:
        self._link.waiting_networks = networks

    def looked(self, now: float, downloads: Collection[LeasedDownload]) -> None:
        stands = sum([download.came_to_stand(now) for download in downloads])
        if stands:
            # Otherwise many readers that take nothing would make the line look full.
            self._link.give_back(stands)
        self._looks.append((len(downloads), self._link.sent_bytes_total))
        unknown, samples = self.line_bytes_s == math.inf, self._samples
        for one in downloads:
            if one.deliveries and (one.held or not one.paused):
                left, lossy = one.left_bytes, unknown and one.has_lost
                shut, stuck = one.pace.shut, one.stuck
                here = one.arrived_bytes, left, stuck, shut, lossy, one.in_slow_start
                trip_s = next(iter(one.deliveries)).tcp.round_trip_s
                samples[one.lease] = Sample(one.lease, *here, trip_s)

    def tick(
        self,
        now: float,
        downloads: Collection[LeasedDownload],
        asleep_bytes: int,
        seen: ToldSight | None = None,
    ) -> None:
        """Cap and hold back as the bottleneck orders, by the last looks at all downloads.

        Where other processes send, they have `seen` what is under way.
        """
        link = self._link
        total_flying = self._lingering.flying_bytes(now) + asleep_bytes
        if self._answers is not None:
            total_flying += self._answers.flying_bytes(now, wanted=bool(downloads))
        total_flying += sum([download.flying_bytes for download in downloads])
        # Looks are at different times: the mean of what was sent until then fits their sum.
        sent, count = link.sent_bytes_total, sum([many for many, _ in self._looks])
        if count:
            sent = sum([many * sent for many, sent in self._looks]) // count
        self._looks.clear()
        samples, self._samples = list(self._samples.values()), {}
        seen_s = now
        if seen is not None:
            seen_s, sent, total_flying = seen.at_s, link.sent_bytes_total, seen.flying_bytes
        acked = sent - total_flying
        orders = LineOrders(self._bottleneck.ceiling_bytes_s)
        with _log.failuresHandled("The line could not be judged: it is unknown") as judged:
            orders = self._bottleneck.observe(seen_s, acked, total_flying, link.link_busy, samples)
        if judged.failed:
            self._bottleneck = Bottleneck(self._bottleneck.ceiling_bytes_s)
        if orders.cap_bytes_s != self._orders.cap_bytes_s:
            link.set_bandwidth(orders.cap_bytes_s)
        for lease, download in tuple(self._held.items()):
            if lease not in orders.hold:
                del self._held[lease]
                download.let_go(now)
        for download in chosen(orders.hold, downloads):
            if download.lease not in self._held:
                self._held[download.lease] = download
                download.hold()
        self._orders = orders


def chosen(leases: Set[int], downloads: Collection[LeasedDownload]) -> list[LeasedDownload]:
    return [download for download in downloads if download.lease in leases] if leases else []
