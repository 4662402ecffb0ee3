"""What a directory shows, read at most so often: a huge one costs a bounded part of the time."""

from __future__ import annotations

from typing import Protocol

from server.files.paths import url_of
from server.files.transfer import Visibility
from server.files.tree import Entry, Tree

#: What was read (or rendered) is used again for this many times what it cost: 5 % at the most.
REUSE_FACTOR = 20.0
_MOST_ENTRIES_KEPT = 200_000
_MOST_FOLDERS_KEPT = 256


class Clock(Protocol):
    """Tells what reading costs."""

    def seconds(self) -> float:
        """Seconds."""
        ...


class Folders:
    """Reads directories of `tree` as everybody may see them: what is hidden or secret is left out.

    `clock` measures what reading costs.
    """

    def __init__(self, tree: Tree, visibility: Visibility, clock: Clock) -> None:
        self._tree = tree
        self._visibility = visibility
        self._clock = clock
        self._kept: dict[tuple[bytes, ...], tuple[float, list[Entry]]] = {}
        self._entries_kept = 0

    def entries(self, parts: list[bytes]) -> list[Entry]:
        """Directories and files by name. The caller changes nothing in it. Raises NotHere."""
        now = self._clock.seconds()
        key = tuple(parts)
        kept = self._kept.get(key)
        if kept is not None and now < kept[0]:
            return kept[1]
        entries = self._read(parts)
        cost_s = self._clock.seconds() - now
        if (
            self._entries_kept + len(entries) > _MOST_ENTRIES_KEPT
            or len(self._kept) >= _MOST_FOLDERS_KEPT
        ):
            self.forget()
        elif kept is not None:
            self._entries_kept -= len(kept[1])
        self._kept[key] = (now + cost_s * REUSE_FACTOR, entries)
        self._entries_kept += len(entries)
        return entries

    def forget(self) -> None:
        """Read everything anew: what is hidden has changed."""
        self._kept.clear()
        self._entries_kept = 0

    def _read(self, parts: list[bytes]) -> list[Entry]:
        folder = b"".join(part + b"/" for part in parts)
        return [entry for entry in self._tree.entries(parts) if self._is_shown(folder, entry)]

    def _is_shown(self, folder: bytes, entry: Entry) -> bool:
        url_path = url_of(folder + entry.name) + ("/" if entry.is_directory else "")
        return not (self._visibility.hidden(url_path) or self._visibility.secret(url_path))
