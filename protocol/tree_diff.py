"""From one manifest to the next: changes found by content, and changes put back in.

A change is either a deletion or the new entry together with where its content comes from. All
passes stream; what is held is in proportion to the number of *changed* names only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from protocol.errors import BadManifest
from protocol.tree import Entry, check_path, from_row, in_order, order_key, to_row

#: same: the content the path already has; old: that of another path of the old tree; new: that
#: of another path of the new tree; group: carried in the update; none: not a file, or unchanged.
Source = Literal["none", "same", "old", "new", "group"]
#: How many old files of one name pattern are remembered as possible references.
_CANDIDATES = 8
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Change:
    """One name that differs: `entry` is None for a deletion."""

    path: str
    entry: Entry | None
    source: Source = "none"
    source_path: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """One content an update must carry, and the old file it is best encoded against, if any."""

    entry: Entry
    reference: Entry | None


@dataclass(slots=True)
class Difference:
    """What separates two trees: iterate `changes` first, `contents` is complete afterwards."""

    old: Iterable[Entry]
    new: Iterable[Entry]
    renames: int = 0
    deletions: int = 0
    contents: list[Content] = field(default_factory=list)

    def changes(self) -> Iterator[Change]:
        """Every change in manifest order. `old` and `new` must be iterable again and again."""
        wanted, patterns, names = self._wanted()
        moved, similar, by_name = self._sources(wanted, patterns, names)
        first_use: dict[str, str] = {}
        for before, after in pair_up(self.old, self.new):
            if after is None:
                assert before is not None
                self.deletions += 1
                yield Change(before.path, None)
            elif before == after:
                continue
            elif after.kind != "f":
                yield Change(after.path, after)
            elif before is not None and before.kind == "f" and before.sha256 == after.sha256:
                yield Change(after.path, after, "same")
            elif after.sha256 in moved:
                self.renames += 1
                yield Change(after.path, after, "old", moved[after.sha256])
            elif after.sha256 in first_use:
                yield Change(after.path, after, "new", first_use[after.sha256])
            else:
                first_use[after.sha256] = after.path
                reference = before if before is not None and before.kind == "f" else None
                reference = reference or _closest(after, similar) or by_name.get(_name(after))
                self.contents.append(Content(after, reference))
                yield Change(after.path, after, "group")

    def _wanted(self) -> tuple[set[str], set[str], set[str]]:
        wanted: set[str] = set()
        patterns: set[str] = set()
        names: set[str] = set()
        for before, after in pair_up(self.old, self.new):
            if after is None or after.kind != "f":
                continue
            if before is not None and before.kind == "f":
                if before.sha256 == after.sha256:
                    continue
            else:
                patterns.add(_pattern(after))
                names.add(_name(after))
            wanted.add(after.sha256)
        return wanted, patterns, names

    def _sources(
        self, wanted: set[str], patterns: set[str], names: set[str]
    ) -> tuple[dict[str, str], dict[str, list[Entry]], dict[str, Entry]]:
        moved: dict[str, str] = {}
        similar: dict[str, list[Entry]] = {}
        by_name: dict[str, Entry] = {}
        for entry in self.old:
            if entry.kind != "f":
                continue
            if entry.sha256 in wanted:
                moved.setdefault(entry.sha256, entry.path)
            if patterns and (pattern := _pattern(entry)) in patterns:
                # The last ones win: versions are mostly listed in rising order.
                similar[pattern] = [*similar.get(pattern, [])[1 - _CANDIDATES :], entry]
            if names and (name := _name(entry)) in names:
                by_name[name] = entry
        return moved, similar, by_name


def _pattern(entry: Entry) -> str:
    return _DIGITS.sub("#", entry.path)


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


def pair_up(
    old: Iterable[Entry], new: Iterable[Entry]
) -> Iterator[tuple[Entry | None, Entry | None]]:
    """Walk two ordered manifests side by side: (before, after), one of them None if missing."""
    left, right = iter(old), iter(new)
    before, after = next(left, None), next(right, None)
    while before is not None or after is not None:
        if after is None or (before is not None and order_key(before.path) < order_key(after.path)):
            yield before, None
            before = next(left, None)
        elif before is None or before.path != after.path:
            yield None, after
            after = next(right, None)
        else:
            yield before, after
            before, after = next(left, None), next(right, None)


def change_to_row(change: Change) -> list[object]:
    """The JSON array of a change; an unchanged content repeats neither its size nor its digest."""
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
    """Read a change back; `before` is the old entry of the same path, if there is one."""
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
    """The new tree, every entry of it, as changes (`none` with a file: unchanged).

    Deletions are left out. A change that does not fit `old`, or an order that is not the
    manifest's, raises `BadManifest`.
    """
    yield from _ordered(_merged(iter(old), iter(rows)))


def _merged(left: Iterator[Entry], right: Iterator[list[object]]) -> Iterator[Change]:
    before, row = next(left, None), next(right, None)
    while before is not None or row is not None:
        path = check_path(row[1]) if row is not None and len(row) > 1 else None
        if row is not None and path is None:
            raise BadManifest("A change of the update names nothing.")
        if path is None or (before is not None and order_key(before.path) < order_key(path)):
            assert before is not None
            yield Change(before.path, before)
            before = next(left, None)
            continue
        assert row is not None
        same = before is not None and before.path == path
        change = change_from_row(row, before if same else None)
        if change.entry is not None:
            yield change
        elif not same:
            raise BadManifest(f"The update deletes {path!r}, which is not there.")
        if same:
            before = next(left, None)
        row = next(right, None)


def _ordered(changes: Iterator[Change]) -> Iterator[Change]:
    held: list[Change] = []

    def entries() -> Iterator[Entry]:
        for change in changes:
            assert change.entry is not None
            held.append(change)
            yield change.entry

    for _ in in_order(entries()):
        yield held.pop()
