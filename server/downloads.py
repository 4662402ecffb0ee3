"""The live side of leases: which transfers ride on one, what was delivered, how fast.

A lease is done when every byte that its client wanted has been delivered, over however many
connections. Bytes count as delivered when the peer's kernel has them, so a resume after a broken
connection finds its lease open.
"""

from __future__ import annotations

from collections.abc import Callable

from policies.job import Admit, Job
from server.coverage import Coverage
from server.transfer import BodyPlan, Representation, Transfer

#: Rates are smoothed over the first of these, and looked at after the second of running, seconds.
_SMOOTHING_S, LOOK_S = 0.5, 0.2


class Delivery:
    """One response body on a lease; the listener of its transfer."""

    __slots__ = (
        "_ended",
        "_plan",
        "_seen_bytes",
        "delivered_bytes",
        "download",
        "over",
        "transfer",
    )

    def __init__(
        self, download: Download, plan: BodyPlan, ended: Callable[[Delivery], None]
    ) -> None:
        self.download = download
        self.transfer: Transfer | None = None
        self.over = False
        self.delivered_bytes = 0
        self._plan = plan
        self._ended = ended
        self._seen_bytes = 0

    def transfer_done(self, transfer: Transfer, complete: bool) -> None:
        """See `TransferListener`: count what arrived, and tell the gate."""
        if self.over:
            return
        self.over = True
        self.delivered_bytes = transfer.delivered_bytes()
        download = self.download
        if complete:
            for start, stop in self._plan.ranges:
                download.coverage.add(start, stop)
        elif len(self._plan.ranges) == 1:
            start = self._plan.ranges[0][0]
            download.coverage.add(start, start + transfer.delivered_bytes())
        download.flowed_bytes += max(0, transfer.delivered_bytes() - self._seen_bytes)
        download.deliveries.discard(self)
        self._ended(self)

    def in_flight_bytes(self) -> int:
        """Bytes of this body that have arrived and are not in the coverage yet."""
        return self.transfer.delivered_bytes() if self.transfer is not None else 0

    def flow(self) -> int:
        """Bytes that arrived since the last call."""
        arrived = self.in_flight_bytes()
        fresh, self._seen_bytes = arrived - self._seen_bytes, arrived
        return max(0, fresh)


class Download:
    """One lease as the gate sees it."""

    __slots__ = (
        "_looked_s",
        "address",
        "client",
        "coverage",
        "deliveries",
        "etag",
        "file",
        "flowed_bytes",
        "lease",
        "paused",
        "rate_bytes_s",
        "signed",
        "size_bytes",
        "started_s",
        "ticket",
        "token",
        "wanted_bytes",
    )

    def __init__(self, admit: Admit, job: Job, rep: Representation, now: float) -> None:
        #: The token that its answers carry, and the ticket and class that it was signed for.
        self.token = b""
        self.signed: tuple[int, str] | None = None
        self.lease = admit.lease
        self.ticket = admit.ticket
        self.client = job.client
        self.file = job.file
        self.size_bytes = rep.size_bytes
        self.etag = rep.etag
        self.wanted_bytes = job.remaining_bytes
        self.started_s = now
        self.paused = False
        self._looked_s = now
        self.rate_bytes_s = 0.0
        self.flowed_bytes = 0
        self.coverage = Coverage()
        self.deliveries: set[Delivery] = set()
        self.address = job.client.partition("#")[0]

    def renew(self, rep: Representation, wanted_bytes: int) -> None:
        """The file was replaced: what was delivered of the old one counts no longer."""
        if rep.etag != self.etag:
            self.etag, self.size_bytes = rep.etag, rep.size_bytes
            self.wanted_bytes = wanted_bytes
            self.coverage = Coverage()

    def remaining_bytes(self) -> int:
        """What the client still wants, bytes on their way not counted."""
        flying = sum(delivery.in_flight_bytes() for delivery in self.deliveries)
        return max(0, self.wanted_bytes - self.coverage.total_bytes - flying)

    def complete(self) -> bool:
        """Whether everything wanted was delivered."""
        return not self.deliveries and self.coverage.total_bytes >= self.wanted_bytes

    def measure(self, now: float) -> float:
        """Update and return the smoothed rate over the time it has run; not while paused."""
        running_s = now - self._looked_s
        if running_s < LOOK_S:
            return self.rate_bytes_s
        fresh = self.flowed_bytes + sum(delivery.flow() for delivery in self.deliveries)
        self.flowed_bytes = 0
        self._looked_s = now
        rate = fresh / running_s
        if self.rate_bytes_s == 0.0:
            self.rate_bytes_s = rate
        else:
            self.rate_bytes_s += (rate - self.rate_bytes_s) * min(1.0, running_s / _SMOOTHING_S)
        return self.rate_bytes_s

    def pause(self) -> None:
        """Stop all transfers, and those to come."""
        self.paused = True
        for delivery in tuple(self.deliveries):
            if delivery.transfer is not None:
                delivery.transfer.pause()

    def resume(self, now: float) -> None:
        """Let all transfers go on."""
        self.paused = False
        # What trickled in while it was paused tells nothing of its speed.
        for delivery in tuple(self.deliveries):
            delivery.flow()
        self.flowed_bytes = 0
        self._looked_s = now
        for delivery in tuple(self.deliveries):
            if delivery.transfer is not None:
                delivery.transfer.resume()

    def abort(self, reason: str) -> None:
        """Cut all connections; their ends count for nothing any more."""
        for delivery in tuple(self.deliveries):
            delivery.over = True
            if delivery.transfer is not None:
                delivery.transfer.abort(reason)
        self.deliveries.clear()
