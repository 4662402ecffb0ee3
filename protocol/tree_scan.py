"""Makes the manifest of a tree. Files that cannot have changed are not read.

The walk is pure: a `FileSystem` lists directories and hashes files. A cache has the stamp (size,
mtime, ctime, inode, device) of each file when its content was read; a file with an equal stamp is
not read again. Size and mtime alone do not show a change, because reproducible builds set both;
ctime does, because no ordinary call sets it. A stamp younger than `GRAIN_NS` is not cached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from .errors import BadManifest
from .tree import Entry, check_path, check_sha256, decode_row, order_key, quoted

#: A younger file may change again without a new ctime: the clocks of file systems have up to 2 s.
GRAIN_NS = 2_000_000_000
#: A line as `encode_cached` writes it: faster to read than JSON, as in `protocol.tree`.
_CACHED_LINE = re.compile(
    rb'\["([ !#-\[\]-~]+)",((?:-?\d{1,20},){4}-?\d{1,20}),"([0-9a-f]{64})"\]\n'
)


class Stamp(NamedTuple):
    """What stat(2) shows of a file's content (sizes in bytes, times in ns)."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int


class Found(NamedTuple):
    """One name in a directory. `links` counts hard links; `target` is a symbolic link's text."""

    name: str
    kind: Literal["d", "f", "l", "other"]
    mode: int
    stamp: Stamp
    links: int = 1
    target: str = ""


class FileSystem(Protocol):
    """The file system of a walk. Paths are relative to the tree's root."""

    def root(self) -> Found: ...
    def list(self, path: str) -> Iterable[Found]: ...
    def digest(self, path: str, found: Found) -> tuple[Stamp, str]:
        """Read the file. Returns its stamp, equal before and after reading, and its SHA-256."""


class Cached(NamedTuple):
    """One line of the cache: a path's stamp and content."""

    path: str
    stamp: Stamp
    sha256: str


@dataclass(slots=True)
class Seen:
    """Counts of one scan; `read_files` were not in the cache."""

    files: int = 0
    bytes: int = 0
    read_files: int = 0


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
    """Yield the manifest of the tree on `disk`.

    `cache` is in manifest order; with an empty one all files are read. `remember` gets the lines of
    the next cache. `skip` excludes a path and all below it. `special` gets the paths of sockets,
    devices and pipes, which are left out. `now_ns` is the wall clock in ns since 1970.
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
        """The cache's line for `path`. Call it in manifest order, once for each path."""
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
