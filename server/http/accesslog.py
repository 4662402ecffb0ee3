"""A structured access log: one JSON object a line, written in batches off the hot path."""

from __future__ import annotations

import json
import re
from typing import IO
from urllib.parse import unquote_plus

from server.http.request import Request

#: A ticket, visitor cookie or pass (`protocol.ticket`), wherever it stands.
_TOKEN = re.compile(r"\b([tvp][12])\.[A-Za-z0-9_-]{1,32}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_HIDDEN = "..."


def without_tokens(target: bytes) -> str:
    """A request target as it may be kept: tickets and passes open doors to whoever reads them."""
    path, mark, query = target.decode("latin-1").partition("?")
    pairs = []
    for pair in query.split("&"):
        name, equals, _ = pair.partition("=")
        if equals and unquote_plus(name).startswith("tidegate-"):
            pair = f"{name}={_HIDDEN}"
        pairs.append(pair)
    return _TOKEN.sub(rf"\1.{_HIDDEN}", path + mark + "&".join(pairs))


class AccessLog:
    """Collects lines and writes them once a second (and when 512 have gathered).

    Without one, requests cost nothing here. `stream` is a text stream; it is not closed.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lines: list[str] = []

    def note(self, request: Request, complete: bool, now: float) -> None:
        """Remember one request; `now` is Unix time in seconds."""
        self._lines.append(
            json.dumps(
                {
                    "time": round(now, 3),
                    "client": request.connection.peer_address,
                    "method": request.method.decode("latin-1"),
                    "target": without_tokens(request.target),
                    "status": request.status,
                    "bytes": request.bytes_out,
                    "complete": complete,
                    "tls": request.connection.is_tls,
                },
                separators=(",", ":"),
            )
        )
        if len(self._lines) >= 512:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()
