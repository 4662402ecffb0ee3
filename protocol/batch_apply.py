"""Apply: the old tree and an update in, the new tree beside it out (step 3 of paper D).

The tree itself is behind `Stage`, so the same code runs on disk and, in tests, in memory. The old
tree is only read. Content this mirror turns out not to have (it drifted) is reported, not guessed:
the caller brings it whole and `finish`es. Every content is checked against the manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from protocol.batch import Update
from protocol.batch_group import Part, decode_group
from protocol.errors import BadManifest
from protocol.tree import Entry, encode_entry
from protocol.tree_diff import Change, merge


class Stage(Protocol):
    """The new tree under construction, and the old one beside it. Paths are the manifest's.

    What returns bool says whether the old content was there and right; False changes nothing.
    """

    def make_dir(self, path: str) -> None: ...
    def make_symlink(self, path: str, target: str) -> None: ...
    def share_old(self, entry: Entry) -> bool:
        """Take an unchanged file over as it is; it may share its inode with the old tree."""

    def copy_old(self, path: str, old: str, sha256: str) -> bool:
        """Give `path` its own inode with the content of the old tree's `old`."""

    def copy_new(self, path: str, source: str) -> None:
        """Give `path` its own inode with the content of the new tree's `source`."""

    def link_new(self, path: str, target: str) -> None: ...
    def create(self, path: str, size_bytes: int) -> None: ...
    def write(self, path: str, offset: int, data: bytes) -> None: ...
    def read_old(self, part: Part) -> bytes | None: ...
    def digest_new(self, path: str) -> str: ...
    def set_attributes(self, entry: Entry) -> None: ...


class Application:
    """One update being applied: `build`, bring what is `missing`, `finish`."""

    def __init__(self, update: Update, old: Callable[[], Iterable[Entry]], stage: Stage) -> None:
        self._update = update
        self._old = old
        self._stage = stage
        #: Files whose content must be brought whole (by `Stage.write`) before `finish`.
        self.missing: list[Entry] = []

    def changes(self) -> Iterator[Change]:
        """Every entry of the new tree with its source."""
        return merge(self._old(), self._update.rows())

    def check(self, keep: Callable[[bytes], object] = lambda line: None) -> None:
        """Check both manifests against the header, handing the new one's lines to `keep`.

        Nothing is written: a `BadManifest` here means the update is not for this tree.
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
        if before.hexdigest() != header.before:
            raise BadManifest("The update starts from another tree than this mirror has.")
        if after.hexdigest() != header.after:
            raise BadManifest("The update does not lead to the tree it was published for.")

    def build(self) -> None:
        """Lay out the new tree and fill in every content that is carried or already here."""
        stage = self._stage
        carried: dict[str, Entry] = {}
        for change in self.changes():
            entry = change.entry
            assert entry is not None
            if entry.kind == "d":
                stage.make_dir(entry.path)
            elif entry.kind == "l":
                stage.make_symlink(entry.path, entry.target)
            elif entry.kind == "h":
                stage.link_new(entry.path, entry.target)
            elif change.source == "group":
                stage.create(entry.path, entry.size_bytes)
                carried[entry.path] = entry
            elif change.source == "none":
                if not stage.share_old(entry):
                    self._lack(entry)
            elif change.source == "new":
                stage.create(entry.path, 0)
            else:
                old = entry.path if change.source == "same" else change.source_path
                if not stage.copy_old(entry.path, old, entry.sha256):
                    self._lack(entry)
        self._fill(carried)

    def _lack(self, entry: Entry) -> None:
        self._stage.create(entry.path, entry.size_bytes)
        self.missing.append(entry)

    def _fill(self, carried: dict[str, Entry]) -> None:
        window = self._update.header.window_bytes
        lacking: dict[str, Entry] = {}
        pieces: dict[str, int] = {}
        for data in self._update.groups():
            group, joined = decode_group(data, window, self._stage.read_old)
            at = 0
            for part in group.outs:
                entry = carried.get(part.path)
                if entry is None or part.offset + part.length > entry.size_bytes:
                    raise BadManifest(f"The update carries bytes for {part.path!r} it never names.")
                piece = None if joined is None else memoryview(joined)[at : at + part.length]
                at += part.length
                whole = part.length == entry.size_bytes
                if piece is None or (whole and hashlib.sha256(piece).hexdigest() != entry.sha256):
                    lacking[entry.path] = entry
                elif part.length:
                    self._stage.write(part.path, part.offset, bytes(piece))
                pieces[part.path] = -1 if whole else pieces.get(part.path, 0) + part.length
        for path, entry in carried.items():
            written = pieces.get(path, 0)
            if path in lacking or written == -1:
                continue
            if written != entry.size_bytes or self._stage.digest_new(path) != entry.sha256:
                lacking[path] = entry
        self.missing.extend(lacking.values())

    def finish(self) -> None:
        """Copy repeated contents and set modes and times; `missing` must have been brought."""
        stage = self._stage
        for lacked in self.missing:
            if stage.digest_new(lacked.path) != lacked.sha256:
                raise BadManifest(
                    f"What was brought for {lacked.path!r} is not what was published."
                )
        for change in self.changes():
            if change.source == "new" and change.entry is not None:
                stage.copy_new(change.path, change.source_path)
                if stage.digest_new(change.path) != change.entry.sha256:
                    raise BadManifest(
                        f"{change.path!r} repeats a content that is not the one meant."
                    )
        # Only now, for a mode may forbid reading.
        repaired = {entry.path for entry in self.missing}
        folders: list[Entry] = []
        for change in self.changes():
            entry = change.entry
            assert entry is not None
            own = change.source != "none" or entry.path in repaired
            if entry.kind == "d":
                folders.append(entry)
            elif entry.kind == "l" or (entry.kind == "f" and own):
                stage.set_attributes(entry)
        # Children first: a directory's time changes, and its mode may forbid, while it is filled.
        for folder in reversed(folders):
            stage.set_attributes(folder)
