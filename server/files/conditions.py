"""Conditional requests (RFC 9110, 13): whether to send, and whether a Range still counts."""

from __future__ import annotations

from collections.abc import Mapping

from ...protocol.headers import EntityTag, parse_etag, parse_http_date, strong_match, weak_match

_CONDITIONS = frozenset(
    {b"if-match", b"if-modified-since", b"if-none-match", b"if-unmodified-since"}
)


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
