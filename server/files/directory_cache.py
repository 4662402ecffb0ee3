"""What a directory shows, read at most so often: a huge one costs a bounded part of the time."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from ..http.clock import Clock
from .paths import url_of
from .transfer import FileKey, Visibility, kept_from_all
from .tree import DirectoryEntry, Tree

#: What was read (or rendered) is used again for this many times what it cost: 5 % at the most.
REUSE_FACTOR = 20.0
#: Stands for how the server was called; `.invalid` is no host's name (RFC 2606).
SOME_ORIGIN = b"http://this-server.invalid"


@dataclass(frozen=True, slots=True)
class Coming:
    """Something that opens at a known time."""

    entry: DirectoryEntry
    opens_in_s: float


@dataclass(frozen=True, slots=True)
class FolderLook:
    """What a directory showed; `stamp` is its inode and modification time before it was read.

    `found` is what stood there, before rules were asked. `is_settled`: it was read twice with this
    stamp, so that a name that comes makes another. `content` is the same object as long as it shows
    the same.
    """

    at_s: float
    cost_s: float
    stamp: tuple[int, int] | None
    is_settled: bool
    found: list[DirectoryEntry]
    entries: list[DirectoryEntry]
    coming: list[Coming]
    content: object


@dataclass
class DirectoryCache:
    """Reads directories of a tree as all visitors may see them, without hidden or secret files.

    `_clock` measures what reading costs. `changes` counts what was found to be out of date.
    """

    _tree: Tree
    _visibility: Visibility
    _clock: Clock
    _kept: dict[bytes, FolderLook] = field(default_factory=dict)
    _entries_kept: int = 0
    changes: int = 0

    def entries(self, parts: list[bytes]) -> list[DirectoryEntry]:
        """Directories and files by name. The caller changes nothing in it. Raises NotHere."""
        return self.look(parts).entries

    def is_current(self, path: bytes) -> bool:
        """Whether no name has come, gone or been replaced in a directory since it was read.

        True also where that is not known, and of one that is dear to read.
        """
        kept = self._kept.get(path)
        # A directory that takes longer to read, in seconds, is not read again before its time.
        if kept is None or kept.cost_s > 0.05 or kept.stamp == self._stamp(path):
            return True
        self._drop(path)
        return False

    def serves(self, path: bytes, key: FileKey) -> None:
        """This content is served under a path now: no listing names the one before it."""
        folder, _, name = path.rpartition(b"/")
        kept = self._kept.get(folder)
        if kept is None:
            return
        place = bisect_left(kept.entries, name, key=lambda entry: entry.name)
        if place < len(kept.entries):
            entry = kept.entries[place]
            if entry.name == name and entry.place is None and entry.key != key:
                self._drop(folder)

    def _drop(self, path: bytes) -> None:
        self.changes += 1
        self._entries_kept -= len(self._kept.pop(path).found)

    def _stamp(self, path: bytes) -> tuple[int, int] | None:
        status = self._tree.status_of(path)
        return None if status is None else (status.st_ino, status.st_mtime_ns)

    def look(self, parts: list[bytes]) -> FolderLook:
        """All of it; `coming` is hidden as yet, and may be registered for. Raises NotHere."""
        now = self._clock.seconds()
        path = b"/".join(parts)
        kept = self._kept.get(path)
        until_s = 0.0 if kept is None else kept.at_s + kept.cost_s * REUSE_FACTOR
        if kept is not None and now < until_s and self.is_current(path):
            return kept
        stamp = self._stamp(path)
        is_settled = kept is not None and kept.is_settled and self._stays(path, kept, stamp)
        found = kept.found if kept is not None and is_settled else self._tree.entries(parts)
        entries, coming = self._judge(parts, found)
        cost_s = self._clock.seconds() - now
        if kept is not None and kept.stamp == stamp is not None and now - kept.at_s >= 0.1:
            # Time stamps of a file system have steps of up to 10 ms.
            is_settled = found == kept.found
        if self._entries_kept + len(found) > 200_000 or len(self._kept) >= 4096:
            self.forget()
        elif path in self._kept:
            self._entries_kept -= len(self._kept[path].found)
        shown = entries, [one.entry for one in coming]
        is_same = kept is not None and shown == (kept.entries, [one.entry for one in kept.coming])
        content = kept.content if kept is not None and is_same else object()
        look = FolderLook(now, cost_s, stamp, is_settled, found, entries, coming, content)
        self._kept[path] = look
        self._entries_kept += len(found)
        return look

    def forget(self) -> None:
        """Read everything anew: what is hidden has changed."""
        self._kept.clear()
        self._entries_kept = 0

    def _stays(self, path: bytes, kept: FolderLook, stamp: tuple[int, int] | None) -> bool:
        """Whether the same stands there still, none of it by a link."""
        folder = path + b"/" * bool(path)
        return stamp == kept.stamp and all(
            one.place is None and self._tree.has(folder + one.name, one.key) for one in kept.found
        )

    def _judge(
        self, parts: list[bytes], found: list[DirectoryEntry]
    ) -> tuple[list[DirectoryEntry], list[Coming]]:
        """What all visitors may see of it now, and what opens later."""
        folder = b"".join(part + b"/" for part in parts)
        look = self._visibility
        shown, coming = [], []
        for entry in found:
            url_path = url_of(folder + entry.name) + ("/" if entry.is_directory else "")
            if look.hidden(url_path):
                opens_in_s = look.opens_in_s(url_path)
                place = entry.place
                told = place is None or not look.hidden(place) or look.opens_in_s(place) is not None
                if opens_in_s is not None and told:
                    coming.append(Coming(entry, opens_in_s))
            elif not look.secret(url_path) and not kept_from_all(look, entry.place):
                shown.append(entry)
        return shown, coming
