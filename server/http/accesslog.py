"""A structured access log: one JSON object a line, written in batches off the hot path."""

from __future__ import annotations

import json
from typing import IO

from server.http.request import Request


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
                    "target": request.target.decode("latin-1"),
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
