"""The gate: the only caller of a policy, and the only place where a decision becomes HTTP.

Walk of a request: who asks (`callers`), what it may have (`rules`, `passes`), what it proves
(tickets), what the policy says, and then one of: the transfer starts on a lease, the client is
told when to come back (`waiting`), or it is kept inside its request (`holding`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from policies.job import (
    AdmissionPolicy,
    Admit,
    Estimate,
    Job,
    Reason,
    Refuse,
    TicketRow,
    TicketState,
    Wait,
)
from policies.registry import make_policy
from policies.settings import PolicySettings
from protocol.errors import BadToken
from protocol.ticket import Ticket
from server.callers import WAIT_FIELD, find_pass, find_remaining, find_ticket
from server.downloads import Delivery, Download
from server.gateparts import GateParts
from server.holding import Hold, HoldingHall
from server.http.answers import Header, prefers_html
from server.http.request import Request
from server.passes import Grant
from server.rules import NOTHING, Verdict
from server.store.records import ArrivalRecord
from server.tools import ToolRule
from server.transfer import BodyPlan, Representation, Start
from server.waiting import Notice, clear_cookie

TICK_S = 0.25
_OVER = frozenset({TicketState.DONE, TicketState.EXPIRED, TicketState.WITHDRAWN})
_SENTENCES = {
    Reason.TICKET_EXPIRED: "This ticket's turn has passed; ask without it for a new one.",
    Reason.TICKET_USED: "This ticket has been used; ask without it for a new one.",
    Reason.TICKET_FOREIGN: "This ticket belongs to another download; ask without it.",
    Reason.TOO_MANY_CONNECTIONS: "This download has as many connections as it may; close one.",
    Reason.TOO_MANY_TICKETS: "You wait for as many files as one client may; finish some first.",
    Reason.CLOSED: "The server is about to stop; come back in a moment, your place is kept.",
}
_FORBIDDEN = frozenset({Reason.TICKET_EXPIRED, Reason.TICKET_USED, Reason.TICKET_FOREIGN})


class Gate:
    """Implements `transfer.Admission` with a policy."""

    def __init__(self, parts: GateParts, policy: AdmissionPolicy, settings: PolicySettings) -> None:
        self.parts = parts
        self.policy = policy
        self.settings = settings
        self.draining = False
        self.blocked: set[str] = set()
        self.downloads: dict[int, Download] = {}
        self.holds = HoldingHall(
            self, parts.reactor, self._expected, parts.holds_most, parts.holds_per_client
        )
        self.now: Callable[[], float] = parts.now
        self._small_below = settings.small_below_bytes
        self._soon_call: Any = None
        self._wake_call: Any = None
        self._tick_call: Any = None
        self._ticked_s = self.now()
        self.forged_total = 0

    # -- the life of the gate ----------------------------------------------------------------

    def open(self, rows: Iterable[TicketRow] = ()) -> None:
        """Take up the tickets of an earlier run and begin to tick."""
        self.policy.restore(rows, self.now(), self.parts.numbers.first)
        self._ticked_s = self.now()
        self._tick_call = self.parts.reactor.callLater(TICK_S, self._tick)
        self.settle()

    def apply(self, name: str, settings: PolicySettings) -> None:
        """Switch policy or settings; no download is dropped and no place is lost."""
        self.policy = make_policy(name, settings, self.parts.rng, self.policy)
        self.settings = settings
        self._small_below = settings.small_below_bytes
        self._let_time_pass()
        for hold in self.holds:
            self.offer_again(hold)

    def drain(self) -> None:
        """Admit nobody any more; those who wait in their request are sent away with their place."""
        self.draining = True
        for hold in self.holds:
            self._send_away(hold)

    def close(self) -> None:
        """Stop the clocks and write the last changes."""
        for call in (self._soon_call, self._wake_call, self._tick_call):
            if call is not None and call.active():
                call.cancel()
        for hold in self.holds:
            self._send_away(hold)
        self._record()

    # -- Admission ---------------------------------------------------------------------------

    def admit_small(self, request: Request, rep: Representation) -> bool:
        """See `transfer.Admission`."""
        if rep.size_bytes >= self._small_below or self.draining or self.blocked:
            return False
        if self.parts.rules and self.parts.rules.verdict(rep.url_path) is not NOTHING:
            return False
        return self.policy.admit_small(self.now())

    def enter(self, request: Request, rep: Representation, plan: BodyPlan, start: Start) -> None:
        """See `transfer.Admission`."""
        parts, now = self.parts, self.now()
        headers = request.headers
        client = parts.callers.key(request.client_address, headers)
        verdict = parts.rules.verdict(rep.url_path)
        if verdict.hidden(now):
            parts.not_found(request)
            return
        if self.blocked and client.partition("#")[0] in self.blocked:
            request.refuse(403, "blocked", "The operator has blocked this address.")
            return
        try:
            ticket = self._read_ticket(request, client, rep.url_path, now)
            path = unquote(rep.url_path)
            grant = self._read_pass(request, client, rep.url_path, path, now)
        except BadToken as error:
            self.forged_total += error.code.endswith("forged")
            parts.waiting.refuse(request, error.status, error.code, str(error), afresh=True)
            return
        preference = grant.preference if grant else ticket.preference if ticket else ""
        weight = grant.weight if grant else ticket.weight if ticket else 1.0
        wanted_class = verdict.require_class
        if wanted_class is not None and preference != wanted_class:
            detail = f"This file needs a pass of class {wanted_class!r}; ask the operator for one."
            request.refuse(403, "pass-required", detail)
            return
        rule = parts.tools.rule_for(headers.get(b"user-agent"))
        holdable = (
            rule.manner == "hold"
            and WAIT_FIELD not in headers
            and not prefers_html(headers.get(b"accept"))
            and self.holds.has_room(client)
        )
        job = Job(
            client=client,
            file=rep.url_path,
            size_bytes=self._counted_size(rep, verdict),
            remaining_bytes=wanted_bytes(headers, rep, plan),
            weight=weight,
            present=holdable,
        )
        if self.draining and self._lease_of(client, rep.url_path) is None:
            self._refuse(request, Refuse(Reason.CLOSED, 10.0))
            return
        if ticket is not None and self.parts.numbers.is_over(ticket.number):
            self._refuse(request, Refuse(Reason.TICKET_USED))
            return
        if ticket is not None:
            self._take_up(ticket, job, now)
        decision = self.policy.offer(job, now, ticket.number if ticket else None)
        if grant is not None and not isinstance(decision, Refuse):
            parts.passes.begin(grant, client, rep.url_path, now)
        self.settle()
        if isinstance(decision, Admit):
            self._start(request, rep, plan, start, job, decision, preference, now)
        elif isinstance(decision, Wait):
            if holdable:
                self._hold(request, rep, plan, start, job, rule, preference, now, decision)
            else:
                self._ask_back(request, rep, job, decision, preference, now)
        elif decision.reason is Reason.TOO_MANY_CONNECTIONS and holdable:
            wait = Wait(min(5.0, decision.retry_after_s or 5.0))
            self._hold(request, rep, plan, start, job, rule, preference, now, wait)
        else:
            self._refuse(request, decision)

    # -- for holds (`holding.Host`) ----------------------------------------------------------

    def offer_again(self, hold: Hold) -> None:
        """See `holding.Host`."""
        if hold.over:
            return
        now = self.now()
        decision = self.policy.offer(hold.job, now, hold.ticket)
        if isinstance(decision, Refuse) and decision.reason in _FORBIDDEN:
            # Its place is gone (an operator's doing, or a switch of policy): a new one, then.
            decision = self.policy.offer(hold.job, now, None)
        self.settle()
        if isinstance(decision, Admit):
            self.holds.remove(hold)
            self._start(
                hold.request,
                hold.rep,
                hold.plan,
                hold.start,
                hold.job,
                decision,
                hold.preference,
                now,
            )
        elif isinstance(decision, Wait):
            self._keep(hold, decision)
        elif decision.reason is Reason.TOO_MANY_CONNECTIONS:
            self._keep(hold, Wait(min(5.0, decision.retry_after_s or 5.0)))
        else:
            self.holds.remove(hold)
            if hold.committed:
                hold.request.abort()
            else:
                self._refuse(hold.request, decision)

    def hold_left(self, hold: Hold, limit: bool) -> None:
        """See `holding.Host`."""
        if hold.over:
            return
        ticket, wait, now = hold.ticket, hold.wait, self.now()
        self.holds.remove(hold)
        if ticket is not None and not self.holds.holding(ticket):
            self.policy.absent(ticket, now)
            self.settle()
        if limit:
            if hold.committed or wait is None:
                hold.request.abort()
            else:
                self._ask_back(hold.request, hold.rep, hold.job, wait, hold.preference, now)

    # -- from a decision to HTTP ---------------------------------------------------------------

    def _start(
        self,
        request: Request,
        rep: Representation,
        plan: BodyPlan,
        start: Start,
        job: Job,
        admit: Admit,
        preference: str,
        now: float,
    ) -> None:
        download = self.downloads.get(admit.lease)
        if download is None:
            download = self.downloads[admit.lease] = Download(
                admit.lease,
                admit.ticket,
                job.client,
                job.file,
                rep.size_bytes,
                rep.etag,
                job.remaining_bytes,
                now,
            )
        else:
            download.renew(rep.etag, rep.size_bytes, job.remaining_bytes)
        headers: list[Header] = [
            (b"Tidegate-Lease-Connections", b"%d" % self.settings.connections_per_lease)
        ]
        if admit.ticket is not None:
            row = self.policy.ticket(admit.ticket)
            issued_s = row.issued_s if row is not None else now
            token = self._token(admit.ticket, job, preference, issued_s)
            headers.append((b"Tidegate-Ticket", token.encode("ascii")))
            if b"cookie" in request.headers:
                # The place is taken; a later download of the same file begins afresh.
                headers.append(clear_cookie(request))
        delivery = Delivery(download, plan, self._delivered)
        download.deliveries.add(delivery)
        transfer = start(delivery, headers)
        delivery.transfer = transfer
        if download.paused and not delivery.over:
            transfer.pause()

    def _delivered(self, delivery: Delivery) -> None:
        download = delivery.download
        if self.downloads.get(download.lease) is not download:
            return
        now = self.now()
        self.policy.detach(download.lease, now, download.remaining_bytes())
        if download.complete():
            del self.downloads[download.lease]
            self.policy.release(download.lease, now, True)
            self.parts.passes.end(download.client, download.file)
        self.settle()

    def _hold(
        self,
        request: Request,
        rep: Representation,
        plan: BodyPlan,
        start: Start,
        job: Job,
        rule: ToolRule,
        preference: str,
        now: float,
        wait: Wait,
    ) -> None:
        hold = Hold(self.holds, request, rep, plan, start, job, rule, preference, now)
        self.holds.add(hold)
        self._keep(hold, wait)
        request.on_gone(lambda: self.hold_left(hold, False))

    def _keep(self, hold: Hold, wait: Wait) -> None:
        self._note_issued(wait, hold.job)
        self.holds.bind(hold, wait)
        if wait.ticket is None:
            hold.poll_in(wait.retry_after_s)

    def _ask_back(
        self,
        request: Request,
        rep: Representation,
        job: Job,
        wait: Wait,
        preference: str,
        now: float,
    ) -> None:
        self._note_issued(wait, job)
        token, waited_s = None, 0.0
        if wait.ticket is not None:
            row = self.policy.ticket(wait.ticket)
            issued_s = row.issued_s if row is not None else now
            waited_s = max(0.0, now - issued_s)
            token = self._token(wait.ticket, job, preference, issued_s)
        notice = Notice(rep.url_path, rep.size_bytes, wait, token, waited_s, self.draining)
        # What a client was told must survive a crash: the answer waits for the journal.
        self.parts.journal.after_commit(lambda: self.parts.waiting.answer(request, notice))

    def _refuse(self, request: Request, refusal: Refuse) -> None:
        forbidden = refusal.reason in _FORBIDDEN
        self.parts.waiting.refuse(
            request,
            403 if forbidden else 503,
            refusal.reason.value,
            _SENTENCES[refusal.reason],
            retry_after_s=None if forbidden else refusal.retry_after_s or 5.0,
            afresh=forbidden,
        )

    def _send_away(self, hold: Hold) -> None:
        wait = hold.wait
        self.holds.remove(hold)
        if hold.committed or wait is None:
            hold.request.abort()
        else:
            self._ask_back(hold.request, hold.rep, hold.job, wait, hold.preference, self.now())

    # -- tickets and passes ----------------------------------------------------------------------

    def _read_ticket(self, request: Request, client: str, file: str, now: float) -> Ticket | None:
        token = find_ticket(request.headers, request.query)
        if token is None:
            return None
        return self.parts.keys.read_ticket(
            token.text, client, file, now, self.parts.ticket_max_age_s
        )

    def _read_pass(
        self, request: Request, client: str, file: str, path: str, now: float
    ) -> Grant | None:
        text = find_pass(request.headers, request.query)
        if text is None:
            return None
        grant = self.parts.passes.read(text, path, now)
        self.parts.passes.check_use(grant, client, file)
        return grant

    def _token(self, number: int, job: Job, preference: str, issued_s: float) -> str:
        return self.parts.keys.write_ticket(
            Ticket(
                number=number,
                client=job.client,
                file=job.file,
                size_bytes=job.size_bytes,
                remaining_bytes=job.remaining_bytes,
                weight=job.weight,
                issued_s=issued_s,
                preference=preference,
            )
        )

    def _take_up(self, ticket: Ticket, job: Job, now: float) -> None:
        """A signed ticket that the journal lost gets its place back."""
        if self.policy.ticket(ticket.number) is not None:
            return
        row = TicketRow(
            number=ticket.number,
            client=job.client,
            file=job.file,
            size_bytes=ticket.size_bytes,
            remaining_bytes=job.remaining_bytes,
            weight=ticket.weight,
            issued_s=ticket.issued_s,
            state=TicketState.WAITING,
            changed_s=now,
        )
        self.policy.restore([row], now, self.parts.numbers.first)

    def _note_issued(self, wait: Wait, job: Job) -> None:
        if wait.ticket is not None and wait.ticket > self.parts.numbers.highest:
            self.parts.numbers.issued(wait.ticket)
            self.parts.arrived(ArrivalRecord(self.now(), job.client, job.file, job.size_bytes))

    # -- time ------------------------------------------------------------------------------------

    def settle(self) -> None:
        """After calls to the policy: journal what changed, and let it decide what follows."""
        self._record()
        if self._soon_call is None:
            self._soon_call = self.parts.reactor.callLater(0, self._let_time_pass)

    def _record(self) -> None:
        rows = self.policy.changes()
        if not rows:
            return
        for row in rows:
            if row.state in _OVER:
                self.parts.numbers.end(row.number)
        self.parts.journal.keep_tickets(rows)

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
                self.downloads[lease].resume()
        for lease in step.idled_out:
            download = self.downloads.pop(lease, None)
            if download is not None:
                download.abort("the lease is over")
                self.parts.passes.end(download.client, download.file)
        for number in step.call:
            holds = self.holds.holding(number)
            if not holds:
                self.policy.absent(number, now)
            for hold in holds:
                self.offer_again(hold)
        self._record()
        if self._wake_call is not None and self._wake_call.active():
            self._wake_call.cancel()
        self._wake_call = None
        if step.wake_at is not None and self._soon_call is None:
            delay_s = max(0.001, step.wake_at - now)
            self._wake_call = self.parts.reactor.callLater(delay_s, self._let_time_pass)

    def _tick(self) -> None:
        self._tick_call = self.parts.reactor.callLater(TICK_S, self._tick)
        now = self.now()
        elapsed_s, self._ticked_s = now - self._ticked_s, now
        for download in self.downloads.values():
            if not download.paused:
                download.measure(elapsed_s)
                self.policy.progress(
                    download.lease, now, download.remaining_bytes(), download.rate_bytes_s
                )
        link = self.parts.link
        self.policy.observe(link.goodput_bytes_s(), link.link_busy, now)
        self._let_time_pass()

    def _expected(self, number: int | None) -> float | None:
        if number is None:
            return None
        found: Estimate | None = self.policy.estimate(number, self.now())
        return found.expected_s if found is not None else None

    def _lease_of(self, client: str, file: str) -> Download | None:
        return next(
            (
                download
                for download in self.downloads.values()
                if download.client == client and download.file == file
            ),
            None,
        )

    def _counted_size(self, rep: Representation, verdict: Verdict) -> int:
        if verdict.treat_as == "small":
            return min(rep.size_bytes, max(0, self._small_below - 1))
        if verdict.treat_as == "large":
            return max(rep.size_bytes, self._small_below)
        return rep.size_bytes


def wanted_bytes(headers: Mapping[bytes, bytes], rep: Representation, plan: BodyPlan) -> int:
    """How much of the file a new download wants in all.

    What the client says counts; else a range that reaches to the end is a resume of an earlier
    download; else the whole file (a tool that fetches pieces will ask for the others).
    """
    said = find_remaining(headers, rep.size_bytes)
    if said is not None:
        return said
    if len(plan.ranges) == 1 and plan.ranges[0][1] == rep.size_bytes:
        return plan.body_bytes if plan.status == 206 else rep.size_bytes
    return rep.size_bytes
