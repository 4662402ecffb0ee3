"""Who asks, for what, and with which proof: a request becomes a visit before any policy sees it.

What can be answered without the policy is answered here: blocked addresses, files that are not
there yet, bad tickets, passes that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from policies.job import Job, Wait
from protocol.errors import BadToken
from server.blocks import BlockList
from server.callers import WAIT_FIELD, find_remaining
from server.gateparts import GateParts, Visit
from server.holding import HoldingHall
from server.http.answers import prefers_html
from server.http.request import Request
from server.proofs import read_proof
from server.rules import Verdict
from server.tools import ToolRule
from server.transfer import BodyPlan, Representation, Start
from server.waiting import Notice


class Reception:
    """Receives requests for the gate. `small_below` tells which files count as small, in bytes."""

    def __init__(
        self, parts: GateParts, holds: HoldingHall, small_below: Callable[[], int]
    ) -> None:
        self.parts = parts
        self.blocked = BlockList(parts.now)
        self.forged_total = 0
        self._holds = holds
        self._small_below = small_below

    def receive(
        self, request: Request, rep: Representation, plan: BodyPlan, start: Start, now: float
    ) -> Visit | None:
        """The request as a visit, or None when it is answered already."""
        parts = self.parts
        headers = request.headers
        client = parts.callers.key(request.client_address, headers)
        verdict = parts.rules.verdict(rep.url_path)
        if self._is_blocked(client):
            request.refuse(403, "blocked", "The operator has blocked this address.")
            return None
        if verdict.hidden(now):
            parts.not_found(request)
            return None
        if parts.prequeue.holds_back(verdict.hidden_until_s) and self.register(request, rep, now):
            return None
        try:
            proof = read_proof(
                request,
                client,
                rep.url_path,
                now,
                parts.keys,
                parts.passes,
                parts.ticket_max_age_s,
            )
        except BadToken as error:
            self.forged_total += error.code.endswith("forged")
            parts.waiting.refuse(request, error.status, error.code, str(error), afresh=True)
            return None
        if verdict.require_class not in (None, proof.preference):
            detail = f"This file needs a pass of class {verdict.require_class!r}; ask for one."
            request.refuse(403, "pass-required", detail)
            return None
        rule = parts.tools.rule_for(headers.get(b"user-agent"))
        # Who speaks our fields, or asks for JSON, reads the answer and needs no holding.
        reads_answers = WAIT_FIELD in headers or b"json" in headers.get(b"accept", b"")
        has_room = not reads_answers and self._holds.has_room(client)
        holdable = has_room and self._is_held(rule, headers)
        job = Job(
            client=client,
            file=rep.url_path,
            size_bytes=self._counted_size(rep, verdict),
            remaining_bytes=wanted_bytes(headers, rep, plan),
            weight=proof.weight,
            present=holdable,
        )
        return Visit(request, rep, plan, start, job, rule, proof, has_room)

    def register(self, request: Request, rep: Representation, now: float) -> bool:
        """Put the client down for the draw of a file that opens later; False if there is none."""
        parts = self.parts
        verdict = parts.rules.verdict(rep.url_path)
        opens_s = verdict.hidden_until_s
        if opens_s is None or not verdict.registers(now):
            return False
        client = parts.callers.key(request.client_address, request.headers)
        if self._is_blocked(client):
            return False
        entry = parts.prequeue.draw(opens_s).enter(client, rep, 1.0)
        left_s = max(0.0, opens_s - now)
        # Everybody comes back at the opening: spread over a few seconds, never before it.
        wait = Wait(min(300.0, left_s + 1.0 + parts.rng.uniform(0.0, 4.0)))
        notice = Notice(rep.url_path, rep.size_bytes, wait, None, opens_s=left_s, entry=entry.ident)
        parts.waiting.answer(request, notice)
        return True

    def _is_blocked(self, client: str) -> bool:
        return bool(self.blocked) and client.partition("#")[0] in self.blocked

    def _is_held(self, rule: ToolRule, headers: Mapping[bytes, bytes]) -> bool:
        if rule.manner != "hold":
            return False
        # wget2 asks for text/html as browsers do, so a known tool's name counts for more.
        return rule is not self.parts.tools.unknown or not prefers_html(headers.get(b"accept"))

    def _counted_size(self, rep: Representation, verdict: Verdict) -> int:
        small_below = self._small_below()
        if verdict.treat_as == "small":
            return min(rep.size_bytes, max(0, small_below - 1))
        if verdict.treat_as == "large":
            return max(rep.size_bytes, small_below)
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
