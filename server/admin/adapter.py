"""The HTTP room on one side, `Call` and `Answer` on the other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import parse_qs

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ..control.problems import Problem
from ..http.clock import Clock
from ..http.limits import HttpLimits
from ..http.request import Request
from .form_body import read_form
from .web import Answer, Call, problem_answer

if TYPE_CHECKING:
    from .app import Admin

#: The largest body is a form with a logo.
LIMITS = HttpLimits(max_body_bytes=2 * 1024 * 1024, max_connections=500)


class BodyBounds(NamedTuple):
    """What the administration reads and sends at once."""

    #: The largest body without proof of a login: a name and a password.
    small_bytes: int = 16 * 1024
    #: Larger bodies that are read at once.
    large_bodies: int = 16
    #: Open streams of figures, for all users together.
    streams: int = 64


BODIES = BodyBounds()
log = Logger()


class AdminHandler:
    """Answers the requests of the admin listener."""

    def __init__(self, admin: Admin, reactor: Clock) -> None:
        self._admin = admin
        self._reactor = reactor
        #: What ends the streams that are open, the oldest first, by whose they are.
        self._streams: dict[str, OrderedDict[LoopingCall, None]] = {}

    def __call__(self, request: Request) -> None:
        call = read_call(request, self._admin.server.now())
        # If the client leaves, the work still ends in order; only its answer is dropped.
        running = Deferred.fromCoroutine(self._admin.answer(call))
        running.addCallback(self._write, request)
        running.addErrback(
            lambda failure: log.failure("an answer could not be written", failure=failure)
        )

    def _write(self, answer: Answer, request: Request) -> None:
        fields = [(name.encode(), value.encode()) for name, value in answer.headers]
        if answer.follow is None:
            request.respond(answer.status, fields, answer.body)
        elif not self._has_room(answer.whose):
            full = Problem(503, "Too many pages are open.", headers=(("retry-after", "10"),))
            self._write(problem_answer(full), request)
        else:
            self._stream(answer, fields, request)

    def _has_room(self, whose: str) -> bool:
        """Whether one more may stream. The user with most streams may lose the oldest for it."""
        if sum(map(len, self._streams.values())) < BODIES.streams:
            return True
        most = max(self._streams.values(), key=len)
        if len(most) <= len(self._streams.get(whose, ())) + 1:
            return False
        next(iter(most)).stop()
        return True

    def _stream(self, answer: Answer, fields: list[tuple[bytes, bytes]], request: Request) -> None:
        """Write what `follow` gives once a second until it gives nothing or the client leaves."""
        follow = answer.follow
        assert follow is not None

        def tick() -> None:
            data = follow()
            if data:
                request.write(data)
            else:
                loop.stop()

        loop = LoopingCall(tick)
        loop.clock = cast(IReactorTime, self._reactor)
        own = self._streams.setdefault(answer.whose, OrderedDict())
        own[loop] = None

        def ended(_result: object) -> None:
            del own[loop]
            if not own and self._streams.get(answer.whose) is own:
                del self._streams[answer.whose]
            request.finish()

        def leave() -> None:
            if loop.running:
                loop.stop()

        request.begin(answer.status, fields, None)
        # Time between two events of a stream.
        loop.start(1.0).addBoth(ended)
        request.on_gone(leave)


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
