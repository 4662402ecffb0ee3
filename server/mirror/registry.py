"""Which mirrors a channel has, how they are, and which of them clients may be sent to.

Pure state: time comes in as `now` (seconds since 1970). Only mirrors the operator admitted can
report. One is listed while its last report is fresh, says that all is well, and names the
channel's latest version; one that was silent for long is forgotten until it reports again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

from ...protocol.errors import BadToken
from ...protocol.manifest import Source
from ...protocol.mirror_report import MirrorReport

#: A mirror reports at least every minute; three missed reports make it silent.
FRESH_S = 180.0
#: After a day of silence a mirror is no longer shown either.
FORGET_S = 86_400.0

Condition = Literal["current", "behind", "troubled", "silent"]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A mirror the operator knows. `url` is the base under which it serves the tree, `priority`
    and `location` are what Metalink says of it (1 first; a country code). `relay_url`: where it
    serves the update files it has, laid out as in the publish directory.
    """

    name: str
    url: str
    secret: str = field(repr=False)
    priority: int = 10
    location: str | None = None
    relay_url: str | None = None


@dataclass(frozen=True, slots=True)
class MirrorStanding:
    """What the origin knows of one mirror now; `seen_s` ago it reported last."""

    name: str
    url: str
    channel: str
    version: int
    condition: Condition
    trouble: str
    free: bool | None
    seen_s: float


class Registry:
    """The mirrors of one origin."""

    def __init__(self, admitted: Mapping[str, Admitted] | None = None) -> None:
        self._admitted = dict(admitted or {})
        self._reports: dict[tuple[str, str], MirrorReport] = {}
        self._heard: dict[tuple[str, str], float] = {}
        self._latest: dict[str, int] = {}

    def admit(self, mirrors: Mapping[str, Admitted]) -> None:
        """Take the operator's present list; a mirror that left it is forgotten at once."""
        self._admitted = dict(mirrors)
        for key in [key for key in self._reports if key[0] not in self._admitted]:
            self._forget(key)

    def secret_of(self, name: str) -> str | None:
        mirror = self._admitted.get(name)
        return mirror.secret if mirror is not None else None

    def publish(self, latest: Mapping[str, int]) -> None:
        """The channels' latest versions, as committed now."""
        self._latest = dict(latest)

    @property
    def latest(self) -> Mapping[str, int]:
        return self._latest

    def hear(self, report: MirrorReport, now: float) -> None:
        """Take a verified report. One that is not newer than the last raises `BadToken`."""
        key = (report.mirror, report.channel)
        last = self._reports.get(key)
        if last is not None and report.sent_at <= last.sent_at:
            raise BadToken("The report was seen before.")
        self._reports[key] = report
        self._heard[key] = now

    def standings(self, now: float) -> list[MirrorStanding]:
        """Every mirror that reported within a day, with its condition; by name."""
        for key, heard in list(self._heard.items()):
            if now - heard > FORGET_S:
                self._forget(key)
        return [self._standing(key, now) for key in sorted(self._reports)]

    def _standing(self, key: tuple[str, str], now: float) -> MirrorStanding:
        report, silent_s = self._reports[key], now - self._heard[key]
        condition: Condition = "current"
        if silent_s > FRESH_S:
            condition = "silent"
        elif report.trouble:
            condition = "troubled"
        elif report.version != self._latest.get(report.channel):
            condition = "behind"
        return MirrorStanding(
            report.mirror,
            self._admitted[report.mirror].url,
            report.channel,
            report.version,
            condition,
            report.trouble,
            report.free,
            silent_s,
        )

    def _forget(self, key: tuple[str, str]) -> None:
        self._reports.pop(key, None)
        self._heard.pop(key, None)

    def sources(
        self, channel: str, now: float, *, only_free: bool = False, relays: bool = False
    ) -> list[Source]:
        """Base URLs of the mirrors that hold the channel's latest version, best first.

        Mirrors that say they are free come before those that queue. `only_free`: no others.
        `relays`: where they serve update files, instead of the tree.
        """
        ranked = []
        for standing in self.standings(now):
            if standing.channel != channel or standing.condition != "current":
                continue
            if only_free and standing.free is not True:
                continue
            mirror = self._admitted[standing.name]
            url = mirror.relay_url if relays else mirror.url
            if url is not None:
                busy = 0 if standing.free else 1
                ranked.append((busy, mirror.priority, url.rstrip("/") + "/", mirror.location or ""))
        return [
            Source(url, priority, location or None)
            for priority, (_, _, url, location) in enumerate(sorted(ranked), start=1)
        ]


class MirrorDirectory:
    """Where else the files of one served tree can be had, as the site asks for it.

    `prefix` is the URL path under which the origin serves the channel's tree, `updates` that of
    the publish directory if it serves that, too (both with slashes at both ends).
    """

    def __init__(
        self,
        registry: Registry,
        channel: str,
        now: Callable[[], float],
        prefix: str = "/",
        updates: str | None = None,
    ) -> None:
        self._registry = registry
        self._channel = channel
        self._now = now
        self._prefix = prefix
        self._updates = updates

    def sources(self) -> list[Source]:
        """Base URLs of the whole tree, best first."""
        return self._registry.sources(self._channel, self._now())

    def urls_for(self, path: str, *, only_free: bool = False) -> list[Source]:
        """Where the file under this URL path (percent-encoded or not) can be had, best first.

        `only_free` is for clients that would have to wait here.
        """
        updates = f"{self._updates}targets/{self._channel}/" if self._updates else None
        relays = updates is not None and path.startswith(updates) and path.endswith(".update")
        prefix = self._updates if relays and self._updates else self._prefix
        if not path.startswith(prefix):
            return []
        rest = quote(path[len(prefix) :], safe="/-._~!$&'()*+,;=:@%")
        found = self._registry.sources(
            self._channel, self._now(), only_free=only_free, relays=relays
        )
        return [Source(s.url + rest, s.priority, s.location) for s in found]
