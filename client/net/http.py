"""One HTTP/1.1 connection: requests go out at once, answers come back in order.

Heads are read by httptools; a body of known length bypasses the parser and goes to its taker as
the very memory it was received in, which is what keeps the cost per gigabyte near curl's. Bodies in
chunks go through the parser. Several requests may be under way (RFC 9112, 9.3.2): the next one is
asked before the last one ends, so a round trip costs nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from ...protocol.units import whole_number
from .answers import Fields
from .network import Cancellable, Endpoint, Network, Transport

_HEAD_LIMIT = 64 << 10


class Taker(Protocol):
    """The asking side; hears `head`, then `body` any number of times, then `end`.

    Where the connection goes first, its owner hears that instead.
    """

    def head(self, status: int, fields: Fields) -> None: ...
    def body(self, data: memoryview) -> None: ...
    def end(self) -> None: ...


class Owner(Protocol):
    """The side that holds the connection."""

    def opened(self, rtt_s: float) -> None: ...
    def closed(self, text: str, permanent: bool, crowded: bool) -> None:
        """It ended by itself; `crowded` as `Connection.crowded` was."""


@dataclass(frozen=True, slots=True)
class _SentRequest:
    taker: Taker
    #: It was sent while another request was under way.
    behind: bool
    bodiless: bool


class Connection:
    """A connection to `endpoint`; through a proxy's CONNECT to `tunnel` if that is given."""

    def __init__(
        self,
        network: Network,
        endpoint: Endpoint,
        owner: Owner,
        timeout_s: float,
        tunnel: tuple[str, str, bytes] | None = None,
    ) -> None:
        self.served = 0
        #: How many answers came to requests that had been sent while another was under way.
        self.served_behind = 0
        self.open = False
        #: When bytes came last that bring an answer forward; the extensions of a chunk do not.
        self.last_s = network.now()
        #: Since when no answer has been under way but the one that is waited for.
        self.idle_s = self.last_s
        self._network = network
        self._owner = owner
        self._tunnel = tunnel
        self._secure = endpoint.tls_name is not None
        self._transport: Transport | None = None
        self._waiting: deque[_SentRequest] = deque()
        self._current: Taker | None = None
        self._current_behind = False
        self._head = bytearray()
        self._interim = 0
        self._left: int | None = 0
        self._in_body = False
        self._parser: _Parser | None = None
        #: The server has said that it closes the connection after this answer.
        self.closing = False
        self._over = False
        self._began_s = network.now()
        self._timeout_s = timeout_s
        self._patience: Cancellable | None = None
        self._attempt: Cancellable | None = network.connect(endpoint, self, timeout_s)

    # -- asking --------------------------------------------------------------------------------

    def send(self, request: bytes, taker: Taker, *, bodiless: bool = False) -> None:
        """Send a request; its answer comes after those of the earlier ones. `bodiless`: it is a
        HEAD, so a Content-Length announces nothing."""
        assert self._transport is not None
        if not self.busy:
            self.last_s = self.idle_s = self._network.now()
        self._waiting.append(_SentRequest(taker, self.busy > 0, bodiless))
        self._transport.write(request)

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        return self.open and not self.closing and not self._over

    @property
    def busy(self) -> int:
        """Requests under way."""
        return len(self._waiting) + (self._current is not None)

    @property
    def crowded(self) -> bool:
        """Whether a request under way was sent while another was."""
        return any(asked.behind for asked in self._waiting) or (
            self._current is not None and self._current_behind
        )

    @property
    def unheard(self) -> bool:
        """Whether nothing of the next answer has come, to a request sent behind another."""
        return self._current is None and bool(self._waiting) and self._waiting[0].behind

    @property
    def headless(self) -> bool:
        """Whether the next thing to come is an answer's head."""
        return self._current is None and bool(self._waiting)

    @property
    def marks_end(self) -> bool:
        """Whether the answer says where it ends: one that was cut off cannot pass for a whole."""
        return self._left is not None or self._parser is not None

    def abort(self) -> None:
        """Close at once, without a callback."""
        self._over = True
        for timer in (self._attempt, self._patience):
            if timer is not None:
                timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._waiting.clear()
        self._current = None

    def release(self) -> None:
        """Give the connection up; it may serve others if nothing is outstanding on it."""
        if self._transport is None or self.busy or not self.usable or self._parser is not None:
            self.abort()
            return
        self._over = True
        self._transport.release()

    def pause(self) -> None:
        if self._transport is not None and not self._over:
            self._transport.pause()

    def resume(self) -> None:
        if self._transport is not None and not self._over:
            self._transport.resume()

    # -- Receiver ------------------------------------------------------------------------------

    def connected(self, transport: Transport) -> None:
        self._attempt = None
        self._transport = transport
        took_s = self._network.now() - self._began_s
        self._rtt_s = transport.rtt_s if transport.rtt_s is not None else took_s
        if self._tunnel is not None or self._secure:
            self._patience = self._network.call_later(self._timeout_s, self._too_late)
        if self._tunnel is not None:
            _, authority, login = self._tunnel
            head = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n".encode()
            transport.write(head + login + b"\r\n")
        elif not self._secure:
            self._opened()

    def secured(self) -> None:
        self._opened()

    def _too_late(self) -> None:
        if not self.open:
            self._nonsense("it does not answer" if self._secure else "the proxy does not answer")

    def _opened(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self.open = True
        self.last_s = self._network.now()
        self._owner.opened(self._rtt_s)

    def lost(self, text: str, permanent: bool) -> None:
        if self._over:
            return
        self._over = True
        if self._patience is not None:
            self._patience.cancel()
        current, crowded = self._current, self.crowded
        self._current = None
        self._waiting.clear()
        if current is not None and not self.marks_end and text == "the connection was closed":
            # A body without a length ends with the connection (RFC 9112, 6.3).
            current.end()
        self._owner.closed(text, permanent, crowded)

    def received(self, data: memoryview) -> None:
        if self._parser is None:
            self.last_s = self._network.now()
        if self._tunnel is not None and not self.open:
            self._tunnelled(data)
            return
        while len(data) and not self._over:
            if self._parser is not None:
                self._parser.feed(bytes(data))
                break
            if not self._in_body:
                data = self._read_head(data)
                continue
            if self._left is None:
                self._give(data)
                break
            part = data[: self._left]
            data = data[self._left :]
            self._left -= len(part)
            self._give(part)
            if self._left == 0:
                self.finish()
        if self._transport is not None and not self._over:
            self._transport.expect(self._left or 0 if self._in_body else 0)

    def _give(self, data: memoryview) -> None:
        if self._current is not None:
            self._current.body(data)

    def _read_head(self, data: memoryview) -> memoryview:
        old = len(self._head)
        self._head += data[:_HEAD_LIMIT]
        at = self._head.find(b"\r\n\r\n", max(0, old - 3))
        if at < 0:
            if len(self._head) >= _HEAD_LIMIT:
                self._nonsense("the answer's header is too long")
            return data[_HEAD_LIMIT:]
        head = bytes(self._head[: at + 4])
        self._head.clear()
        rest = data[len(head) - old :]
        reader = _Parser(self)
        reader.feed(head)
        if self._over or reader.status == 0:
            self._nonsense("the answer is not HTTP")
            return data[:0]
        if reader.status < 200:
            self._interim += 1
            # Answers like "103 Early Hints" before the one that counts.
            if self._interim > 100:
                self._nonsense("it announces answers without end")
            return rest
        self._interim = 0
        if self._waiting and self._waiting[0].bodiless:
            reader.chunked, reader.length = False, 0
        if reader.chunked:
            # From here on this connection is read by the parser, which keeps its own state.
            self._parser = reader
            reader.live = True
        self.begin(reader)
        return rest

    # -- called by the parser ------------------------------------------------------------------

    def begin(self, reader: _Parser) -> None:
        """A final answer's head is complete."""
        if self._over:
            return
        if not self._waiting:
            self._nonsense("the server sent an answer without a request")
            return
        asked = self._waiting.popleft()
        self._current, self._current_behind = asked.taker, asked.behind
        self.closing = not reader.keep_alive
        self.last_s = self._network.now()
        self._in_body = True
        self._left = reader.length
        current, status = self._current, reader.status
        current.head(status, Fields(reader.fields))
        if self._over or self._current is not current or reader.live:
            return
        if self._left == 0:
            self.finish()

    def chunk(self, data: bytes) -> None:
        self.last_s = self._network.now()
        self._give(memoryview(data))

    def finish(self) -> None:
        """The current answer is complete."""
        current, self._current = self._current, None
        self._in_body = False
        self.idle_s = self._network.now()
        self.served += 1
        self.served_behind += self._current_behind
        if current is not None:
            current.end()
        if self.closing and not self._over:
            if self._transport is not None:
                self._transport.abort()
            self.lost("the server closed the connection", False)

    def _nonsense(self, text: str) -> None:
        if not self._over:
            if self._transport is not None:
                self._transport.abort()
            self.lost(text, False)

    def _tunnelled(self, data: memoryview) -> None:
        self._head += data
        at = self._head.find(b"\r\n\r\n")
        if at < 0:
            if len(self._head) >= _HEAD_LIMIT:
                self._nonsense("the proxy's answer is too long")
            return
        line = bytes(self._head.split(b"\r\n", 1)[0])
        self._head.clear()
        words = line.split(None, 2)
        assert self._tunnel is not None
        assert self._transport is not None
        if len(words) < 2 or not words[1].startswith(b"2"):
            self._transport.abort()
            text = line.decode("latin-1", "replace")[:100]
            self.lost(f"the proxy will not connect to {self._tunnel[1]}: {text}", True)
            return
        self._transport.start_tls(self._tunnel[0])


class _Parser:
    """httptools, as values."""

    def __init__(self, connection: Connection) -> None:
        from httptools import HttpResponseParser  # after the first request is out

        self.live = False
        self.status = 0
        self.chunked = False
        self.keep_alive = False
        self.length: int | None = None
        self.fields: list[tuple[str, str]] = []
        self._connection = connection
        self._parser = HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        from httptools import HttpParserError

        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self._connection._nonsense("the answer is not HTTP")

    def on_message_begin(self) -> None:
        self.fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.keep_alive = self._parser.should_keep_alive()
        fields = Fields(self.fields)
        codings = [one.strip().lower() for one in fields.all("transfer-encoding")]
        self.chunked = codings == ["chunked"]
        told = (fields.get("content-length") or "").strip()
        packed = codings not in ([], ["chunked"], ["identity"])
        if packed or (told and whole_number(told) is None):
            # Bytes without a known meaning or end.
            self.status = 0
            if self.live:
                self._connection._nonsense("the answer is not HTTP")
            return
        if self.status in (204, 304):
            self.length = 0
        else:
            self.length = None if self.chunked else whole_number(told)
        if self.live and self.status >= 200:
            self._connection.begin(self)

    def on_body(self, data: bytes) -> None:
        if self.live:
            self._connection.chunk(data)

    def on_message_complete(self) -> None:
        if self.live and self.status >= 200:
            self._connection.finish()
