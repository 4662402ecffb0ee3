"""One keep-alive connection to the server of an offer, for reports, hashes and repair.

Small requests, one at a time, in order; a lost connection is opened again by the next request.
llhttp (httptools) reads the answers.
"""

from __future__ import annotations

from collections import deque
from typing import Any
from urllib.parse import urlsplit

import httptools
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.ssl import optionsForClientTLS
from twisted.python.failure import Failure

from client.failures import NetworkProblem

_TIMEOUT_S = 10.0
_MOST_BYTES = 64 << 20


class _Wire(Protocol):
    """Bytes in and out; knows nothing of requests."""

    transport: Any

    def __init__(self, channel: HttpChannel) -> None:
        self._channel = channel

    def connectionMade(self) -> None:
        self.transport.setTcpNoDelay(True)

    def dataReceived(self, data: bytes) -> None:
        self._channel.received(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._channel.lost(self)


class HttpChannel:
    """Implements `client.multicast.Channel` for the origin of `url`.

    `headers` go with every request (a Host is added). Failures are `NetworkProblem`.
    """

    def __init__(
        self,
        reactor: Any,
        url: str,
        headers: dict[str, str] | None = None,
        endpoint: Any = None,
    ) -> None:
        parts = urlsplit(url)
        host = parts.hostname or ""
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        self._reactor = reactor
        if endpoint is None:
            endpoint = HostnameEndpoint(reactor, host, port)
            if secure:
                endpoint = wrapClientTLS(optionsForClientTLS(host), endpoint)
        self._endpoint = endpoint
        lines = {"Host": parts.netloc.rpartition("@")[2], **(headers or {})}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._queue: deque[tuple[bytes, Deferred[bytes]]] = deque()
        self._current: Deferred[bytes] | None = None
        self._wire: _Wire | None = None
        self._connecting = False
        self._parser: Any = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._timer: Any = None
        self._closed = False

    def get(self, path: str) -> Deferred[bytes]:
        """The body of a 200 answer."""
        return self._ask(f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode())

    def post(self, path: str, body: bytes) -> Deferred[bytes]:
        """The body of a 200 or 204 answer."""
        head = f"POST {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        return self._ask(head.encode() + body)

    def close(self) -> None:
        """Let what is under way end, then close."""
        self._closed = True
        if self._current is None and not self._queue:
            self._drop()

    def _ask(self, request: bytes) -> Deferred[bytes]:
        answer: Deferred[bytes] = Deferred()
        self._queue.append((request, answer))
        self._next()
        return answer

    def _next(self) -> None:
        if self._current is not None or self._connecting:
            return
        if not self._queue:
            if self._closed:
                self._drop()
            return
        if self._wire is None:
            self._connecting = True
            connected = self._endpoint.connect(Factory.forProtocol(lambda: _Wire(self)))
            connected.addCallbacks(self._connected, self._refused)
            return
        request, self._current = self._queue.popleft()
        self._parser = httptools.HttpResponseParser(self)
        self._body, self._body_bytes = [], 0
        self._timer = self._reactor.callLater(_TIMEOUT_S, self._late)
        self._wire.transport.write(request)

    def _connected(self, wire: _Wire) -> None:
        self._connecting = False
        self._wire = wire
        self._next()

    def _refused(self, failure: Failure) -> None:
        self._connecting = False
        waiting, self._queue = self._queue, deque()
        for _, answer in waiting:
            answer.errback(NetworkProblem(failure.getErrorMessage()))

    # --- from the wire ------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Bytes of an answer."""
        if self._parser is None:
            self._drop()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"an answer that is not HTTP: {error}")

    def on_body(self, data: bytes) -> None:
        """llhttp: a piece of the body."""
        self._body_bytes += len(data)
        if self._body_bytes <= _MOST_BYTES:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """llhttp: the answer is whole."""
        parser, self._parser = self._parser, None
        answer, self._current = self._current, None
        self._timer.cancel()
        if not parser.should_keep_alive():
            self._drop()
        status = parser.get_status_code()
        if answer is not None:
            if status in (200, 204) and self._body_bytes <= _MOST_BYTES:
                answer.callback(b"".join(self._body))
            else:
                answer.errback(NetworkProblem(f"the server answered {status}"))
        self._next()

    def lost(self, wire: _Wire) -> None:
        """The connection ended."""
        if wire is self._wire:
            self._wire = None
            if self._current is not None:
                self._fail("the connection ended before the answer")

    def _late(self) -> None:
        self._fail(f"no answer within {_TIMEOUT_S:g} s")

    def _fail(self, why: str) -> None:
        self._drop()
        self._parser = None
        answer, self._current = self._current, None
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if answer is not None:
            answer.errback(NetworkProblem(why))
        self._next()

    def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None and wire.transport is not None:
            wire.transport.loseConnection()
