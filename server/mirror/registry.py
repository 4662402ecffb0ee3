"""The mirrors of each channel, their condition, and which of them clients are sent to.

Pure state: time comes in as `now` (seconds since 1970). Only admitted mirrors can report. Clients
are sent to a mirror while its last report is fresh, has no trouble and names the channel's latest
version. A mirror without a report for a day is forgotten until it reports again.
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
#: After a day without a report a mirror is not shown either.
FORGET_S = 86_400.0

Condition = Literal["current", "behind", "troubled", "silent"]


@dataclass(frozen=True, slots=True)
class Admitted:
    """An admitted mirror.

    `url` is the base URL of the tree, `relay_url` that of update files, laid out as in the publish
    directory.
    """

    name: str
    url: str
    secret: str = field(repr=False)
    relay_url: str | None = None


@dataclass(frozen=True, slots=True)
class MirrorStanding:
    """A mirror's present condition. Its last report came `seen_s` ago."""

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
        #: By mirror and channel: the last report, and when it came.
        self._reports: dict[tuple[str, str], tuple[MirrorReport, float]] = {}
        self._latest: dict[str, int] = {}

    def admit(self, mirrors: Mapping[str, Admitted]) -> None:
        """Replace the list of admitted mirrors. Reports of others are forgotten at once."""
        self._admitted = dict(mirrors)
        self._reports = {key: one for key, one in self._reports.items() if key[0] in self._admitted}

    def secret_of(self, name: str) -> str | None:
        mirror = self._admitted.get(name)
        return mirror.secret if mirror is not None else None

    def publish(self, latest: Mapping[str, int]) -> None:
        """Replace the channels' latest versions."""
        self._latest = dict(latest)

    @property
    def latest(self) -> Mapping[str, int]:
        return self._latest

    def add_report(self, report: MirrorReport, now: float) -> None:
        """Add a verified report. Raises BadToken when it is not newer than the last one."""
        key = (report.mirror, report.channel)
        last = self._reports.get(key)
        if last is not None and report.sent_at <= last[0].sent_at:
            raise BadToken("The report was seen before.")
        self._reports[key] = report, now

    def standings(self, now: float) -> list[MirrorStanding]:
        """All mirrors that reported within a day, by name."""
        self._reports = {key: one for key, one in self._reports.items() if now - one[1] <= FORGET_S}
        return [self._standing(key, now) for key in sorted(self._reports)]

    def _standing(self, key: tuple[str, str], now: float) -> MirrorStanding:
        report, at_s = self._reports[key]
        silent_s = now - at_s
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

    def sources(
        self, channel: str, now: float, *, only_free: bool = False, relays: bool = False
    ) -> list[Source]:
        """Base URLs of the mirrors with the channel's latest version, best first.

        Mirrors with free slots come before those with a queue; `only_free`: no others.
        `relays`: the URLs of update files instead of the tree.
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
                ranked.append((not standing.free, url.rstrip("/") + "/"))
        return [Source(url, at) for at, (_, url) in enumerate(sorted(ranked), start=1)]


class MirrorDirectory:
    """The mirrors of the files of one served tree.

    `prefix` is the URL path under which the origin serves the channel's tree. `updates` is that of
    the publish directory, if it is served. Both begin and end with a slash.
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

    def urls_for(self, path: str, *, only_free: bool = False) -> list[Source]:
        """The mirrors of the file under this URL path (percent-encoded or not), best first.

        `only_free` is for clients that have to wait here.
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
        return [Source(s.url + rest, s.priority) for s in found]
