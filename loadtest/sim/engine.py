"""Clients, server and link in virtual time: discrete events on a heap, exact between them.

The engine owns time and bytes and nothing else. Who may start is decided by a policy object of
the server's own kind, called through the server's own `policies.desk`; what a client does after
an answer is decided by the downloader's own `client.visit`. One run is a function of (workload,
policy, conditions): no clock, no global randomness.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from client.visit import (
    Ask,
    GiveUp,
    Granted,
    Visit,
    WaitUntil,
)
from loadtest.sim.chronicle import Chronicle
from loadtest.sim.conditions import Conditions, Starved
from loadtest.sim.hearing import heard
from loadtest.sim.link import Flow, Link
from loadtest.sim.outcome import Client, Tally
from loadtest.workloads import File, Workload
from policies.desk import Desk
from policies.job import AdmissionPolicy, Admit, Job, Wait


class Engine:
    """One run. Build it, call `run` once, read the tally."""

    def __init__(
        self,
        workload: Workload,
        policy: AdmissionPolicy,
        conditions: Conditions,
        seed: int = 0,
        chronicle: Chronicle | None = None,
    ) -> None:
        self.workload = workload
        self.policy = policy
        self.conditions = conditions
        self.now = 0.0
        self.tally = Tally()
        self._link = Link(conditions.bandwidth_bytes_s)
        self._desk = Desk(policy, self)
        self._random = Random(f"sim/{workload.seed}/{seed}")
        self._chronicle = chronicle
        self._heap: list[tuple[float, int, Callable[[Client], None], Client]] = []
        self._sequence = 0
        self._wake_at: float | None = None
        self._leases: dict[int, list[Client]] = {}
        self._paused: set[int] = set()
        self._held: dict[int, Client] = {}
        self._present = 0
        self._ticked_s = 0.0
        self._ticked_bytes = 0.0

    # --- the loop --------------------------------------------------------------------------

    def run(self) -> Tally:
        """Until the last client has left; raises `Starved` if that never happens."""
        link, heap, tick_s = self._link, self._heap, self.conditions.tick_s
        first_tick_s = self.conditions.first_tick_s
        visitors = self.workload.visitors
        arrived, count = 0, len(visitors)
        next_tick = 0.0
        while True:
            now = link.next_end()
            kind = 0
            if heap and heap[0][0] < now:
                now, kind = heap[0][0], 1
            if arrived < count and visitors[arrived].arrival_s < now:
                now, kind = visitors[arrived].arrival_s, 2
            if self._present:
                if self._wake_at is not None and self._wake_at < now:
                    now, kind = self._wake_at, 3
                if next_tick < now:
                    now, kind = next_tick, 4
            elif arrived == count:
                break
            if now > self.conditions.limit_s:
                raise Starved(
                    f"{self._present} clients still wait after {self.conditions.limit_s:.0f} s of "
                    f"virtual time under {self.policy.name}"
                )
            now = max(now, self.now)
            self.now = now
            link.run_to(now)
            self.tally.events += 1
            if kind == 1:
                _, _, act, client = heappop(heap)
                act(client)
            elif kind == 0:
                flow = link.pop_ended()
                if flow is not None and flow.payload is not None:
                    self._body_ended(flow.payload)
            elif kind == 2:
                if not self._present:
                    next_tick = now + (tick_s if first_tick_s is None else first_tick_s)
                    self._ticked_s, self._ticked_bytes = now, link.delivered_bytes
                self._arrive(Client(arrived, visitors[arrived]))
                arrived += 1
            elif kind == 3:
                self._settle()
            else:
                next_tick = now + tick_s
                self._tick()
            if self._chronicle is not None:
                self._chronicle.flow(now, link.goodput_bytes_s)
        self.tally.ended_s = self.now
        self.tally.delivered_bytes = link.delivered_bytes
        return self.tally

    def _at(self, when: float, act: Callable[[Client], None], client: Client) -> None:
        self._sequence += 1
        heappush(self._heap, (when, self._sequence, act, client))

    def _settle(self) -> None:
        self._wake_at = self._desk.settle(self.now)
        if self._wake_at is not None and self._wake_at <= self.now:
            self._wake_at = self.now + 1e-3

    def _tick(self) -> None:
        now, link, progress = self.now, self._link, self.policy.progress
        seen_since_s = now - self.conditions.look_s
        for lease, clients in self._leases.items():
            flow = clients[0].flow
            if flow is not None and flow.running:
                if flow.since_s <= seen_since_s:
                    flow.last_rate_bytes_s = link.rate(flow)
                progress(lease, now, math.ceil(link.remaining(flow)), flow.last_rate_bytes_s)
        passed = now - self._ticked_s
        if passed > 0:
            goodput = (link.delivered_bytes - self._ticked_bytes) / passed
            self.policy.observe(goodput, link.full, now)
            self._ticked_s, self._ticked_bytes = now, link.delivered_bytes
        self._settle()

    # --- a client's way --------------------------------------------------------------------

    def _arrive(self, client: Client) -> None:
        self._present += 1
        if self._chronicle is not None:
            self._chronicle.arrive(self.now, client.number, self._demand(client))
        self._next_file(client)

    def _next_file(self, client: Client) -> None:
        client.file_number += 1
        if client.file_number >= self._files_of(client):
            self._leave(client, gave_up=False)
            return
        visitor = client.visitor
        conditions = self.conditions
        manners = conditions.rude_manners if visitor.rude else conditions.manners
        client.visit = Visit(manners, self._random, self.now)
        client.asked_s = self.now
        client.admitted_s = client.first_byte_s = math.nan
        client.promise = None
        client.visit.begin(self.now)
        self._at(self.now + self.conditions.attempt_s, self._answer, client)
        if math.isfinite(visitor.patience_s):
            number = client.file_number
            self._at(
                self.now + visitor.patience_s,
                lambda client: self._lose_patience(client, number),
                client,
            )

    def _files_of(self, client: Client) -> int:
        return 1 if self.conditions.one_connection else len(client.visitor.files)

    def _file_of(self, client: Client) -> File:
        if self.conditions.one_connection:
            return File("all", client.visitor.total_bytes)
        return client.visitor.files[client.file_number]

    def _answer(self, client: Client) -> None:
        """The request has reached the server."""
        if client.gone:
            return
        assert client.visit is not None
        shown = client.visit.ticket
        self._offer(
            client,
            None if shown is None else int(shown),
            present=self.conditions.hold and not client.visitor.rude,
        )
        self._settle()

    def _offer(self, client: Client, ticket: int | None, *, present: bool) -> None:
        visit, now = client.visit, self.now
        assert visit is not None
        file = self._file_of(client)
        job = Job(client.visitor.key, file.name, file.size_bytes, file.size_bytes, present=present)
        decision = self._desk.offer(job, now, ticket)
        if isinstance(decision, Admit):
            if self._chronicle is not None:
                self._chronicle.admitted(now, client.number)
            visit.answered(now, Granted())
            client.held = None
            client.lease = decision.lease
            client.admitted_s = now
            client.flow = Flow(client.visitor.rate_bytes_s, file.size_bytes, client)
            if decision.lease in self._leases:
                self._leases[decision.lease].append(client)
            else:
                self._leases[decision.lease] = [client]
            self._at(now + self.conditions.accept_s, self._body_begins, client)
            return
        if self._chronicle is not None:
            self._chronicle.turned_away(now, client.number)
        if isinstance(decision, Wait):
            if decision.estimate is not None and client.promise is None:
                client.promise = (now, decision.estimate.expected_s, decision.estimate.p90_s)
            if present and decision.ticket is not None:
                client.held = decision.ticket
                self._held[decision.ticket] = client
                return
        if self.conditions.answer_bytes:
            self._link.start(Flow(math.inf, self.conditions.answer_bytes))
        action = visit.answered(now, heard(decision))
        if isinstance(action, WaitUntil):
            self._at(action.at, self._ask_again, client)
        elif isinstance(action, Ask):
            self._at(now + self.conditions.attempt_s, self._answer, client)
        elif isinstance(action, GiveUp):
            self._leave(client, gave_up=True)

    def _ask_again(self, client: Client) -> None:
        if client.gone:
            return
        assert client.visit is not None
        client.visit.due(self.now)
        self._at(self.now + self.conditions.attempt_s, self._answer, client)

    def _body_begins(self, client: Client) -> None:
        if client.gone or client.lease is None or client.flow is None:
            return
        if client.lease not in self._paused:
            self._carry(client)

    def _carry(self, client: Client) -> None:
        assert client.flow is not None
        if math.isnan(client.first_byte_s):
            client.first_byte_s = self.now
        if self._chronicle is not None:
            self._chronicle.carried(self.now, client.number, True)
        self._link.start(client.flow)

    def _body_ended(self, client: Client) -> None:
        lease, flow = client.lease, client.flow
        assert lease is not None
        assert flow is not None
        sharers = self._leases[lease]
        sharers.remove(client)
        self.policy.progress(lease, self.now, 0, flow.last_rate_bytes_s)
        self._desk.end(lease, self.now, 0, done=not sharers)
        if not sharers:
            del self._leases[lease]
            self._paused.discard(lease)
        client.lease = client.flow = None
        self._record(client, gave_up=False)
        if self._chronicle is not None:
            self._chronicle.ended(self.now, client.number)
        self._settle()
        self._next_file(client)

    def _lose_patience(self, client: Client, file_number: int) -> None:
        if client.gone or client.file_number != file_number:
            return
        if not math.isnan(client.first_byte_s):
            return
        if client.held is not None:
            del self._held[client.held]
            self.policy.absent(client.held, self.now)
            client.held = None
        if client.lease is not None:
            sharers = self._leases[client.lease]
            sharers.remove(client)
            self._desk.end(client.lease, self.now, self._file_of(client).size_bytes, done=False)
            if not sharers:
                del self._leases[client.lease]
            client.lease = client.flow = None
        self._leave(client, gave_up=True)
        self._settle()

    def _leave(self, client: Client, *, gave_up: bool) -> None:
        if gave_up:
            self._record(client, gave_up=True)
        client.gone = True
        self._present -= 1
        self.tally.add_session(client, self.now, gave_up=gave_up)
        if self._chronicle is not None:
            self._chronicle.leave(self.now, client.number, self._demand(client))

    def _record(self, client: Client, *, gave_up: bool) -> None:
        assert client.visit is not None
        client.attempts += client.visit.attempts
        size_bytes = self._file_of(client).size_bytes
        self.tally.add_download(client, size_bytes, self.now, gave_up=gave_up)

    def _demand(self, client: Client) -> float:
        return min(client.visitor.rate_bytes_s, self.conditions.bandwidth_bytes_s)

    # --- the desk's hands ------------------------------------------------------------------

    def pause(self, lease: int, now: float) -> None:
        """Stop the transfers of this lease."""
        self._paused.add(lease)
        for client in self._leases.get(lease, ()):
            if client.flow is not None and client.flow.running:
                self._link.stop(client.flow)
                if self._chronicle is not None:
                    self._chronicle.carried(now, client.number, False)

    def resume(self, lease: int, now: float) -> None:
        """Let them go on; one that has not begun yet begins when its connection stands."""
        self._paused.discard(lease)
        for client in self._leases.get(lease, ()):
            begun = now >= client.admitted_s + self.conditions.accept_s
            if begun and client.flow is not None and not client.flow.running:
                self._carry(client)

    def idled_out(self, lease: int, now: float) -> None:
        """A lease nobody used is over; nobody here has a connection on it."""
        self._paused.discard(lease)

    def expired(self, ticket: int, now: float) -> None:
        """A ticket is over; whoever still holds it will hear so when it asks."""
        client = self._held.pop(ticket, None)
        if client is not None:
            client.held = None
            self._at(now, self._answer, client)

    def call(self, ticket: int, now: float) -> None:
        """Offer the held client's job again, or withdraw a ticket whose client has left."""
        client = self._held.pop(ticket, None)
        if client is None or client.gone:
            self.policy.withdraw(ticket, now)
            return
        client.held = None
        self._offer(client, ticket, present=True)
