"""The HTTP room on one side, `Call` and `Answer` on the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from ..http.limits import HttpLimits
from ..http.request import Request
from .form_body import read_form
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
