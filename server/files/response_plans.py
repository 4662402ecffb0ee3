"""What will be sent, decided before admission is asked: conditions (RFC 9110, 13), ranges."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from ...protocol.errors import BadRange
from ...protocol.headers import EntityTag, parse_etag, parse_http_date, strong_match, weak_match
from ...protocol.ranges import ContentRange, multipart_pieces, parse_range
from ..http.answers import Header
from ..http.request import Request
from .sender import Piece
from .transfer import BodyPlan, Representation

_CONDITIONS = frozenset(
    {b"if-match", b"if-modified-since", b"if-none-match", b"if-unmodified-since"}
)


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
    size, value, ranges = rep.size_bytes, request.headers.get(b"range"), None
    if (
        value is not None
        and request.method == b"GET"
        and range_counts(request.headers, etag, mtime_s, now)
    ):
        try:
            ranges = parse_range(value.decode("latin-1"), size)
        except BadRange as error:
            unsatisfied = str(ContentRange(None, None, size)).encode("ascii")
            request.refuse(
                416,
                error.code,
                str(error),
                [(b"Content-Range", unsatisfied), (b"Accept-Ranges", b"bytes")],
            )
            return None
    plan, pieces = _plan_body(fields, ranges, size)
    if request.method == b"HEAD":
        request.begin(plan.status, plan.headers, plan.body_bytes, more=False)
        request.finish()
        return None
    return plan, pieces


def _plan_body(
    fields: list[Header], ranges: list[tuple[int, int]] | None, size: int
) -> tuple[BodyPlan, list[Piece]]:
    """What to send of a representation of this size: these ranges, or all of it."""
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


def verdict(headers: Mapping[bytes, bytes], etag: EntityTag, mtime_s: int) -> int:
    """200 to go on, 304 or 412, in the order of RFC 9110, 13.2.2, for GET and HEAD."""
    if _CONDITIONS.isdisjoint(headers):
        return 200
    value, date = headers.get(b"if-match"), _date(headers, b"if-unmodified-since")
    if value is not None:
        if not strong_match(value.decode("latin-1"), etag):
            return 412
    elif date is not None and mtime_s > date:
        return 412
    value, date = headers.get(b"if-none-match"), _date(headers, b"if-modified-since")
    if value is not None:
        unchanged = weak_match(value.decode("latin-1"), etag)
    else:
        unchanged = date is not None and mtime_s <= date
    return 304 if unchanged else 200


def _date(headers: Mapping[bytes, bytes], name: bytes) -> int | None:
    value = headers.get(name)
    return None if value is None else parse_http_date(value.decode("latin-1"))


def range_counts(headers: Mapping[bytes, bytes], etag: EntityTag, mtime_s: int, now: float) -> bool:
    """Whether If-Range (if there is one) lets the Range field count.

    A date counts only when it is exactly ours and strong: two contents within one second share
    it, so it must lie at least a second back (RFC 9110, 8.8.2.2).
    """
    value = headers.get(b"if-range")
    if value is None:
        return True
    text = value.decode("latin-1")
    tag = parse_etag(text)
    if tag is not None:
        return tag == etag and not etag.weak
    date = parse_http_date(text)
    return date is not None and date == mtime_s and now - mtime_s >= 1
