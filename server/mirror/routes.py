"""The operator's list of mirrors, and what mirrors are answered under `/-/mirrors`.

`POST /-/mirrors/report` receives a signed report. `GET /-/mirrors` lists the mirrors as JSON.
`GET /-/mirrors/CHANNEL/next?after=N` is a long poll: it answers when the channel has a version
after N, or after 25 s.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ...protocol.channel import check_channel
from ...protocol.disk.durable import write_whole
from ...protocol.errors import ProtocolError
from ...protocol.mirror_report import SIGNATURE_HEADER, decode_report
from ...protocol.units import whole_number
from ..http.answers import JSON_NOW
from ..http.clock import Clock, cancel
from ..http.request import Request
from .registry import Admitted, Registry
from .repository import Repository, RepositoryProblem


def _path(publish: Path) -> Path:
    return publish / ".state" / "mirrors.json"


def read_admitted(publish: Path) -> dict[str, Admitted]:
    """The admitted mirrors of a publish directory, by name. Raises RepositoryProblem."""
    try:
        rows = json.loads(_path(publish).read_bytes())
        names = [one.name for one in fields(Admitted)]
        # Rows of before 0.2 have more.
        return {row["name"]: Admitted(**{n: row[n] for n in names if n in row}) for row in rows}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError) as fault:
        raise RepositoryProblem(f"{_path(publish)} cannot be read; repair or remove it.") from fault


def admit(publish: Path, name: str, url: str, relay_url: str | None = None) -> str:
    """Add or change a mirror. Returns the secret with which it signs its reports.

    Raises RepositoryProblem.
    """
    for one in (url, relay_url or url):
        with suppress(ValueError):
            if urlsplit(one).scheme in ("http", "https") and urlsplit(one).hostname:
                continue
        raise RepositoryProblem(f"{one!r} is not the http(s) URL of a mirror.")
    known = read_admitted(publish)
    secret = known[name].secret if name in known else secrets.token_urlsafe(32)
    known[name] = Admitted(name, url.rstrip("/") + "/", secret, relay_url)
    _save(publish, known)
    return secret


def expel(publish: Path, name: str) -> None:
    """Remove a mirror. Raises RepositoryProblem."""
    known = read_admitted(publish)
    if known.pop(name, None) is None:
        raise RepositoryProblem(f"No mirror named {name!r} is admitted.")
    _save(publish, known)


def _save(publish: Path, known: dict[str, Admitted]) -> None:
    rows = json.dumps([asdict(mirror) for mirror in known.values()], indent=1)
    write_whole(_path(publish), rows.encode(), mode=0o600)


PREFIX = "/-/mirrors"


class MirrorOrigin:
    """Watches a publish directory, and answers its mirrors.

    `now` gives seconds since 1970. `changed` is called when other mirrors are current than before.
    `handle` answers GET, HEAD and POST of the route `/-/mirrors`.
    """

    def __init__(
        self,
        registry: Registry,
        publish: Path,
        reactor: Clock,
        now: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.registry = registry
        self._publish = publish
        self._reactor = reactor
        self._now = now
        self._changed = changed
        self._seen: tuple[object, object] = (None, None)
        self._listed: list[tuple[str, str]] = []
        self._waiting: dict[Request, tuple[str, int, Any]] = {}
        self._look: Any = None

    def start(self) -> None:
        """Begin to watch the publish directory."""
        self.look()
        # How often the publish directory is checked for a new version.
        self._look = self._reactor.callLater(1.0, self.start)

    def stop(self) -> None:
        """Answer all long polls, and stop watching."""
        cancel(self._look)
        for request in list(self._waiting):
            self._answer(request)

    def look(self) -> None:
        """Check for a new version, a changed list of mirrors, or a mirror that fell silent."""
        metadata = self._publish / "metadata" / "timestamp.json"
        admitted = self._publish / ".state" / "mirrors.json"
        seen = (_identity(metadata), _identity(admitted))
        if seen != self._seen:
            try:
                self.registry.admit(read_admitted(self._publish))
                self.registry.publish(Repository(self._publish, Path()).latest())
            except (RepositoryProblem, OSError):
                # A publish may be writing: what is known stays until the next look.
                return
            self._seen = seen
            for request, (channel, after, _) in list(self._waiting.items()):
                if self.registry.latest.get(channel, 0) > after:
                    self._answer(request)
        listed = [
            (standing.name, standing.channel)
            for standing in self.registry.standings(self._now())
            if standing.condition == "current"
        ]
        if listed != self._listed:
            self._listed = listed
            self._changed()

    def handle(self, request: Request) -> None:
        """Answer one request under `/-/mirrors`."""
        rest = request.path[len(PREFIX) :].strip(b"/")
        parts = rest.decode("ascii", "replace").split("/") if rest else []
        try:
            if request.method == b"POST":
                self._report(request, parts)
            elif not parts:
                rows = [asdict(standing) for standing in self.registry.standings(self._now())]
                body = {"latest": dict(self.registry.latest), "mirrors": rows}
                request.respond(200, JSON_NOW, json.dumps(body).encode("ascii"))
            elif len(parts) == 2 and parts[1] == "next":
                self._hold(request, check_channel(parts[0]))
            else:
                request.not_found()
        except ProtocolError as fault:
            request.refuse(fault.status, fault.code, str(fault))

    def _report(self, request: Request, parts: list[str]) -> None:
        if parts != ["report"]:
            request.refuse(405, "method-not-allowed", "Only reports are posted here.")
            return
        # The mirror may have been admitted after the last look.
        self.look()
        signature = request.header(SIGNATURE_HEADER.lower().encode("ascii")) or b""
        report = decode_report(
            request.body, signature.decode("latin-1"), self.registry.secret_of, self._now()
        )
        self.registry.add_report(report, self._now())
        request.respond(204)
        self.look()

    def _hold(self, request: Request, channel: str) -> None:
        query = parse_qs(request.query.decode("ascii", "replace"))
        after = whole_number(query.get("after", ["0"])[0]) or 0
        latest = self.registry.latest.get(channel)
        if latest is None:
            request.refuse(404, "no-channel", f"There is no channel named {channel!r} here.")
            return
        timer = None
        # Bounds the long polls held; further ones are answered at once.
        if latest <= after and len(self._waiting) < 10_000:
            # Proxies and programs give up on a silent answer after 30 s.
            timer = self._reactor.callLater(25.0, self._answer, request)
        self._waiting[request] = (channel, after, timer)
        if timer is None:
            self._answer(request)
        else:
            request.on_gone(lambda: self._gone(request))

    def _gone(self, request: Request) -> None:
        _, _, timer = self._waiting.pop(request, ("", 0, None))
        cancel(timer)

    def _answer(self, request: Request) -> None:
        channel = self._waiting[request][0]
        self._gone(request)
        body = {"channel": channel, "latest": self.registry.latest.get(channel, 0)}
        request.respond(200, JSON_NOW, json.dumps(body).encode("ascii"))


def _identity(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
