"""Follow a channel: notice, fetch, verify, build beside, switch, clean up (paper D, step 3).

Nothing of the live tree is written, ever: a new version or a repair is a new tree that shares
with the old one what has not changed, and one rename makes it live. Dying anywhere costs at most
the work since the last finished download.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tuf.api.exceptions import DownloadError

from client.mirror.place import Place, sync_filesystem
from client.mirror.problem import MirrorProblem, named
from client.mirror.stage import DiskStage, LiveDisk, ignores_case, remove_tree, stamp_of
from client.mirror.transport import Transport
from client.mirror.trust import Trust, Verified
from protocol.batch import Header, Update, UpdateWriter
from protocol.batch_apply import Application
from protocol.channel import Edge, route
from protocol.errors import BadManifest
from protocol.tree import Entry, decode_entry, first_clash
from protocol.tree_diff import pair_up
from protocol.tree_scan import GRAIN_NS, Cached, Seen, decode_cached, encode_cached, scan

_MEMORY_PER_WINDOW = 4
_TRIES = 2


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
        return self.memory_bytes // _MEMORY_PER_WINDOW


@dataclass(frozen=True, slots=True)
class Followed:
    """What one round did. `fetched_bytes`: update files and repaired contents, not metadata."""

    version: int
    latest: int
    changed: bool
    fetched_bytes: int
    repaired: tuple[str, ...]


@dataclass(slots=True)
class Drift:
    """How the live tree differs from its manifest."""

    lost: set[str]
    touched: set[str]
    named: list[str]
    lost_bytes: int

    def __bool__(self) -> bool:
        return bool(self.named)


class ManifestFile:
    """A manifest on disk, one entry a line; iterate it as often as needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Entry]:
        with self.path.open("rb") as lines:
            for line in lines:
                yield decode_entry(line)


