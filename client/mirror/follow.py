"""Follow a channel: notice, fetch, verify, build beside, switch, clean up (paper D, step 3).

Dying anywhere costs at most the work since the last finished download: one rename makes a tree
live that is complete and durable, and until then the old one is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuf.api.exceptions import DownloadError

from ...protocol.batch import Header, Update, UpdateWriter
from ...protocol.batch_apply import Application
from ...protocol.channel import Edge, Version, route
from ...protocol.disk.durable import sync_filesystem
from ...protocol.errors import BadManifest
from ...protocol.tree import Entry, first_clash, name_some
from ..net.urls import parse
from .drift import Drift, KeptManifest, find_drift, remember
from .place import Place
from .problem import MirrorProblem, named
from .stage import DiskStage, ignores_case, remove_tree
from .transport import ChannelTransport
from .trust import Trust, Verified


class Builder:
    """Builds trees in `place`; `bring` gives a file with a content that is not here.

    Nothing of the live tree is ever written: a new version or a repair is a new tree that shares
    with the old one what has not changed.
    """

    def __init__(self, place: Place, bring: Callable[[Entry], Path]) -> None:
        self._place = place
        self._bring = bring

    def chain(self, edges: Sequence[Edge], files: Sequence[Path], drift: Drift) -> tuple[Path, str]:
        """Apply updates one on the other; the last tree and its manifest's digest."""
        place = self._place
        old: Path | None = place.live_tree
        manifest = KeptManifest(place.manifest) if place.state.version else None
        between: list[Path] = []
        digest = ""
        for edge, path in zip(edges, files, strict=True):
            if edge.from_version == 0:
                old, manifest = None, None
            with path.open("rb") as file:
                update = Update(_reader(file.fileno()), path.stat().st_size, edge.window_bytes)
                header = update.header
                if (header.from_version, header.to_version) != (edge.from_version, edge.to_version):
                    raise BadManifest("An update is for other versions than its name says.")
                tree, digest = self._build(update, old, manifest, drift)
            if old is not None and old in between:
                remove_tree(old)
            between.append(tree)
            old, manifest, drift = tree, KeptManifest(place.manifests / digest), Drift.none()
        return between[-1], digest

    def again(self, drift: Drift) -> tuple[Path, str]:
        """The present version, with whole files for what drifted."""
        state = self._place.state
        digest = state.manifest_sha256
        out = bytearray()
        header = Header(state.channel, state.version, state.version, digest, digest, 0)
        UpdateWriter(out.extend, header).close()
        update = Update(lambda at, length: bytes(out[at : at + length]), len(out))
        return self._build(update, self._place.live, KeptManifest(self._place.manifest), drift)

    def _build(
        self, update: Update, old: Path | None, manifest: Iterable[Entry] | None, drift: Drift
    ) -> tuple[Path, str]:
        """Build one tree; its path and manifest digest. On any error the tree is removed."""
        tree = self._place.fresh(update.header.to_version)
        stage = DiskStage(tree, old, drift.lost, drift.touched)
        application = Application(update, lambda: manifest if manifest is not None else (), stage)
        if ignores_case(self._place.trees):
            clash = first_clash(application.entries())
            if clash is not None:
                raise MirrorProblem(
                    "case-clash",
                    f"{clash[0]!r} and {clash[1]!r} are one name to this file system; "
                    "put the mirror on one that tells upper from lower case.",
                )
        next_manifest = self._place.home / "next.manifest"
        try:
            with next_manifest.open("wb") as lines:
                application.build(lines.write)
            if stage.leading_out:
                raise MirrorProblem(
                    "links-out",
                    "The origin published links that lead out of the tree: "
                    f"{name_some(stage.leading_out)}. The mirror keeps its version; "
                    "tell the publisher.",
                )
            for entry in application.missing:
                self._fill(stage, entry)
            application.finish()
        except BaseException:
            remove_tree(tree)
            raise
        finally:
            stage.close()
        os.replace(next_manifest, self._place.manifests / update.header.after)
        return tree, update.header.after

    def _fill(self, stage: DiskStage, entry: Entry) -> None:
        path = self._bring(entry)
        with path.open("rb") as content:
            offset = 0
            while chunk := content.read(1 << 20):
                stage.write(entry.path, offset, chunk)
                offset += len(chunk)
        path.unlink()


def _reader(handle: int) -> Callable[[int, int], bytes]:
    def read(offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        while length and (part := os.pread(handle, length, offset)):
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return b"".join(parts)

    return read


class Bringer:
    """Fetches into the mirror's folder of downloads; `fetched_bytes` counts since it was set.

    Update files and contents only, not metadata. What arrives is believed by its signed length and
    digest alone, wherever it came from.
    """

    def __init__(self, place: Place, url: str, channel: str, transport: ChannelTransport) -> None:
        self._place = place
        self._url = url.rstrip("/")
        self._channel = channel
        self._transport = transport
        self.fetched_bytes = 0

    def update(self, verified: Verified, edge: Edge) -> Path:
        """An update file; one that was fetched before is not fetched again."""
        url, length, sha256 = verified.locate(edge.target_path(self._channel))
        return self._bring(url, self._place.downloads / f"{sha256}.update", length, sha256)

    def content(self, entry: Entry) -> Path:
        """One content whole, by its digest, from the origin's store."""
        url = f"{self._url}/objects/{entry.sha256[:2]}/{entry.sha256}"
        path = self._place.downloads / entry.sha256
        return self._bring(url, path, entry.size_bytes, entry.sha256)

    def _bring(self, url: str, path: Path, length: int, sha256: str) -> Path:
        if _right(path, length, sha256):
            return path
        for _ in range(2):
            self._transport.download(url, path, length, sha256)
            self.fetched_bytes += length
            if _right(path, length, sha256):
                return path
            path.unlink(missing_ok=True)
        raise MirrorProblem(
            "corrupt-update",
            f"What arrived as {url} is not what was signed; nothing was changed.",
            passing=True,
        )

    def relay(
        self, verified: Verified, folder: Path, edges: Sequence[Edge], files: Sequence[Path]
    ) -> None:
        """Offer what was fetched and verified to other mirrors; drop what the channel dropped."""
        folder = folder / "targets" / self._channel
        folder.mkdir(parents=True, exist_ok=True)
        for edge, path in zip(edges, files, strict=True):
            url, _, _ = verified.locate(edge.target_path(self._channel))
            target = folder / url.rpartition("/")[2]
            if not target.exists():
                beside = folder / f".{target.name}"
                shutil.copyfile(path, beside)
                os.replace(beside, target)
        named = {edge.target_path("").lstrip("/") for edge in verified.index.edges}
        for path in folder.iterdir():
            if path.name.partition(".")[2] not in named:
                path.unlink()


def _right(path: Path, length: int, sha256: str) -> bool:
    """Whether the file is there, and is what was signed."""
    try:
        content = path.open("rb")
    except FileNotFoundError:
        return False
    with content:
        if os.fstat(content.fileno()).st_size != length:
            return False
        return hashlib.file_digest(content, "sha256").hexdigest() == sha256


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
