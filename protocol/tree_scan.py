"""Turn a tree on disk into its manifest, reading only what can have changed.

The walk is pure: a `FileSystem` lists directories and digests files. A cache remembers, for each
file, the stamp (size, mtime, ctime, inode, device) it had when its content was read; an equal stamp
spares the reading. Size and mtime alone lie (reproducible builds set both), ctime does not: no
ordinary call sets it. A stamp younger than the clock's grain when read is not remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from .errors import BadManifest
from .tree import Entry, check_path, check_sha256, decode_row, order_key, quoted

#: A file changed this shortly before it was read may change again within one tick of its clock.
GRAIN_NS = 2_000_000_000
#: How `encode_cached` writes a line, as `protocol.tree` reads a file's.
_CACHED_LINE = re.compile(
    rb'\["([ !#-\[\]-~]+)",((?:-?\d{1,20},){4}-?\d{1,20}),"([0-9a-f]{64})"\]\n'
)


class Stamp(NamedTuple):
    """What an inode shows without its content being read (sizes in bytes, times in ns)."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int


class Found(NamedTuple):
    """One name in a directory; `links` counts hard links, `target` is a symbolic link's text."""

    name: str
    kind: Literal["d", "f", "l", "other"]
    mode: int
    stamp: Stamp
    links: int = 1
    target: str = ""


class FileSystem(Protocol):
    """What the walk asks of the file system; paths are relative to the tree's root."""

    def root(self) -> Found: ...
    def list(self, path: str) -> Iterable[Found]: ...
    def digest(self, path: str, found: Found) -> tuple[Stamp, str]:
        """Read the file: its stamp, equal before and after the reading, and its SHA-256."""


class Cached(NamedTuple):
    """One line of the cache: the content a path had under a stamp."""

    path: str
    stamp: Stamp
    sha256: str


@dataclass(slots=True)
class Seen:
    """Counts of one scan, in files and bytes."""

    files: int = 0
    bytes: int = 0
    read_files: int = 0
    read_bytes: int = 0


def encode_cached(line: Cached) -> bytes:
    path, stamp, sha256 = line
    return f'[{quoted(path)},{",".join(map(str, stamp))},"{sha256}"]\n'.encode("ascii")


def decode_cached(data: bytes) -> Cached:
    usual = _CACHED_LINE.fullmatch(data)
    if usual is not None:
        name, numbers_text, digest = usual.groups()
        stamp = Stamp(*map(int, numbers_text.split(b",")))
        return Cached(check_path(name.decode()), stamp, digest.decode())
    row = decode_row(data)
    numbers = [number for number in row[1:6] if isinstance(number, int)]
    if len(row) != 7 or len(numbers) != 5:
        raise BadManifest("A line of the cache cannot be read.")
    return Cached(check_path(row[0]), Stamp(*numbers), check_sha256(row[6]))


def scan(
    disk: FileSystem,
    cache: Iterable[Cached],
    remember: Callable[[Cached], object],
    now_ns: int,
    *,
    skip: Callable[[str], bool] = lambda path: False,
    special: Callable[[str], object] = lambda path: None,
    seen: Seen | None = None,
) -> Iterator[Entry]:
    """The manifest of the tree on `disk`, in order; streams, so take it as it comes.

    `cache` must be in manifest order; an empty one reads everything. `remember` gets the lines of
    the next cache. `skip` leaves a path (and what is below it) out; sockets, devices and pipes are
    left out and told to `special`. `now_ns` is the wall clock, in the units of the stamps.
    """
    seen = seen if seen is not None else Seen()
    lines = _CacheReader(cache)
    leaders: dict[tuple[int, int], str] = {}
    root = disk.root()
    yield Entry("d", "", root.mode, root.stamp.mtime_ns)
    stack = [_sorted(disk, "")]
    prefixes = [""]
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
            prefixes.pop()
            continue
        path = check_path(prefixes[-1] + found.name)
        if skip(path):
            continue
        stamp = found.stamp
        if found.kind == "d":
            yield Entry("d", path, found.mode, stamp.mtime_ns)
            stack.append(_sorted(disk, path))
            prefixes.append(path + "/")
        elif found.kind == "l":
            yield Entry("l", path, found.mode, stamp.mtime_ns, target=found.target)
        elif found.kind == "other":
            special(path)
        else:
            identity = (stamp.device, stamp.inode)
            if found.links > 1:
                leader = leaders.setdefault(identity, path)
                if leader != path:
                    yield Entry("h", path, target=leader)
                    continue
            known = lines.at(path)
            if known is not None and known.stamp == stamp:
                digest = known.sha256
            else:
                stamp, digest = disk.digest(path, found)
                seen.read_files += 1
                seen.read_bytes += stamp.size_bytes
            if max(stamp.mtime_ns, stamp.ctime_ns) < now_ns - GRAIN_NS:
                remember(Cached(path, stamp, digest))
            seen.files += 1
            seen.bytes += stamp.size_bytes
            yield Entry("f", path, found.mode, stamp.mtime_ns, stamp.size_bytes, digest)


def _sorted(disk: FileSystem, path: str) -> Iterator[Found]:
    return iter(sorted(disk.list(path), key=lambda found: found.name))


class _CacheReader:
    """Looks paths up in an ordered cache by reading it forward once."""

    def __init__(self, lines: Iterable[Cached]) -> None:
        self._lines = iter(lines)
        self._line = next(self._lines, None)

    def at(self, path: str) -> Cached | None:
        """What the cache has of `path`; ask in order, once for each."""
        line = self._line
        if line is not None and line.path != path:
            key = order_key(path)
            while line is not None and line.path != path and order_key(line.path) < key:
                line = next(self._lines, None)
            self._line = line
        if line is None or line.path != path:
            return None
        self._line = next(self._lines, None)
        return line
