"""Clients, server and link in virtual time: discrete events on a heap, exact between them.

The engine owns time and bytes and nothing else. A policy object of the server's own kind decides
who may start, called through the server's own `policies.driver`; what a client does after an answer
is decided by the downloader's own `client.net.retry`. One run is a function of (workload, policy,
conditions): no clock, no global randomness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from heapq import heappop, heappush
from random import Random

from ...client.net.retry import (
    FailureReason,
    GiveUp,
    Granted,
    Refused,
    RetryAfter,
    RetryState,
    SendNow,
    WaitUntil,
)
from ...policies.admission import AdmissionPolicy
from ...policies.contract import Admit, Job, Refuse, Wait
from ...policies.driver import PolicyDriver
from ...policies.keep_alive import BACKGROUND_WEIGHT, kept_alive_bytes_s
from ...policies.max_min import Flow, SharedLink
from ...policies.network_shares import BURST_BYTES, NetworkShares, enclosing
from ..workloads import File, Workload
from .chronology import Chronicle
from .conditions import Conditions, CongestionWindow, Starved
from .outcome import RunRecord, SimClient, promised
from .sight import Sight


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
        self.tally = RunRecord()
        self._link = SharedLink(conditions.bandwidth_bytes_s)
        self._driver = PolicyDriver(policy, self)
        self._random = Random(f"sim/{workload.seed}/{seed}")
        self._chronicle = chronicle
        self._heap: list[tuple[float, int, Callable[[SimClient], None], SimClient]] = []
        self._sequence = 0
        self._wake_at: float | None = None
        self._leases: dict[int, list[SimClient]] = {}
        self._paused: set[int] = set()
        #: Those that get what others leave of the line.
        self._background: set[int] = set()
        #: Clients that wait inside their request, by ticket; those of one key share one.
        self._held: dict[int, list[SimClient]] = {}
        self._held_downloads: set[tuple[str, str]] = set()
        self._present = 0
        #: As live (`server.files.request_queue`): small files of networks beyond their share wait.
        self._shares = NetworkShares()
        self._earned_s = 0.0
        self._waiting_networks: set[str] = set()
        self._sight = Sight(self._link, conditions)
        #: Of the leases that a trial of the line holds back.
        self._tried: frozenset[int] = frozenset()
        self._late = Random(f"ticks/{workload.seed}/{seed}")
        self._network = conditions.network
        self._most_bytes_s = math.inf
        if not conditions.can_pause and conditions.ceiling_bytes_s is not None:
            self._most_bytes_s = conditions.ceiling_bytes_s / policy.line_shares()

    # --- the loop --------------------------------------------------------------------------

    def run(self) -> RunRecord:
        """Until the last client has left; raises `Starved` if that never happens: then the tally
        has what was until the limit."""
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
                self._sum_up()
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
                    self._sight.restart(now)
                self._arrive(SimClient(arrived, visitors[arrived]))
                arrived += 1
            elif kind == 3:
                self._settle()
            else:
                # A live server's timer is late by chance.
                next_tick = now + tick_s * (1.0 + 0.04 * self._late.random())
                self._tick()
            if self._chronicle is not None:
                self._chronicle.flow(now, link.goodput_bytes_s)
        self._sum_up()
        return self.tally

    def _sum_up(self) -> None:
        self.tally.ended_s = self.now
        self.tally.delivered_bytes = self._link.delivered_bytes

    def _at(self, when: float, act: Callable[[SimClient], None], client: SimClient) -> None:
        self._sequence += 1
        heappush(self._heap, (when, self._sequence, act, client))

    def _at_file(self, when: float, act: Callable[[SimClient], None], client: SimClient) -> None:
        """The same, unless the client has got this file by then."""
        number = client.file_number
        self._at(when, lambda client: act(client) if client.file_number == number else None, client)

    def _settle(self) -> None:
        self._wake_at = self._driver.settle(self.now)
        if self._wake_at is not None and self._wake_at <= self.now:
            self._wake_at = self.now + 1e-3

    def _tick(self) -> None:
        now, sight = self.now, self._sight
        flows = {}
        accept_s, paused = self.conditions.accept_s, self._paused
        for lease, clients in self._leases.items():
            client = clients[0]
            flow = client.flow
            if flow is not None and lease not in paused and now >= client.admitted_s + accept_s:
                flows[lease] = flow
        if self.conditions.reader_bytes:
            self._read_on(flows)
        goodput = sight.tick(now, flows)
        held, self._tried = self._tried, sight.orders.hold
        for lease in self._tried - held:
            self._stop(lease, now)
        for lease in held - self._tried:
            self._go_on(lease, now)
        progress = self._driver.policy.progress
        for lease, left, rate, held_back, reads in sight.progress(now, flows):
            progress(lease, now, left, rate, held_back, reads)
        if self.conditions.paced:
            for lease in sight.ending:
                client = self._leases[lease][0]
                assert client.flow is not None
                after_s = self._link.until_s(client.flow, self.conditions.socket_bytes)
                self._at(now + after_s, partial(self._handed_over, client.flow), client)
        self._driver.policy.observe(goodput, sight.busy, now, sight.found_bytes_s)
        self._settle()

    # --- a client's way --------------------------------------------------------------------

    def _arrive(self, client: SimClient) -> None:
        self._present += 1
        if self._chronicle is not None:
            self._chronicle.arrive(self.now, client.number, self._demand(client))
        self._next_file(client)

    def _next_file(self, client: SimClient) -> None:
        client.file_number += 1
        if client.file_number >= self._files_of(client):
            self._leave(client, gave_up=False)
            return
        visitor = client.visitor
        conditions = self.conditions
        manners = conditions.rude_manners if visitor.rude else conditions.manners
        client.visit = RetryState(manners, self._random, self.now)
        client.asked_s = self.now
        client.admitted_s = client.first_byte_s = math.nan
        client.promise = None
        client.visit.begin()
        self._at_file(self.now + self._reaches_s(client), self._answer, client)
        if math.isfinite(visitor.patience_s):
            number = client.file_number
            self._at(
                self.now + visitor.patience_s,
                lambda client: self._lose_patience(client, number),
                client,
            )

    def _files_of(self, client: SimClient) -> int:
        return 1 if self.conditions.one_connection else len(client.visitor.files)

    def _file_of(self, client: SimClient) -> File:
        if self.conditions.one_connection:
            return File("all", client.visitor.total_bytes)
        return client.visitor.files[client.file_number]

    def _answer(self, client: SimClient) -> None:
        """The request has reached the server."""
        if client.gone:
            return
        assert client.visit is not None
        shown, file = client.visit.ticket, self._file_of(client)
        after_s = self._waits_for_share_s(client, file)
        if after_s > 0.0:
            self._at_file(self.now + after_s, self._answer, client)
            return
        if self._goes_at_once(file, shown):
            self._admit(client)
            return
        self._offer(
            client,
            None if shown is None else int(shown),
            present=self.conditions.hold and not (client.visitor.rude or client.visitor.polls),
        )
        self._settle()

    def _waits_for_share_s(self, client: SimClient, file: File) -> float:
        """How long a small file waits, as its network had more than its share of a full link."""
        network = client.visitor.network
        if (
            not self.conditions.paced
            or not network
            or file.size_bytes >= self.workload.small_below_bytes
        ):
            return 0.0
        path = (network[0], *enclosing(network[-1]))
        share_bytes_s = self._earn_shares()
        if self._link.full:
            beyond = self._shares.excess_bytes(path) - BURST_BYTES
            if beyond > 0.0:
                self._waiting_networks.add(network[-1])
                return max(self.conditions.tick_s, beyond / share_bytes_s)
            self._shares.charge(path, file.size_bytes)
        self._waiting_networks.discard(network[-1])
        return 0.0

    def _earn_shares(self) -> float:
        """Each share has grown since it was last asked; how fast one grows now."""
        networks = max(1, len(self._waiting_networks))
        large = len(_networks_of(self._leases)) + len(_networks_of(self._held))
        sharing = max(networks + large, 2 * networks)
        share_bytes_s = self._link.capacity_bytes_s / sharing
        self._shares.earn(share_bytes_s * (self.now - self._earned_s))
        self._earned_s = self.now
        return share_bytes_s

    def _offer(
        self, client: SimClient, ticket: int | None, *, present: bool, may_hold: bool = True
    ) -> None:
        visit, now = client.visit, self.now
        assert visit is not None
        file = self._file_of(client)
        job = Job(
            client.visitor.key,
            file.name,
            file.size_bytes,
            file.size_bytes,
            present=present,
            network=client.visitor.network,
            counts_body=client.visitor.counts_body,
        )
        decision = self._driver.offer(job, now, ticket)
        if isinstance(decision, Admit):
            self._admit(client)
            client.lease = decision.lease
            self._leases.setdefault(decision.lease, []).append(client)
            return
        if self._chronicle is not None:
            self._chronicle.turned_away(now, client.number)
        if isinstance(decision, Wait):
            if decision.estimate is not None and client.promise is None:
                client.promise = promised(now, decision.estimate)
            if present and decision.ticket is not None:
                self._hold(client, decision.ticket)
                return
            if decision.hold_s > 0.0 and decision.ticket is not None and may_hold:
                self._driver.policy.present(decision.ticket, now)
                self._hold(client, decision.ticket)
                self._at_file(now + decision.hold_s, self._held_for_long, client)
                return
            if present:
                # No call wakes it: the server looks for it.
                # As live, a request without a ticket is offered again every two seconds.
                self._at_file(now + min(2.0, decision.retry_after_s), self._answer, client)
                return
        if self.conditions.answer_bytes:
            self._link.start(Flow(math.inf, self.conditions.answer_bytes))
        action = visit.answered(now, answer_to(decision))
        if isinstance(action, WaitUntil):
            self._at_file(action.at, self._ask_again, client)
        elif isinstance(action, SendNow):
            self._at_file(now + self._reaches_s(client), self._answer, client)
        elif isinstance(action, GiveUp):
            self._leave(client, gave_up=True)

    def _held_for_long(self, client: SimClient) -> None:
        """A client that comes back has waited in its request for as long as it may."""
        ticket = client.held
        if client.gone or ticket is None:
            return
        self._let_go(client)
        if ticket not in self._held:
            self._driver.policy.absent(ticket, self.now)
        self._offer(client, ticket, present=False, may_hold=False)
        self._settle()

    def _admit(self, client: SimClient) -> None:
        """Its body begins as soon as its connection stands."""
        visit, now = client.visit, self.now
        assert visit is not None
        if self._chronicle is not None:
            self._chronicle.admitted(now, client.number)
        visit.answered(now, Granted())
        client.held = None
        client.admitted_s = now
        left = max(1.0, self._file_of(client).size_bytes)
        client.flow = Flow(client.visitor.rate_bytes_s, left, client)
        if self._network is not None:
            rtt_s = self._network.rtt_of(client.number)
            client.window = CongestionWindow(self._network, rtt_s)
        self._at(now + self.conditions.accept_s, self._body_begins, client)

    def _ask_again(self, client: SimClient) -> None:
        if client.gone:
            return
        assert client.visit is not None
        client.visit.begin()
        self._at_file(self.now + self._reaches_s(client), self._answer, client)

    def _reaches_s(self, client: SimClient) -> float:
        """How long a request takes to reach the server."""
        network = self._network
        path_s = 0.0 if network is None else network.connect_s(client.number)
        return self.conditions.attempt_s + path_s

    def _body_begins(self, client: SimClient) -> None:
        if client.gone or client.flow is None:
            return
        self._carry(client)
        if self._is_brief(self._file_of(client)):
            # All of it is handed to the socket: it waits for no turn, and its lease is over.
            self._sight.sent_whole(client.flow)
            if client.lease is not None:
                self._end_lease(client, client.lease)
                self._settle()
            return
        if client.lease in self._paused or client.lease in self._tried:
            self._dry(client.flow, client)

    def _is_brief(self, file: File) -> bool:
        return self.conditions.paced and file.size_bytes <= self.conditions.brief_bytes

    def _goes_at_once(self, file: File, ticket: str | None) -> bool:
        """Whether it is sent without a lease, as the gate judges it."""
        if not self._is_brief(file):
            return False
        if file.size_bytes < self.workload.small_below_bytes:
            return self._driver.policy.admit_small(file.size_bytes, self.now)
        return ticket is None and self._driver.policy.admit_single_write(self.now)

    def _carry(self, client: SimClient) -> None:
        assert client.flow is not None
        if math.isnan(client.first_byte_s):
            client.first_byte_s = self.now + self._arrives_s(client)
        if self._chronicle is not None:
            self._chronicle.carried(self.now, client.number, True)
        self._read(client)
        self._weigh(client)
        client.run_left = self._link.remaining(client.flow)
        if client.window is not None:
            client.window.resume(self.now)
            self._grows(client.flow, client)
        self._link.change(client.flow, 0.0, self._takes(client))
        if client.lease is not None:
            self._sight.begins(client.lease, client.flow, self.now)

    def _queue_s(self) -> float:
        """What stands before the line delays all packets by this."""
        assert self._network is not None
        standing = self._sight.standing_bytes
        return self._network.queue_s(standing, self.conditions.line_bytes_s(self.now))

    def _grows(self, flow: Flow, client: SimClient) -> None:
        """Look at its window again in a round trip."""
        assert client.window is not None
        client.window.due_s = at = self.now + client.window.look_s(self._queue_s())
        self._at(at, partial(self._round_trip, flow), client)

    def _round_trip(self, flow: Flow, client: SimClient) -> None:
        """What was sent is acknowledged: the window may grow."""
        window = client.window
        current = client.flow is flow and flow.running
        if window is None or not current or window.is_idle or self.now < window.due_s:
            return
        queue_s = self._queue_s()
        window.grow(self._link.rate(flow), queue_s)
        takes = self._takes(client)
        if takes != flow.cap_bytes_s:
            self._link.change(flow, 0.0, takes)
        self._grows(flow, client)

    def _arrives_s(self, client: SimClient) -> float:
        """How long what is sent now is on its way to the client."""
        network = self._network
        return 0.0 if network is None else network.last_byte_s(client.number) + self._queue_s()

    def _read(self, client: SimClient) -> None:
        """What its program has read since the last call leaves its kernel."""
        if client.flow is None or not self.conditions.reader_bytes:
            return
        left, passed = self._link.remaining(client.flow), self.now - client.read_s
        came = client.read_left - left if client.read_left < math.inf else 0.0
        client.unread = max(0.0, client.unread + came - client.visitor.rate_bytes_s * passed)
        client.read_s, client.read_left = self.now, left

    def _read_on(self, flows: Mapping[int, Flow]) -> None:
        """As at each tick: what was read makes room for the transfers that run."""
        for lease, clients in self._leases.items():
            goes_on = lease in flows and lease not in self._tried
            for client in clients:
                self._read(client)
                if goes_on and client.flow is not None and client.flow.running:
                    self._link.change(client.flow, 0.0, self._takes(client))

    def _takes(self, client: SimClient) -> float:
        """How fast its kernel takes bytes until the next tick."""
        rate = min(client.visitor.rate_bytes_s, self._most_bytes_s)
        if self.conditions.reader_bytes:
            room = max(0.0, self.conditions.reader_bytes - client.unread)
            rate += room / self.conditions.tick_s
        if client.window is not None:
            rate = min(rate, client.window.rate_bytes_s(self._queue_s()))
        return rate

    def _body_ended(self, client: SimClient) -> None:
        self._read(client)
        if client.lease is not None:
            self._end_lease(client, client.lease)
        client.flow = None
        reads_s = client.unread / client.visitor.rate_bytes_s + self._arrives_s(client)
        client.read_left, client.unread = math.inf, 0.0
        if reads_s > 0.0:
            self._at(self.now + reads_s, self._end_file, client)
        else:
            self._end_file(client)
        self._settle()

    def _handed_over(self, flow: Flow, client: SimClient) -> None:
        """A socket that was full has all that is left: the server is done with it."""
        lease = client.lease
        if lease is None or client.flow is not flow or not flow.running or lease in self._paused:
            return
        if self._link.remaining(flow) <= self.conditions.socket_bytes + 1.0:
            self._end_lease(client, lease)
            self._settle()

    def _end_lease(self, client: SimClient, lease: int) -> None:
        """The server is done with this client; so is the lease if no other client is on it."""
        sharers = self._leases[lease]
        sharers.remove(client)
        self._driver.end(lease, self.now, 0, done=not sharers)
        if not sharers:
            del self._leases[lease]
            self._paused.discard(lease)
            self._background.discard(lease)
            self._sight.ends(lease)
        client.lease = None

    def _end_file(self, client: SimClient) -> None:
        self._record(client, gave_up=False)
        if self._chronicle is not None:
            self._chronicle.ended(self.now, client.number)
        self._next_file(client)

    def _lose_patience(self, client: SimClient, file_number: int) -> None:
        if client.gone or client.file_number != file_number:
            return
        if not math.isnan(client.first_byte_s):
            return
        if client.held is not None:
            ticket = client.held
            self._let_go(client)
            if ticket not in self._held:
                self._driver.policy.absent(ticket, self.now)
        if client.lease is not None:
            sharers = self._leases[client.lease]
            sharers.remove(client)
            self._driver.end(client.lease, self.now, self._file_of(client).size_bytes, done=False)
            if not sharers:
                del self._leases[client.lease]
            client.lease = client.flow = None
        self._leave(client, gave_up=True)
        self._settle()

    def _leave(self, client: SimClient, *, gave_up: bool) -> None:
        if gave_up:
            self._record(client, gave_up=True)
        client.gone = True
        self._present -= 1
        self.tally.add_session(client, self.now, gave_up=gave_up)
        if self._chronicle is not None:
            self._chronicle.leave(self.now, client.number, self._demand(client))

    def _record(self, client: SimClient, *, gave_up: bool) -> None:
        assert client.visit is not None
        client.attempts += client.visit.attempts
        size_bytes = self._file_of(client).size_bytes
        self.tally.add_download(client, size_bytes, self.now, gave_up=gave_up)

    def _demand(self, client: SimClient) -> float:
        return min(client.visitor.rate_bytes_s, self.conditions.bandwidth_bytes_s)

    # --- the driver's hands ------------------------------------------------------------------

    def put_behind(self, lease: int, now: float, *, background: bool) -> None:
        """Their transfers have a small weight, or that of others again."""
        (self._background.add if background else self._background.discard)(lease)
        if lease not in self._paused:
            for client in self._leases.get(lease, ()):
                self._weigh(client)

    def _weigh(self, client: SimClient) -> None:
        weight = BACKGROUND_WEIGHT if client.lease in self._background else 1.0
        if client.flow is not None and client.flow.weight != weight:
            self._link.weigh(client.flow, weight)

    def pause(self, lease: int, now: float) -> None:
        """Stop the transfers of this lease."""
        self._paused.add(lease)
        self._stop(lease, now)

    def _stop(self, lease: int, now: float) -> None:
        """No more is handed to its sockets; one that is full goes on until it is empty."""
        for client in self._leases.get(lease, ()):
            flow = client.flow
            if flow is None or not flow.running:
                continue
            if self._sight.stuck(flow) and self.conditions.paced:
                rate = max(1.0, self._link.rate(flow))
                # A full socket is empty after two seconds at the latest.
                at = now + min(2.0, self.conditions.socket_bytes / rate)
                self._at(at, partial(self._dry, flow), client)
            else:
                self._dry(flow, client)

    def _dry(self, flow: Flow, client: SimClient) -> None:
        """The socket of a stopped transfer is empty."""
        lease = client.lease
        still = lease is not None and (lease in self._paused or lease in self._tried)
        if client.flow is flow and still and flow.running:
            # Kept from giving up, as `policies.keep_alive` says.
            # Before all others, not in the background.
            if client.window is not None:
                client.window.rest(self.now)
            self._link.weigh(flow, 1.0)
            ran_bytes = client.run_left - self._link.remaining(flow)
            slow = kept_alive_bytes_s(self._link.capacity_bytes_s, len(self._paused), ran_bytes)
            self._link.change(flow, 0.0, min(slow, client.visitor.rate_bytes_s))
            if self._chronicle is not None:
                self._chronicle.carried(self.now, client.number, False)

    def resume(self, lease: int, now: float) -> None:
        """Let them go on; one that has not begun yet begins when its connection stands."""
        self._paused.discard(lease)
        self._go_on(lease, now)

    def _go_on(self, lease: int, now: float) -> None:
        if lease in self._paused or lease in self._tried:
            return
        for client in self._leases.get(lease, ()):
            begun = now >= client.admitted_s + self.conditions.accept_s
            if begun and client.flow is not None:
                self._carry(client)

    def idled_out(self, lease: int, now: float) -> None:
        """An unused lease is over; no client here has a connection on it."""
        self._paused.discard(lease)
        self._background.discard(lease)

    def expired(self, ticket: int, now: float) -> None:
        """A ticket is over; all that wait with it ask anew."""
        for client in tuple(self._held.get(ticket, ())):
            self._let_go(client)
            self._at(now, self._answer, client)

    def parked(self, client: str, file: str) -> bool:
        """Whether a client of this key waits inside its request for this file."""
        return (client, file) in self._held_downloads

    def call(self, ticket: int, now: float) -> bool:
        """Offer the jobs of all that wait inside their requests with this ticket again."""
        clients = tuple(self._held.get(ticket, ()))
        for client in clients:
            self._let_go(client)
            self._offer(client, ticket, present=True)
        return bool(clients)

    def _hold(self, client: SimClient, ticket: int) -> None:
        client.held = ticket
        self._held.setdefault(ticket, []).append(client)
        self._held_downloads.add((client.visitor.key, self._file_of(client).name))

    def _let_go(self, client: SimClient) -> None:
        assert client.held is not None
        others = self._held[client.held]
        others.remove(client)
        if not others:
            del self._held[client.held]
            self._held_downloads.discard((client.visitor.key, self._file_of(client).name))
        client.held = None


def _networks_of(clients: Mapping[int, list[SimClient]]) -> set[str]:
    """The networks of clients, by lease or ticket; a client without one is one by itself."""
    firsts = (here[0].visitor for here in clients.values())
    return {one.network[-1] if one.network else one.key for one in firsts}


def answer_to(decision: Wait | Refuse) -> RetryAfter | Refused:
    """The answer that carries a decision: waits in whole seconds, as Retry-After has them."""
    if isinstance(decision, Wait):
        return RetryAfter(
            float(math.ceil(decision.retry_after_s)),
            None if decision.ticket is None else str(decision.ticket),
            decision.place,
            ready=decision.ready,
        )
    if decision.retry_after_s is not None:
        return RetryAfter(float(math.ceil(decision.retry_after_s)))
    fault = decision.reason.value.startswith("ticket-")
    return Refused(FailureReason.REFUSED, decision.reason.value, ticket_fault=fault)
