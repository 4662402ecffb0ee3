"""The gate: the only place where a policy's decision becomes HTTP.

Walk of a request: `identify` finds client, file and proof. The policy decides, through `leases`.
Then the transfer starts on a lease, or the client is told when to come back (`responses`), or the
request is parked (`parked`).

Law, checked while the server runs: each parked request has a waiting ticket, or a running lease
that will call it, or looks for a slot itself; and while requests are parked, something runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from twisted.logger import Logger

from ...policies.admission import AdmissionPolicy
from ...policies.contract import (
    BRIEF_BYTES,
    Admit,
    Decision,
    Estimate,
    Job,
    LeaseView,
    Reason,
    Refuse,
    Snapshot,
    TicketRow,
    TicketState,
    Wait,
)
from ...policies.settings import PolicySettings
from ...protocol.ticket import KeyRing, Ticket
from ..files.transfer import BodyPlan, Representation, StartBody
from ..http.answers import Header
from ..http.clock import DelayedCall, cancel
from ..http.cookies import read_cookie
from ..http.request import Request
from ..store.records import ArrivalRecord
from .client_keys import TICKET_FIELD, WAIT_FIELD, keys_of_program, visitor_cookie
from .client_programs import ToolRule, for_this_try, program_name
from .credentials import write_proof
from .downloads import Delivery, LeasedDownload
from .gateparts import AdmissionRequest, GateParts, GateTerms, StatusRequest
from .identify import Identifier
from .leases import LeaseManager, moved
from .parked import ParkedFor, ParkedRequest, ParkedRequests, redirects_of, send_on
from .responses import Notice, clear_cookie
from .rules import NOTHING
from .small_files import admit_small

_SENTENCES = {
    Reason.TICKET_EXPIRED: "This ticket's turn has passed; ask without it for a new one.",
    Reason.TICKET_USED: "This ticket has been used; ask without it for a new one.",
    Reason.TICKET_FOREIGN: "This ticket belongs to another download; ask without it.",
    Reason.TOO_MANY_CONNECTIONS: "This download has as many connections as it may; close one.",
    Reason.TOO_MANY_TICKETS: "You wait for as many files as one client may; finish some first.",
    Reason.CLOSED: "The server is being stopped or restarted; come back soon.",
}
#: How one more connection of a running download is held, for programs that come back and unknown
#: ones. Every program bears this much silence.
_BRIEFLY = ToolRule(agent=".", manner="hold", silent_s=20.0, drip_lines=0)
#: How a client that would come back is held while its turn is near (for `Wait.hold_s`), or while
#: its answer waits for the journal.
_TO_ITS_TURN = ToolRule(agent=".", manner="come-back", drip_lines=0)
_FORBIDDEN = frozenset({Reason.TICKET_EXPIRED, Reason.TICKET_USED, Reason.TICKET_FOREIGN})


@dataclass(frozen=True, slots=True)
class GateBounds:
    """How long requests may wait for no event, and how many answers are delayed."""

    #: How often parked requests look for a free slot if the policy calls no client.
    look_s: float = 2.0
    #: While requests are parked with tickets, no longer time may pass without a download.
    idle_s: float = 5.0
    #: Pages of one browser that may be parked. A browser has at most six connections.
    most_pages: int = 3
    #: Answers that are delayed at once; further ones are not.
    most_slowed: int = 2_000
    #: The longest time that is told to a client that waits for its own download.
    longest_told_s: float = 86_400.0
    #: A client whose answer waits longer for the journal is parked meanwhile.
    unstored_s: float = 1.0


BOUNDS = GateBounds()


class Gate:
    """Implements `transfer.Admission` with the policy of this name."""

    log = Logger()

    def __init__(self, parts: GateParts, policy: str, settings: PolicySettings) -> None:
        self.parts = parts
        self.now: Callable[[], float] = parts.now
        self.draining = False
        #: Delayed answers, to clients that ask again and again.
        self._slowed = 0
        self.parked = ParkedRequests(self, parts.reactor, parts.terms.holds_most)
        self.leases = LeaseManager(parts, policy, settings, self.parked, self._check)
        self._driver = self.leases.driver
        self._small_below = settings.small_below_bytes
        self.reception = Identifier(parts, self.parked, lambda: self._small_below, self._is_queued)
        #: Since when requests are parked with tickets although nothing runs.
        self._idle_since_s: float | None = None

    # -- the life of the gate ----------------------------------------------------------------

    @property
    def policy(self) -> AdmissionPolicy:
        return self.leases.policy

    def snapshot(self) -> Snapshot:
        return self.policy.snapshot(self.now())

    def estimate(self, number: int) -> Estimate | None:
        """When this waiting ticket is expected to start, from now; None while doors are closed."""
        # The length of the queue does not say when the doors open.
        return None if self.draining or self.closed else self.policy.estimate(number, self.now())

    def done(self, lease: int) -> Estimate | None:
        """When the last byte of this running or paused download is expected, from now."""
        return self.policy.done(lease, self.now())

    def lease(self, number: int) -> LeaseView | None:
        """A running download, with wall times; None once it is over."""
        view = self.policy.lease(number)
        if view is None:
            return None
        return view._replace(started_s=view.started_s + self.parts.wall_ahead_s())

    def on_wall_clock(self, row: TicketRow) -> TicketRow:
        """A ticket with wall times."""
        ahead_s = self.parts.wall_ahead_s()
        return moved(row, ahead_s) if ahead_s else row

    @property
    def settings(self) -> PolicySettings:
        return self.leases.settings

    @property
    def closed(self) -> bool:
        """Whether the doors are closed for maintenance: no download starts."""
        return self.leases.closed

    def close_doors(self, closed: bool) -> None:
        """Close the doors or open them. Running downloads go on, new requests are queued."""
        self.leases.close_doors(closed)

    @property
    def downloads(self) -> dict[int, LeasedDownload]:
        return self.leases.downloads

    def open(self, rows: Iterable[TicketRow] = ()) -> None:
        """Restore the tickets of an earlier run, and begin to tick."""
        rows = tuple(rows)
        if rows:
            # Otherwise all waiting clients would have proofs older than the rush.
            self.parts.evidence.resume(min(row.issued_s for row in rows), self.parts.wall())
        self.leases.open(rows)

    def apply(self, name: str, settings: PolicySettings) -> None:
        """Switch policy or settings. No download is dropped, and no place is lost."""
        self._small_below = settings.small_below_bytes
        self.leases.switch(name, settings)
        for request in self.parked:
            self.offer_again(request)

    def reconfigure(self, terms: GateTerms) -> None:
        self.parts.terms = terms
        self.parts.clients.reconfigure(terms.clients_per_address)
        self.parked.most = terms.holds_most

    def use_keys(self, keys: KeyRing) -> None:
        self.parts.keys = keys
        self.parts.passes.keys = keys

    def serve_with(self, machines: int) -> None:
        if machines != self.parts.machines:
            self.parts.machines = machines
            self.apply(self.policy.name, self.settings)

    def drain(self) -> None:
        """Admit no more clients. Parked requests are answered; their clients keep their places."""
        self.draining = True
        for request in self.parked:
            # Else its client would be called, and be ready before older ones at the next start.
            self._part_with(request)
            self._let_go(request)

    def close(self) -> None:
        """Answer all parked requests, stop the clocks, write the last changes."""
        self.drain()
        self.leases.close()

    # -- Admission ---------------------------------------------------------------------------

    def admit_small(self, request: Request, rep: Representation, body_bytes: int) -> bool:
        blocked = self.reception.blocked
        return admit_small(self, blocked, self._small_below, request, rep, body_bytes)

    def is_plain(self, url_path: str) -> bool:
        verdict = self.parts.rules.verdict(url_path)
        return verdict is NOTHING or verdict.is_plain(self.parts.wall())

    def admit_again(self, rep: Representation, body_bytes: int) -> bool:
        leases, is_small = self.leases, rep.size_bytes < self._small_below
        if self.draining and not is_small:
            return False
        # Part by part, a large file would get past the queue.
        is_much = body_bytes > BRIEF_BYTES or (not is_small and body_bytes < rep.size_bytes)
        if is_much and not leases.holds_nobody_back:
            return False
        if is_small:
            return leases.policy.admit_small(body_bytes, self.now())
        return leases.policy.admit_single_write(self.now())

    def has_lease(self, rep: Representation, address: str, agent: bytes | None) -> bool:
        leases, file = self.leases, rep.url_path
        if not leases.is_downloaded(file):
            return False
        return agent is None or any(leases.find(k, file) for k in keys_of_program(address, agent))

    def count_again(self, rep: Representation, body_bytes: int, times: int) -> None:
        """See `transfer.Admission`; a part is no download."""
        whole = times if body_bytes == rep.size_bytes else 0
        self.parts.popularity.count(rep.url_path, whole, whole, times * body_bytes)

    def free_for_small(self) -> tuple[bool, bool]:
        """Whether small files may be served elsewhere without asking here.

        The second value says whether larger ones may that leave in one write.
        """
        seen = self.policy.snapshot(self.now())
        free = seen.small_active + seen.large_active < seen.slots
        return free, free and not self.draining and self.policy.can_admit_single_write(self.now())

    def served_elsewhere(self, url_path: str, times: int, whole: int, size_bytes: int) -> None:
        """Count bodies that were served so. `whole` were whole files; `size_bytes` is the sum."""
        now = self.now()
        for _ in range(times):
            self.leases.policy.admit_small(size_bytes // times, now)
        self.parts.popularity.count(url_path, whole, whole, size_bytes)

    def enter(
        self, request: Request, rep: Representation, plan: BodyPlan, start: StartBody
    ) -> None:
        visit = self.reception.receive(request, rep, plan, start, self.parts.wall())
        if visit is None:
            return
        if self.draining and self.leases.find(visit.job.client, rep.url_path) is None:
            self._refuse(visit, Refuse(Reason.CLOSED, 10.0))
            return
        if visit.browser and visit.proof.ticket is not None:
            # The page itself asks: its status request is over.
            for parked in self.parked.with_ticket(visit.proof.ticket.number):
                if isinstance(parked.visit, StatusRequest):
                    self.left(parked, True)
        missing = self.leases.with_missing(visit.job, rep, plan)
        if missing is not None:
            self._send(visit, Admit(missing.lease, joined=True), missing)
            return
        self._decided(visit, self._decide(visit, visit.proof.ticket))

    def watch(
        self, request: Request, ticket: Ticket, most_s: float, tell: Callable[[], None]
    ) -> bool:
        """Park a waiting page's question about its ticket. False: answer it at once instead.

        `tell` is called when the turn has come (its slot is kept then), when the ticket is over, or
        after `most_s`.
        """
        row = self.policy.ticket(ticket.number)
        if row is None or not row.state.is_queued or self.draining:
            return False
        parts = self.parts
        client = parts.clients.identify(request, parts.keys, ticket, browser=False)
        if self.parked.of_client(client.key) >= BOUNDS.most_pages:
            return False
        if not self.parked.has_room(client.key, client.network):
            return False
        job = Job(
            client=client.key,
            file=row.file,
            size_bytes=row.size_bytes,
            remaining_bytes=row.remaining_bytes,
            weight=row.weight,
            priority_class=row.priority_class,
            present=True,
            network=client.network,
            known=parts.evidence.knows(client, parts.wall()),
            line=request.connection.line,
        )
        rule = _BRIEFLY.model_copy(update={"silent_s": most_s})
        wait = Wait(most_s, ticket.number, self.policy.place(ticket.number))
        self._park(StatusRequest(request, job, tell), rule, wait, ParkedFor.PLACE)
        self.policy.present(ticket.number, self.now(), request.connection.line)
        self.leases.settle()
        return True

    def _decided(self, visit: AdmissionRequest, decision: Decision) -> None:
        """Carry out the policy's decision on a new request."""
        parts, job, grant = self.parts, visit.job, visit.proof.grant
        now = parts.wall()
        if grant is not None and not isinstance(decision, Refuse):
            parts.passes.begin(grant, job.client, job.file, now)
        if isinstance(decision, Admit):
            if not decision.joined:
                parts.arrived(_arrival(visit, now))
            if decision.joined or decision.ticket is not None:
                self.leases.settle()
            # Otherwise nothing follows for other clients before the next tick.
            self._start(visit, decision)
            return
        if isinstance(decision, Wait):
            parts.arrived(_arrival(visit, now))
        # A client that is told to come back changes nothing for the others.
        self.leases.settle(hurry=job.present or not isinstance(decision, Wait))
        if isinstance(decision, Wait):
            parts.evidence.waits(now)
            if job.present:
                self._park(visit, visit.rule, decision, _waits_for(decision))
            elif not self._held_to_its_turn(visit, decision):
                self._ask_back(visit, decision)
        elif decision.reason is Reason.TOO_MANY_CONNECTIONS and visit.browser:
            self._ask_back(visit, self._behind_its_own(visit, decision))
        elif decision.reason is Reason.TOO_MANY_CONNECTIONS and visit.may_hold:
            rule = visit.rule if job.present else _BRIEFLY
            self._park(visit, rule, _until_one_ends(decision), ParkedFor.CONNECTION)
        else:
            self._refuse(visit, decision)

    def _held_to_its_turn(self, visit: AdmissionRequest, wait: Wait) -> bool:
        """Park a client that would come back if its turn is near; whether it was parked."""
        job = visit.job
        if wait.hold_s <= 0.0 or wait.ticket is None or self.closed:
            return False
        if not (visit.may_hold or visit.request.headers.get(WAIT_FIELD) == b"turn"):
            return False
        if not self.parked.has_room(job.client, job.network):
            return False
        self._hold(visit, wait, _TO_ITS_TURN.model_copy(update={"silent_s": wait.hold_s}))
        return True

    def _hold(self, visit: AdmissionRequest, wait: Wait, rule: ToolRule) -> ParkedRequest:
        """Park a client that would come back. If its turn does not come, it gets a new time."""
        visit.job = replace(visit.job, present=True)
        if wait.ticket is not None:
            self.policy.present(wait.ticket, self.now(), visit.job.line)
        request = self._park(visit, rule, wait, ParkedFor.PLACE)
        self.leases.settle()
        return request

    def _behind_its_own(self, visit: AdmissionRequest, refusal: Refuse) -> Wait:
        """The answer to a browser that opens a running download once too often."""
        wait = _until_one_ends(refusal)
        download = self.leases.find(visit.job.client, visit.rep.url_path)
        if download is None or download.rate_bytes_s <= 0.0:
            return replace(wait, place=1)
        left_s = min(download.remaining_bytes() / download.rate_bytes_s, BOUNDS.longest_told_s)
        return replace(wait, place=1, estimate=Estimate(left_s, 2.0 * left_s))

    def _decide(self, visit: AdmissionRequest, ticket: Ticket | None) -> Decision:
        if ticket is None:
            return self._driver.offer(visit.job, self.now())
        if self.policy.issued_s(ticket.number) is None:
            if self.parts.numbers.is_over(ticket.number):
                # The client may have another place for the same file.
                if self.policy.holds(visit.job.client, visit.job.file):
                    return self._driver.offer(visit.job, self.now())
                return Refuse(Reason.TICKET_USED)
            # The journal lost this ticket, but its signature proves it: it gets its place back.
            self.leases.restore(
                TicketRow(
                    number=ticket.number,
                    client=visit.job.client,
                    file=visit.job.file,
                    size_bytes=ticket.size_bytes,
                    remaining_bytes=visit.job.remaining_bytes,
                    weight=ticket.weight,
                    issued_s=ticket.issued_s,
                    state=TicketState.WAITING,
                    changed_s=self.parts.wall(),
                    # It is the one that its client shows.
                    polls=1,
                    priority_class=ticket.priority_class,
                    network=visit.job.stranger_network,
                )
            )
        return self._driver.offer(visit.job, self.now(), ticket.number)

    def take_up(self, rows: Iterable[TicketRow]) -> None:
        """Restore tickets whose clients wait at a node. They have wall times."""
        for row in rows:
            download = self.leases.find(row.client, row.file)
            if download is not None and download.unclaimed:
                # It was called at another node.
                self.leases.end(download, "its client waits elsewhere")
            known = self.policy.ticket(row.number)
            # Its client came in time, to a node that had no leader.
            lapsed = known is not None and known.state is TicketState.EXPIRED
            if lapsed or (known is None and not self.parts.numbers.is_over(row.number)):
                self.leases.restore(row._replace(state=TicketState.WAITING))
        self.leases.settle()

    # -- parked requests (`parked.ParkingGate`) -----------------------------------

    def offer_again(self, request: ParkedRequest) -> None:
        if request.over:
            return
        if isinstance(request.visit, StatusRequest):
            self._watch_on(request, request.visit)
            return
        job = request.visit.job
        decision = self._driver.offer(job, self.now(), request.ticket)
        if isinstance(decision, Refuse) and decision.reason in _FORBIDDEN:
            # An operator or a switch of policy has ended its ticket: it gets a new place.
            decision = self._driver.offer(job, self.now())
        self._decided_again(request, request.visit, decision)

    def _watch_on(self, request: ParkedRequest, visit: StatusRequest) -> None:
        """A page's turn may have come: its lease begins now, and the page then fetches the file."""
        row = self.policy.ticket(request.ticket) if request.ticket is not None else None
        if row is not None and row.state.is_queued:
            decision = self._driver.offer(visit.job, self.now(), row.number)
            if isinstance(decision, Wait):
                self._keep(request, decision, _waits_for(decision))
                return
            self.parked.remove(request)
            if isinstance(decision, Admit) and not decision.joined:
                self.leases.left(self._begin(decision, visit.job, None))
        else:
            self.parked.remove(request)
        self.leases.settle()
        visit.tell()

    def _decided_again(
        self, request: ParkedRequest, visit: AdmissionRequest, decision: Decision
    ) -> None:
        """Carry out the policy's decision on a parked request."""
        self.leases.settle()
        if isinstance(decision, Wait) and visit.job.present:
            self._keep(request, decision, _waits_for(decision))
        elif isinstance(decision, Refuse) and decision.reason is Reason.TOO_MANY_CONNECTIONS:
            self._keep(request, _until_one_ends(decision), ParkedFor.CONNECTION)
        else:
            self.parked.remove(request)
            if isinstance(decision, Refuse) and request.committed:
                visit.request.abort()
            else:
                self._answer(visit, decision)

    def _answer(self, visit: AdmissionRequest, decision: Decision) -> None:
        """Start, ask back or refuse: the request is not parked any longer."""
        if isinstance(decision, Admit):
            self._start(visit, decision)
        elif isinstance(decision, Wait):
            self._ask_back(visit, decision)
        else:
            self._refuse(visit, decision)

    def left(self, request: ParkedRequest, limit: bool) -> None:
        if request.over:
            return
        self._part_with(request)
        if limit:
            self._let_go(request)

    def redirect(self, request: ParkedRequest) -> None:
        visit = request.visit
        if request.over or isinstance(visit, StatusRequest):
            return

        def stored() -> None:
            if not request.over:
                ticket = request.ticket
                self._part_with(request)
                send_on(
                    visit.request, self._token(ticket, visit)[0] if ticket is not None else None
                )

        # The token in the redirect must survive a crash.
        self.parts.journal.after_commit(stored)

    def _part_with(self, request: ParkedRequest) -> None:
        ticket = request.ticket
        self.parked.remove(request)
        if ticket is not None and not self.parked.with_ticket(ticket):
            self.policy.absent(ticket, self.now())
            self.leases.settle()

    def _let_go(self, request: ParkedRequest) -> None:
        wait, visit = request.wait, request.visit
        if isinstance(visit, StatusRequest):
            visit.tell()
        elif request.committed:
            visit.request.abort()
        elif request.rule.manner == "come-back" and not self.draining:
            self._send_back(visit, wait)
        elif request.waits_for is ParkedFor.CONNECTION and not self.draining:
            self._refuse(visit, Refuse(Reason.TOO_MANY_CONNECTIONS, wait.retry_after_s))
        else:
            self._ask_back(visit, wait)

    def _send_back(self, visit: AdmissionRequest, wait: Wait) -> None:
        """The turn did not come while the client was held: it gets a new time."""
        visit.job = replace(visit.job, present=False)
        decision = self._driver.offer(visit.job, self.now(), wait.ticket)
        self.leases.settle()
        self._answer(visit, decision)

    def release(self) -> list[tuple[AdmissionRequest, str | None]]:
        """Release all parked requests unanswered, each with its token, to another gate.

        Status requests are answered.
        """
        released: list[tuple[AdmissionRequest, str | None]] = []
        for one in self.parked:
            self.parked.remove(one)
            if isinstance(one.visit, AdmissionRequest):
                token = None if one.ticket is None else self._token(one.ticket, one.visit)[0]
                released.append((one.visit, token))
            else:
                one.visit.tell()
        return released

    def _check(self) -> None:
        """Check that no request is parked in vain. A fault of ours is logged and mended."""
        for request in self.parked.next_to_check():
            if not self.is_awaited(request):
                self.log.error(
                    "A parked request was forgotten ({what}, ticket {ticket}); it asks anew.",
                    what=request.waits_for.value,
                    ticket=request.ticket,
                )
                self.offer_again(request)
        if self.draining or self.closed or self.downloads or not self.parked.placed:
            self._idle_since_s = None
            return
        now = self.now()
        if self._idle_since_s is None:
            self._idle_since_s = now
        elif now - self._idle_since_s >= BOUNDS.idle_s:
            self._idle_since_s = now
            self.log.error(
                "Nothing ran for {seconds:.0f} s although {count} requests are parked; they ask "
                "anew.",
                seconds=BOUNDS.idle_s,
                count=self.parked.placed,
            )
            for request in self.parked:
                self.offer_again(request)

    def is_awaited(self, request: ParkedRequest) -> bool:
        """Whether something will call this request."""
        if request.waits_for is ParkedFor.PLACE:
            row = self.policy.ticket(request.ticket) if request.ticket is not None else None
            return row is not None and row.state.is_queued
        if request.waits_for is ParkedFor.CONNECTION:
            job = request.visit.job
            return self.leases.find(job.client, job.file) is not None
        return request.looks

    # -- from a decision to HTTP ---------------------------------------------------------------

    def _start(self, visit: AdmissionRequest, admit: Admit) -> None:
        rep, job = visit.rep, visit.job
        download = self.downloads.get(admit.lease)
        if download is None:
            download = self._begin(admit, job, rep)
        else:
            download.renew(rep, job.remaining_bytes)
        if visit.request.finished:
            self.leases.left(download)
        else:
            # A new ticket is journalled while its bytes leave: its token proves it too. The last
            # bytes wait until its end is journalled (`LeaseManager.ending`).
            self._send(visit, admit, download)

    def _begin(self, admit: Admit, job: Job, rep: Representation | None) -> LeasedDownload:
        now = self.now()
        issued_s = self.policy.issued_s(admit.ticket) if admit.ticket is not None else None
        small_below = self.leases.settings.small_below_bytes
        return self.leases.begin(LeasedDownload(admit, job, rep, now, issued_s, small_below))

    def _send(self, visit: AdmissionRequest, admit: Admit, download: LeasedDownload) -> None:
        visit.request.waited_s = download.waited_s
        priority_class = visit.job.priority_class
        visit.request.priority_class = priority_class
        headers: list[Header] = [
            (b"Tidegate-Lease-Connections", b"%d" % self.leases.settings.connections_per_lease)
        ]
        if admit.ticket is not None:
            # Signing costs as much as sending a small range: sign once for each download.
            signed = (admit.ticket, priority_class)
            if download.signed != signed:
                download.signed = signed
                text, _ = self._token(admit.ticket, visit, download.issued_s)
                download.token = text.encode("ascii")
            headers.append((b"Tidegate-Ticket", download.token))
            if read_cookie(visit.request.headers, TICKET_FIELD) is not None:
                # The ticket is used; a later download of the same file gets a new one.
                headers.append(clear_cookie(visit.request))
        if visit.cookie is not None:
            # Its resume is then known as the same browser's.
            headers.append(visitor_cookie(visit.request, visit.cookie))
        delivery = Delivery(download, visit.plan, self.leases.ending, self.leases.delivered)
        download.join(delivery)
        transfer = visit.start(delivery, headers)
        if delivery.over:
            download.leaving = visit.request.connection.queued_bytes
            download.leaves_until_s = self.now() + self.settings.lease_idle_s
            return
        delivery.transfer = transfer
        if visit.job.running:
            # What came before this process knew of it tells nothing of its client's speed.
            delivery.seen_bytes = transfer.delivered_bytes()
        if download.still:
            transfer.pause()

    def _park(
        self,
        visit: AdmissionRequest | StatusRequest,
        rule: ToolRule,
        wait: Wait,
        waits_for: ParkedFor,
    ) -> ParkedRequest:
        crowded_out = self.parked.to_let_go(visit.job.network)
        if crowded_out is not None:
            self.left(crowded_out, True)
        asked = visit.request
        rule = for_this_try(rule, asked.by_proxy, redirects_of(asked.query) if asked.query else 0)
        request = ParkedRequest(self.parked, visit, rule, wait)
        self.parked.add(request)
        self._keep(request, wait, waits_for)
        visit.request.on_gone(request.gone)
        return request

    def _keep(self, request: ParkedRequest, wait: Wait, waits_for: ParkedFor) -> None:
        self._note_issued(wait)
        self.parked.bind(request, wait, waits_for)
        if waits_for is ParkedFor.SLOT:
            # No policy calls it: it looks for a free slot itself.
            request.look_in(min(BOUNDS.look_s, wait.retry_after_s))

    def _ask_back(self, visit: AdmissionRequest, wait: Wait) -> None:
        self._note_issued(wait)
        token, waited_s = None, 0.0
        if wait.ticket is not None:
            token, issued_s = self._token(wait.ticket, visit)
            waited_s = max(0.0, self.parts.wall() - issued_s)
            visit.request.waited_s = waited_s
        slowly_s = wait.answer_after_s if self._slowed < BOUNDS.most_slowed else 0.0
        if slowly_s > 0.0:
            # The told time counts from the late answer.
            wait = replace(wait, retry_after_s=wait.retry_after_s - slowly_s)
        closed = self.draining or self.closed
        if closed:
            wait = replace(wait, estimate=None)
        rep = visit.rep
        notice = Notice(
            rep.url_path, rep.size_bytes, wait, token, waited_s, closed, visitor=visit.cookie
        )
        if slowly_s > 0.0:
            self._slowed += 1
            self.parts.reactor.callLater(slowly_s, self._answer_late, visit, notice)
        else:
            self._answer_stored(visit, notice)

    def _answer_late(self, visit: AdmissionRequest, notice: Notice) -> None:
        self._slowed -= 1
        self._answer_stored(visit, notice)

    def _answer_stored(self, visit: AdmissionRequest, notice: Notice) -> None:
        """Answer once the journal has the ticket: a told place must survive a crash.

        In a cluster the answer waits as long as the database fails. The ticket must not expire
        meanwhile, and its turn may come: the request is parked.
        """
        late: DelayedCall | None = None
        held: ParkedRequest | None = None
        done = False

        def stored() -> None:
            nonlocal done
            done = True
            cancel(late)
            if held is None:
                self.parts.waiting.answer(visit.request, notice)
            else:
                self.left(held, True)

        def hold() -> None:
            nonlocal held
            ticket = notice.wait.ticket
            over = self.draining or visit.request.finished
            if ticket is None or over or self.parked.with_ticket(ticket):
                # Another request of the client keeps its place.
                return
            row = self.policy.ticket(ticket)
            queued = row is not None and row.state.is_queued
            if queued and self.parked.has_room(visit.job.client, visit.job.network):
                held = self._hold(visit, notice.wait, _TO_ITS_TURN)

        self.parts.journal.after_commit(stored)
        if not done:
            late = self.parts.reactor.callLater(BOUNDS.unstored_s, hold)

    def _refuse(self, visit: AdmissionRequest, refusal: Refuse) -> None:
        forbidden = refusal.reason in _FORBIDDEN
        sentence = _SENTENCES[refusal.reason]
        if refusal.reason is Reason.CLOSED and self._waits(visit):
            sentence = f"{sentence.rstrip('.')}, your place is kept."
        self.parts.waiting.refuse(
            visit.request,
            403 if forbidden else 503,
            refusal.reason.value,
            sentence,
            retry_after_s=None if forbidden else refusal.retry_after_s or 5.0,
            afresh=forbidden,
        )

    # -- small duties ------------------------------------------------------------------------

    def _waits(self, visit: AdmissionRequest) -> bool:
        """Whether the client has shown a ticket that has a place."""
        ticket = visit.proof.ticket
        return ticket is not None and self._is_queued(ticket.number)

    def _is_queued(self, number: int) -> bool:
        row = self.policy.ticket(number)
        return row is not None and row.state.is_queued

    def _token(
        self, number: int, visit: AdmissionRequest, issued_s: float | None = None
    ) -> tuple[str, float]:
        """The token of this ticket, and when the ticket was issued (Unix time)."""
        issued_s = self.policy.issued_s(number) if issued_s is None else issued_s
        issued_s = self.now() if issued_s is None else issued_s
        issued_s += self.parts.wall_ahead_s()
        return write_proof(self.parts.keys, number, visit.job, visit.proof, issued_s), issued_s

    def _note_issued(self, wait: Wait) -> None:
        if wait.ticket is not None and wait.ticket > self.parts.numbers.highest:
            self.parts.numbers.issued(wait.ticket)


def _waits_for(wait: Wait) -> ParkedFor:
    return ParkedFor.SLOT if wait.ticket is None else ParkedFor.PLACE


def _until_one_ends(refusal: Refuse) -> Wait:
    return Wait(min(5.0, refusal.retry_after_s or 5.0))


def _arrival(visit: AdmissionRequest, now: float) -> ArrivalRecord:
    job, agent = visit.job, visit.request.headers.get(b"user-agent")
    return ArrivalRecord(
        now, job.client, job.file, visit.rep.size_bytes, program_name(agent or b"")
    )
