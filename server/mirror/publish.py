"""Publishes the present tree as the channel's next version (paper D, step 1).

First the contents are stored. Then the manifest and the update files are written beside the live
ones. At last one commit of the signed metadata makes them the new version. A run that dies before
the commit leaves the last version in force; the next run starts from there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...protocol.batch import Header
from ...protocol.batch_generate import GeneratedUpdate, generate
from ...protocol.channel import Edge, Index, Version, check_channel, prune
from ...protocol.disk.durable import replacing
from ...protocol.disk.pieces import read_cache
from ...protocol.errors import BadManifest
from ...protocol.tree import (
    ATTRIBUTE_PREFIX,
    ATTRIBUTES_LIMIT_BYTES,
    EMPTY_DIGEST,
    KEPT_MODE,
    Attributes,
    Entry,
    check_attributes,
    decode_entry,
    encode_entry,
    leads_out,
    name_some,
)
from ...protocol.tree_scan import Seen, encode_cached, scan
from ..multicast.schedule import ScheduledSend, write_entry
from .objects import ObjectError, ObjectStore, PublishedDisk
from .repository import Repository, RepositoryProblem, check_private, utc

#: Prefixes of the extended attributes that a person set. The system sets others on every file.
_ATTRIBUTES = ("user.", "security.capability", "system.posix_acl")

Progress = Callable[[str, int, int], object]
Announce = Callable[[Iterable[tuple[Edge, GeneratedUpdate]]], object]


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """How one channel is published.

    `memory_bytes` bounds the contents in memory. `attributes`: `user.` extended attributes are
    published, too. `paranoid`: all files are read again, whatever the cache says.
    """

    delta: bool = True
    paranoid: bool = False
    attributes: bool = False
    memory_bytes: int = 256 << 20
    keep_versions: int = 16

    @property
    def window_bytes(self) -> int:
        # A group takes memory for old and new content, the joined copies and zstd's tables.
        return max(1 << 16, self.memory_bytes // 4)


@dataclass(slots=True)
class Published:
    """The result of a publish: the channel's latest version, and the update files written.

    `skipped`: paths that are neither file, directory nor link. `stripped`: files without their
    set-user-id, set-group-id or sticky bit. `bared`: files without some extended attributes.
    """

    version: int = 0
    changed: bool = True
    seen: Seen = field(default_factory=Seen)
    skipped: list[str] = field(default_factory=list)
    stripped: list[str] = field(default_factory=list)
    bared: list[str] = field(default_factory=list)
    updates: list[tuple[Edge, GeneratedUpdate]] = field(default_factory=list)


def _attributes(path: str) -> list[str]:
    """The names of a file's extended attributes that a person set, see `_ATTRIBUTES`."""
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError:
        return []
    return [name for name in names if name.startswith(_ATTRIBUTES)]


def _travelling(path: str, names: Iterable[str]) -> Attributes:
    """The attributes that are published. Raises RepositoryProblem when they are too large."""
    mine = sorted(name for name in names if name.startswith(ATTRIBUTE_PREFIX))
    found = tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in mine)
    try:
        return check_attributes(found)
    except BadManifest as fault:
        raise RepositoryProblem(
            f"{path} has more than {ATTRIBUTES_LIMIT_BYTES >> 10} KiB of extended attributes; "
            "publish without --xattrs, or remove some."
        ) from fault


