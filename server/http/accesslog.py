"""The access log: what each request was and what became of it, off the hot path.

A request costs the loop one small tuple; entries are written once a second and when many have
gathered. Tickets, passes and cookies are never written: they are credentials.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote_plus

from .request import AccessEntry, Request

#: Bytes of a request target, and of a field, that an entry holds.
LONGEST_TARGET = 2048
LONGEST_FIELD = 512
#: A ticket, visitor cookie or pass (`protocol.ticket`), wherever it stands; its dots may be quoted.
_TOKEN = re.compile(r"\b([tvp][12])(?:\.|%2[Ee])[A-Za-z0-9_-]{1,32}(?:\.|%2[Ee])[A-Za-z0-9_.%-]+")
_HIDDEN = "..."


def without_tokens(target: bytes) -> str:
    """A request target as it may be kept: tickets and passes are credentials."""
    path, mark, query = target.decode("latin-1").partition("?")
    pairs = []
    for pair in query.split("&"):
        name, equals, _ = pair.partition("=")
        if equals and unquote_plus(name).startswith("tidegate-"):
            pair = f"{name}={_HIDDEN}"
        pairs.append(pair)
    return _TOKEN.sub(rf"\1.{_HIDDEN}", path + mark + "&".join(pairs))


class AccessLog:
    """Collects entries for `write`, which must delay no request (`app.log_outlets`)."""

    def __init__(self, write: Callable[[list[AccessEntry]], None]) -> None:
        self._write = write
        self._entries: list[AccessEntry] = []

    def begin(self, request: Request, now: float) -> None:
        """A request has arrived: remember what is let go of before its end."""
        headers = request.headers
        request.entry = AccessEntry(
            request.client_address,
            request.method,
            request.target[:LONGEST_TARGET],
            "HTTP/1.0" if request.http10 else "HTTP/1.1",
            headers.get(b"user-agent", b"")[:LONGEST_FIELD],
            headers.get(b"referer", b"")[:LONGEST_TARGET],
            headers.get(b"range", b"")[:LONGEST_FIELD],
            request.is_tls,
            now,
            0.0,
        )

    def note(self, request: Request, complete: bool, now: float, wall_s: float) -> None:
        """A request is over; `now` is of the clock that `begin` had, `wall_s` Unix time."""
        if request.entry is None:
            # It could not be read as a whole.
            self.begin(request, now)
        assert request.entry is not None
        self.add(
            request.entry._replace(
                ended_s=wall_s,
                duration_s=now - request.entry.started_s,
                status=request.status,
                body_bytes=request.bytes_out,
                complete=complete,
                waited_s=request.waited_s,
                priority_class=request.priority_class,
            )
        )

    def add(self, entry: AccessEntry) -> None:
        """A request is over."""
        self._entries.append(entry)
        if len(self._entries) >= 512:
            self.flush()

    def flush(self) -> None:
        """Give away what has gathered."""
        if self._entries:
            entries, self._entries = self._entries, []
            self._write(entries)
