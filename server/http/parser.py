"""A parser that a connection has: bytes in, requests out or the rule that was broken; no transport.

llhttp parses strictly, this judges what llhttp leaves open. It is fed one header at a time, and
only when the request before it has been answered, so a peer that pipelines costs us raw bytes
(which the connection bounds), never parsed requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import httptools

from ...protocol.errors import ProtocolError
from .limits import HttpLimits
from .parsing import fault_of, origin_form, valid_host, with_escaped_target

_END = b"\r\n\r\n"


class Message(NamedTuple):
    """A whole request as it arrived: what `request.Request` is made of."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool
    http10: bool


class BodyAllowance(Protocol):
    """Who may send a body beyond `small_bytes`; each begins here and ends."""

    small_bytes: int

    def begin(self, fields: Mapping[bytes, bytes]) -> ProtocolError | None:
        """One more, of a request with these header fields; an error means that it is refused."""

    def end(self) -> None:
        """One that began came whole, or never will."""


@dataclass(slots=True, eq=False, repr=False)
class RequestParser:
    """Makes requests of bytes.

    Give it bytes by `receive`, then ask `next` until it has none. `stage` counts beginnings of
    requests and ends of headers: a change means that another time limit runs from now on.
    """

    _limits: HttpLimits
    _large_bodies: BodyAllowance | None = None
    #: Whether `_large_bodies` counts the body that is arriving.
    _large: bool = field(init=False, default=False)
    _llhttp: Any = field(init=False)
    _ready: list[Message] = field(init=False, default_factory=list)
    _url: bytes = field(init=False, default=b"")
    _headers: dict[bytes, bytes] = field(init=False, default_factory=dict)
    _body: list[bytes] | None = field(init=False, default=None)
    _body_bytes: int = field(init=False, default=0)
    _body_most: int = field(init=False)
    _head_bytes: int = field(init=False, default=0)
    _version10: bool = field(init=False, default=False)
    _broken: ProtocolError | None = field(init=False, default=None)
    #: Bytes that were not parsed yet.
    pending: bytes = field(init=False, default=b"")
    head_done: bool = field(init=False, default=False)
    #: Whether a request has begun and is not whole.
    mid_message: bool = field(init=False, default=False)
    stage: int = field(init=False, default=0)
    #: Whether the peer waits for 100 (Continue) before it sends its body.
    wants_continue: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._llhttp = httptools.HttpRequestParser(self)
        self._body_most = self._everybodys()

    @property
    def quiet(self) -> bool:
        """Whether nothing has arrived that was not handed out."""
        return not (self.pending or self.mid_message or self._ready or self._broken is not None)

    @property
    def broken(self) -> bool:
        """Whether a rule was broken, so that nothing after it can be read."""
        return self._broken is not None

    @property
    def head(self) -> dict[bytes, bytes]:
        """The fields of the request that is arriving, once its header is whole; else none."""
        return self._headers if self.head_done else {}

    def receive(self, data: bytes) -> None:
        """Bytes from the peer, in order."""
        self.pending = self.pending + data if self.pending else data

    def next(self) -> Message | None:
        """The next request; None until more bytes arrive. Raises ProtocolError, then for good."""
        while True:
            if self._ready:
                return self._ready.pop(0)
            if self._broken is not None:
                raise self._broken
            if not self.pending:
                return None
            self._parse_one()

    def end(self) -> None:
        """Nothing is asked of it any more. llhttp holds its callbacks, so it is let go of here:
        else only the garbage collector would find the two.
        """
        self.pending = b""
        self._llhttp = None
        self._end_large()

    # -- llhttp's callbacks -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        """First byte of a request."""
        self.mid_message = True
        self.head_done = False
        self.wants_continue = False
        self.stage += 1
        self._head_bytes = 0
        self._url = b""
        self._headers = {}
        self._body = None
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        self._url = self._url + url if self._url else url
        if len(self._url) > self._limits.max_target_bytes:
            raise self._break("The request target is too long.", status=414, code="target-too-long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole header field (or trailer field, which is ignored)."""
        if self.head_done:
            return
        headers = self._headers
        name = name.lower()
        value = value.rstrip()
        if name in headers:
            if name == b"host":
                raise self._break("The request has more than one Host.", code="bad-host")
            value = headers[name] + b", " + value
        headers[name] = value
        if len(headers) > self._limits.max_headers:
            raise self._break(
                "The request has too many header fields.", status=431, code="header-too-large"
            )

    def on_headers_complete(self) -> None:
        """The header is whole: judge what llhttp leaves open, before any body byte."""
        self.head_done = True
        self.stage += 1
        headers = self._headers
        version = self._llhttp.get_http_version()
        self._version10 = version == "1.0"
        if version != "1.1" and not self._version10:
            raise self._break(
                "This server speaks HTTP/1.1 and HTTP/1.0.", status=505, code="http-version"
            )
        host = headers.get(b"host")
        if (host is None and not self._version10) or (host is not None and not valid_host(host)):
            raise self._break("The request needs exactly one valid Host.", code="bad-host")
        if b"transfer-encoding" in headers:
            if self._version10:
                raise self._break(
                    "HTTP/1.0 has no Transfer-Encoding.", code="bad-transfer-encoding"
                )
            if headers[b"transfer-encoding"].lower() != b"chunked":
                raise self._break(
                    "The only transfer coding understood here is chunked.",
                    status=501,
                    code="bad-transfer-encoding",
                )
        length = headers.get(b"content-length")
        # llhttp bounds the number, not its zeros, and Python reads no more than 4300 digits.
        if length is not None and (size := int(length.lstrip(b"0") or b"0")) > self._body_most:
            self._grow(size)
        if b"expect" in headers:
            self._expect(headers[b"expect"])

    def on_body(self, data: bytes) -> None:
        """A piece of the request's body."""
        self._body_bytes += len(data)
        if self._body_bytes > self._body_most:
            self._grow(self._body_bytes)
        if self._body is None:
            self._body = [data]
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        self.mid_message = False
        self.wants_continue = False
        self._end_large()
        method = self._llhttp.get_method()
        try:
            target, host = origin_form(self._url)
            if host is not None:
                self._headers[b"host"] = host
        except ProtocolError as error:
            self._broken = error
            raise
        self._ready.append(
            Message(
                method,
                target,
                self._headers,
                b"".join(self._body) if self._body is not None else b"",
                self._llhttp.should_keep_alive() and method != b"CONNECT",
                self._version10,
            )
        )

    def _break(self, detail: str, *, status: int = 400, code: str = "bad-request") -> ProtocolError:
        """A rule is broken; llhttp ends with another error than what its callback raises."""
        self._broken = ProtocolError(detail, status=status, code=code)
        return self._broken

    def _everybodys(self) -> int:
        """How large a body of any client may be."""
        bodies, most = self._large_bodies, self._limits.max_body_bytes
        return most if bodies is None else min(bodies.small_bytes, most)

    def _grow(self, size_bytes: int) -> None:
        """The body has more bytes than every client may send. Raises ProtocolError."""
        most = self._limits.max_body_bytes
        if size_bytes > most or self._large_bodies is None:
            raise self._break(
                f"The request's body is larger than the {most} bytes accepted here.",
                status=413,
                code="body-too-large",
            )
        refusal = self._large_bodies.begin(self._headers)
        if refusal is not None:
            self._broken = refusal
            raise refusal
        self._large, self._body_most = True, most

    def _end_large(self) -> None:
        if self._large and self._large_bodies is not None:
            self._large, self._body_most = False, self._everybodys()
            self._large_bodies.end()

    def _expect(self, expectation: bytes) -> None:
        if expectation.lower() != b"100-continue":
            raise self._break(
                "The only expectation understood here is 100-continue.",
                status=417,
                code="expectation-failed",
            )
        has_body = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        self.wants_continue = has_body and not self._version10

    # -- feeding ----------------------------------------------------------------------------

    def _parse_one(self) -> None:
        """Feed llhttp at most up to the end of the next header."""
        data = self.pending
        end = data.find(_END) + 4
        if end < 4 or end == len(data):
            self.pending = b""
        else:
            self.pending = data[end:]
            data = data[:end]
        fresh = not self.mid_message
        if fresh or not self.head_done:
            before = 0 if fresh else self._head_bytes
            if before + len(data) > self._limits.max_header_bytes:
                self._broken = self._header_too_large(data if fresh else self._url)
                return
            if fresh and not data.isascii():
                data = with_escaped_target(data)
        try:
            self._llhttp.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            # An upgrade, which is not offered here: the request counts, the upgrade does not.
            self.pending = data[error.args[0] :] + self.pending
        except httptools.HttpParserError as error:
            if self._broken is None:
                if isinstance(error, httptools.HttpParserCallbackError):
                    raise
                self._broken = fault_of(error, data if fresh else b"")
        if self.mid_message and not self.head_done:
            self._head_bytes += len(data)
            if b"\n" in data and self._llhttp.get_http_version() in ("0.0", "0.9"):
                # No header will follow; the answer must not wait for one.
                self._broken = self._broken or ProtocolError(
                    "This server speaks HTTP/1.1 and HTTP/1.0; the request names no version.",
                    status=505,
                    code="http-version",
                )

    def _header_too_large(self, data: bytes) -> ProtocolError:
        most_target = self._limits.max_target_bytes
        if len(data.partition(b"\r\n")[0]) > most_target + 64:
            return ProtocolError(
                "The request target is too long.", status=414, code="target-too-long"
            )
        return ProtocolError(
            "The request's header is too large.", status=431, code="header-too-large"
        )
