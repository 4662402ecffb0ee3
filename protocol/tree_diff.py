"""The difference between two manifests, and the merge of a manifest with a difference.

A change is a deletion, or a new entry and the source of its content. All passes stream; memory
grows with the number of *changed* names only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .errors import BadManifest
from .tree import Entry, check_path, from_row, in_order, order_key, to_row

#: same: the content the path already has; old: that of another path of the old tree; new: that
#: of another path of the new tree; group: carried in the update; none: not a file, or unchanged.
Source = Literal["none", "same", "old", "new", "group"]
#: Changed names and contents kept in memory; more are found again by another pass.
_MOST_HELD = 20_000


class Change(NamedTuple):
    """One name that differs: `entry` is None for a deletion."""

    path: str
    entry: Entry | None
    source: Source = "none"
    source_path: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """A content that an update must carry, and the best old file to encode it against, if any."""

    entry: Entry
    reference: Entry | None


@dataclass(slots=True)
class _Sources:
    """Possible sources of the contents that are new at their path."""

    #: SHA-256 -> a path of the old tree with this content.
    moved: dict[str, str] = field(default_factory=dict)
    #: SHA-256 of contents at more than one new path.
    repeated: set[str] = field(default_factory=set)
    similar: dict[str, list[Entry]] = field(default_factory=dict)
    by_name: dict[str, Entry] = field(default_factory=dict)


#: A name's entries in the old and the new tree; None where it is missing.
Pair = tuple[Entry | None, Entry | None]


class Difference:
    """The difference between two trees, both iterable repeatedly.

    `new` is read once and `old` twice, and both twice more if there are more than `_MOST_HELD`
    changes. Memory grows with the number of changes, by 100 bytes each beyond `_MOST_HELD`.
    """

    def __init__(self, old: Iterable[Entry], new: Iterable[Entry]) -> None:
        self._old = old
        self._new = new
        #: The changed names; None if there are more than `_MOST_HELD`.
        self._pairs: list[Pair] | None = []
        self._sources = self._find_sources()
        self._held: list[Content] | None = []
        self.changed = self.renames = self.deletions = self.carried = self.carried_bytes = 0

    def changes(self) -> Iterator[Change]:
        """All changes in manifest order. Run it to the end before you call `contents`."""
        for change, content in self._walk():
            self.changed += 1
            self.renames += change.source == "old"
            self.deletions += change.entry is None
            if content is not None:
                self.carried += 1
                self.carried_bytes += content.entry.size_bytes
                if self._held is not None:
                    self._held.append(content)
                    if len(self._held) > _MOST_HELD:
                        self._held = None
            yield change

    def contents(self) -> Iterator[Content]:
        """The contents that the update must carry, in manifest order."""
        if self._held is not None:
            yield from self._held
            return
        for _, content in self._walk():
            if content is not None:
                yield content

    def _walk(self) -> Iterator[tuple[Change, Content | None]]:
        sources = self._sources
        first_use: dict[str, str] = {}
        pairs = self._pairs if self._pairs is not None else pair_up(self._old, self._new)
        for before, after in pairs:
            if after is None:
                assert before is not None
                yield Change(before.path, None), None
            elif before == after:
                continue
            elif after.kind != "f":
                yield Change(after.path, after), None
            elif before is not None and before.kind == "f" and before.sha256 == after.sha256:
                yield Change(after.path, after, "same"), None
            elif after.sha256 in sources.moved:
                yield Change(after.path, after, "old", sources.moved[after.sha256]), None
            elif after.sha256 in first_use:
                yield Change(after.path, after, "new", first_use[after.sha256]), None
            else:
                if after.sha256 in sources.repeated:
                    first_use[after.sha256] = after.path
                reference = before if before is not None and before.kind == "f" else None
                reference = reference or _closest(after, sources.similar)
                reference = reference or sources.by_name.get(_name(after))
                yield Change(after.path, after, "group"), Content(after, reference)

    def _find_sources(self) -> _Sources:
        found = _Sources()
        # Half digests save memory: a match is compared whole.
        wanted: set[int] = set()
        patterns: set[str] = set()
        names: set[str] = set()
        old_is_empty = next(iter(self._old), None) is None
        for pair in pair_up(self._old, self._new):
            before, after = pair
            if before == after:
                continue
            if self._pairs is not None:
                self._pairs.append(pair)
                if len(self._pairs) > _MOST_HELD:
                    self._pairs = None
            if after is None or after.kind != "f":
                continue
            if before is not None and before.kind == "f":
                if before.sha256 == after.sha256:
                    continue
            elif not old_is_empty:
                patterns.add(_pattern(after))
                names.add(_name(after))
            half = int(after.sha256[:16], 16)
            if half in wanted:
                found.repeated.add(after.sha256)
            wanted.add(half)
        for entry in self._old:
            if entry.kind != "f":
                continue
            if int(entry.sha256[:16], 16) in wanted:
                found.moved.setdefault(entry.sha256, entry.path)
            if patterns and (pattern := _pattern(entry)) in patterns:
                # The last ones are kept: versions are mostly in rising order.
                known = found.similar.get(pattern, [])
                # At most eight old files of one name pattern are possible references.
                found.similar[pattern] = [*known[-7:], entry]
            if names and (name := _name(entry)) in names:
                found.by_name[name] = entry
        return found


def _pattern(entry: Entry) -> str:
    return re.sub(r"\d+", "#", entry.path)


def _name(entry: Entry) -> str:
    return entry.path.rpartition("/")[2]


def _closest(entry: Entry, similar: dict[str, list[Entry]]) -> Entry | None:
    def likeness(other: Entry) -> tuple[int, int]:
        common = 0
        for mine, theirs in zip(entry.path, other.path, strict=False):
            if mine != theirs:
                break
            common += 1
        return common, -abs(entry.size_bytes - other.size_bytes)

    return max(similar.get(_pattern(entry), []), key=likeness, default=None)


def pair_up(old: Iterable[Entry], new: Iterable[Entry]) -> Iterator[Pair]:
    """Merge two ordered manifests into pairs (before, after); a missing entry is None."""
    left, right = iter(old), iter(new)
    before, after = next(left, None), next(right, None)
    while before is not None and after is not None:
        if before.path == after.path:
            yield before, after
            before, after = next(left, None), next(right, None)
        elif order_key(before.path) < order_key(after.path):
            yield before, None
            before = next(left, None)
        else:
            yield None, after
            after = next(right, None)
    while before is not None:
        yield before, None
        before = next(left, None)
    while after is not None:
        yield None, after
        after = next(right, None)


def change_to_row(change: Change) -> list[object]:
    """The JSON array of a change. With an unchanged content it has neither size nor digest."""
    if change.entry is None:
        return ["-", change.path]
    row = to_row(change.entry)
    match change.source:
        case "none":
            return row
        case "same":
            return [*row[:4], "same"]
        case "group":
            return [*row, "group"]
        case "old" | "new":
            return [*row, change.source, change.source_path]


def change_from_row(row: list[object], before: Entry | None) -> Change:
    """Read a change; `before` is the old entry of its path, if any. Raises BadManifest."""
    if len(row) == 2 and row[0] == "-":
        return Change(check_path(row[1]), None)
    if len(row) >= 5 and row[0] == "f":
        if row[4] == "same" and len(row) == 5:
            if before is None or before.kind != "f":
                raise BadManifest(f"The update keeps a content {row[1]!r} does not have.")
            entry = from_row([*row[:4], before.size_bytes, before.sha256])
            return Change(entry.path, entry, "same")
        entry = from_row(row[:6])
        if row[6:] == ["group"]:
            return Change(entry.path, entry, "group")
        if len(row) == 8 and row[6] in ("old", "new"):
            source: Source = "old" if row[6] == "old" else "new"
            return Change(entry.path, entry, source, check_path(row[7]))
        raise BadManifest("A change of the update does not say where its content comes from.")
    entry = from_row(row)
    return Change(entry.path, entry)


def merge(old: Iterable[Entry], rows: Iterable[list[object]]) -> Iterator[Change]:
    """All entries of the new tree as changes; a file with source `none` is unchanged.

    Raises BadManifest when a change does not fit `old`, or the order is not the manifest's.
    """
    yield from _ordered(_merged(iter(old), iter(rows)))


def _merged(left: Iterator[Entry], right: Iterator[list[object]]) -> Iterator[Change]:
    before = next(left, None)
    for row in right:
        if len(row) < 2:
            raise BadManifest("A change of the update names nothing.")
        path = check_path(row[1])
        key = order_key(path)
        while before is not None and before.path != path and order_key(before.path) < key:
            yield Change(before.path, before)
            before = next(left, None)
        same = before is not None and before.path == path
        change = change_from_row(row, before if same else None)
        if change.entry is not None:
            yield change
        elif not same:
            raise BadManifest(f"The update deletes {path!r}, which is not there.")
        if same:
            before = next(left, None)
    while before is not None:
        yield Change(before.path, before)
        before = next(left, None)


def _ordered(changes: Iterator[Change]) -> Iterator[Change]:
    held: list[Change] = []

    def entries() -> Iterator[Entry]:
        for change in changes:
            assert change.entry is not None
            held.append(change)
            yield change.entry

    for _ in in_order(entries()):
        yield held.pop()
