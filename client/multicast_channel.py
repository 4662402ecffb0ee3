"""One keep-alive connection to the server of an offer, for reports, hashes and repair.

Small requests, one at a time, in order; a lost connection is opened again by the next request.
httptools reads the answers. Works on either network of `client.net`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httptools

from client.net import Cancellable, Endpoint, Network, Transport

_TIMEOUT_S = 10.0
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of a 200 or 204 answer; or a `fault`, and no body. `fields` are lower-case."""

    body: bytes = b""
    fault: str | None = None
    fields: dict[str, str] | None = None


Done = Callable[[Answer], None]


class Channel(Protocol):
    """Requests to the server that made the offer; `path` is what stands in the request line."""

    def get(self, path: str, done: Done) -> None:
        """`done` is called once."""
        ...

    def post(self, path: str, body: bytes, done: Done) -> None:
        """The same with a body."""
        ...


class HttpChannel:
    """Implements `Channel` for one origin; `authority` is the Host, `fields` go with all."""

    def __init__(
        self,
        network: Network,
        endpoint: Endpoint,
        authority: str,
        fields: Sequence[tuple[str, str]] = (),
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._network = network
        self._endpoint = endpoint
        lines = [("Host", authority), *fields]
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines)
        self._timeout_s = timeout_s
        self._queue: deque[tuple[bytes, Done]] = deque()
        self._current: Done | None = None
        self._wire: _Wire | None = None
        self._parser: Any = None
        self._body: list[bytes] = []
        self._fields: dict[str, str] = {}
        self._body_bytes = 0
        self._timer: Cancellable | None = None
        self._closed = False

    def get(self, path: str, done: Done) -> None:
        """See `Channel`."""
        self._ask(f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode("latin-1"), done)

    def post(self, path: str, body: bytes, done: Done) -> None:
        """See `Channel`."""
        head = f"POST {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        self._ask(head.encode("latin-1") + body, done)

    def close(self) -> None:
        """Let what is under way end, then close."""
        self._closed = True
        if self._current is None and not self._queue:
            self._drop()

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return self._current is None and not self._queue

    def _ask(self, request: bytes, done: Done) -> None:
        self._queue.append((request, done))
        self._next()

    def _next(self) -> None:
        if self._current is not None or (self._wire is not None and not self._wire.ready):
            return
        if not self._queue:
            if self._closed:
                self._drop()
            return
        if self._wire is None:
            self._wire = _Wire(self)
            secure = self._endpoint.tls_name is not None
            self._wire.begin(self._network, self._endpoint, secure, self._timeout_s)
            return
        request, self._current = self._queue.popleft()
        self._parser = httptools.HttpResponseParser(self)
        self._body, self._body_bytes, self._fields = [], 0, {}
        self._timer = self._network.call_later(self._timeout_s, self._late)
        self._wire.write(request)

    # --- from the wire ------------------------------------------------------------------------

    def ready(self) -> None:
        """The connection stands."""
        self._next()

    def received(self, data: bytes) -> None:
        """Bytes of an answer."""
        if self._parser is None:
            self._drop()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"an answer that is not HTTP: {error}")

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: a field."""
        self._fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        """httptools: a piece of the body."""
        self._body_bytes += len(data)
        if self._body_bytes <= _MOST_BYTES:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """httptools: the answer is whole."""
        parser, self._parser = self._parser, None
        if not parser.should_keep_alive():
            self._drop()
        status = parser.get_status_code()
        if status in (200, 204) and self._body_bytes <= _MOST_BYTES:
            self._tell(Answer(b"".join(self._body), None, self._fields))
        else:
            self._tell(Answer(fault=f"the server answered {status}", fields=self._fields))

    def lost(self, wire: _Wire, text: str) -> None:
        """The connection ended, or never came."""
        if wire is not self._wire:
            return
        self._wire = None
        if self._current is not None:
            self._fail(text)
        elif not wire.ready:
            waiting, self._queue = self._queue, deque()
            for _, done in waiting:
                done(Answer(fault=text))

    def _late(self) -> None:
        self._fail(f"no answer within {self._timeout_s:g} s")

    def _fail(self, why: str) -> None:
        self._drop()
        self._parser = None
        self._tell(Answer(fault=why))

    def _tell(self, answer: Answer) -> None:
        done, self._current = self._current, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if done is not None:
            done(answer)
        self._next()

    def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.abort()


class _Wire:
    """A connection; knows nothing of requests. Implements `client.net.Receiver`."""

    def __init__(self, channel: HttpChannel) -> None:
        self._channel = channel
        self._attempt: Cancellable | None = None
        self._transport: Transport | None = None
        self._secure = False
        self.ready = False

    def begin(self, network: Network, endpoint: Endpoint, secure: bool, timeout_s: float) -> None:
        """Connect."""
        self._secure = secure
        self._attempt = network.connect(endpoint, self, timeout_s)

    def write(self, data: bytes) -> None:
        """Send."""
        if self._transport is not None:
            self._transport.write(data)

    def abort(self) -> None:
        """Close; nobody is told."""
        if self._transport is not None:
            self._transport.abort()
        elif self._attempt is not None:
            self._attempt.cancel()

    def connected(self, transport: Transport) -> None:
        """See `client.net.Receiver`."""
        self._transport = transport
        if not self._secure:
            self.secured()

    def secured(self) -> None:
        """See `client.net.Receiver`."""
        self.ready = True
        self._channel.ready()

    def received(self, data: memoryview) -> None:
        """See `client.net.Receiver`."""
        self._channel.received(bytes(data))

    def lost(self, text: str, permanent: bool) -> None:
        """See `client.net.Receiver`."""
        del permanent
        self._channel.lost(self, text)