class ManifestFile:
    """A manifest on disk, one entry a line. It can be iterated repeatedly."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Entry]:
        with self.path.open("rb") as lines:
            yield from map(decode_entry, lines)


class Publisher:
    """Publishes one channel from one publish directory."""

    def __init__(
        self, publish: Path, keys: Path, channel: str, settings: PublishSettings | None = None
    ) -> None:
        self.settings = settings or PublishSettings()
        self.channel = check_channel(channel)
        self._publish = publish
        self._keys = keys
        self._repository = Repository(publish, keys)
        self._state = publish / ".state" / channel
        self._store = ObjectStore(publish / "objects")

    def publish(
        self,
        tree: Path,
        now: float,
        progress: Progress | None = None,
        announce: Announce = lambda updates: None,
    ) -> Published:
        """Publish the tree's present state; `now` is seconds since 1970.

        `announce` is called with the new updates right before the commit. If nothing changed, only
        the signatures are renewed. Raises RepositoryProblem, ObjectError, BadManifest or OSError;
        the last version then stays in force.
        """
        report = progress or (lambda what, done, total: None)
        if not tree.is_dir():
            raise RepositoryProblem(f"{tree} is not a directory to publish.")
        if tree.resolve() == self._publish.resolve():
            raise RepositoryProblem(
                f"{tree} cannot be both the tree and the publish directory; make another for --to."
            )
        check_private(self._keys, tree)
        if not self._repository.exists:
            raise RepositoryProblem(
                f"{self._publish} is no publish directory; run `tidegate mirror init` first."
            )
        with self._locked():
            return self._run(tree, now, report, announce)

    def _run(self, tree: Path, now: float, report: Progress, announce: Announce) -> Published:
        index = self._repository.index(self.channel)
        # A run that died leaves this file, and perhaps contents that no manifest names.
        unfinished = self._state / "unfinished"
        thorough = unfinished.exists() or self.settings.paranoid
        unfinished.touch()
        done = Published()
        seen, updates = done.seen, done.updates
        manifest, digest = self._scan(tree, now, done, report)
        latest = index.latest
        if latest is not None and latest.manifest_sha256 == digest:
            self._repository.commit({}, set(), utc(now))
            manifest.unlink()
            if not thorough:
                unfinished.unlink()
            done.version, done.changed = latest.version, False
            return done
        done.version = number = latest.version + 1 if latest is not None else 1
        target = self._manifest_path(number)
        os.replace(manifest, target)
        new = ManifestFile(target)
        version = Version(number, digest, seen.files, seen.bytes, int(now))
        added: dict[str, tuple[str, int]] = {}

        def write(start: int, before: str, old: Iterable[Entry]) -> None:
            edge, made = self._generate(start, before, old, version, new, report)
            added[edge.target_path(self.channel)] = (made.sha256, made.length_bytes)
            updates.append((edge, made))

        old = self._last(latest)
        if latest is not None and old is not None:
            write(latest.version, latest.manifest_sha256, old)
        if self._snapshot_due(index, [edge for edge, _ in updates]):
            write(0, EMPTY_DIGEST, [])
        edges = (*index.edges, *(edge for edge, _ in updates))
        grown = Index(self.channel, (*index.versions, version), edges)
        kept = prune(grown, self.settings.keep_versions)
        announce(updates)
        self._repository.commit_index(kept, added, utc(now))
        self._sweep(number, old, thorough=thorough)
        unfinished.unlink()
        return done

    def _manifest_path(self, number: int) -> Path:
        return self._state / f"{number}.manifest"

    def _scan(self, tree: Path, now: float, done: Published, report: Progress) -> tuple[Path, str]:
        cache_path = self._state / "cache"
        hasher = hashlib.sha256()
        inside = self._inside(tree)
        manifest = self._state / "next.manifest"
        leading: list[str] = []
        with manifest.open("wb") as out, replacing(cache_path) as cache_out:
            entries = scan(
                PublishedDisk(tree, self._store),
                [] if self.settings.paranoid else read_cache(cache_path),
                lambda line: cache_out.write(encode_cached(line)),
                int(now * 1e9),
                skip=lambda path: path == inside,
                special=done.skipped.append,
                seen=done.seen,
            )
            for found in entries:
                entry = found
                if entry.mode & ~KEPT_MODE and entry.kind != "l":
                    entry = entry._replace(mode=entry.mode & KEPT_MODE)
                    if entry.kind == "f":
                        done.stripped.append(entry.path)
                elif entry.kind == "l" and leads_out(entry.path, entry.target):
                    leading.append(entry.path)
                if entry.kind in "fd" and (names := _attributes(f"{tree}/{entry.path}")):
                    travelling: Attributes = ()
                    if self.settings.attributes:
                        travelling = _travelling(f"{tree}/{entry.path}", names)
                        entry = entry._replace(attributes=travelling)
                    if len(travelling) < len(names):
                        done.bared.append(entry.path)
                line = encode_entry(entry)
                hasher.update(line)
                out.write(line)
                if entry.kind == "f":
                    report("reading", done.seen.files, 0)
        if leading:
            raise RepositoryProblem(
                f"Links lead out of {tree}: {name_some(leading)}. Mirrors would serve what they "
                "have there; make them relative without '..' behind a name, or remove them."
            )
        return manifest, hasher.hexdigest()

    def _inside(self, tree: Path) -> str | None:
        mine, root = self._publish.resolve(), tree.resolve()
        return mine.relative_to(root).as_posix() if mine.is_relative_to(root) else None

    def _last(self, latest: Version | None) -> ManifestFile | None:
        if latest is None:
            return None
        path = self._manifest_path(latest.version)
        if not path.exists():
            return None
        with path.open("rb") as data:
            whole = hashlib.file_digest(data, "sha256").hexdigest()
        return ManifestFile(path) if whole == latest.manifest_sha256 else None

    def _snapshot_due(self, index: Index, fresh: list[Edge]) -> bool:
        """Whether the updates since the last snapshot are large enough for a new one."""
        snapshots = [edge for edge in index.edges if edge.from_version == 0]
        if not snapshots or not fresh:
            return True
        last = max(snapshots, key=lambda edge: edge.to_version)
        chain = [
            edge.length_bytes
            for edge in (*index.edges, *fresh)
            if edge.from_version >= last.to_version
        ]
        # So a new mirror fetches at most 1.5 snapshots.
        return sum(chain) > 0.5 * last.length_bytes

    def _generate(
        self,
        start: int,
        before: str,
        old: Iterable[Entry],
        version: Version,
        new: ManifestFile,
        report: Progress,
    ) -> tuple[Edge, GeneratedUpdate]:
        window = self.settings.window_bytes
        header = Header(
            self.channel, start, version.version, before, version.manifest_sha256, window
        )
        try:
            done, name = self._write(header, old, new, self.settings.delta, report)
        except ObjectError:
            if not start:
                raise
            # An old content was lost. Without deltas none is needed.
            done, name = self._write(header, old, new, False, report)
        edge = Edge(start, version.version, done.length_bytes, done.window_bytes)
        final = self._repository.target_file(edge.target_path(self.channel), done.sha256)
        final.parent.mkdir(parents=True, exist_ok=True)
        os.chmod(name, 0o644)
        os.replace(name, final)
        return edge, done

    def _write(
        self, header: Header, old: Iterable[Entry], new: ManifestFile, delta: bool, report: Progress
    ) -> tuple[GeneratedUpdate, Path]:
        what = "update" if header.from_version else "snapshot"
        handle, name = tempfile.mkstemp(dir=self._state, prefix="update-")
        read = self._store.read
        with os.fdopen(handle, "wb") as out:
            done = generate(
                header,
                old,
                new,
                read,
                read,
                out.write,
                delta=delta,
                progress=lambda at, total: report(what, at, total),
            )
        return done, Path(name)

    def _sweep(self, number: int, old: ManifestFile | None, *, thorough: bool) -> None:
        """Remove manifests and contents that neither this version nor the one before needs.

        Channels share the store: contents of other channels stay.
        """
        self._repository.sweep()
        mine = [ManifestFile(self._manifest_path(number)), *([old] if old else [])]
        stale = {*self._state.glob("*.manifest")} - {manifest.path for manifest in mine}
        others = [
            ManifestFile(path)
            for channel in self._state.parent.iterdir()
            if channel != self._state
            for path in channel.glob("*.manifest")
        ]
        keep = (entry for manifest in (*mine, *others) for entry in manifest)
        if thorough:
            self._store.sweep(keep)
        elif stale:
            self._store.drop((entry for path in stale for entry in ManifestFile(path)), keep)
        for path in (*stale, *self._state.glob("update-*")):
            path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._state.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._publish / ".state" / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as fault:
                raise RepositoryProblem(
                    "Another publish is running on this directory; wait for it."
                ) from fault
            yield
        finally:
            os.close(handle)


def schedule_updates(
    state: Path,
    prefix: str,
    channel: str,
    updates: Iterable[tuple[Edge, GeneratedUpdate]],
    at: float,
) -> list[str]:
    """Schedule the updates. Returns their URL paths. Raises OSError.

    Snapshots are not scheduled: new mirrors come one by one. `state` is the state folder of the
    server that serves the publish directory under the URL path `prefix`; `at` is Unix time.
    """
    paths = []
    for edge, made in updates:
        if edge.from_version:
            folder, _, name = edge.target_path(channel).rpartition("/")
            path = f"/{prefix.strip('/')}/targets/{folder}/{made.sha256}.{name}".replace("//", "/")
            write_entry(state, ScheduledSend(path, at))
            paths.append(path)
    return paths
