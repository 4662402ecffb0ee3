"""What a node does with large downloads while the cluster has no leader.

Bodies that have begun continue. A new large download gets a signed ticket and waits: parked inside
its request, or told to come back. No large download starts. The tickets have numbers from
`ELSEWHERE` on and are in no journal. The next leader gives each a place by its time of issue.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable

from pydantic import ValidationError

from ...policies.contract import ELSEWHERE, TicketRow
from ...policies.registry import POLICIES
from ...policies.settings import PolicySettings
from ...protocol.errors import ProtocolError
from ..admission.gate import Gate
from ..admission.gateparts import AdmissionRequest
from ..http.request import Request
from .messages import Terms, WireTicket, wire_ticket

#: Builds a gate with this policy; its ticket numbers begin with the last argument.
MakeGate = Callable[[Terms, PolicySettings, int], Gate]


def no_leader(request: Request) -> None:
    """Answer a request that only a leader can decide. The client's place is not touched."""
    request.refuse(
        503,
        "no-leader",
        "The queue is being restarted and keeps every place; ask again in a moment.",
        [(b"Retry-After", b"2")],  # A leader returns within 2 s.
    )


class NoJournal:
    """Implements `gateparts.TicketJournal` where nothing can be written."""

    def keep_tickets(self, rows: Iterable[TicketRow]) -> None:
        """The tokens keep them."""

    def after_commit(self, callback: Callable[[], None]) -> None:
        """There is no commit to wait for."""
        callback()


class DegradedQueue:
    """A `transfer.Admission` with closed doors at one node: it issues tickets and parks requests.

    It has the policy of the last leader's `terms`. Raises ProtocolError if they name no usable one.
    """

    def __init__(self, terms: Terms, make_gate: MakeGate) -> None:
        if not terms.keys or terms.policy not in POLICIES:
            raise ProtocolError("The last leader has not told its policy.")
        try:
            settings = PolicySettings.model_validate_json(terms.settings)
        except ValidationError as fault:
            raise ProtocolError("The last leader's settings cannot be read.") from fault
        # The longest there is: no turn comes that a client could miss.
        settings = settings.model_copy(update={"ticket_ttl_s": 86_400.0})
        # A block of 2^20 numbers; two of 1 000 nodes share one with a probability of 0.2 %.
        first = ELSEWHERE + (secrets.randbits(28) << 20)
        self._gate = gate = make_gate(terms, settings, first)
        gate.reception.blocked.become(terms.blocked or ())
        # Clients wait already, so a ticket is no evidence and stays with its crowd.
        gate.parts.evidence.resume(0.0, gate.parts.wall())
        gate.close_doors(True)
        gate.open()
        #: As `transfer.Admission`. `close` sends all parked requests away with their tickets.
        self.enter, self.close = gate.enter, gate.close

    def tickets(self) -> tuple[WireTicket, ...]:
        """The waiting tickets for the next leader: issued here, or shown here by their clients."""
        gate = self._gate
        return tuple(wire_ticket(gate.on_wall_clock(row)) for row in gate.policy.tickets())

    def release(self) -> list[tuple[AdmissionRequest, str | None]]:
        """End, and return the parked requests unanswered, each with its token."""
        released = self._gate.release()
        self._gate.close()
        return released
