"""What will be sent, decided before admission is asked: status, fields, ranges, pieces."""

from __future__ import annotations

import secrets

from ...protocol.headers import EntityTag
from ...protocol.ranges import multipart_pieces, parse_range
from ..http.answers import Header
from ..http.request import Request
from .conditions import range_counts
from .sender import Piece
from .transfer import BodyPlan, Representation


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
