"""Reads an HTTP answer and says what it means; the only reader of status codes in the client.

Pure: a status, header fields and (for errors) the start of the body go in, a value comes out.
`Body` means bytes follow that belong at `start`; everything else is a word of `client.net.retry`
or a redirect. Sources: RFC 9110 (15, 14.4), RFC 9457, RFC 6585 (429), and Tidegate's own fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...protocol.ranges import parse_content_range
from ...protocol.units import whole_number
from .retry import Answer, Failed, FailureReason, Granted, Refused, RetryAfter


class Fields:
    """Response header fields, names without case; the first value wins, `all` gives every one."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Sequence[tuple[str, str]]) -> None:
        self._rows: dict[str, list[str]] = {}
        for name, value in rows:
            self._rows.setdefault(name.lower(), []).append(value)

    def get(self, name: str) -> str | None:
        values = self._rows.get(name.lower())
        return values[0] if values else None

    def all(self, name: str) -> list[str]:
        return self._rows.get(name.lower(), [])

    def as_dict(self) -> dict[str, str]:
        """Lower-case names; the first value of each."""
        return {name: values[0] for name, values in self._rows.items()}

    @classmethod
    def of(cls, mapping: Mapping[str, str]) -> Fields:
        return cls(list(mapping.items()))


class Body(NamedTuple):
    """The answer carries bytes [start, end) of a file of `size_bytes` (None: not told).

    `whole` is true for a 200: the server sends all of it, whatever range was asked for.
    `validator` may stand in If-Range: a strong ETag, else a Last-Modified that is old enough
    (RFC 9110, 8.8.2.2), else None. `granted` goes to the visit.
    """

    start: int
    end: int | None
    size_bytes: int | None
    whole: bool
    validator: str | None
    granted: Granted


class Redirect(NamedTuple):
    """Ask at `location` instead (still to be resolved against the request's URL)."""

    location: str
    granted: Granted


class OutOfRange(NamedTuple):
    """416: the range lies outside the file, which has `size_bytes` (None: not told)."""

    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole small answer; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        """What was asked for is in the body."""
        return self.status == 200

    @property
    def done(self) -> bool:
        """The request was carried out, with or without a body."""
        return self.status in (200, 201, 202, 204)

    @property
    def unchanged(self) -> bool:
        """What is kept here is what the server has (If-None-Match)."""
        return self.status == 304

    @property
    def missing(self) -> bool:
        """There is nothing under that name."""
        return self.status in (404, 410)

    @property
    def refused(self) -> bool:
        """The server does not want this request from us."""
        return self.status in (400, 401, 403)

    def problem(self) -> dict[str, object]:
        """The problem document (RFC 9457) of an error, or its plain text; empty without one."""
        return _problem(Fields.of(self.headers), self.body)


Meaning = Body | Redirect | OutOfRange | Answer


def read(status: int, fields: Fields, problem: bytes = b"", unix_s: float = 0.0) -> Meaning:
    """What an answer means.

    `problem` is the (start of the) body of an error answer, `unix_s` the wall clock for a
    Retry-After that is a date. Never raises: nonsense becomes `Failed`.
    """
    if status == 200:
        return _body(fields, 0, _length(fields), _length(fields), whole=True)
    if status == 206:
        part = parse_content_range(fields.get("content-range") or "")
        if part is None or part.start is None:
            return Failed("the server sent a part of the file without saying which")
        return _body(fields, part.start, part.end, part.size_bytes, whole=False)
    if status in {301, 302, 303, 307, 308}:
        location = fields.get("location")
        if location is None:
            return Failed(f"the server answered {status} without a Location")
        return Redirect(location, _granted(fields))
    if status == 416:
        told = parse_content_range(fields.get("content-range") or "")
        return OutOfRange(told.size_bytes if told is not None and told.start is None else None)
    return _no(status, fields, _problem(fields, problem), unix_s)


