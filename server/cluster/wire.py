"""Between the messages of a cluster and the values of the rooms below."""

from __future__ import annotations

from ...policies.contract import TicketRow, TicketState
from ...protocol.cluster import WireDigests, WireFile, WirePlan, WireRequest, WireTicket
from ...protocol.manifest import FileDigests
from ..files.transfer import BodyPlan, FileKey, Representation
from ..http.request import Request

_PIECE_DIGEST_BYTES = 32


def wire_request(request: Request) -> WireRequest:
    """A request for the leader; its peer as the node's own socket or a proxy's preface has it."""
    connection = request.connection
    prefaced = connection.forwarded is not None
    return WireRequest(
        method=request.method,
        target=request.target,
        headers=dict(request.headers),
        body=request.body,
        http10=request.http10,
        peer_address=request.client_address if prefaced else connection.peer_address,
        is_tls=request.is_tls if prefaced else connection.is_tls,
        dripped=request.dripped,
        prefaced=prefaced,
    )


def wire_file(rep: Representation) -> WireFile:
    """A representation for the leader."""
    key = rep.key
    return WireFile(
        path=rep.path,
        url_path=rep.url_path,
        size_bytes=rep.size_bytes,
        mtime_s=rep.mtime_s,
        etag=rep.etag,
        inode=key.inode,
        mtime_ns=key.mtime_ns,
        ctime_ns=key.ctime_ns,
    )


def representation(file: WireFile) -> Representation:
    """A node's representation, at the leader."""
    return Representation(
        path=file.path,
        url_path=file.url_path,
        size_bytes=file.size_bytes,
        mtime_s=file.mtime_s,
        etag=file.etag,
        key=FileKey(file.inode, file.size_bytes, file.mtime_ns, file.ctime_ns),
    )


def wire_plan(plan: BodyPlan) -> WirePlan:
    """A plan for the leader; the header stays at the node, which sends it."""
    return WirePlan(plan.status, plan.ranges, plan.body_bytes)


def body_plan(plan: WirePlan) -> BodyPlan:
    """A node's plan, at the leader."""
    return BodyPlan(plan.status, (), plan.ranges, plan.body_bytes)


def wire_digests(digests: FileDigests) -> WireDigests:
    """Digests for a node."""
    return WireDigests(
        digests.size_bytes,
        digests.sha256,
        digests.piece_length_bytes,
        b"".join(digests.pieces),
    )


def file_digests(digests: WireDigests) -> FileDigests:
    """The leader's digests, at a node."""
    joined = digests.pieces
    return FileDigests(
        size_bytes=digests.size_bytes,
        sha256=digests.sha256,
        piece_length_bytes=digests.piece_bytes,
        pieces=tuple(
            joined[at : at + _PIECE_DIGEST_BYTES]
            for at in range(0, len(joined), _PIECE_DIGEST_BYTES)
        ),
    )


def wire_ticket(row: TicketRow) -> WireTicket:
    """A ticket for a leader that does not know it; its times are of the wall clock."""
    return WireTicket(
        row.number,
        row.client,
        row.file,
        row.size_bytes,
        row.remaining_bytes,
        row.weight,
        row.issued_s,
        row.priority_class,
        row.network,
    )


def ticket_row(ticket: WireTicket, now: float) -> TicketRow:
    """A node's ticket, at the leader; `now` is Unix time."""
    return TicketRow(
        number=ticket.number,
        client=ticket.client,
        file=ticket.file,
        size_bytes=ticket.size_bytes,
        remaining_bytes=ticket.remaining_bytes,
        weight=ticket.weight,
        issued_s=ticket.issued_s,
        state=TicketState.WAITING,
        changed_s=now,
        priority_class=ticket.priority_class,
        network=ticket.network,
    )
