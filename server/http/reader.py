"""The receiving half of a connection: llhttp parses strictly, this judges what llhttp leaves open.

The parser is fed one header at a time, so a peer that pipelines costs us raw bytes (bounded), never
parsed requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import httptools

from protocol.errors import ProtocolError
from server.http.outlet import Outlet
from server.http.parsing import (
    fault_of,
    origin_form,
    valid_host,
    with_escaped_target,
)
from server.http.request import Request

if TYPE_CHECKING:
    from server.http.connection import HttpConnection
    from server.http.factory import HttpFactory

_END = b"\r\n\r\n"


class Reader(Outlet):
    """Makes requests of bytes: `_ready` holds them, `_broken` says why none follow."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_broken",
        "_current",
        "_head_bytes",
        "_head_done",
        "_headers",
        "_mid_message",
        "_pending",
        "_ready",
        "_url",
        "_version10",
        "parser",
    )

    def __init__(self, factory: HttpFactory) -> None:
        super().__init__(factory)
        self.parser: Any = None
        #: The request that is being answered.
        self._current: Request | None = None
        self._ready: list[Request] = []
        self._pending = b""
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] | None = None
        self._body_bytes = 0
        self._head_bytes = 0
        self._head_done = False
        self._mid_message = False
        self._version10 = False
        self._broken: ProtocolError | None = None

    # -- the parser's callbacks -------------------------------------------------------------

    def on_message_begin(self) -> None:
        """First byte of a request."""
        self._mid_message = True
        self._head_done = False
        self._head_bytes = 0
        self.deadline = self.factory.now + self.factory.limits.header_timeout_s
        self._url = b""
        self._headers = {}
        self._body = None
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        self._url = self._url + url if self._url else url
        if len(self._url) > self.factory.limits.max_target_bytes:
            raise ProtocolError(
                "The request target is too long.", status=414, code="target-too-long"
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole header field (or trailer field, which is ignored)."""
        if self._head_done:
            return
        headers = self._headers
        name = name.lower()
        value = value.rstrip()
        if name in headers:
            if name == b"host":
                raise ProtocolError("The request has more than one Host.", code="bad-host")
            value = headers[name] + b", " + value
        headers[name] = value
        if len(headers) > self.factory.limits.max_headers:
            raise ProtocolError(
                "The request has too many header fields.", status=431, code="header-too-large"
            )

    def on_headers_complete(self) -> None:
        """The header is whole: judge what the parser leaves open, before any body byte."""
        self._head_done = True
        self.deadline = self.factory.now + self.factory.limits.body_timeout_s
        headers = self._headers
        version = self.parser.get_http_version()
        self._version10 = version == "1.0"
        if version != "1.1" and not self._version10:
            raise ProtocolError(
                "This server speaks HTTP/1.1 and HTTP/1.0.", status=505, code="http-version"
            )
        host = headers.get(b"host")
        if (host is None and not self._version10) or (host is not None and not valid_host(host)):
            raise ProtocolError("The request needs exactly one valid Host.", code="bad-host")
        if b"transfer-encoding" in headers:
            if self._version10:
                raise ProtocolError(
                    "HTTP/1.0 has no Transfer-Encoding.", code="bad-transfer-encoding"
                )
            if headers[b"transfer-encoding"].lower() != b"chunked":
                raise ProtocolError(
                    "The only transfer coding understood here is chunked.",
                    status=501,
                    code="bad-transfer-encoding",
                )
        length = headers.get(b"content-length")
        if length is not None and int(length) > self.factory.limits.max_body_bytes:
            raise self._too_large()
        if b"expect" in headers:
            self._expect(headers[b"expect"])

    def on_body(self, data: bytes) -> None:
        """A piece of the request's body."""
        self._body_bytes += len(data)
        if self._body_bytes > self.factory.limits.max_body_bytes:
            raise self._too_large()
        if self._body is None:
            self._body = [data]
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._mid_message = False
        parser = self.parser
        method = parser.get_method()
        self._ready.append(
            Request(
                cast("HttpConnection", self),
                method,
                origin_form(self._url),
                self._headers,
                body=b"".join(self._body) if self._body is not None else b"",
                keep_alive=parser.should_keep_alive() and method != b"CONNECT",
                http10=self._version10,
            )
        )

    def _too_large(self) -> ProtocolError:
        most = self.factory.limits.max_body_bytes
        return ProtocolError(
            f"The request's body is larger than the {most} bytes accepted here.",
            status=413,
            code="body-too-large",
        )

    def _expect(self, expectation: bytes) -> None:
        if expectation.lower() != b"100-continue":
            raise ProtocolError(
                "The only expectation understood here is 100-continue.",
                status=417,
                code="expectation-failed",
            )
        waits = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if waits and not self._version10 and self._current is None and not self._ready:
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    # -- feeding ----------------------------------------------------------------------------

    def _parse_one(self) -> None:
        """Feed the parser at most up to the end of the next header."""
        data = self._pending
        end = data.find(_END) + 4
        if end < 4 or end == len(data):
            self._pending = b""
        else:
            self._pending = data[end:]
            data = data[:end]
        fresh = not self._mid_message
        if self.parser is None:
            self.parser = httptools.HttpRequestParser(self)
        if fresh or not self._head_done:
            before = 0 if fresh else self._head_bytes
            if before + len(data) > self.factory.limits.max_header_bytes:
                self._broken = self._header_too_large(data if fresh else self._url)
                return
            if fresh and not data.isascii():
                data = with_escaped_target(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            # An upgrade that nobody here offers: the request counts, its protocol change does not.
            self._pending = data[error.args[0] :] + self._pending
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, ProtocolError):
                self._broken = cause
            elif isinstance(error, httptools.HttpParserCallbackError):
                raise
            else:
                self._broken = fault_of(error, data if fresh else b"")
        if self._mid_message and not self._head_done:
            self._head_bytes += len(data)
            if b"\n" in data and self.parser.get_http_version() in ("0.0", "0.9"):
                # No header will follow; the answer must not wait for one.
                self._broken = self._broken or ProtocolError(
                    "This server speaks HTTP/1.1 and HTTP/1.0; the request names no version.",
                    status=505,
                    code="http-version",
                )

    def _header_too_large(self, data: bytes) -> ProtocolError:
        most_target = self.factory.limits.max_target_bytes
        if len(data.partition(b"\r\n")[0]) > most_target + 64:
            return ProtocolError(
                "The request target is too long.", status=414, code="target-too-long"
            )
        return ProtocolError(
            "The request's header is too large.", status=431, code="header-too-large"
        )

    def slim(self) -> None:
        """A long body begins: let go of what only the next request needs (about 2 KiB)."""
        if not self._mid_message and not self._ready and self._broken is None:
            self.parser = None
        self._headers = {}
        if self._current is not None:
            self._current.headers = {}
