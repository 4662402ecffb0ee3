"""The state of a ticket, for its waiting page (PROTOCOL.md, "Waiting").

With `Prefer: wait` the answer is held until the ticket's turn has come or the ticket is over. The
client counts as present meanwhile, and its slot is kept from the moment of the answer. If no more
requests may be held, the answer comes at once and lacks `Preference-Applied`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ...policies.contract import TicketState
from ...protocol.errors import BadToken
from ...protocol.ticket import KeyRing
from ..http.answers import JSON_NOW, Header
from ..http.proxies import block_of
from ..http.request import Request
from .client_keys import find_ticket
from .gate import Gate
from .responses import STATUS_PREFIX, times_of


class CalledTickets:
    """Tickets whose clients were told that they are called, by their tokens.

    Such a client fetches its file at once, and its slot is not kept for long. So its request goes
    before those that wait for their networks' shares of the line.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until_s: dict[str, float] = {}

    def add(self, token: str, for_s: float) -> None:
        """A client is told so now; its slot is kept for `for_s` at most."""
        now = self._now()
        self._until_s = {one: at_s for one, at_s in self._until_s.items() if at_s > now}
        self._until_s[token] = now + for_s

    def take(self, request: Request) -> bool:
        """Whether this is the first request of such a client."""
        if not self._until_s or request.method != b"GET":
            return False
        token = find_ticket(request.headers, request.query)
        return token is not None and self._until_s.pop(token, 0.0) > self._now()


class WaitStatus:
    """Answers for tickets of this gate.

    `wall` is Unix time in seconds. `digest_of` returns the SHA-256 of a file by URL path and size,
    or None while the server does not know it. `called` hears the token of each client that is told
    to come now, and for how long its slot is kept at most.
    """

    def __init__(
        self,
        gate: Gate,
        keys: Callable[[], KeyRing],
        wall: Callable[[], float],
        digest_of: Callable[[str, int], bytes | None],
        called: Callable[[str, float], None],
    ) -> None:
        self._gate = gate
        self._keys = keys
        self._wall = wall
        self._digest_of = digest_of
        self._called = called

    def answer(self, request: Request) -> None:
        """Handler for `STATUS_PREFIX` and all below it."""
        path = request.path[len(STATUS_PREFIX) :].decode("latin-1")
        token = find_ticket(request.headers, request.query)
        if token is None:
            request.refuse(403, "bad-ticket", "Send the ticket that you ask about.")
            return
        try:
            address = block_of(request.client_address)
            ticket = self._keys().read_ticket(token, address, path, self._wall())
        except BadToken as error:
            request.refuse(error.status, error.code, str(error))
            return
        number, most_s = ticket.number, _preferred_wait_s(request)
        held: list[Header] = [(b"Preference-Applied", b"wait=%d" % most_s)]
        if not most_s or not self._gate.watch(
            request, ticket, most_s, lambda: self._tell(request, token, number, held)
        ):
            self._tell(request, token, number, [])

    def _tell(self, request: Request, token: str, number: int, more: list[Header]) -> None:
        found = self._document(number)
        if found["state"] == "called":
            self._called(token, self._gate.settings.lease_idle_s)
        if self._gate.draining and found["state"] in ("waiting", "ready"):
            # The page stays where it is until another server answers.
            request.refuse(503, "closed", "The server is being stopped; your place is kept.")
            return
        body = json.dumps(found, separators=(",", ":")).encode("ascii")
        request.respond(200, [*JSON_NOW, *more], body + b"\n")

    def _document(self, number: int) -> dict[str, object]:
        row = self._gate.policy.ticket(number)
        found: dict[str, object] = {"state": "over"}
        if row is not None and row.state not in (TicketState.EXPIRED, TicketState.WITHDRAWN):
            found["state"] = row.state.value
        estimate = done = None
        if row is not None and found["state"] == "started":
            download = self._gate.leases.find(row.client, row.file)
            if download is not None:
                found["state"] = "called" if download.unclaimed else "started"
                done = self._gate.done(download.lease)
        if row is not None and found["state"] in ("started", "done"):
            found["size_bytes"] = row.size_bytes
            digest = self._digest_of(row.file, row.size_bytes)
            if digest is not None:
                found["sha256"] = digest.hex()
        if found["state"] in ("waiting", "ready"):
            found["place"] = self._gate.policy.place(number)
            if found["state"] == "ready":
                seen = self._gate.snapshot()
                room = not seen.closed and not seen.link_bound
                found["free"] = room and seen.large_used < seen.large_slots
            estimate = self._gate.estimate(number)
            done = estimate.done if estimate is not None else done
        return {**found, **times_of(estimate, done)}


def _preferred_wait_s(request: Request) -> int:
    wanted = request.header(b"prefer") or b""
    found = re.search(rb"(?i)(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,9})\b", wanted)
    # Every proxy and browser bears this much silence.
    return min(int(found[1]), 25) if found is not None else 0
