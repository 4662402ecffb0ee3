"""The operator: requests to the administration's listener, by its API and its pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .programs import read_head
from .wire import ADMIN_PORT

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
#: Status and document of an answer; status 0: there was none.
Then = Callable[[int, Any], None]


def _nothing(found: Any) -> None:
    """What follows a change of which only the answer counts."""


class OperatorRequest:
    """One request and its answer, on a connection of its own."""

    def __init__(self, world: World, request: bytes, then: Then) -> None:
        self._world, self._then = world, then
        self._data = b""
        self._over = False
        self._channel = world.network.connect("127.0.0.1", self, 1e9, request, ADMIN_PORT)

    def arrived(self, data: bytes) -> None:
        """See `wire.Peer`."""
        self._data += data
        head, found, body = self._data.partition(_HEAD_END)
        if found and not self._over:
            status, fields = read_head(head)
            if len(body) >= int(fields.get("content-length", "0")):
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

        OperatorRequest(world, "\r\n".join(lines).encode() + _HEAD_END + data, answered)
