"""One request, and the ways to answer it.

Laws: a request is answered exactly once, by `respond` or by `begin` ... `finish`, or it ends with
`abort`. After the peer has left, every way to answer is a harmless no-op and the callbacks given
to `on_gone` have run once. Header names are lower-case bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from twisted.logger import Logger

from ...protocol.errors import ProtocolError
from .answers import NOT_FOUND, Header, problem_answer
from .limits import HttpLimits
from .proxies import Preface, TrustedProxies
from .unarrived import UnarrivedAnswers

_log = Logger()
_NO_HEADERS: Mapping[bytes, bytes] = {}


class AccessEntry(NamedTuple):
    """A request: what it said of itself, and what became of it.

    `started_s` is the reactor's time, `ended_s` Unix time; `complete`: its answer left whole.
    """

    client: str
    method: bytes
    target: bytes
    version: str
    agent: bytes
    referrer: bytes
    range: bytes
    is_tls: bool
    started_s: float
    ended_s: float
    duration_s: float = 0.0
    status: int = 0
    body_bytes: int = 0
    complete: bool = True
    waited_s: float = 0.0
    priority_class: str = ""


class ListenerBounds(Protocol):
    """What holds for all connections of a listener (`factory.ListenerBounds`)."""

    limits: HttpLimits
    proxies: TrustedProxies
    answers: UnarrivedAnswers


class RequestConnection(Protocol):
    """What a request needs of the connection it came by (`connection.HttpConnection`)."""

    peer_address: str
    is_tls: bool
    #: The sender of a long body has the socket to itself from `when_flushed` until `finish`.
    socket: Any
    monitor: Any
    bodies_bytes: int
    lost_bytes: int

    @property
    def forwarded(self) -> Preface | None:
        """What a proxy's preface said of the client."""

    @property
    def client_address(self) -> str:
        """The client's address by that."""

    @property
    def line(self) -> str:
        """The machine whose line it is on, where there are several; empty: this one."""

    @property
    def elsewhere(self) -> bool:
        """Whether another process has it, which asks us."""

    @property
    def running(self) -> bool:
        """Whether the body of its request is on its way already."""

    @property
    def factory(self) -> ListenerBounds:
        """What holds for all connections."""

    @property
    def alive(self) -> bool:
        """Whether the peer is there."""

    def queued_bytes(self) -> int:
        """See `unarrived.AnsweredConnection`."""

    def answer(
        self, request: Request, status: int, headers: Iterable[Header], body: bytes, *, close: bool
    ) -> None:
        """See `Request.respond`."""

    def begin(
        self,
        request: Request,
        status: int,
        headers: Iterable[Header],
        length: int | None,
        more: bool,
    ) -> None:
        """See `Request.begin`."""

    def write_body(self, request: Request, data: bytes) -> None:
        """See `Request.write`."""

    def finish(self, request: Request) -> None:
        """See `Request.finish`."""

    def drip(self, request: Request, status: int, name: bytes, value: bytes) -> None:
        """See `Request.drip`."""

    def abort(self) -> None:
        """See `Request.abort`."""

    def release_buffers(self) -> None:
        """Let go of what only the next request needs."""

    def when_flushed(self, callback: Callable[[], None]) -> None:
        """Call back when the socket has taken all that was said."""

    def await_room(self, callback: Callable[[], None] | None) -> None:
        """Call back when the socket takes more."""


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """A request whose header (and bounded body) has arrived whole.

    `target` is what stood in the request line in origin form; `path` is its part before `?`, still
    percent-encoded; `query` the part after it. `headers` maps lower-case names to values, repeated
    fields joined by a comma and a blank (RFC 9110, 5.3).
    """

    connection: RequestConnection
    method: bytes
    target: bytes
    headers: Mapping[bytes, bytes]
    body: bytes = b""
    keep_alive: bool = True
    http10: bool = False
    path: bytes = field(init=False)
    query: bytes = field(init=False)
    finished: bool = field(init=False, default=False)
    dripped: int = field(init=False, default=0)
    status: int = field(init=False, default=0)
    bytes_out: int = field(init=False, default=0)
    #: For the access log: what it remembers, how long the download waited, and as what.
    entry: AccessEntry | None = field(init=False, default=None)
    waited_s: float = field(init=False, default=0.0)
    priority_class: str = field(init=False, default="")
    _gone: list[Callable[[], None]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.path, _, self.query = self.target.partition(b"?")

    def not_found(self) -> None:
        """Refuse: nothing is here, or nothing that this client may know of; see `refuse`."""
        self.refuse(*NOT_FOUND)

    def header(self, name: bytes) -> bytes | None:
        """The value of a field by its lower-case name, None when it is absent."""
        return self.headers.get(name)

    @property
    def peer_address(self) -> str:
        """Address of the socket's other end; empty for a unix socket."""
        return self.connection.peer_address

    @property
    def by_proxy(self) -> bool:
        """Whether a trusted proxy stands between. It passes no part of a header before the rest."""
        connection = self.connection
        return connection.factory.proxies.trusts(connection.peer_address)

    @property
    def client_address(self) -> str:
        """Address of the client, seen through proxies that are trusted (and only those)."""
        connection = self.connection
        if connection.forwarded is not None:
            return connection.client_address
        return connection.factory.proxies.client_address(connection.peer_address, self.headers)

    @property
    def is_tls(self) -> bool:
        """Whether the client's own connection is encrypted, as far as trusted proxies tell."""
        connection = self.connection
        if connection.forwarded is not None:
            return connection.forwarded.is_tls
        return connection.is_tls or connection.factory.proxies.is_tls(
            connection.peer_address, self.headers
        )

    @property
    def origin(self) -> bytes:
        """`scheme://host` as the client addressed this server."""
        scheme = b"https://" if self.is_tls else b"http://"
        return scheme + (self.headers.get(b"host") or b"localhost")

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call back once if the peer leaves before this request is finished.

        When it has left already, the callback runs at once.
        """
        if not self.finished and not self.connection.alive:
            callback()
        elif self._gone is None:
            self._gone = [callback]
        else:
            self._gone.append(callback)

    def respond(
        self, status: int, headers: Iterable[Header] = (), body: bytes = b"", *, close: bool = False
    ) -> None:
        """Answer whole. Content-Length is added; for HEAD the body stays away."""
        if not self.finished:
            self.connection.answer(self, status, headers, body, close=close)

    def refuse(
        self, status: int, code: str, detail: str, headers: Iterable[Header] = (), **members: Any
    ) -> None:
        """Answer with a problem document, or a small page for those who asked for text/html."""
        accept, language = self.headers.get(b"accept"), self.headers.get(b"accept-language")
        fields, body = problem_answer(status, code, detail, accept, language, **members)
        self.respond(status, [*fields, *headers], body)

    def answer_by(self, handler: Callable[[Request], object]) -> None:
        """Let `handler` answer it; what that raises is told to the client, and logged if ours."""
        try:
            handler(self)
        except ProtocolError as error:
            again = [(b"Retry-After", b"5")] if error.status == 503 else []
            self.refuse(error.status, error.code, str(error), again)
        except Exception:  # noqa: BLE001 - the last resort
            _log.failure("a request handler failed", client=self.client_address)
            if self.status:
                self.abort()
            else:
                self.refuse(500, "internal-error", "The server failed; this was logged.")

    def begin(
        self, status: int, headers: Iterable[Header], length: int | None, *, more: bool = True
    ) -> None:
        """Send the header of an answer whose body follows by `write` (or a borrowed socket).

        `length` is the body's size; None means unknown: chunked for HTTP/1.1, ended by closing
        for HTTP/1.0. `more` says that body bytes follow at once, so the packet may wait for them.
        """
        if not self.finished:
            self.connection.begin(self, status, headers, length, more=more)

    def write(self, data: bytes) -> None:
        """Send body bytes after `begin`; ignored for HEAD."""
        if not self.finished:
            self.connection.write_body(self, data)

    def finish(self) -> None:
        """End an answer that was started by `begin`."""
        if not self.finished:
            self.connection.finish(self)

    def drip(self, status: int, name: bytes, value: bytes) -> None:
        """Hold the client: send the status line (once) and one harmless header field now.

        The later answer must carry the same status; one that does not is cut off, because the
        status cannot be taken back.
        """
        if not self.finished:
            self.connection.drip(self, status, name, value)

    def abort(self) -> None:
        """Cut the connection: the client must see that the answer is not whole."""
        if not self.finished:
            self.connection.abort()

    def ended(self, gone: bool) -> None:
        """For the connection only: the request is over; run the callbacks if the peer left."""
        self.finished = True
        callbacks, self._gone = self._gone, None
        self.headers = _NO_HEADERS
        if gone and callbacks:
            for callback in callbacks:
                callback()
