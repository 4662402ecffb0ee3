"""The admin pages' context on a running `Service`: state, queue and policy.

Everything is read from the live objects; only history, search and old revisions ask the store.
"""

from __future__ import annotations

import ipaddress
import itertools
import random
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.threads import deferToThreadPool
from twisted.logger import globalLogPublisher
from twisted.python.threadpool import ThreadPool

from policies.job import LeaseView, Snapshot, TicketRow, TicketState
from policies.registry import POLICIES
from policies.settings import PolicySettings
from protocol.units import format_duration
from server.admin.context import (
    Arrival,
    Block,
    Event,
    Health,
    History,
    Revision,
    Row,
    StaleRevision,
    TicketPage,
    TicketView,
)
from server.admin.faults import FaultCount, ask
from server.admin.papers import Papers
from server.admin.pasts import Pasts
from server.store.journal import search_tickets
from server.store.ledger import read_arrivals, read_events, read_revision, read_revisions
from server.store.records import RevisionRecord

if TYPE_CHECKING:
    from server.service import Service

T = TypeVar("T")
#: Small files in a preview; more of them change nothing.
_SMALL_MOST = 3_000
#: Work of the pages (passwords above all) runs here, so that it cannot crowd out the store.
_THREADS = 3


class LiveServer:
    """State, queue and policy of a running server, as `AdminContext` has them."""

    def __init__(self, service: Service, papers: Papers) -> None:
        self.service = service
        self.papers = papers
        self.faults = FaultCount()
        self._pool = ThreadPool(0, _THREADS, "admin")
        self._version = _version()
        self._pasts = Pasts(service)
        self._blocks = {b["network"]: Block(**b) for b in papers.read_list("blocks")}
        self._thin = random.Random(0)
        self._faults_at = (self.now(), 0)

    def open(self) -> None:
        """Start the threads and put the remembered blocks in force."""
        observer: Any = self.faults
        globalLogPublisher.addObserver(observer)
        self._pool.start()
        for block in list(self._blocks.values()):
            if block.until_s is None or block.until_s > self.now():
                self.service.desk.block(block.network, block.until_s)

    def close(self) -> None:
        """Stop the threads."""
        if self.faults in globalLogPublisher._observers:
            globalLogPublisher.removeObserver(self.faults)
        self._pool.stop()

    def now(self) -> float:
        return self.service.now()

    async def off(self, work: Callable[[], T]) -> T:
        found: T = await deferToThreadPool(self.service.reactor, self._pool, work)
        return found

    # -- the state now -----------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        return self.service.gate.policy.snapshot(self.now())

    def health(self) -> Health:
        service = self.service
        state = service.store.state
        multicast = service.multicast.figures() if service.multicast is not None else (0, 0)
        return Health(
            version=self._version,
            started_s=service.started_s,
            draining=service.draining,
            store_degraded=not state.ok,
            store_fault=state.reason,
            goodput_bytes_s=service.pacer.goodput_bytes_s(),
            capacity_bytes_s=service.config.bandwidth,
            connections=len(service.factory.connections),
            held=len(service.gate.holds),
            held_limit=service.gate.holds.most,
            connections_total=service.factory.accepted_total,
            errors_total=self.faults.total + service.store.failures_total,
            forged_total=service.gate.reception.forged_total,
            sent_bytes_total=service.pacer.sent_bytes_total,
            multicast_cohorts=multicast[0],
            multicast_receivers=multicast[1],
            listeners=tuple(listener.url for listener in service.listeners),
        )

    def faults_per_s(self) -> float:
        """Errors a second since the last call."""
        now, total = self.now(), self.health().errors_total
        at, before = self._faults_at
        self._faults_at = (now, total)
        return max(0, total - before) / (now - at) if now > at else 0.0

    def may_scrape(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        networks = self.service.config.metrics_from
        return any(address in ipaddress.ip_network(word, strict=False) for word in networks)

    def leases(self) -> Sequence[LeaseView]:
        return self.service.gate.policy.leases()

    async def history(self, since_s: float, until_s: float, points: int) -> History:
        return await self._pasts.read(since_s, until_s, points)

    # -- the queue ---------------------------------------------------------------------------

    async def tickets(self, search: str, state: str, offset: int, limit: int) -> TicketPage:
        policy = self.service.gate.policy
        if not search:
            snapshot = policy.snapshot(self.now())
            total = {"waiting": snapshot.waiting, "ready": snapshot.ready}.get(
                state, snapshot.waiting + snapshot.ready
            )
            skip = snapshot.ready if state == "waiting" else 0
            line = itertools.islice(policy.tickets(skip + offset), limit)
            rows = tuple(
                self._view(row, place)
                for place, row in enumerate(line, skip + offset + 1)
                if state in ("", row.state)
            )
            return TicketPage(rows, total)
        states = (state,) if state else ("ready", "waiting")
        try:
            numbers, total = await self.service.store.read(
                lambda session: search_tickets(session, search, states, offset, limit)
            )
        except Exception:  # noqa: BLE001 - with a dead database the queue's head is all there is
            return TicketPage((), 0)
        found = (self.service.gate.policy.ticket(number) for number in numbers)
        live = (TicketState.WAITING, TicketState.READY)
        rows = tuple(self._view(row, None) for row in found if row and row.state in live)
        return TicketPage(rows, total)

    def ticket(self, number: int) -> TicketView | None:
        row = self.service.gate.policy.ticket(number)
        if row is None or row.state not in (TicketState.WAITING, TicketState.READY):
            return None
        return self._view(row, None)

    def _view(self, row: TicketRow, place: int | None) -> TicketView:
        policy = self.service.gate.policy
        estimate = policy.estimate(row.number, self.now())
        if place is None:
            place = policy.place(row.number)
        weights = self.service.gate.settings.class_weights
        kind = next((n for n, weight in weights.items() if weight == row.weight != 1.0), "")
        return TicketView(row, place, estimate.expected_s if estimate else None, kind)

    def cancel_lease(self, lease: int) -> bool:
        return self.service.desk.cancel(lease, "the operator has cancelled this download")

    def expire_ticket(self, ticket: int) -> bool:
        return self.service.desk.withdraw(ticket)

    def promote_ticket(self, ticket: int) -> bool:
        return self.service.desk.promote(ticket)

    def blocks(self) -> Sequence[Block]:
        now = self.now()
        return [b for b in self._blocks.values() if b.until_s is None or b.until_s > now]

    def block(self, block: Block) -> None:
        self._blocks[block.network] = block
        self.service.desk.block(block.network, block.until_s)
        self.papers.write_list("blocks", self.blocks())

    def unblock(self, network: str) -> bool:
        known = self._blocks.pop(network, None) is not None
        self.papers.write_list("blocks", self.blocks())
        return self.service.desk.unblock(network) or known

    # -- the policy --------------------------------------------------------------------------

    def policies(self) -> Sequence[str]:
        return tuple(POLICIES)

    def current(self) -> Revision:
        return _revision(self.service.revision)

    async def revisions(self, before: int | None, limit: int) -> Sequence[Revision]:
        found = await ask(self.service.store, lambda s: read_revisions(s, limit, before))
        rows = [_revision(record) for record in found]
        current = self.current()
        if (before is None or before > current.number) and (
            not rows or rows[0].number < current.number
        ):
            rows.insert(0, current)  # on its way to the database
        return rows[:limit]

    async def revision(self, number: int) -> Revision | None:
        if number == self.service.revision.id:
            return self.current()
        if number >= 2**62:
            return None
        found = await ask(self.service.store, lambda session: read_revision(session, number))
        return _revision(found) if found else None

    def apply(
        self,
        policy: str,
        settings: PolicySettings,
        who: str,
        note: str,
        expected: int,
        restored_from: int | None = None,
    ) -> Revision:
        if expected != self.service.revision.id:
            raise StaleRevision
        return _revision(self.service.apply(policy, settings, who, note, restored_from))

    async def arrivals(self, since_s: float, limit: int) -> Sequence[Arrival]:
        found = await ask(self.service.store, lambda s: read_arrivals(s, since_s, limit * 10))
        if len(found) > limit:
            chosen = sorted(self._thin.sample(range(len(found)), limit))
            found = [found[index] for index in chosen]
        large = [Arrival(r.at_s, r.client, r.file, r.size_bytes) for r in found]
        return sorted([*large, *await self._small_ones(since_s)], key=lambda a: a.t_s)

    async def _small_ones(self, since_s: float) -> list[Arrival]:
        """Small files that were answered at once are only counted: as many, at random moments."""
        now = self.now()
        history = await self.history(since_s, now, 240)
        rates = [rate for rate in history.series.get("admitted_small", ()) if rate is not None]
        if not rates:
            return []
        span_s = len(rates) * (now - since_s) / max(1, len(history.t))
        count = min(_SMALL_MOST, round(sum(rates) / len(rates) * span_s))
        size = max(1, self.service.gate.settings.small_below_bytes // 2)
        moments = sorted(self._thin.uniform(now - span_s, now) for _ in range(count))
        return [Arrival(at, f"small-{i}", "small", size) for i, at in enumerate(moments)]

    # -- events and neighbours ---------------------------------------------------------------

    def log(self, kind: str, who: str, text: str) -> None:
        self.service.note_event(kind, text, who=who)

    async def events(
        self, before: int | None, limit: int, kind: str, search: str
    ) -> Sequence[Event]:
        found = await ask(
            self.service.store,
            lambda s: read_events(
                s, limit, before_id=before, kind=kind or None, text=search or None
            ),
        )
        return [Event(r.id, r.at_s, r.kind, str(r.data.get("who", "")), r.text) for r in found]

    def mirrors(self) -> Sequence[Row]:
        rows = [
            Row(source.url, "configured", {"priority": str(source.priority)})
            for source in self.service.site.said.mirrors
        ]
        if self.service.mirror_origin is not None:
            for mirror in self.service.mirror_origin.registry.standings(self.now()):
                facts = {
                    "url": mirror.url,
                    "channel": mirror.channel,
                    "version": str(mirror.version),
                    "seen": f"{format_duration(mirror.seen_s)} ago",
                }
                if mirror.free is not None:
                    facts["free"] = "yes" if mirror.free else "no"
                if mirror.trouble:
                    facts["trouble"] = mirror.trouble
                rows.append(Row(mirror.name, mirror.condition, facts))
        return rows

    def multicast(self) -> Sequence[Row]:
        room = self.service.multicast
        return [] if room is None else [Row(*line) for line in room.lines()]


def _revision(record: RevisionRecord) -> Revision:
    return Revision(
        number=record.id,
        at_s=record.at_s,
        who=record.author,
        note=record.note,
        policy=record.policy,
        settings=record.settings,
        restored_from=record.restored_from,
    )


def _version() -> str:
    try:
        return version("tidegate")
    except PackageNotFoundError:
        return "0"
