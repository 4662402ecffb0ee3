"""The rim: twisted.web on one side, `Call` and `Answer` on the other."""

# mypy: disallow-untyped-calls=False
from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from server.admin.app import Admin
from server.admin.web import Answer, Call, Problem

BODY_LIMIT_BYTES = 2 * 1024 * 1024
STREAM_LIMIT = 64
STREAM_EVERY_S = 1.0


class AdminRequest(Request):
    """A request whose body is bounded, announced or not."""

    _received_bytes = 0

    def gotLength(self, length: int | None) -> None:
        if length is not None and length > BODY_LIMIT_BYTES:
            self._refuse_body()
            return
        super().gotLength(length)

    def handleContentChunk(self, data: bytes) -> None:
        self._received_bytes += len(data)
        if self._received_bytes > BODY_LIMIT_BYTES:
            self._refuse_body()
            return
        super().handleContentChunk(data)

    def _refuse_body(self) -> None:
        transport: Any = self.channel.transport if self.channel is not None else None
        if transport is None:
            return
        told = Problem(413, f"A body has at most {BODY_LIMIT_BYTES} bytes here.").answer()
        transport.write(
            b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n"
            b"Content-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(told.body), told.body)
        )
        transport.loseConnection()


class AdminResource(Resource):
    """Everything under the admin listener."""

    isLeaf = True  # noqa: N815 - Twisted's name

    def __init__(self, admin: Admin, reactor: IReactorTime) -> None:
        super().__init__()
        self._admin = admin
        self._reactor = reactor
        self._streams = 0

    def render(self, request: Request) -> Any:
        try:
            call = self._call(request)
        except ValueError:  # more form fields than anything of ours has
            request.setResponseCode(400)
            return b"The form cannot be read.\n"
        running = Deferred.fromCoroutine(self._admin.answer(call))
        gone: list[Any] = []
        # If the client leaves, the work still ends in order; only its answer is dropped.
        request.notifyFinish().addBoth(gone.append)
        running.addCallback(self._write, request, gone)
        running.addErrback(self._failed, request, gone)
        return NOT_DONE_YET

    def _call(self, request: Request) -> Call:
        raw_path, _, raw_query = request.uri.partition(b"?")
        headers = {
            name.decode("latin-1").lower(): (b"; " if name == b"Cookie" else b", ")
            .join(values)
            .decode("utf-8", "replace")
            for name, values in request.requestHeaders.getAllRawHeaders()
        }
        peer = getattr(request.getClientAddress(), "host", "") or ""
        body = request.content.read() if request.content else b""
        form: dict[str, list[bytes]] = {}
        kind = headers.get("content-type", "")
        if kind.startswith("application/x-www-form-urlencoded"):
            pairs = parse_qs(body, keep_blank_values=True, max_num_fields=500)
            form = {name.decode("utf-8", "replace"): list(values) for name, values in pairs.items()}
        elif kind.startswith("multipart/form-data"):
            form = {
                name.decode("utf-8", "replace"): list(values)
                for name, values in (request.args or {}).items()
            }
        query = parse_qs(
            raw_query.decode("utf-8", "replace"), keep_blank_values=True, errors="replace"
        )
        return Call(
            method=request.method.decode("latin-1"),
            path=raw_path.decode("utf-8", "replace") or "/",
            now=self._admin.context.now(),
            query=query,
            headers=headers,
            form=form,
            body=body,
            peer=peer,
            secure=bool(request.isSecure()) or headers.get("x-forwarded-proto") == "https",
        )

    def _write(self, answer: Answer, request: Request, gone: list[Any]) -> None:
        if gone:
            return
        request.setResponseCode(answer.status)
        request.responseHeaders.setRawHeaders(b"server", [b"Tidegate"])
        request.responseHeaders.removeHeader(b"content-type")
        for name, value in answer.headers:
            request.responseHeaders.addRawHeader(name.encode(), value.encode())
        if answer.follow is not None:
            self._stream(answer.follow, request)
            return
        request.responseHeaders.setRawHeaders(b"content-length", [b"%d" % len(answer.body)])
        if request.method != b"HEAD":
            request.write(answer.body)
        request.finish()

    def _stream(self, follow: Callable[[], bytes], request: Request) -> None:
        """Write what `follow` gives once a second until it gives nothing or the client leaves."""
        if self._streams >= STREAM_LIMIT:
            full = Problem(503, "Too many pages are open.", headers=(("retry-after", "10"),))
            self._write(full.answer(), request, [])
            return
        self._streams += 1

        def tick() -> None:
            data = follow()
            if not data:
                loop.stop()
                return
            request.write(data)

        loop = LoopingCall(tick)
        loop.clock = self._reactor
        left: list[Any] = []

        def ended(_result: object) -> None:
            self._streams -= 1
            if not left:
                request.finish()

        def leave(_failure: Failure) -> None:
            left.append(True)
            if loop.running:
                loop.stop()

        request.notifyFinish().addErrback(leave)
        loop.start(STREAM_EVERY_S).addBoth(ended)

    def _failed(self, failure: Failure, request: Request, gone: list[Any]) -> None:
        """Something in the rim itself went wrong: end the exchange, and let the log have it."""
        if not gone and not request.startedWriting:
            request.setResponseCode(500)
            request.finish()
        failure.raiseException()


def make_site(admin: Admin, reactor: IReactorTime) -> Site:
    """The twisted.web site of the admin listener."""
    site = Site(AdminResource(admin, reactor), timeout=60, reactor=reactor)
    site.requestFactory = AdminRequest
    return site
