"""The operator, who asks the administration by its API and its pages, and visitors of the site."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .programs import read_head
from .wire import ADMIN_PORT, FILES_PORT

if TYPE_CHECKING:
    from .world import World

_HEAD_END = b"\r\n\r\n"
#: A change that must be made is asked for again after this time.
_AGAIN_S = 1.0
#: What an operator looks at.
PAGES = (
    *("/", "/queue?tab=downloads", "/queue?tab=tickets", "/queue?tab=blocks", "/policy", "/files"),
    *("/passes", "/waiting", "/log", "/alerts", "/report", "/account", "/metrics"),
    *("/api/v1/state", "/api/v1/tickets", "/api/v1/downloads", "/api/v1/queue/groups"),
    *("/api/v1/history", "/api/v1/arrivals", "/api/v1/revisions", "/api/v1/events"),
    *("/api/v1/settings/help", "/api/v1/settings/overrides", "/api/v1/files", "/api/v1/report"),
    "/api/v1/openapi.json",
)
#: What visitors ask for: request lines without their version, and fields. Each is answered without
#: a download.
VISITS = (
    *(("GET /", "Accept: text/html"), ("GET /?format=json", ""), ("GET /?format=atom", "")),
    *(("GET /?q=big", "Accept: text/html"), ("GET /?sort=size&order=desc", ""), ("HEAD /", "")),
    *(("HEAD /big0.iso", ""), ("GET /SHA256SUMS", ""), ("GET /big0.iso.meta4", "")),
    *(("GET /index.meta4", ""), ("GET /big0.iso.manifest.json", ""), ("GET /robots.txt", "")),
    *(("GET /SMALL.txt", "If-None-Match: *"), ("GET /SMALL.txt", "Range: bytes=0-9,20-29")),
    *(("GET /SMALL.txt", "Range: bytes=-7"), ("GET /SMALL.txt", "Range: bytes=9999999-")),
    *(("GET /SMALL.txt", "Accept-Encoding: zstd, gzip"), ("GET /SMALL.txt", 'If-Match: "no"')),
    *(("GET /SMALL.txt", "If-Modified-Since: Wed, 01 Jan 2098 00:00:00 GMT"), ("GET /none", "")),
    *(("GET /../SMALL.txt", ""), ("GET /%zz", ""), ("GET //SMALL.txt", ""), ("OPTIONS *", "")),
    *(("PUT /SMALL.txt", "Content-Length: 0"), ("GET /SMALL.txt", "Transfer-Encoding: odd")),
    *(("GET /-/live", ""), ("GET /-/ready", ""), ("GET /-/prequeue", ""), ("GET /-/queue", "")),
    *(("GET /-/none", ""), ("GET /-/queue/big0.iso", "Tidegate-Ticket: t2.none")),
)
#: Status and document of an answer; status 0: there was none.
Then = Callable[[int, Any], None]


def _nothing(found: Any) -> None:
    """What follows a change of which only the answer counts."""


class WholeRequest:
    """One request and its answer, on a connection of its own."""

    def __init__(
        self, world: World, request: bytes, then: Then, address: str, port: int = ADMIN_PORT
    ) -> None:
        self._world, self._then = world, then
        self._data = b""
        self._over = False
        self._has_body = not request.startswith(b"HEAD")
        self._channel = world.network.connect(address, self, 1e9, request, port)

    def arrived(self, data: bytes) -> None:
        """See `wire.Peer`."""
        self._data += data
        head, found, body = self._data.partition(_HEAD_END)
        if found and not self._over:
            status, fields = read_head(head)
            size = int(fields.get("content-length", "0")) if self._has_body else 0
            if len(body) > size:
                self._world.broken("Framing", f"{len(body)} bytes, {size} were told")
            if len(body) >= size:
                is_json = "json" in fields.get("content-type", "")
                self._end(status, json.loads(body) if is_json and body else None)

    def ended(self) -> None:
        """See `wire.Peer`."""
        self._end(0, None)

    def broken(self) -> None:
        """See `wire.Peer`."""
        self._end(0, None)

    def _end(self, status: int, found: Any) -> None:
        if not self._over:
            self._over = True
            self._channel.close()
            self._then(status, found)


class Operator:
    """Asks with an API token. What it changes is a cause, from its request to its answer."""

    def __init__(self, world: World) -> None:
        self._world = world

    def look(self, pick: float) -> None:
        """Look at one page."""
        self._send("GET", PAGES[int(pick * len(PAGES))], None, lambda status, found: None)

    def change(
        self,
        text: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        then: Callable[[Any], None] = _nothing,
        again: bool = False,
    ) -> None:
        """Change something by the API; `text` says what, `then` hears what was made.

        `again`: it is tried until there is an answer.
        """
        world = self._world
        world.change_begins(text)

        def answered(status: int, found: Any) -> None:
            world.change_ends(f"{text}: {status}")
            for oracle in world.oracles:
                oracle.changed(path, body or {}, status, found)
            if status in (200, 201):
                then(found)
            elif again and not status:
                world.schedule.after(_AGAIN_S, self.change, text, method, path, body, then, True)

        self._send(method, f"/api/v1{path}", body, answered)

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None, then: Then) -> None:
        world = self._world
        if world.life is None or not world.running:
            then(0, None)
            return
        data = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: admin.example",
            f"Authorization: Bearer {world.life.operators_token()}",
            "If-Match: *",
            "Connection: close",
        ]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]

        def answered(status: int, found: Any) -> None:
            if status >= 500:
                world.note(f"operator hears {status} of {method} {path}: {found}")
            for oracle in world.oracles:
                oracle.operated(f"{method} {path}", status, found)
            then(status, found)

        request = "\r\n".join(lines).encode() + _HEAD_END + data
        WholeRequest(world, request, answered, "127.0.0.1")


def visit(world: World, pick: float) -> None:
    """A visitor looks at something that is no download."""
    line, field = VISITS[int(pick * len(VISITS))]
    lines = [f"{line} HTTP/1.1", "Host: files.example", "User-Agent: Mozilla/5.0 Visitor"]
    if field:
        lines.append(field)
    lines.append("Connection: close")

    def answered(status: int, found: Any) -> None:
        world.note(f"a visitor hears {status} of {line}")
        for oracle in world.oracles:
            oracle.visited(line, status)

    request = "\r\n".join(lines).encode() + _HEAD_END
    WholeRequest(world, request, answered, "192.0.2.1", FILES_PORT)
