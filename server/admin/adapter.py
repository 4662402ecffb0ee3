"""The HTTP room on one side, `Call` and `Answer` on the other.

Forms of either encoding are read in few steps a byte: strangers may send one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs

from multipart import MultipartError, PushMultipartParser, parse_options_header
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from ...protocol.errors import ProtocolError
from ..http.limits import HttpLimits
from ..http.request import Request
from .web import Answer, Call

if TYPE_CHECKING:
    from .app import Admin

#: The largest body is a form with a logo.
LIMITS = HttpLimits(max_body_bytes=2 * 1024 * 1024, max_connections=500)


class BodyBounds(NamedTuple):
    """What the administration reads at once."""

    #: The largest body without proof of a login: a name and a password.
    small_bytes: int = 16 * 1024
    #: Larger bodies that are read at once.
    large_bodies: int = 16
    #: Fields of one form.
    form_fields: int = 500
    #: Characters of a boundary (RFC 2046, 5.1.1).
    boundary: int = 70


BODIES = BodyBounds()
log = Logger()


class AdminHandler:
    """Answers the requests of the admin listener."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def __call__(self, request: Request) -> None:
        call = read_call(request, self._admin.server.now())
        # If the client leaves, the work still ends in order; only its answer is dropped.
        running = Deferred.fromCoroutine(self._admin.answer(call))
        running.addCallback(_write, request)
        running.addErrback(
            lambda failure: log.failure("an answer could not be written", failure=failure)
        )


def _write(answer: Answer, request: Request) -> None:
    fields = [(name.encode(), value.encode()) for name, value in answer.headers]
    request.respond(answer.status, fields, answer.body)


def read_call(request: Request, now: float) -> Call:
    """The request as handlers see it. Raises ProtocolError for a form that cannot be read."""
    headers = _text(request.headers)
    query = parse_qs(
        request.query.decode("utf-8", "replace"), keep_blank_values=True, errors="replace"
    )
    return Call(
        method=request.method.decode("latin-1"),
        path=request.path.decode("utf-8", "replace"),
        now=now,
        query=query,
        headers=headers,
        form=read_form(headers.get("content-type", ""), request.body),
        body=request.body,
        peer=request.client_address,
        secure=request.is_tls,
    )


def _text(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {
        name.decode("latin-1"): value.decode("utf-8", "replace") for name, value in fields.items()
    }


def read_form(kind: str, body: bytes) -> Mapping[str, list[bytes]]:
    """The fields of a body of this content type; empty for every kind that is no form.

    Raises ProtocolError for a form that cannot be read.
    """
    if kind.startswith("application/x-www-form-urlencoded"):
        # Latin-1 keeps each byte: of bytes, `parse_qs` takes none that is not ASCII.
        text, exact = body.decode("latin-1"), "latin-1"
        try:
            pairs = parse_qs(
                text, keep_blank_values=True, encoding=exact, max_num_fields=BODIES.form_fields
            )
        except ValueError:
            raise ProtocolError("The form has too many fields.", code="bad-form") from None
        return {_name(name): [value.encode(exact) for value in pairs[name]] for name in pairs}
    if not kind.startswith("multipart/form-data"):
        return {}
    try:
        return _fields_of_parts(kind, body)
    except MultipartError:
        raise ProtocolError("The form cannot be read.", code="bad-form") from None


def _name(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "replace")


def _fields_of_parts(kind: str, body: bytes) -> dict[str, list[bytes]]:
    """What the parts of a body bring (RFC 7578). Raises MultipartError."""
    boundary = parse_options_header(kind)[1].get("boundary", "")[: BODIES.boundary + 1]
    if len(boundary) > BODIES.boundary:
        raise MultipartError("the boundary is too long")
    found: dict[str, list[bytes]] = {}
    name, value = "", bytearray()
    # Strict: a line that goes on in the next one takes the more steps the longer it is.
    with PushMultipartParser(
        boundary,
        max_header_size=4096,  # Bytes of a line in the head of a part.
        max_header_count=8,
        max_segment_count=BODIES.form_fields,
        strict=True,
    ) as parser:
        for event in parser.parse(body):
            if event is None:
                found.setdefault(name, []).append(bytes(value))
            elif isinstance(event, bytes):
                value += event
            else:
                name, value = event.name or "", bytearray()
    return found
