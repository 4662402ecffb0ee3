"""The live side of a policy: leases with their transfers, the journal, and the passing of time.

Everything that the policy decides by itself is carried out here: pauses, resumes, leases that
ended, tickets that are called. It hears how far each download is four times a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from policies.job import AdmissionPolicy, Admit, Job, TicketRow, TicketState
from policies.registry import make_policy
from policies.settings import PolicySettings
from server.downloads import Delivery, Download
from server.gateparts import GateParts

TICK_S = 0.25
_OVER = frozenset({TicketState.DONE, TicketState.EXPIRED, TicketState.WITHDRAWN})


class Floor:
    """Owns the policy and the downloads.

    `called` hears of each ticket whose client may start, `one_ended` of each client and file with a
    connection less than before.
    """

    def __init__(
        self,
        parts: GateParts,
        policy: AdmissionPolicy,
        settings: PolicySettings,
        called: Callable[[int], None],
        one_ended: Callable[[str, str], None],
    ) -> None:
        self.policy = policy
        self.settings = settings
        self.downloads: dict[int, Download] = {}
        #: The same by client and file, of which one client has at most one lease.
        self._by_job: dict[tuple[str, str], Download] = {}
        self.now: Callable[[], float] = parts.now
        self._parts = parts
        self._called = called
        self._one_ended = one_ended
        self._ended: set[tuple[str, str]] = set()
        self._soon_call: Any = None
        self._wake_call: Any = None
        self._tick_call: Any = None

    def open(self, rows: Iterable[TicketRow]) -> None:
        """Take up the tickets of an earlier run and begin to tick."""
        self.policy.restore(rows, self.now(), self._parts.numbers.first)
        self._tick_call = self._parts.reactor.callLater(TICK_S, self._tick)
        self.settle()

    def close(self) -> None:
        """Stop the clocks and write the last changes."""
        for call in (self._soon_call, self._wake_call, self._tick_call):
            if call is not None and call.active():
                call.cancel()
        self._record()

    def switch(self, name: str, settings: PolicySettings) -> None:
        """Another policy, or the same with other settings; it takes over everything."""
        self._record()
        self.policy = make_policy(name, settings, self._parts.rng, self.policy)
        self.settings = settings
        self._let_time_pass()

    def find(self, client: str, file: str) -> Download | None:
        """The running download of this client and file."""
        return self._by_job.get((client, file))

    def begin(self, download: Download) -> Download:
        """A lease was granted."""
        self.downloads[download.lease] = download
        self._by_job[download.client, download.file] = download
        self._parts.popularity.count(download.file, 1, 0)
        return download

    def _drop(self, lease: int) -> Download | None:
        download = self.downloads.pop(lease, None)
        if download is not None and self.find(download.client, download.file) is download:
            del self._by_job[download.client, download.file]
        return download

    def end(self, download: Download, reason: str) -> None:
        """Cut a download off and free its slot."""
        if self._drop(download.lease) is None:
            return
        download.abort(reason)
        self.policy.release(download.lease, self.now(), False)
        self._parts.passes.end(download.client, download.file)
        self.settle()

    def delivered(self, delivery: Delivery) -> None:
        """A body has ended: its lease is done, or idles for a while."""
        download = delivery.download
        self._parts.popularity.count(download.file, 0, delivery.delivered_bytes)
        if self.downloads.get(download.lease) is not download:
            return
        now = self.now()
        self._ended.add((download.client, download.file))
        self.policy.detach(download.lease, now, download.remaining_bytes())
        if download.complete():
            self._drop(download.lease)
            self.policy.release(download.lease, now, True)
            self._parts.passes.end(download.client, download.file)
        self.settle()

    def settle(self) -> None:
        """After calls to the policy: journal what changed, and let it decide what follows."""
        self._record()
        if self._soon_call is None:
            self._soon_call = self._parts.reactor.callLater(0, self._let_time_pass)

    def _record(self) -> None:
        rows = self.policy.changes()
        if not rows:
            return
        for row in rows:
            if row.state in _OVER:
                self._parts.numbers.end(row.number)
        self._parts.journal.keep_tickets(rows)

    def _let_time_pass(self) -> None:
        if self._soon_call is not None and self._soon_call.active():
            self._soon_call.cancel()
        self._soon_call = None
        now = self.now()
        step = self.policy.advance(now)
        for lease in step.pause:
            if lease in self.downloads:
                self.downloads[lease].pause()
        for lease in step.resume:
            if lease in self.downloads:
                self.downloads[lease].resume(now)
        for lease in step.idled_out:
            download = self._drop(lease)
            if download is not None:
                download.abort("the lease is over")
                self._parts.passes.end(download.client, download.file)
        for number in step.call:
            self._called(number)
        if self._ended:
            ended, self._ended = self._ended, set()
            for client, file in ended:
                self._one_ended(client, file)
        self._record()
        if self._wake_call is not None and self._wake_call.active():
            self._wake_call.cancel()
        self._wake_call = None
        if step.wake_at is not None and self._soon_call is None:
            delay_s = max(0.001, step.wake_at - now)
            self._wake_call = self._parts.reactor.callLater(delay_s, self._let_time_pass)

    def _tick(self) -> None:
        self._tick_call = self._parts.reactor.callLater(TICK_S, self._tick)
        now = self.now()
        for download in self.downloads.values():
            if not download.paused:
                rate = download.measure(now)
                left = download.remaining_bytes()
                self.policy.progress(download.lease, now, left, rate)
        link = self._parts.link
        self.policy.observe(link.goodput_bytes_s(), link.link_busy, now)
        self._seat(now)
        self._let_time_pass()

    def _seat(self, now: float) -> None:
        """Give drawn entries their places. A slot given to one waits for it like a resume does."""
        for entry in self._parts.prequeue.due(now):
            size = entry.rep.size_bytes
            job = Job(entry.client, entry.rep.url_path, size, size, weight=entry.weight)
            decision = self.policy.offer(job, now)
            if isinstance(decision, Admit):
                if decision.lease not in self.downloads:
                    self.begin(Download(decision, job, entry.rep, now))
                self.policy.detach(decision.lease, now, size)
        self._parts.prequeue.tend(now)
