"""What will be sent, decided before admission is asked: conditions (RFC 9110, 13), ranges."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

from ...protocol.errors import BadRange
from ...protocol.headers import EntityTag, parse_etag, parse_http_date, strong_match, weak_match
from ...protocol.ranges import ContentRange, multipart_pieces, parse_range
from ..http.answers import Header
from ..http.request import Request
from .openfile import Piece
from .transfer import BodyPlan, Representation


def answer_or_plan(
    request: Request, rep: Representation, fields: Sequence[Header], mtime_s: int, now: float
) -> tuple[BodyPlan, Sequence[Piece]] | None:
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
    fields: Sequence[Header], ranges: list[tuple[int, int]] | None, size: int
) -> tuple[BodyPlan, Sequence[Piece]]:
    """What to send of a representation of this size: these ranges, or all of it."""
    if ranges is None:
        return _whole(tuple(fields), size)
    kind, span, pieces, count = parts_of(dict(fields)[b"Content-Type"], ranges, size)
    headers = [one if one[0] != b"Content-Type" else (one[0], kind) for one in fields]
    if span:
        headers.append((b"Content-Range", span))
    return BodyPlan(206, tuple(headers), tuple(ranges), count), pieces


@lru_cache(maxsize=256)
def _whole(fields: tuple[Header, ...], size: int) -> tuple[BodyPlan, Sequence[Piece]]:
    """The plan of all requests for the whole file that wait or run."""
    return BodyPlan(200, fields, ((0, size),), size), ((0, size),) if size else ()


def parts_of(
    kind: bytes, ranges: list[tuple[int, int]], size: int
) -> tuple[bytes, bytes, list[Piece], int]:
    """Content-Type, Content-Range (if it is one), body and its length: ranges of such a file."""
    if len(ranges) == 1:
        start, end = ranges[0]
        return kind, b"bytes %d-%d/%d" % (start, end - 1, size), [*ranges], end - start
    boundary = secrets.token_hex(12)
    pieces, count = multipart_pieces(ranges, size, kind.decode("latin-1"), boundary)
    return b"multipart/byteranges; boundary=" + boundary.encode(), b"", pieces, count


def verdict(headers: Mapping[bytes, bytes], etag: EntityTag, mtime_s: int) -> int:
    """200 to go on, 304 or 412, in the order of RFC 9110, 13.2.2, for GET and HEAD."""
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
    return None if value is None or len(value) > 64 else _parsed(value)


@lru_cache(maxsize=1024)
def _parsed(text: bytes) -> int | None:
    """The date in a condition; clients send the one that they were told. No date is longer."""
    return parse_http_date(text.decode("latin-1"))


def range_counts(headers: Mapping[bytes, bytes], etag: EntityTag, mtime_s: int, now: float) -> bool:
    """Whether If-Range (if there is one) lets the Range field count.

    A date counts only when it is exactly ours and strong: two contents within one second share
    it, so it must lie at least a second back (RFC 9110, 8.8.2.2).
    """
    value = headers.get(b"if-range")
    if value is None:
        return True
    tag = parse_etag(value.decode("latin-1"))
    if tag is not None:
        return tag == etag and not etag.weak
    date = _date(headers, b"if-range")
    return date is not None and date == mtime_s and now - mtime_s >= 1