def _no(status: int, fields: Fields, problem: dict[str, object], unix_s: float) -> Answer:
    kind = str(problem.get("type", "")).rstrip("/").rpartition("/")[2]
    text = _sentence(problem) or f"the server answered {status}"
    # Problem types (last part) that mean: the ticket is no good, ask without it.
    if kind in {"ticket-forged", "ticket-expired", "ticket-foreign", "ticket-used", "bad-ticket"}:
        return Refused(FailureReason.REFUSED, text, ticket_fault=True)
    if status in (503, 429):
        from ...protocol.headers import parse_retry_after  # rarely needed

        told = fields.get("retry-after")
        retry_after_s = None if told is None else parse_retry_after(told, unix_s)
        exact_s = problem.get("retry_after_s")
        if (
            retry_after_s is not None
            and isinstance(exact_s, int | float)
            and not isinstance(exact_s, bool)
            and retry_after_s - 1.0 <= exact_s <= retry_after_s + 1.0
        ):
            # The header knows whole seconds only; the body says when exactly.
            retry_after_s = float(exact_s)
        return RetryAfter(
            retry_after_s,
            fields.get("tidegate-ticket"),
            _whole(fields.get("tidegate-place")),
            _number(fields.get("tidegate-wait-expected")),
            _number(fields.get("tidegate-wait-p90")),
            (fields.get("tidegate-status") or "").strip().lower() == "ready",
            text,
            _number(fields.get("tidegate-done")),
            _number(fields.get("tidegate-done-p90")),
        )
    if status in (404, 410):
        return Refused(FailureReason.NOT_FOUND, _sentence(problem) or "the file is not there")
    if status in (401, 403, 407, 451) or kind == "pass-required":
        default = {401: "the server wants a name and password", 407: "the proxy wants a login"}
        return Refused(
            FailureReason.REFUSED,
            _sentence(problem) or default.get(status, f"the server refuses the file ({status})"),
        )
    if status >= 500 or status in (408, 425):
        return Failed(text)
    return Refused(FailureReason.PROTOCOL, text)


def is_offer(status: int, fields: Fields) -> bool:
    """Whether the body is a multicast offer (asked only where the request allowed one)."""
    from ...protocol.session import OFFER_TYPE

    return status == 200 and (fields.get("content-type") or "").partition(";")[0] == OFFER_TYPE


def _body(
    fields: Fields, start: int, end: int | None, size: int | None, *, whole: bool
) -> Body | Failed:
    if (fields.get("content-type") or "").lower().startswith("multipart/byteranges") and not whole:
        return Failed("the server sent several ranges where one was asked for")
    return Body(start, end, size, whole, _validator(fields), _granted(fields))


def _validator(fields: Fields) -> str | None:
    etag = (fields.get("etag") or "").strip()
    if len(etag) >= 2 and etag.startswith('"') and etag.endswith('"'):
        return etag
    modified, date = fields.get("last-modified"), fields.get("date")
    # Equal stamps mean: it may change once more within this second.
    return modified if modified is not None and date is not None and modified != date else None


def _granted(fields: Fields) -> Granted:
    return Granted(fields.get("tidegate-ticket"), _whole(fields.get("tidegate-lease-connections")))


def _length(fields: Fields) -> int | None:
    if fields.get("transfer-encoding") is not None:
        return None
    return _whole(fields.get("content-length"))


def _problem(fields: Fields, body: bytes) -> dict[str, object]:
    kind = fields.get("content-type") or ""
    if kind.startswith("text/plain"):
        return {"detail": " ".join(body[:300].decode("utf-8", "replace").split())}
    if "problem+json" not in kind:
        return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def clean(value: object) -> str:
    """Text from strangers without the control characters that a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))


def _sentence(problem: dict[str, object]) -> str:
    return clean(problem.get("detail") or problem.get("title") or "")[:300].rstrip(".")


def _whole(value: str | None) -> int | None:
    return whole_number((value or "").strip())


def _number(value: str | None) -> float | None:
    value = (value or "").strip()
    return float(value) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value) else None