class Follower:
    """One mirror of one channel."""

    def __init__(
        self,
        place: Place,
        settings: FollowSettings,
        transport: Transport,
        clock: Callable[[], float],
        *,
        case_blind: Callable[[Path], bool] = ignores_case,
    ) -> None:
        self.place = place
        self.settings = settings
        self._transport = transport
        self._clock = clock
        self._case_blind = case_blind
        self.trust = Trust(place.trust, settings.url, transport)
        self._fetched_bytes = 0

    def once(self) -> Followed:
        """One round: come to the newest version, or repair what drifted. Holds the mirror's lock.

        Raises `MirrorProblem`; the live tree is then what it was.
        """
        with named(), self.place.locked():
            self.place.check_free(self.settings.replace_existing)
            self._fetched_bytes = 0
            if not self.trust.pinned:
                raise MirrorProblem(
                    "no-root",
                    "Nothing says which publisher to trust: give --root FILE or --fingerprint HEX.",
                )
            verified = self.trust.refresh(self.settings.channel)
            return self._step(verified)

    def _step(self, verified: Verified) -> Followed:
        state = self.place.state
        latest = verified.index.latest
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
        # Without its tree or its description nothing can be built upon.
        whole = self.place.live_tree is not None and self.place.manifest.exists()
        drift = self.find_drift() if whole else Drift(set(), set(), [""], 0)
        if not state.version:
            drift.named.clear()
        stay = latest.version == state.version or latest.version <= state.shunned
        if stay and whole and not drift:
            if len(state.previous) > self.settings.keep_previous:
                # The last run died between switching and cleaning up.
                self.place.forget(self.settings.keep_previous)
                self._remember()
            return self._done(latest.version, False, [])
        afresh = route(verified.index, 0, self.settings.window_bytes)
        bulky = afresh is not None and drift.lost_bytes > sum(e.length_bytes for e in afresh)
        try:
            if stay and whole and not (bulky and latest.version == state.version):
                self._repair(drift)
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
        return self._done(latest.version, True, drift.named)

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
            drift = Drift(set(), set(), drift.named, 0)
        files = [self._fetch(verified, edge) for edge in edges]
        if self.settings.relay is not None:
            self._relay(verified, self.settings.relay, edges, files)
        self._advance(edges, files, drift)
        for path in files:
            path.unlink(missing_ok=True)

    def _done(self, latest: int, changed: bool, repaired: list[str]) -> Followed:
        state = self.place.state
        return Followed(state.version, latest, changed, self._fetched_bytes, tuple(repaired))

    def rollback(self) -> int:
        """Go back to the version before, and stay there until one newer than today's appears."""
        with named(), self.place.locked():
            state = self.place.state
            if not state.previous or not state.previous[-1][2]:
                raise MirrorProblem("no-previous", "There is no previous version to go back to.")
            version, name, manifest = state.previous[-1]
            self.place.switch(self.place.trees / name, version, manifest)
            self.place.save(replace(self.place.state, shunned=state.version))
            self._remember()
            return version

    def find_drift(self) -> Drift:
        """Compare the live tree with its manifest, reading only files whose stamp changed."""
        drift = Drift(set(), set(), [], 0)
        seen = Seen()
        cache = [] if self.settings.paranoid else _read_cache(self.place.cache)
        fresh = self.place.home / "next.cache"
        with fresh.open("wb") as out:
            actual = scan(
                LiveDisk(self.place.live),
                cache,
                lambda line: out.write(encode_cached(line)),
                int(self._clock() * 1e9),
                seen=seen,
            )
            for expected, found in pair_up(ManifestFile(self.place.manifest), actual):
                if expected == found:
                    continue
                differs = expected or found
                assert differs is not None
                drift.named.append(differs.path)
                if expected is None or expected.kind != "f":
                    continue
                if found is not None and found.kind == "f" and found.sha256 == expected.sha256:
                    drift.touched.add(expected.path)
                else:
                    drift.lost.add(expected.path)
                    drift.lost_bytes += expected.size_bytes
        if seen.read_files and not drift:
            os.replace(fresh, self.place.cache)
        else:
            fresh.unlink()
        return drift

    def _fetch(self, verified: Verified, edge: Edge) -> Path:
        url, length, sha256 = verified.locate(edge.target_path(self.settings.channel))
        path = self.place.downloads / f"{sha256}.update"
        if path.exists() and _digest(path) == sha256:
            return path
        for attempt in range(1, _TRIES + 1):
            self._transport.download(url, path, length, sha256)
            self._fetched_bytes += length
            if path.exists() and path.stat().st_size == length and _digest(path) == sha256:
                return path
            path.unlink(missing_ok=True)
            if attempt == _TRIES:
                break
        raise MirrorProblem(
            "corrupt-update",
            f"What arrived as {url} is not what was signed; nothing was changed.",
            passing=True,
        )

    def _relay(
        self, verified: Verified, relay: Path, edges: tuple[Edge, ...], files: list[Path]
    ) -> None:
        """Offer what was fetched and verified to other mirrors; drop what the channel dropped."""
        folder = relay / "targets" / self.settings.channel
        folder.mkdir(parents=True, exist_ok=True)
        for edge, path in zip(edges, files, strict=True):
            url, _, _ = verified.locate(edge.target_path(self.settings.channel))
            target = folder / url.rpartition("/")[2]
            if not target.exists():
                beside = folder / f".{target.name}"
                shutil.copyfile(path, beside)
                os.replace(beside, target)
        named = {edge.target_path("").lstrip("/") for edge in verified.index.edges}
        for path in folder.iterdir():
            if path.name.partition(".")[2] not in named:
                path.unlink()

    def _advance(self, edges: tuple[Edge, ...], files: list[Path], drift: Drift) -> None:
        """Apply updates one on the other; only the last tree goes live."""
        old: Path | None = self.place.live_tree
        manifest = ManifestFile(self.place.manifest) if self.place.state.version else None
        lost, touched = drift.lost, drift.touched
        between: list[Path] = []
        for edge, path in zip(edges, files, strict=True):
            if edge.from_version == 0:
                old, manifest = None, None
            with path.open("rb") as file:
                update = Update(_reader(file.fileno()), path.stat().st_size)
                if (update.header.from_version, update.header.to_version) != (
                    edge.from_version,
                    edge.to_version,
                ):
                    raise BadManifest("An update is for other versions than its name says.")
                tree, digest = self._build(update, old, manifest, lost, touched, edge.to_version)
            if old is not None and old in between:
                remove_tree(old)
            between.append(tree)
            old, manifest = tree, ManifestFile(self.place.manifests / digest)
            lost, touched = set(), set()
        assert old is not None
        assert manifest is not None
        self._go_live(old, edges[-1].to_version, manifest.path.name)

    def _repair(self, drift: Drift) -> None:
        """Rebuild the present version, bringing whole files for what drifted."""
        state = self.place.state
        if not self.place.manifest.exists():
            raise MirrorProblem(
                "bad-state",
                f"The manifest of the mirrored version is gone from {self.place.manifests}; "
                f"remove {self.place.home} and follow again with --replace.",
            )
        out = bytearray()
        header = Header(
            self.settings.channel,
            state.version,
            state.version,
            state.manifest_sha256,
            state.manifest_sha256,
            0,
        )
        UpdateWriter(out.extend, header).close()
        update = Update(lambda at, length: bytes(out[at : at + length]), len(out))
        manifest = ManifestFile(self.place.manifest)
        tree, digest = self._build(
            update, self.place.live, manifest, drift.lost, drift.touched, state.version
        )
        self._go_live(tree, state.version, digest)

    def _build(
        self,
        update: Update,
        old: Path | None,
        manifest: Iterable[Entry] | None,
        lost: set[str],
        touched: set[str],
        version: int,
    ) -> tuple[Path, str]:
        """Build one tree; its path and manifest digest. On any error the tree is removed."""
        tree = self.place.fresh(version)
        stage = DiskStage(tree, old, lost, touched)
        application = Application(update, lambda: manifest if manifest is not None else (), stage)
        if self._case_blind(self.place.trees):
            clash = first_clash(application.entries())
            if clash is not None:
                raise MirrorProblem(
                    "case-clash",
                    f"{clash[0]!r} and {clash[1]!r} are one name to this file system; "
                    "put the mirror on one that tells upper from lower case.",
                )
        next_manifest = self.place.home / "next.manifest"
        try:
            with next_manifest.open("wb") as lines:
                application.build(lines.write)
            for entry in application.missing:
                self._bring(stage, entry)
            application.finish()
        except BaseException:
            remove_tree(tree)
            raise
        os.replace(next_manifest, self.place.manifests / update.header.after)
        return tree, update.header.after

    def _bring(self, stage: DiskStage, entry: Entry) -> None:
        """Fetch one content whole, by its digest, from the origin's store."""
        url = self.settings.url.rstrip("/")
        url = f"{url}/objects/{entry.sha256[:2]}/{entry.sha256}"
        path = self.place.downloads / entry.sha256
        if not path.exists() or _digest(path) != entry.sha256:
            self._transport.download(url, path, entry.size_bytes, entry.sha256)
            self._fetched_bytes += entry.size_bytes
        with path.open("rb") as content:
            offset = 0
            while chunk := content.read(1 << 20):
                stage.write(entry.path, offset, chunk)
                offset += len(chunk)
        path.unlink()

    def _go_live(self, tree: Path, version: int, manifest_sha256: str) -> None:
        sync_filesystem(tree)
        self.place.save(
            replace(self.place.state, channel=self.settings.channel, url=self.settings.url)
        )
        self.place.switch(tree, version, manifest_sha256)
        self.place.forget(self.settings.keep_previous)
        self._remember()

    def _remember(self) -> None:
        """Write down the stamps of the live files, so that the next round need not read them.

        Linking and unlinking moved their ctimes, so this comes last.
        """
        now_ns = int(self._clock() * 1e9)
        root = str(self.place.live)
        fresh = self.place.home / "next.cache"
        with fresh.open("wb") as out:
            for entry in ManifestFile(self.place.manifest):
                if entry.kind != "f":
                    continue
                stamp = stamp_of(os.lstat(f"{root}/{entry.path}"))
                # Written to while we worked, or just now: the next round reads it.
                known = (stamp.size_bytes, stamp.mtime_ns) == (entry.size_bytes, entry.mtime_ns)
                if known and stamp.mtime_ns < now_ns - GRAIN_NS:
                    out.write(encode_cached(Cached(entry.path, stamp, entry.sha256)))
        os.replace(fresh, self.place.cache)


def _reader(handle: int) -> Callable[[int, int], bytes]:
    def read(offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        while length and (part := os.pread(handle, length, offset)):
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return b"".join(parts)

    return read


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _read_cache(path: Path) -> Iterator[Cached]:
    """The cache's lines; a damaged rest is left out, which only costs reading."""
    try:
        lines = path.open("rb")
    except FileNotFoundError:
        return
    with lines:
        for line in lines:
            try:
                yield decode_cached(line)
            except BadManifest:
                return
