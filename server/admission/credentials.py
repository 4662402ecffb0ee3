"""What a client proves: its place by a ticket, its priority by a pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

from ...policies.contract import Job
from ...protocol.ticket import KeyRing, Ticket
from ..http.proxies import block_of
from ..http.request import Request
from .client_keys import (
    PASS_FIELD,
    TICKET_FIELD,
    client_key,
    find_pass,
    find_ticket,
)
from .passes import Grant, PassBook


@dataclass(frozen=True, slots=True)
class Proof:
    """A good ticket, a good pass, both or neither; `priority_class` is empty without a class."""

    ticket: Ticket | None
    grant: Grant | None
    #: The text that proved the ticket.
    token: str = field(default="", repr=False)

    @property
    def priority_class(self) -> str:
        """The class that counts: the pass's, else the one that the ticket was issued with."""
        if self.grant is not None:
            return self.grant.priority_class
        return self.ticket.priority_class if self.ticket is not None else ""

    @property
    def weight(self) -> float:
        """How much faster than others it moves through the queue."""
        if self.grant is not None:
            return self.grant.weight
        return self.ticket.weight if self.ticket is not None else 1.0


def read_proof(
    request: Request,
    url_path: str,
    now: float,
    keys: KeyRing,
    passes: PassBook,
    ticket_max_age_s: float,
    is_queued: Callable[[int], bool],
) -> Proof:
    """The proofs of a request. Raises `BadToken` with the reason for a bad one.

    A ticket that waits (`is_queued`) is not too old, whatever the clock says.
    `PassBook.check_use` checks whether a pass has uses left, once the client is known.
    """
    headers = request.headers
    shows = TICKET_FIELD in headers or PASS_FIELD in headers or b"cookie" in headers
    if not shows and not request.query:
        return Proof(None, None)
    ticket: Ticket | None = None
    grant: Grant | None = None
    token = find_ticket(request.headers, request.query)
    if token is not None:
        address = block_of(request.client_address)
        ticket = keys.read_ticket(token, address, url_path, now, math.inf)
        if now - ticket.issued_s > ticket_max_age_s and not is_queued(ticket.number):
            keys.read_ticket(token, address, url_path, now, ticket_max_age_s)
    text = find_pass(request.headers, request.query)
    if text is not None:
        grant = passes.read(text, unquote(url_path), now)
    return Proof(ticket, grant, token if token is not None else "")


def write_proof(keys: KeyRing, number: int, job: Job, proof: Proof, issued_s: float) -> str:
    """The token of a ticket, for a client that came with this proof."""
    shown = proof.ticket
    if (
        shown is not None
        and shown.number == number
        and shown.remaining_bytes == job.remaining_bytes
        and shown.size_bytes == job.size_bytes
        and shown.weight == job.weight
        # Two clocks tell it, and their difference varies a little.
        and abs(shown.issued_s - issued_s) < 1.0
        and shown.priority_class == proof.priority_class
        and shown.file == job.file
        and client_key(shown.address, shown.name) == job.client
        and keys.is_current(proof.token)
    ):
        # A new signature would say the same.
        return proof.token
    address, _, name = job.client.rpartition("#")
    ticket = Ticket(
        number=number,
        address=address,
        name=name,
        file=job.file,
        size_bytes=job.size_bytes,
        remaining_bytes=job.remaining_bytes,
        weight=job.weight,
        issued_s=issued_s,
        priority_class=proof.priority_class,
    )
    return keys.write_ticket(ticket)
