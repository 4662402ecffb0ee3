"""The gate: the only caller of a policy, and the only place where a decision becomes HTTP.

Walk of a request: who asks, for what and with which proof (`reception`), what the policy says, and
then one of: the transfer starts on a lease, the client is told when to come back (`waiting`), or it
is kept inside its request (`holding`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from policies.job import (
    AdmissionPolicy,
    Admit,
    Decision,
    Reason,
    Refuse,
    TicketRow,
    TicketState,
    Wait,
)
from policies.settings import PolicySettings
from protocol.ticket import Ticket
from server.downloads import Delivery, Download
from server.floor import Floor
from server.gateparts import GateParts, Visit
from server.holding import Hold, HoldingHall
from server.http.answers import Header
from server.http.request import Request
from server.proofs import write_proof
from server.reception import Reception
from server.rules import NOTHING
from server.store.records import ArrivalRecord
from server.tools import ToolRule
from server.transfer import BodyPlan, Representation, Start
from server.waiting import Notice, clear_cookie

_SENTENCES = {
    Reason.TICKET_EXPIRED: "This ticket's turn has passed; ask without it for a new one.",
    Reason.TICKET_USED: "This ticket has been used; ask without it for a new one.",
    Reason.TICKET_FOREIGN: "This ticket belongs to another download; ask without it.",
    Reason.TOO_MANY_CONNECTIONS: "This download has as many connections as it may; close one.",
    Reason.TOO_MANY_TICKETS: "You wait for as many files as one client may; finish some first.",
    Reason.CLOSED: "The server is about to stop; come back in a moment, your place is kept.",
}
#: How often those who are held look for a free slot where the policy calls nobody.
_LOOK_S = 2.0
#: How one more connection of a running download is kept by a tool that comes back or that nobody
#: knows: every tool bears this much silence.
_BRIEFLY = ToolRule(agent=".", manner="hold", silent_s=20.0, drip_lines=0)
#: More answers than these are not kept back at once.
_MOST_SLOWED = 2_000
_FORBIDDEN = frozenset({Reason.TICKET_EXPIRED, Reason.TICKET_USED, Reason.TICKET_FOREIGN})


class Gate:
    """Implements `transfer.Admission` with a policy."""

    def __init__(self, parts: GateParts, policy: AdmissionPolicy, settings: PolicySettings) -> None:
        self.parts = parts
        self.now: Callable[[], float] = parts.now
        self.floor = Floor(parts, policy, settings, self._called, self._one_ended)
        self.draining = False
        #: Answers that are kept back from clients who ask again and again.
        self._slowed = 0
        self.holds = HoldingHall(
            self, parts.reactor, self._expected, parts.holds_most, parts.holds_per_client
        )
        self._small_below = settings.small_below_bytes
        self.reception = Reception(parts, self.holds, lambda: self._small_below)

    # -- the life of the gate ----------------------------------------------------------------

    @property
    def policy(self) -> AdmissionPolicy:
        """The policy that decides at present."""
        return self.floor.policy

    @property
    def settings(self) -> PolicySettings:
        """Its settings."""
        return self.floor.settings

    @property
    def downloads(self) -> dict[int, Download]:
        """Running downloads by lease."""
        return self.floor.downloads

    def open(self, rows: Iterable[TicketRow] = ()) -> None:
        """Take up the tickets of an earlier run and begin to tick."""
        self.floor.open(rows)

    def apply(self, name: str, settings: PolicySettings) -> None:
        """Switch policy or settings; no download is dropped and no place is lost."""
        self._small_below = settings.small_below_bytes
        self.floor.switch(name, settings)
        for hold in self.holds:
            self.offer_again(hold)

    def drain(self) -> None:
        """Admit nobody any more; those who wait in their request are sent away with their place."""
        self.draining = True
        for hold in self.holds:
            self.holds.remove(hold)
            self._let_go(hold)

    def close(self) -> None:
        """Send everybody away, stop the clocks, write the last changes."""
        self.drain()
        self.floor.close()

    # -- Admission ---------------------------------------------------------------------------

    def admit_small(self, request: Request, rep: Representation) -> bool:
        """See `transfer.Admission`."""
        if rep.size_bytes >= self._small_below or self.draining or self.reception.blocked:
            return False
        if self.parts.rules and self.parts.rules.verdict(rep.url_path) is not NOTHING:
            return False
        if not self.policy.admit_small(self.now()):
            return False
        self.parts.popularity.count(rep.url_path, 1, rep.size_bytes)
        return True

    def enter(self, request: Request, rep: Representation, plan: BodyPlan, start: Start) -> None:
        """See `transfer.Admission`."""
        parts, now = self.parts, self.now()
        visit = self.reception.receive(request, rep, plan, start, now)
        if visit is None:
            return
        client, proof = visit.job.client, visit.proof
        if self.draining and self.floor.find(client, rep.url_path) is None:
            self._refuse(visit, Refuse(Reason.CLOSED, 10.0))
            return
        decision = self._decide(visit, proof.ticket, now)
        if proof.grant is not None and not isinstance(decision, Refuse):
            parts.passes.begin(proof.grant, client, rep.url_path, now)
        if isinstance(decision, Wait) or (isinstance(decision, Admit) and not decision.joined):
            parts.arrived(ArrivalRecord(now, client, rep.url_path, rep.size_bytes))
        self.floor.settle()
        if isinstance(decision, Admit):
            self._start(visit, decision)
        elif isinstance(decision, Wait):
            if visit.job.present:
                self._hold(visit, visit.rule, decision)
            else:
                self._ask_back(visit, decision)
        elif decision.reason is Reason.TOO_MANY_CONNECTIONS and visit.may_hold:
            rule = visit.rule if visit.job.present else _BRIEFLY
            self._hold(visit, rule, _until_one_ends(decision), crowded=True)
        else:
            self._refuse(visit, decision)

    def _decide(self, visit: Visit, ticket: Ticket | None, now: float) -> Decision:
        if ticket is None:
            return self.policy.offer(visit.job, now)
        if self.policy.ticket(ticket.number) is None:
            if self.parts.numbers.is_over(ticket.number):
                return Refuse(Reason.TICKET_USED)
            # The signature proves a ticket that the journal lost: it gets its place back.
            row = TicketRow(
                number=ticket.number,
                client=visit.job.client,
                file=visit.job.file,
                size_bytes=ticket.size_bytes,
                remaining_bytes=visit.job.remaining_bytes,
                weight=ticket.weight,
                issued_s=ticket.issued_s,
                state=self._state_of_lost(ticket.number),
                changed_s=now,
            )
            self.policy.restore([row], now, self.parts.numbers.first)
        return self.policy.offer(visit.job, now, ticket.number)

    def _state_of_lost(self, number: int) -> TicketState:
        """Ready if younger tickets are: it must not stand behind them."""
        for row in self.policy.tickets():
            if row.state is not TicketState.READY:
                break
            if row.number > number:
                return TicketState.READY
        return TicketState.WAITING

    # -- for holds (`holding.Host`) ----------------------------------------------------------

    def offer_again(self, hold: Hold) -> None:
        """See `holding.Host`."""
        if hold.over:
            return
        visit, now = hold.visit, self.now()
        decision = self.policy.offer(visit.job, now, hold.ticket)
        if isinstance(decision, Refuse) and decision.reason in _FORBIDDEN:
            # Its place is gone (an operator's doing, or a switch of policy): a new one, then.
            decision = self.policy.offer(visit.job, now)
        self.floor.settle()
        if isinstance(decision, Admit):
            self.holds.remove(hold)
            self._start(visit, decision)
        elif isinstance(decision, Wait) and not visit.job.present:
            self.holds.remove(hold)
            self._ask_back(visit, decision)
        elif isinstance(decision, Wait):
            self._keep(hold, decision)
        elif decision.reason is Reason.TOO_MANY_CONNECTIONS:
            self._keep(hold, _until_one_ends(decision), crowded=True)
        else:
            self.holds.remove(hold)
            if hold.committed:
                visit.request.abort()
            else:
                self._refuse(visit, decision)

    def hold_left(self, hold: Hold, limit: bool) -> None:
        """See `holding.Host`."""
        if hold.over:
            return
        ticket = hold.ticket
        self.holds.remove(hold)
        if ticket is not None and not self.holds.holding(ticket):
            self.policy.absent(ticket, self.now())
            self.floor.settle()
        if limit:
            self._let_go(hold)

    def _let_go(self, hold: Hold) -> None:
        if hold.committed or hold.wait is None:
            hold.visit.request.abort()
        elif hold.crowded and not self.draining:
            self._refuse(hold.visit, Refuse(Reason.TOO_MANY_CONNECTIONS, hold.wait.retry_after_s))
        else:
            self._ask_back(hold.visit, hold.wait)

    def _one_ended(self, client: str, file: str) -> None:
        """A connection of this download has ended: the next one of it may come in."""
        while (hold := self.holds.first_of_crowd(client, file)) is not None:
            self.offer_again(hold)
            if hold.crowded and not hold.over:
                return

    def _called(self, number: int) -> None:
        holds = self.holds.holding(number)
        if not holds:
            self.policy.absent(number, self.now())
        for hold in holds:
            self.offer_again(hold)

    # -- from a decision to HTTP ---------------------------------------------------------------

    def _start(self, visit: Visit, admit: Admit) -> None:
        rep, job = visit.rep, visit.job
        download = self.downloads.get(admit.lease)
        if download is None:
            download = self.floor.begin(Download(admit, job, rep, self.now()))
        else:
            download.renew(rep, job.remaining_bytes)
        headers: list[Header] = [
            (b"Tidegate-Lease-Connections", b"%d" % self.settings.connections_per_lease)
        ]
        if admit.ticket is not None:
            # Signing costs as much as sending a small range: once a download is enough.
            signed = (admit.ticket, visit.proof.preference)
            if download.signed != signed:
                download.signed = signed
                download.token = self._token(admit.ticket, visit)[0].encode("ascii")
            headers.append((b"Tidegate-Ticket", download.token))
            if b"cookie" in visit.request.headers:
                # The place is taken; a later download of the same file begins afresh.
                headers.append(clear_cookie(visit.request))
        delivery = Delivery(download, visit.plan, self.floor.delivered)
        download.deliveries.add(delivery)
        transfer = visit.start(delivery, headers)
        delivery.transfer = transfer
        if download.paused and not delivery.over:
            transfer.pause()

    def _hold(self, visit: Visit, rule: ToolRule, wait: Wait, *, crowded: bool = False) -> None:
        hold = Hold(self.holds, visit, rule)
        self.holds.add(hold)
        self._keep(hold, wait, crowded=crowded)
        visit.request.on_gone(lambda: self.hold_left(hold, False))

    def _keep(self, hold: Hold, wait: Wait, *, crowded: bool = False) -> None:
        self._note_issued(wait)
        self.holds.bind(hold, wait, crowded=crowded)
        if wait.ticket is None:
            # Nobody calls it: it looks for itself, as often as a person behind a counter would.
            hold.poll_in(min(_LOOK_S, wait.retry_after_s))

    def _ask_back(self, visit: Visit, wait: Wait) -> None:
        self._note_issued(wait)
        token, waited_s = None, 0.0
        if wait.ticket is not None:
            token, issued_s = self._token(wait.ticket, visit)
            waited_s = max(0.0, self.now() - issued_s)
        slowly_s = wait.answer_after_s if self._slowed < _MOST_SLOWED else 0.0
        if slowly_s > 0.0:
            # What it is told counts from the moment it hears it.
            wait = replace(wait, retry_after_s=wait.retry_after_s - slowly_s)
        rep = visit.rep
        notice = Notice(rep.url_path, rep.size_bytes, wait, token, waited_s, self.draining)

        def answer() -> None:
            self.parts.waiting.answer(visit.request, notice)

        if slowly_s > 0.0:
            self._slowed += 1
            self.parts.reactor.callLater(slowly_s, self._answer_late, answer)
        else:
            # What a client was told must survive a crash: the answer waits for the journal.
            self.parts.journal.after_commit(answer)

    def _answer_late(self, answer: Callable[[], None]) -> None:
        self._slowed -= 1
        self.parts.journal.after_commit(answer)

    def _refuse(self, visit: Visit, refusal: Refuse) -> None:
        forbidden = refusal.reason in _FORBIDDEN
        self.parts.waiting.refuse(
            visit.request,
            403 if forbidden else 503,
            refusal.reason.value,
            _SENTENCES[refusal.reason],
            retry_after_s=None if forbidden else refusal.retry_after_s or 5.0,
            afresh=forbidden,
        )

    # -- small duties ------------------------------------------------------------------------

    def _token(self, number: int, visit: Visit) -> tuple[str, float]:
        row = self.policy.ticket(number)
        issued_s = row.issued_s if row is not None else self.now()
        text = write_proof(self.parts.keys, number, visit.job, visit.proof.preference, issued_s)
        return text, issued_s

    def _note_issued(self, wait: Wait) -> None:
        if wait.ticket is not None and wait.ticket > self.parts.numbers.highest:
            self.parts.numbers.issued(wait.ticket)

    def _expected(self, number: int) -> float | None:
        found = self.policy.estimate(number, self.now())
        return found.expected_s if found is not None else None


def _until_one_ends(refusal: Refuse) -> Wait:
    return Wait(min(5.0, refusal.retry_after_s or 5.0))
