"""Follow a channel: notice, fetch, verify, build beside, switch, clean up (paper D, step 3).

Dying anywhere costs at most the work since the last finished download: one rename makes a tree
live that is complete and durable, and until then the old one is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tuf.api.exceptions import DownloadError

from ...protocol.channel import Edge, Version, route
from ...protocol.disk.durable import sync_filesystem
from ..net.urls import parse
from .bringing import Bringer
from .building import Builder
from .drift import Drift, find_drift, remember
from .place import Place
from .problem import MirrorProblem, named
from .transport import ChannelTransport
from .trust import Trust, Verified


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """How a mirror follows. `memory_bytes` bounds what contents may take at once.

    `relay`: a folder to keep the fetched update files in, laid out as in the publish directory, so
    that other mirrors can fetch them here once it is served.
    """

    channel: str
    url: str
    memory_bytes: int = 512 << 20
    keep_previous: int = 1
    replace_existing: bool = False
    paranoid: bool = False
    relay: Path | None = None

    @property
    def window_bytes(self) -> int:
        # As in `server.mirror.publish`: old, new and joined content, and zstd's tables.
        return self.memory_bytes // 4


@dataclass(frozen=True, slots=True)
class Followed:
    """What one round did. `fetched_bytes`: update files and repaired contents, not metadata."""

    version: int
    latest: int
    changed: bool
    fetched_bytes: int
    repaired: tuple[str, ...]


class Follower:
    """One mirror of one channel."""

    def __init__(
        self,
        place: Place,
        settings: FollowSettings,
        transport: ChannelTransport,
        clock: Callable[[], float],
    ) -> None:
        self.place = place
        self.settings = settings
        self._clock = clock
        self.trust = Trust(place.trust, settings.url, transport)
        self._bringer = Bringer(place, settings.url, settings.channel, transport)
        self._builder = Builder(place, self._bringer.content)

    def once(self, *, look: bool = True) -> Followed:
        """One round: come to the newest version, or repair what drifted. Holds the mirror's lock.

        `look` False leaves out the search for drift while there is no new version. Raises
        `MirrorProblem`; the live tree is then what it was.
        """
        with named(), self.place.locked():
            self.place.check_free(self.settings.replace_existing)
            self._bringer.fetched_bytes = 0
            self.trust.check_pinned()
            return self._step(self.trust.refresh(self.settings.channel), look=look)

    def _step(self, verified: Verified, *, look: bool) -> Followed:
        state = self.place.state
        latest = self._checked(verified)
        # Without its tree or its description nothing can be built upon.
        whole = self.place.live_tree is not None and self.place.manifest.exists()
        stay = latest.version == state.version or latest.version <= state.shunned
        drift = Drift.none()
        if whole and (look or not stay):
            found = find_drift(self.place, self._clock(), paranoid=self.settings.paranoid)
            whole, drift = found is not None, found or drift
        if state.version and not whole:
            drift = Drift.none("")
        if stay and whole and not drift:
            if len(state.previous) > self.settings.keep_previous:
                # The last run died between switching and cleaning up.
                self.place.forget(self.settings.keep_previous)
                remember(self.place, self._clock())
            return self._done(latest.version, changed=False, drift=drift)
        afresh = route(verified.index, 0, self.settings.window_bytes)
        bulky = afresh is not None and drift.cost_bytes > sum(e.length_bytes for e in afresh)
        try:
            if stay and whole and not (bulky and latest.version == state.version):
                self._go_live(*self._builder.again(drift), state.version)
            elif whole and not bulky:
                edges = route(verified.index, state.version, self.settings.window_bytes)
                self._follow_route(verified, edges, drift)
            else:
                self._follow_route(verified, afresh, drift)
        except DownloadError:
            # A content that drifted here and that the origin has no more: only a snapshot helps.
            if not drift or not whole or latest.version <= state.shunned:
                raise
            self._follow_route(verified, afresh, drift)
        return self._done(latest.version, changed=True, drift=drift)

    def _checked(self, verified: Verified) -> Version:
        """The channel's latest version, if it can be one of this mirror."""
        state, latest = self.place.state, verified.index.latest
        if latest is None:
            raise MirrorProblem("empty-channel", "The channel has no version yet.", passing=True)
        if state.channel not in ("", self.settings.channel):
            raise MirrorProblem(
                "other-channel",
                f"{self.place.live} mirrors the channel {state.channel!r}; give another directory.",
            )
        if latest.version < state.version:
            raise MirrorProblem(
                "rolled-back",
                f"The origin offers version {latest.version}, this mirror has {state.version}.",
            )
        known = verified.index.version(state.version)
        if known is not None and known.manifest_sha256 != state.manifest_sha256:
            raise MirrorProblem(
                "forked",
                f"The origin's version {state.version} is not the one mirrored here; "
                "remove the mirror and follow again if the publisher started over.",
            )
        return latest

    def _follow_route(
        self, verified: Verified, edges: tuple[Edge, ...] | None, drift: Drift
    ) -> None:
        """Fetch these updates, all of them, and then apply them."""
        if not edges:
            raise MirrorProblem(
                "too-little-memory",
                "No way to the newest version fits this mirror's memory; give more by --memory.",
            )
        if edges[0].from_version == 0:
            drift = Drift.none(*drift.named)
        files = [self._bringer.update(verified, edge) for edge in edges]
        if self.settings.relay is not None:
            self._bringer.relay(verified, self.settings.relay, edges, files)
        self._go_live(*self._builder.chain(edges, files, drift), edges[-1].to_version)
        for path in files:
            path.unlink(missing_ok=True)

    def _go_live(self, tree: Path, manifest_sha256: str, version: int) -> None:
        sync_filesystem(tree)
        self.place.save(
            # Without a login that may stand in it.
            replace(
                self.place.state, channel=self.settings.channel, url=parse(self.settings.url).text
            )
        )
        self.place.switch(tree, version, manifest_sha256)
        self.place.forget(self.settings.keep_previous)
        remember(self.place, self._clock())

    def _done(self, latest: int, *, changed: bool, drift: Drift) -> Followed:
        version, fetched = self.place.state.version, self._bringer.fetched_bytes
        return Followed(version, latest, changed, fetched, tuple(drift.named))

    def rollback(self) -> int:
        """Go back to the version before, and stay there until one newer than today's appears."""
        with named(), self.place.locked():
            state = self.place.state
            if not state.previous or not state.previous[-1][2]:
                raise MirrorProblem("no-previous", "There is no previous version to go back to.")
            version, name, manifest = state.previous[-1]
            self.place.switch(self.place.trees / name, version, manifest)
            self.place.save(replace(self.place.state, shunned=state.version))
            remember(self.place, self._clock())
            return version
