"""Finds client, file and proof of a request, before any policy sees it.

Requests that need no policy are answered here: of blocked addresses, for hidden files, with bad
tickets or without a needed pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.logger import Logger

from ...policies.contract import Job, Wait
from ...protocol.errors import BadToken
from ..files.transfer import BodyPlan, Representation, StartBody
from ..http.answers import prefers_html
from ..http.request import Request
from .client_keys import WAIT_FIELD, find_remaining
from .client_programs import ToolRule
from .credentials import Proof, read_proof
from .denylist import BlockList
from .gateparts import AdmissionRequest, GateParts
from .parked import ParkedRequests
from .responses import Notice
from .rules import NOTHING as NO_RULE
from .rules import Verdict

_log = Logger()


class Identifier:
    """Receives requests for the gate, and decides who may see what (`transfer.Visibility`).

    Files below `small_below` bytes count as small.
    """

    def __init__(
        self,
        parts: GateParts,
        holds: ParkedRequests,
        small_below: Callable[[], int],
        is_queued: Callable[[int], bool],
    ) -> None:
        self.parts, self._waits = parts, is_queued
        self.blocked = BlockList(parts.wall)
        self.forged_total = 0
        self._told_of_key = False
        self._holds = holds
        self._small_below = small_below

    def receive(
        self, request: Request, rep: Representation, plan: BodyPlan, start: StartBody, now: float
    ) -> AdmissionRequest | None:
        """The request with its proofs; None if it is answered already."""
        parts = self.parts
        headers = request.headers
        verdict = parts.rules.verdict(rep.url_path)
        if self._refuses_blocked(request):
            return None
        if verdict is not NO_RULE:
            if verdict.hidden(now):
                request.not_found()
                return None
            if parts.prequeue.holds_back(verdict.hidden_until_s) and self.register(request, rep):
                return None
        proof = self._prove(request, rep.url_path, verdict, now)
        if proof is None:
            return None
        rule = parts.terms.tools.rule_for(headers.get(b"user-agent"))
        browser = self._is_browser(rule, headers)
        client = parts.clients.identify(request, parts.keys, proof.ticket, browser=browser)
        if proof.grant is not None:
            try:
                parts.passes.check_use(proof.grant, client.key, rep.url_path)
            except BadToken as error:
                self._refuse_token(request, error)
                return None
        # A client that speaks our fields, or asks for JSON, reads the answer and needs no holding.
        reads_answers = WAIT_FIELD in headers or b"json" in headers.get(b"accept", b"")
        has_room = not reads_answers and self._holds.has_room(client.key, client.network)
        holdable = has_room and rule.manner == "hold" and not browser
        job = Job(
            client=client.key,
            file=rep.url_path,
            size_bytes=rep.size_bytes if verdict is NO_RULE else self._counted_size(rep, verdict),
            remaining_bytes=wanted_bytes(headers, rep, plan),
            weight=proof.weight,
            priority_class=proof.priority_class,
            present=holdable,
            network=client.network,
            known=parts.evidence.knows(client, now),
            counts_body=rule.counts_body,
            line=request.connection.line,
            elsewhere=request.connection.elsewhere,
            running=request.connection.running,
        )
        return AdmissionRequest(
            request, rep, plan, start, job, rule, proof, has_room, browser, client.cookie
        )

    def hidden(self, url_path: str) -> bool:
        return self.parts.rules.verdict(url_path).hidden(self.parts.wall())

    def secret(self, url_path: str) -> bool:
        return self.parts.rules.verdict(url_path).require_class is not None

    def opens_in_s(self, url_path: str) -> float | None:
        return self.parts.rules.verdict(url_path).opens_in_s(self.parts.wall())

    def turned_away(self, request: Request, url_path: str) -> bool:
        """See `transfer.Visibility`: the client is blocked, or lacks the pass for the file."""
        if self._refuses_blocked(request):
            return True
        verdict = self.parts.rules.verdict(url_path)
        if verdict.require_class is None:
            return False
        return self._prove(request, url_path, verdict, self.parts.wall()) is None

    def _prove(self, request: Request, url_path: str, verdict: Verdict, now: float) -> Proof | None:
        """What the request proves; None when it was refused for a bad proof or a missing pass."""
        parts = self.parts
        try:
            age_s = parts.terms.ticket_max_age_s
            proof = read_proof(request, url_path, now, parts.keys, parts.passes, age_s, self._waits)
        except BadToken as error:
            self._refuse_token(request, error)
            return None
        if verdict.require_class not in (None, proof.priority_class):
            detail = (
                f"This file needs a priority pass of class {verdict.require_class!r}; the operator "
                "of this site issues them."
            )
            request.refuse(403, "pass-required", detail)
            return None
        return proof

    def _refuse_token(self, request: Request, error: BadToken) -> None:
        self.forged_total += error.code.endswith("forged")
        if error.key and not self._told_of_key:
            self._told_of_key = True
            known = ", ".join(name for name, _ in self.parts.keys.derived())
            text = "A ticket or pass is signed with the key {key}, not with one of {known}: {code}."
            _log.warn(text, key=error.key, known=known, code=error.code)
        again_s = 2.0 if error.status == 503 else None
        told = (error.status, error.code, str(error))
        self.parts.waiting.refuse(request, *told, retry_after_s=again_s, afresh=not again_s)

    def register(self, request: Request, rep: Representation) -> bool:
        """See `transfer.Visibility`: enter the client for the draw of the release."""
        parts, now = self.parts, self.parts.wall()
        verdict = parts.rules.verdict(rep.url_path)
        opens_s = verdict.hidden_until_s
        if opens_s is None or not verdict.registers(now):
            return False
        if self.blocked.blocks(request.client_address):
            return False
        rule = parts.terms.tools.rule_for(request.header(b"user-agent"))
        browser = self._is_browser(rule, request.headers)
        client = parts.clients.identify(request, parts.keys, None, browser=browser)
        entry = parts.prequeue.draw(opens_s).enter(client.key, rep, client.network)
        left_s = max(0.0, opens_s - now)
        # All clients come back at the opening: spread over a few seconds, never before it.
        wait = Wait(min(300.0, left_s + 1.0 + parts.rng.uniform(0.0, 4.0)))
        notice = Notice(
            rep.url_path,
            rep.size_bytes,
            wait,
            None,
            opens_s=left_s,
            entry=entry.ident if entry is not None else "",
            visitor=client.cookie,
        )
        parts.waiting.answer(request, notice)
        return True

    def _refuses_blocked(self, request: Request) -> bool:
        if not self.blocked or not self.blocked.blocks(request.client_address):
            return False
        request.refuse(403, "blocked", "The operator has blocked this address.")
        return True

    def follows(self, request: Request) -> bool:
        """Whether this client is known to follow redirects, to other hosts too."""
        rule = self.parts.terms.tools.rule_for(request.header(b"user-agent"))
        return rule.redirects > 0 or self._is_browser(rule, request.headers)

    def _is_browser(self, rule: ToolRule, headers: Mapping[bytes, bytes]) -> bool:
        # wget2 asks for text/html as browsers do, so a known tool's name counts for more. yt-dlp
        # has a browser's name and one of the fields of Fetch Metadata: browsers send them together.
        half = b"sec-fetch-mode" in headers and b"sec-fetch-dest" not in headers
        unknown = rule is self.parts.terms.tools.unknown
        return unknown and prefers_html(headers.get(b"accept")) and not half

    def _counted_size(self, rep: Representation, verdict: Verdict) -> int:
        small_below = self._small_below()
        if verdict.treat_as == "small":
            return min(rep.size_bytes, max(0, small_below - 1))
        return max(rep.size_bytes, small_below) if verdict.treat_as == "large" else rep.size_bytes


def wanted_bytes(headers: Mapping[bytes, bytes], rep: Representation, plan: BodyPlan) -> int:
    """The bytes of the file that a new download wants in all.

    The client's own number counts, but at least what it requests here. Without a number, a range
    that reaches to the end is the resume of an earlier download. Otherwise it is the whole file: a
    tool that fetches pieces will request the others.
    """
    stated = find_remaining(headers, rep.size_bytes)
    if stated is not None:
        return min(rep.size_bytes, max(stated, plan.body_bytes))
    if len(plan.ranges) == 1 and plan.ranges[0][1] == rep.size_bytes:
        return plan.body_bytes if plan.status == 206 else rep.size_bytes
    return rep.size_bytes
