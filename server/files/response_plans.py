"""What will be sent, decided before admission is asked: status, fields, ranges, pieces."""

from __future__ import annotations

import secrets

from ...protocol.errors import BadRange
from ...protocol.headers import EntityTag
from ...protocol.ranges import ContentRange, multipart_pieces, parse_range
from ..http.answers import Header
from ..http.request import Request
from .conditions import range_counts, verdict
from .sender import Piece
from .transfer import BodyPlan, Representation


def answer_or_plan(
    request: Request, rep: Representation, fields: list[Header], mtime_s: int, now: float
) -> tuple[BodyPlan, list[Piece]] | None:
    """Settle conditions and ranges: what is to be sent, or None after an answer without a body.

    `fields` describe the representation, `mtime_s` is what the client is told of its time.
    """
    etag = EntityTag(rep.etag[1:-1])
    status = verdict(request.headers, etag, mtime_s)
    if status == 412:
        request.refuse(
            412,
            "precondition-failed",
            "The file is not the one your condition names.",
            [(b"ETag", rep.etag.encode("ascii"))],
        )
        return None
    if status == 304:
        of_body = (b"Content-Type", b"Content-Encoding")
        request.respond(304, [field for field in fields if field[0] not in of_body])
        return None
    try:
        plan, pieces = plan_body(request, rep, fields, etag, mtime_s, now)
    except BadRange as error:
        unsatisfied = str(ContentRange(None, None, rep.size_bytes)).encode("ascii")
        request.refuse(
            416,
            error.code,
            str(error),
            [(b"Content-Range", unsatisfied), (b"Accept-Ranges", b"bytes")],
        )
        return None
    if request.method == b"HEAD":
        request.begin(plan.status, plan.headers, plan.body_bytes, more=False)
        request.finish()
        return None
    return plan, pieces


def plan_body(
    request: Request,
    rep: Representation,
    fields: list[Header],
    etag: EntityTag,
    mtime_s: int,
    now: float,
) -> tuple[BodyPlan, list[Piece]]:
    """Decide what to send. Raises BadRange."""
    size = rep.size_bytes
    value = request.headers.get(b"range")
    ranges = None
    if (
        value is not None
        and request.method == b"GET"
        and range_counts(request.headers, etag, mtime_s, now)
    ):
        ranges = parse_range(value.decode("latin-1"), size)
    if ranges is None:
        whole: list[Piece] = [(0, size)] if size else []
        return BodyPlan(200, tuple(fields), ((0, size),), size), whole
    if len(ranges) == 1:
        start, end = ranges[0]
        content_range = b"bytes %d-%d/%d" % (start, end - 1, size)
        headers = (*fields, (b"Content-Range", content_range))
        return BodyPlan(206, headers, (ranges[0],), end - start), [ranges[0]]
    boundary = secrets.token_hex(12)
    content_type = dict(fields)[b"Content-Type"].decode("latin-1")
    pieces, total = multipart_pieces(ranges, size, content_type, boundary)
    multipart = f"multipart/byteranges; boundary={boundary}".encode("ascii")
    headers = tuple(
        (name, multipart if name == b"Content-Type" else field) for name, field in fields
    )
    return BodyPlan(206, headers, tuple(ranges), total), pieces
