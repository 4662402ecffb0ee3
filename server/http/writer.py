"""The answering half of a connection: heads, framing and bodies of HTTP answers (RFC 9112).

What an answer means for the connection (the next request, or the end) is `connection.py`'s.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from server.http.answers import Header, header_block, status_line
from server.http.outlet import PIECE_BYTES
from server.http.reader import Reader
from server.http.request import Request

if TYPE_CHECKING:
    from server.http.factory import HttpFactory

_BODILESS = frozenset({204, 304})


class Writer(Reader):
    """Writes answers to the request that `Reader` made; subclasses end them."""

    __slots__ = ("_chunked", "_omit_body")

    def __init__(self, factory: HttpFactory) -> None:
        super().__init__(factory)
        self._chunked = False
        #: A HEAD request's answer has the same header and no body.
        self._omit_body = False

    @abstractmethod
    def finish(self, request: Request) -> None:
        """The request is answered: the next one, or the end."""

    @abstractmethod
    def abort(self) -> None:
        """Cut the connection with a reset, so that nobody takes a part for the whole."""

    def answer(
        self, request: Request, status: int, headers: Iterable[Header], body: bytes, close: bool
    ) -> None:
        """Send a whole answer and finish the request."""
        if close:
            request.keep_alive = False
        if status in _BODILESS:
            head = self._head(request, status, headers, None, bodiless=True)
        else:
            head = self._head(request, status, headers, len(body))
        if head is None:
            return
        if request.method == b"HEAD" or status in _BODILESS:
            body = b""
        request.bytes_out = len(body)
        if len(body) <= PIECE_BYTES:
            self.send(head + body)
        else:
            self.send(head, more=True)
            self.send(body)
        self.finish(request)

    def answer_ready(self, request: Request, head: bytes, body: bytes) -> None:
        """The shortest way to a 200: `head` holds all fields but Date and Connection."""
        if request.keep_alive and not request.http10:
            data = b"HTTP/1.1 200 OK\r\n%b%b\r\n%b" % (self.factory.date_line, head, body)
        else:
            data = b"HTTP/1.1 200 OK\r\n%b%b%b\r\n%b" % (
                self.factory.date_line,
                head,
                b"Connection: keep-alive\r\n" if request.keep_alive else b"Connection: close\r\n",
                body,
            )
        request.status = 200
        request.bytes_out = len(body)
        self.send(data)
        self.finish(request)

    def begin(
        self,
        request: Request,
        status: int,
        headers: Iterable[Header],
        length: int | None,
        more: bool,
    ) -> None:
        """Send the header of a streamed answer."""
        self._chunked = length is None and not request.http10
        if length is None and request.http10:
            request.keep_alive = False
        head = self._head(request, status, headers, length)
        if head is None:
            return
        self._omit_body = request.method == b"HEAD"
        self.send(head, more and not self._omit_body)

    def _head(
        self,
        request: Request,
        status: int,
        headers: Iterable[Header],
        length: int | None,
        *,
        bodiless: bool = False,
    ) -> bytes | None:
        """The header of an answer; None when an earlier drip makes this answer impossible."""
        if request.dripped:
            if request.dripped != status:
                self.abort()
                return None
            start = b""
        else:
            start = b"%b\r\n%b%b" % (
                status_line(status),
                self.factory.date_line,
                self.factory.server_line,
            )
        request.status = status
        if length is not None:
            framing = b"Content-Length: %d\r\n" % length
        elif self._chunked and not bodiless:
            framing = b"Transfer-Encoding: chunked\r\n"
        else:
            framing = b""
        if not request.keep_alive:
            framing += b"Connection: close\r\n"
        elif request.http10:
            framing += b"Connection: keep-alive\r\n"
        return b"%b%b%b\r\n" % (start, header_block(headers), framing)

    def drip(self, request: Request, status: int, name: bytes, value: bytes) -> None:
        """Send a part of the header early."""
        line = header_block([(name, value)])
        if not request.dripped:
            request.dripped = status
            line = b"%b\r\n%b%b%b" % (
                status_line(status),
                self.factory.date_line,
                self.factory.server_line,
                line,
            )
        self.send(line)

    def write_body(self, request: Request, data: bytes) -> None:
        """Send a part of the body of a streamed answer."""
        if self._omit_body or not data:
            return
        request.bytes_out += len(data)
        self.send(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
