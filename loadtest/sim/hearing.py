"""What a client hears of a decision: the answer as it would be on the wire."""

from __future__ import annotations

import math

from client.net.retry import ComeBack, FailureReason, Refused
from policies.contract import Refuse, Wait


def heard(decision: Wait | Refuse) -> ComeBack | Refused:
    """Waits are told in whole seconds, as Retry-After has them."""
    if isinstance(decision, Wait):
        return ComeBack(
            float(math.ceil(decision.retry_after_s)),
            None if decision.ticket is None else str(decision.ticket),
            decision.place,
            ready=decision.ready,
        )
    if decision.retry_after_s is not None:
        return ComeBack(float(math.ceil(decision.retry_after_s)))
    fault = decision.reason.value.startswith("ticket-")
    return Refused(FailureReason.REFUSED, decision.reason.value, ticket_fault=fault)
