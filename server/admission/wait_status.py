"""Where a waiting page asks how its ticket stands; asking costs nothing and is never early.

`GET /-/queue/PATH` with the ticket (query, cookie or field, as for the file itself) answers JSON:
`state` (`waiting`, `ready`, `started`, `over`), and while it waits `place`, `expected_wait_s` and
`p90_wait_s`; when it is ready `free`, whether a visit before its time would start it. No policy
hears of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from policies.contract import TicketState
from protocol.errors import BadToken
from protocol.ticket import KeyRing
from server.admission.client_keys import find_ticket
from server.admission.gate import Gate
from server.admission.responses import STATUS_PREFIX
from server.http.proxies import block_of
from server.http.request import Request

_STATES = {
    TicketState.WAITING: "waiting",
    TicketState.READY: "ready",
    TicketState.STARTED: "started",
}


class WaitStatus:
    """Answers for tickets of this gate. `wall` is Unix time in seconds."""

    def __init__(self, gate: Gate, keys: Callable[[], KeyRing], wall: Callable[[], float]) -> None:
        self._gate = gate
        self._keys = keys
        self._wall = wall

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
        body = json.dumps(self._document(ticket.number), separators=(",", ":")).encode("ascii")
        fields = [(b"Content-Type", b"application/json"), (b"Cache-Control", b"no-store")]
        request.respond(200, fields, body + b"\n")

    def _document(self, number: int) -> dict[str, object]:
        row = self._gate.policy.ticket(number)
        found: dict[str, object] = {"state": _STATES.get(row.state, "over") if row else "over"}
        if found["state"] in ("waiting", "ready"):
            found["place"] = self._gate.policy.place(number)
            if found["state"] == "ready":
                seen = self._gate.snapshot()
                room = not seen.closed and not seen.link_bound
                found["free"] = room and seen.large_active < seen.large_slots
            estimate = self._gate.estimate(number)
            if estimate is not None:
                found["expected_wait_s"] = round(estimate.expected_s, 1)
                found["p90_wait_s"] = round(estimate.p90_s, 1)
        return found
