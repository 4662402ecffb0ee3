"""Which small files start at once: one judgement for the gate, and for a node without asking it."""

from __future__ import annotations

from ..files.transfer import Admission, Representation
from ..http.request import Request
from .client_keys import program_of, proves_something
from .denylist import BlockList


def admit_small(
    desk: Admission,
    blocked: BlockList,
    small_below_bytes: int,
    request: Request,
    rep: Representation,
    body_bytes: int,
) -> bool:
    """`transfer.Admission.admit_small` from the other answers of `desk`; counts what may go."""
    if not desk.is_plain(rep.url_path) or blocked.blocks(request.client_address):
        return False
    # The policy judges tickets and passes; a small file needs neither.
    if rep.size_bytes >= small_below_bytes and proves_something(request):
        return False
    is_part = body_bytes < rep.size_bytes
    if is_part and desk.has_lease(rep, request.client_address, program_of(request)):
        return False
    if not desk.admit_again(rep, body_bytes):
        return False
    desk.count_again(rep, body_bytes, 1)
    return True
