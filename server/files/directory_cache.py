"""What a directory shows, read at most so often: a huge one costs a bounded part of the time."""

from __future__ import annotations

from dataclasses import dataclass

from ..http.clock import Clock
from .paths import url_of
from .transfer import Visibility, kept_from_all
from .tree import DirectoryEntry, Tree

#: What was read (or rendered) is used again for this many times what it cost: 5 % at the most.
REUSE_FACTOR = 20.0
_MOST_ENTRIES_KEPT = 200_000
_MOST_FOLDERS_KEPT = 256


@dataclass(frozen=True, slots=True)
class Coming:
    """Something that opens in so many seconds."""

    entry: DirectoryEntry
    opens_in_s: float


class DirectoryCache:
    """Reads directories of `tree` as everybody may see them: what is hidden or secret is left out.

    `clock` measures what reading costs.
    """

    def __init__(self, tree: Tree, visibility: Visibility, clock: Clock) -> None:
        self._tree = tree
        self._visibility = visibility
        self._clock = clock
        self._kept: dict[tuple[bytes, ...], tuple[float, list[DirectoryEntry], list[Coming]]] = {}
        self._entries_kept = 0

    def entries(self, parts: list[bytes]) -> list[DirectoryEntry]:
        """Directories and files by name. The caller changes nothing in it. Raises NotHere."""
        return self._look(parts)[0]

    def coming(self, parts: list[bytes]) -> list[Coming]:
        """What is hidden here as yet, and may be registered for. Raises NotHere."""
        return self._look(parts)[1]

    def _look(self, parts: list[bytes]) -> tuple[list[DirectoryEntry], list[Coming]]:
        now = self._clock.seconds()
        key = tuple(parts)
        kept = self._kept.get(key)
        if kept is not None and now < kept[0]:
            return kept[1:]
        entries, coming = self._read(parts)
        cost_s = self._clock.seconds() - now
        if (
            self._entries_kept + len(entries) > _MOST_ENTRIES_KEPT
            or len(self._kept) >= _MOST_FOLDERS_KEPT
        ):
            self.forget()
        elif kept is not None:
            self._entries_kept -= len(kept[1])
        self._kept[key] = (now + cost_s * REUSE_FACTOR, entries, coming)
        self._entries_kept += len(entries)
        return entries, coming

    def forget(self) -> None:
        """Read everything anew: what is hidden has changed."""
        self._kept.clear()
        self._entries_kept = 0

    def _read(self, parts: list[bytes]) -> tuple[list[DirectoryEntry], list[Coming]]:
        folder = b"".join(part + b"/" for part in parts)
        look = self._visibility
        shown, coming = [], []
        for entry in self._tree.entries(parts):
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
