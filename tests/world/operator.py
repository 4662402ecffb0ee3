"""The operator, who asks the administration by its API and its pages, and visitors of the site."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

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
    *(
        "/api/v1/openapi.json",
        "/api/v1/waiting-page",
        "/api/v1/waiting-page/preview?state=pre-queue",
    ),
)
#: What an operator does by the API that concerns no client, and what an operator does wrong.
_RULE = {"path": "/later/*", "hidden_until_s": 4e9, "prequeue_from_s": 3e9, "note": "next year"}
_DRAW = {"path": "/later/*", "hidden_until_s": 1_800_000_020.0, "prequeue_from_s": 1.7e9}
_LOOK = {
    "state": "waiting",
    "language": "de",
    "title": "Bald",
    "text": "Es dauert.",
    "colour": "#06c",
}
_USER = {"name": "ann", "role": "operator", "password": "first of all words"}
ACTIONS: tuple[tuple[str, str, Any], ...] = (
    *(("PUT", "/rules", _RULE), ("PUT", "/rules", {**_RULE, "hidden_until_s": 1.0})),
    *(
        ("DELETE", "/rules?path=/later/*", None),
        ("GET", "/rules", None),
        ("GET", "/prequeues", None),
    ),
    *(("POST", "/users", _USER), ("GET", "/users", None), ("DELETE", "/users/bob", None)),
    *(("POST", "/tokens", {"label": "a script", "days": 1}), ("GET", "/tokens", None)),
    *(("DELETE", "/tokens/none", None), ("POST", "/alerts/test", {}), ("GET", "/alerts", None)),
    *(("POST", "/report/links", {"days": 2}), ("GET", "/report.csv", None)),
    *(("GET", "/history.csv", None), ("GET", "/files/statistics.csv?since_s=0", None)),
    *(
        ("POST", "/passes", {"kind": "gold", "expires_s": 4e9, "max_uses": 1}),
        ("GET", "/passes", None),
    ),
    *(("DELETE", "/passes/none", None), ("POST", "/passes", {"kind": 5}), ("GET", "/doors", None)),
    *(("PATCH", "/settings", {"settings": {"slots": -1}}), ("PUT", "/settings", {"policy": "no"})),
    *(("POST", "/revisions/999/restore", {}), ("GET", "/mirrors", None), ("GET", "/blocks", None)),
    *(("GET", "/multicast", None), ("GET", "/previews/none", None), ("GET", "/settings", None)),
    *(("DELETE", "/downloads/99999", None), ("POST", "/tickets/99999/promote", {})),
    *(("POST", "/blocks", {"network": "nonsense"}), ("PUT", "/none", {}), ("PUT", "/doors", [])),
    ("DELETE", "/blocks?network=203.0.113.0%2F24", None),
    ("POST", "/blocks", {"network": "203.0.113.0/24"}),
    *(
        ("PUT", "/rules", _DRAW),
        ("PUT", "/rules", _DRAW),
        ("PUT", "/rules", {**_DRAW, "path": "/"}),
    ),
    *(("PUT", "/waiting-page", _LOOK), ("PUT", "/waiting-page", {"logo_base64": "iVBORw0KGgo="})),
    *(("PUT", "/waiting-page", {"colour": "#0066cc"}), ("POST", "/waiting-page/preview", _LOOK)),
    *(("POST", "/previews", {"policy": "fcfs"}), ("GET", "/arrivals", None)),
)
#: Forms that a person sends from the pages, and what stands in them.
FORMS = (
    *(("/theme", {"theme": "dark"}), ("/zone", {"zone": "Europe/Oslo"}), ("/zone", {"zone": "x"})),
    *(("/account/tokens", {"label": "mine"}), ("/account/totp", {}), ("/alerts", {})),
    *(("/passes", {"kind": "gold", "max_uses": "1"}), ("/account/totp/on", {"code": "000000"})),
    *(("/queue/block", {"network": "203.0.113.0/24"}), ("/policy", {"act": "show"})),
    *(("/queue/unblock", {"network": "203.0.113.0/24"}), ("/none", {})),
    *(("/files/rule", {"path": "/later/*", "note": "a form"}), ("/files/rule/remove", {})),
    *(
        ("/waiting", {"title": "Soon", "text": "[more](https://example.org)"}),
        ("/report/share", {}),
    ),
    ("/account/users", {"name": "bob", "role": "viewer"}),
    *(("/waiting/preview", {"title": "Soon"}), ("/policy", {"act": "preview", "policy": "fcfs"})),
    *(("/account/totp/off", {"code": "0"}), ("/account/users/bob/remove", {})),
)
#: Pages that are shown to a person alone, beside `PAGES`.
_OWN_PAGES = (
    *("/account", "/queue/block", "/files/rule?path=/later/*", "/policy/revisions", "/network"),
    *("/history", "/now", "/queue/part?tab=tickets", "/login/oidc", "/report.csv"),
    *("/static/none", "/-/ready", "/policy/revisions/1/restore", "/queue/ticket/1/promote"),
    *("/-/logo", "/-/look", "/waiting?state=ready&lang=fr", "/queue/download/1/cancel", "/login"),
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
    *(("GET /big0.iso.torrent", ""), ("GET /-/scrape", ""), ("GET /-/announce?port=0", "")),
    *(("GET /-/magnet/none", ""), ("GET /-/announce?port=6881&info_hash=" + "a" * 20, "")),
    *(("GET /later/a.iso", "Accept: text/html"), ("GET /later/a.iso", ""), ("GET /later/", "")),
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
        self.fields: dict[str, str] = {}
        self.body = b""
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
                self.fields, self.body = fields, body
                self._end(status, json.loads(body) if is_json and body else None)

    def ended(self) -> None:
        """See `wire.Peer`."""
        self._end(0, None)

    def broken(self) -> None:
        """See `wire.Peer`."""
        self._end(0, None)

    @property
    def text(self) -> str:
        """The body."""
        return self.body.decode("utf-8", "replace")

    def close(self) -> None:
        """Whatever comes is not heard."""
        self._over = True
        self._channel.close()

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

    def add_user(self, then: Callable[[], None]) -> None:
        """There is one who may log in."""
        self._send("POST", "/api/v1/users", _USER, lambda status, found: then())

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

    def act(self, pick: float) -> None:
        """Do what concerns no client, or what is refused."""
        method, path, body = ACTIONS[int(pick * len(ACTIONS))]
        self._send(method, f"/api/v1{path}", body, lambda status, found: None)


class Person:
    """Logs in with a password that must be changed, looks at pages, sends forms and logs out."""

    def __init__(self, world: World, pick: float) -> None:
        self._world = world
        self._cookies: dict[str, str] = {}
        self._token = ""
        rng = random.Random(pick)
        old, new = str(_USER["password"]), "second of all words"
        words = {"old": old, "password": new, "again": new}
        looks = [(path, None) for path in rng.sample((*PAGES, *_OWN_PAGES), 6)]
        self._steps: list[tuple[str, Mapping[str, str] | None]] = [
            ("/login", None),
            ("/login", {"name": "ann", "password": rng.choice([old, old, new])}),
            *(("/account", None), ("/account/password", words), ("/account", None)),
            *sorted([*looks, *rng.sample(FORMS, 4)], key=lambda _: rng.random()),
            *(("/", None), ("/logout", {}), ("/queue", None)),
        ]
        world.operator.add_user(self._go_on)

    def _go_on(self) -> None:
        world = self._world
        if not self._steps or world.life is None or not world.running:
            return
        path, form = self._steps.pop(0)
        data = b"" if form is None else urlencode({"csrf": self._token, **form}).encode()
        lines = [
            f"{'GET' if form is None else 'POST'} {path} HTTP/1.1",
            *("Host: admin.example", "Accept: text/html", "Connection: close"),
            "Cookie: " + "; ".join(f"{name}={value}" for name, value in self._cookies.items()),
            f"Content-Length: {len(data)}",
            "Content-Type: application/x-www-form-urlencoded",
        ]
        request = "\r\n".join(lines).encode() + _HEAD_END + data
        asked: list[WholeRequest] = []

        def answered(status: int, found: Any) -> None:
            self._keep(asked[0])
            for oracle in world.oracles:
                oracle.operated(lines[0], status, found)
            world.schedule.after(0.2, self._go_on)

        asked.append(WholeRequest(world, request, answered, "127.0.0.1"))

    def _keep(self, answer: WholeRequest) -> None:
        for one in answer.fields.get("set-cookie", "").splitlines():
            name, _, value = one.partition(";")[0].partition("=")
            if name:
                self._cookies[name.strip()] = value
        found = re.search(r'name="csrf" value="([^"]+)"', answer.text)
        if found is not None:
            self._token = found[1]


def _get(world: World, line: str, field: str, then: Callable[[WholeRequest, int], None]) -> None:
    lines = [f"{line} HTTP/1.1", "Host: files.example", "User-Agent: Mozilla/5.0 Visitor"]
    if field:
        lines.append(field)
    lines.append("Connection: close")
    asked: list[WholeRequest] = []

    def answered(status: int, found: Any) -> None:
        world.note(f"a visitor hears {status} of {line}")
        for oracle in world.oracles:
            oracle.visited(line, status)
        then(asked[0], status)

    request = "\r\n".join(lines).encode() + _HEAD_END
    asked.append(WholeRequest(world, request, answered, "192.0.2.1", FILES_PORT))


def visit(world: World, pick: float) -> None:
    """A visitor looks at something that is no download."""
    line, field = VISITS[int(pick * len(VISITS))]
    _get(world, line, field, lambda answer, status: None)


def share(world: World, pick: float) -> None:
    """A torrent program finds the hash of a file, and tells the tracker that it is there."""

    def found(answer: WholeRequest, status: int) -> None:
        told = re.search("urn:btih:([0-9a-f]{40})", answer.fields.get("location", ""))
        if told is not None:
            name = "".join(f"%{told[1][at : at + 2]}" for at in range(0, 40, 2))
            event = ("started", "completed", "stopped", "")[int(pick * 4)]
            query = f"info_hash={name}&port=6881&left={int(pick * 9)}&event={event}&compact=1"
            _get(world, f"GET /-/announce?{query}", "", scrape)

    def scrape(answer: WholeRequest, status: int) -> None:
        _get(world, "GET /-/scrape?info_hash=" + "%61" * 20, "", lambda answer, status: None)

    _get(world, "GET /-/magnet/big0.iso", "", found)
