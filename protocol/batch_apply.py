"""Applies an update: makes the new tree beside the old one (step 3 of paper D).

The trees are behind `Stage`: on disk, or in memory in tests. The old tree is only read. Content
that this mirror lacks because its tree drifted is listed in `missing`: the caller fetches it whole
and calls `finish`. Every content is checked against the manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from .batch import Update
from .batch_group import FilePart, decode_group
from .errors import BadManifest
from .tree import Entry, encode_entry, from_row
from .tree_diff import Change, merge


class Stage(Protocol):
    """The new tree under construction, and the old one beside it. Paths are the manifest's.

    Methods that return bool say whether the old content was there and right. False changes nothing.
    """

    def make_dir(self, path: str) -> None: ...
    def make_symlink(self, path: str, target: str) -> None: ...
    def share_old(self, entry: Entry) -> bool:
        """Put an unchanged file into the new tree. It may share its inode with the old one."""

    def copy_old(self, path: str, old: str, sha256: str) -> bool:
        """Give `path` its own inode with the content of the old tree's `old`."""

    def copy_new(self, path: str, source: str) -> None:
        """Give `path` its own inode with the content of the new tree's `source`."""

    def link_new(self, path: str, target: str) -> None: ...
    def create(self, path: str, size_bytes: int) -> None: ...
    def write(self, path: str, offset: int, data: bytes | memoryview) -> None: ...
    def read_old(self, part: FilePart, into: memoryview) -> bool: ...
    def copy_part(
        self, part: FilePart, old: FilePart, digest: Callable[[memoryview], object]
    ) -> bool:
        """Copy a part of an old file into a new one. `digest` gets the bytes in order."""

    def digest_new(self, path: str) -> str: ...
    def set_attributes(self, entry: Entry) -> None: ...


class Application:
    """Applies one update: `build`, then fetch what is `missing`, then `finish`.

    `old` returns the old manifest's entries. Memory holds one group and the directories.
    """

    def __init__(self, update: Update, old: Callable[[], Iterable[Entry]], stage: Stage) -> None:
        self._update = update
        self._old = old
        self._stage = stage
        #: Files whose content must be written whole (`Stage.write`) before `finish`.
        self.missing: list[Entry] = []
        self._repeated: list[tuple[Entry, str]] = []
        #: Paths that `finish` copies from: their modes, which may forbid reading, are set later.
        self._sources: set[str] = set()
        self._late: list[Entry] = []
        self._folders: list[Entry] = []

    def entries(self) -> Iterator[Entry]:
        """The new tree's entries, before it is built or checked as a whole."""
        for change in merge(self._old(), self._update.rows()):
            assert change.entry is not None
            yield change.entry

    def build(self, keep: Callable[[bytes], object] = lambda line: None) -> None:
        """Make the new tree with all contents that the update carries or the old tree has.

        `keep` gets the lines of the new manifest. Raises BadManifest when a manifest's digest is
        not the header's: the update is not for this tree, and the new tree is void.
        """
        header = self._update.header
        before, after = hashlib.sha256(), hashlib.sha256()

        def watched() -> Iterator[Entry]:
            for entry in self._old():
                before.update(encode_entry(entry))
                yield entry

        for change in merge(watched(), self._update.rows()):
            assert change.entry is not None
            line = encode_entry(change.entry)
            after.update(line)
            keep(line)
            self._lay(change, change.entry)
        if before.hexdigest() != header.before:
            raise BadManifest("The update starts from another tree than this mirror has.")
        if after.hexdigest() != header.after:
            raise BadManifest("The update does not lead to the tree it was published for.")
        self._fill()

    def _lay(self, change: Change, entry: Entry) -> None:
        stage = self._stage
        if entry.kind == "d":
            stage.make_dir(entry.path)
            self._folders.append(entry)
        elif entry.kind == "l":
            stage.make_symlink(entry.path, entry.target)
            stage.set_attributes(entry)
        elif entry.kind == "h":
            stage.link_new(entry.path, entry.target)
        elif change.source == "none":
            if not stage.share_old(entry):
                self._lack(entry)
        elif change.source == "group":
            stage.create(entry.path, entry.size_bytes)
        elif change.source == "new":
            stage.create(entry.path, 0)
            self._repeated.append((entry, change.source_path))
            self._sources.add(change.source_path)
        else:
            old = entry.path if change.source == "same" else change.source_path
            if stage.copy_old(entry.path, old, entry.sha256):
                stage.set_attributes(entry)
            else:
                self._lack(entry)

    def _lack(self, entry: Entry) -> None:
        self._stage.create(entry.path, entry.size_bytes)
        self.missing.append(entry)

    def _carried(self) -> Iterator[Entry]:
        """The files whose contents the groups carry, in the groups' order."""
        for row in self._update.rows():
            if len(row) == 7 and row[0] == "f" and row[6] == "group":
                yield from_row(row[:6])

    def _fill(self) -> None:
        window = self._update.window_bytes
        carried = self._carried()
        entry: Entry | None = None
        written: int = 0
        # None once a part of the content is missing.
        hasher: Any = None
        for data in self._update.groups():
            group, joined = decode_group(data, window, self._stage.read_old)
            view = memoryview(joined) if joined is not None else None
            copied = group.codec == "same"
            at = 0
            for number, part in enumerate(group.outs):
                if entry is None or part.path != entry.path:
                    self._settle(entry, written, hasher)
                    entry, written, hasher = next(carried, None), 0, hashlib.sha256()
                if entry is None or part.path != entry.path or part.offset != written:
                    raise BadManifest(f"The update carries bytes for {part.path!r} out of turn.")
                piece = None if view is None else view[at : at + part.length]
                at += part.length
                written += part.length
                if written > entry.size_bytes:
                    raise BadManifest(f"The update carries too many bytes for {part.path!r}.")
                if hasher is None:
                    continue
                if copied:
                    if not self._stage.copy_part(part, group.refs[number], hasher.update):
                        hasher = None
                elif piece is None:
                    hasher = None
                else:
                    hasher.update(piece)
                    if part.length:
                        self._stage.write(part.path, part.offset, piece)
        self._settle(entry, written, hasher)
        if next(carried, None) is not None:
            raise BadManifest("The update does not carry all the contents it names.")

    def _settle(self, entry: Entry | None, written: int, hasher: Any) -> None:
        """Check a content whose parts have all been read against the manifest."""
        if entry is None:
            return
        if written != entry.size_bytes:
            raise BadManifest(f"The update carries too few bytes for {entry.path!r}.")
        if hasher is None or hasher.hexdigest() != entry.sha256:
            self.missing.append(entry)
        elif entry.path in self._sources:
            self._late.append(entry)
        else:
            self._stage.set_attributes(entry)

    def finish(self) -> None:
        """Copy repeated contents and set modes and times. All `missing` must be written before.

        Raises BadManifest when one of them is wrong.
        """
        stage = self._stage
        for lacked in self.missing:
            if stage.digest_new(lacked.path) != lacked.sha256:
                raise BadManifest(f"What came for {lacked.path!r} is not what was published.")
        for entry, source in self._repeated:
            stage.copy_new(entry.path, source)
            if stage.digest_new(entry.path) != entry.sha256:
                raise BadManifest(f"{entry.path!r} repeats a content that is not the one meant.")
            self._late.append(entry)
        # Last, because a mode may forbid reading. Children first: writing into a directory changes
        # its time, and its mode may forbid writing.
        for entry in (*self.missing, *self._late, *reversed(self._folders)):
            stage.set_attributes(entry)
