"""The manifest of a tree, in one canonical order and spelling.

- Entries are in depth-first order, names sorted, parents before children. The root has the empty
  path. One line is one JSON array.
- Of files with one inode the first is the file (`f`); the others are hard links (`h`) to it.
- Names that are not UTF-8 are surrogate escapes.
- The digest of a manifest is the SHA-256 of its lines. Two trees are equal if and only if their
  digests are: contents, modes, mtimes, symbolic and hard links, and optionally `user.` extended
  attributes. Owners are left out: a mirror need not run as root.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from json.encoder import encode_basestring_ascii
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from .errors import BadManifest

Kind = Literal["d", "f", "l", "h"]
#: The manifest digest of no tree, from which a snapshot starts.
EMPTY_DIGEST = hashlib.sha256(b"").hexdigest()
#: The mode bits that are published. Set-user-id, set-group-id and sticky bits would give rights on
#: the mirrors' machines.
KEPT_MODE = 0o777
_SHA256 = re.compile(r"^[0-9a-f]{64}\Z")
#: A file's line as `encode_entry` writes it. Read by this it costs half of what JSON does.
_FILE_LINE = re.compile(
    rb'\["f","([ !#-\[\]-~]+)",'
    rb'(0|[1-9]\d{0,3}),(0|-?[1-9]\d{0,18}),(0|[1-9]\d{0,18}),"([0-9a-f]{64})"\]\n'
)
#: A NUL, or a part that is empty, "." or "..".
_ESCAPES = re.compile(r"\0|(?:\A|/)\.{0,2}(?:/|\Z)")
#: PATH_MAX of Linux.
_LONGEST_PATH = 4096
_BIGGEST = 1 << 62
#: The published extended attributes. Others give rights, or belong to the system.
ATTRIBUTE_PREFIX = "user."
#: Names and values of one file's attributes together: bounds a manifest line.
ATTRIBUTES_LIMIT_BYTES = 32 << 10
#: Extended attributes, sorted by name.
Attributes = tuple[tuple[str, bytes], ...]
#: A text as JSON spells it in a line.
quoted: Callable[[str], str] = encode_basestring_ascii


class Entry(NamedTuple):
    """One name in a tree; a named tuple, because a tree may have millions.

    `kind`: d(irectory), f(ile), l (symbolic link), h(ard link to `target`, a path in the same
    tree). `mode` has the permission bits, `mtime_ns` nanoseconds since 1970. `size_bytes` and
    `sha256` (hex) are of files, `target` of links. `attributes` are extended attributes of a file
    or directory.
    """

    kind: Kind
    path: str
    mode: int = 0
    mtime_ns: int = 0
    size_bytes: int = 0
    sha256: str = ""
    target: str = ""
    attributes: Attributes = ()


_Kind = TypeVar("_Kind")
#: A number, and a digest, in a document that the publisher signs.
Count = Annotated[int, Meta(ge=0, le=_BIGGEST)]
Sha256 = Annotated[str, Meta(pattern=_SHA256.pattern)]


class _Format(msgspec.Struct):
    format: int


def read_signed(data: bytes, kind: type[_Kind], what: str, known: int) -> _Kind:
    """A JSON document of this type and of the `known` format. Raises BadManifest."""
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found != known:
            raise BadManifest(
                f"{what} is of format {found} and this program reads format {known}: install a "
                "newer Tidegate on this mirror.",
                code="too-old",
            )
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as fault:
        raise BadManifest(f"{what} cannot be read: {fault}.") from fault


def order_key(path: str) -> str:
    """Sort key of the manifest's order: "a" < "a/b" < "a-b"."""
    return path.replace("/", "\0")


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]


def check_path(path: object) -> str:
    """Return `path` if it cannot lead out of the tree. Raises BadManifest."""
    if not isinstance(path, str) or len(path) > _LONGEST_PATH:
        raise BadManifest("A path in the manifest is not a usable name.")
    if path and _ESCAPES.search(path):
        raise BadManifest(f"The manifest names {path!r}, which could lead out of the tree.")
    return path


def check_number(value: object, what: str, low: int = 0, high: int = _BIGGEST) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadManifest(f"The manifest carries an impossible {what}.")
    return value


def check_sha256(value: object) -> str:
    if not isinstance(value, str) or not _SHA256.match(value):
        raise BadManifest("The manifest carries something that is not a SHA-256 digest.")
    return value


def check_target(value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > _LONGEST_PATH or "\0" in value:
        raise BadManifest("The manifest carries an unusable link target.")
    return value


def leads_out(path: str, target: str) -> bool:
    """Whether the symbolic link `path` could lead out of the tree.

    Leading ".." parts are counted against the depth of the link's folder, which is a real one. A
    ".." after a name counts as a way out: that name may be another link.
    """
    parts = target.split("/")
    if not parts[0] or ".." not in parts:
        return not parts[0]
    steps = [part for part in parts if part not in ("", ".")]
    ups = next((at for at, part in enumerate(steps) if part != ".."), len(steps))
    return ups > path.count("/") or ".." in steps[ups:]


def name_some(paths: Sequence[str]) -> str:
    """Up to five of these names for a message, and the number of the others."""
    rest = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return ", ".join(repr(path) for path in paths[:5]) + rest


def check_attributes(attributes: Attributes) -> Attributes:
    """Return the attributes if they may be published. Raises BadManifest.

    They must be `user.` ones, sorted, unique, and at most `ATTRIBUTES_LIMIT_BYTES`.
    """
    names = [name for name, _ in attributes]
    size_bytes = sum(len(name) + len(value) for name, value in attributes)
    if names != sorted({*names}) or size_bytes > ATTRIBUTES_LIMIT_BYTES:
        raise BadManifest("The manifest carries too many extended attributes for one file.")
    if any(not name.startswith(ATTRIBUTE_PREFIX) or "\0" in name for name in names):
        raise BadManifest("The manifest carries an extended attribute that may not travel.")
    return attributes


def _mode_cell(entry: Entry) -> object:
    """The mode; with attributes a list of mode and attributes."""
    if not entry.attributes:
        return entry.mode
    values = {name: base64.b64encode(value).decode() for name, value in entry.attributes}
    return [entry.mode, values]


def _from_mode_cell(cell: object) -> tuple[int, Attributes]:
    if not isinstance(cell, list):
        return check_number(cell, "mode", 0, 0o7777), ()
    if len(cell) != 2 or not isinstance(cell[1], dict) or not cell[1]:
        raise BadManifest("The manifest carries extended attributes that cannot be read.")
    try:
        found = tuple((name, base64.b64decode(v, validate=True)) for name, v in cell[1].items())
    except (TypeError, ValueError, binascii.Error) as fault:
        raise BadManifest(
            "The manifest carries extended attributes that cannot be read."
        ) from fault
    return check_number(cell[0], "mode", 0, 0o7777), check_attributes(found)


def to_row(entry: Entry) -> list[object]:
    """The JSON array of one entry."""
    match entry.kind:
        case "d":
            return ["d", entry.path, _mode_cell(entry), entry.mtime_ns]
        case "l":
            return ["l", entry.path, entry.mode, entry.mtime_ns, entry.target]
        case "h":
            return ["h", entry.path, entry.target]
        case "f":
            size, digest = entry.size_bytes, entry.sha256
            return ["f", entry.path, _mode_cell(entry), entry.mtime_ns, size, digest]


def from_row(row: object) -> Entry:
    """Read one entry. Raises BadManifest."""
    if not isinstance(row, list) or len(row) < 3:
        raise BadManifest("A line of the manifest is not an entry.")
    kind, path = row[0], check_path(row[1])
    if kind == "h" and len(row) == 3 and path:
        target = check_path(row[2])
        if not target or order_key(target) >= order_key(path):
            raise BadManifest(f"The hard link {path!r} points to a later name.")
        return Entry("h", path, target=target)
    shape = {"d": 4, "l": 5, "f": 6}
    if not isinstance(kind, str) or shape.get(kind) != len(row) or (kind != "d" and not path):
        raise BadManifest("A line of the manifest is of an unknown kind; update this program.")
    mode, attributes = _from_mode_cell(row[2])
    mtime_ns = check_number(row[3], "time", -_BIGGEST)
    if kind == "d":
        return Entry("d", path, mode, mtime_ns, attributes=attributes)
    if kind == "l":
        if attributes:
            raise BadManifest(f"The manifest gives the link {path!r} extended attributes.")
        return Entry("l", path, mode, mtime_ns, target=check_target(row[4]))
    size_bytes, digest = check_number(row[4], "size"), check_sha256(row[5])
    return Entry("f", path, mode, mtime_ns, size_bytes, digest, attributes=attributes)


def encode_row(row: list[object]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n"


def decode_row(line: bytes) -> list[object]:
    try:
        # As text: for bytes the module guesses the encoding first.
        row = json.loads(line.decode("ascii"))
    except (ValueError, RecursionError) as fault:
        raise BadManifest("A line of the manifest cannot be read.") from fault
    if not isinstance(row, list):
        raise BadManifest("A line of the manifest is not a list.")
    return row


def encode_entry(entry: Entry) -> bytes:
    """One canonical manifest line, newline included."""
    if entry.kind == "f" and not entry.attributes:
        _, path, mode, mtime_ns, size, digest, _, _ = entry
        return f'["f",{quoted(path)},{mode},{mtime_ns},{size},"{digest}"]\n'.encode("ascii")
    return encode_row(to_row(entry))


# The cache of decoded lines: old and new tree are read side by side.
@functools.lru_cache(64)
def decode_entry(line: bytes) -> Entry:
    """Read one manifest line. Raises BadManifest."""
    usual = _FILE_LINE.fullmatch(line)
    if usual is not None:
        name, bits, time, length, digest = usual.groups()
        mode, mtime_ns, size = int(bits), int(time), int(length)
        if mode <= 0o7777 and -_BIGGEST <= mtime_ns <= _BIGGEST and size <= _BIGGEST:
            path = check_path(name.decode())
            return Entry("f", path, mode, mtime_ns, size, digest.decode())
    return from_row(decode_row(line))


def in_order(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the entries, checked for their order and that parents are directories.

    So no path below a symbolic link is ever yielded. Raises BadManifest.
    """
    previous: str | None = None
    parents: list[str] = []
    for entry in entries:
        key = order_key(entry.path)
        if previous is None:
            if entry.path or entry.kind != "d":
                raise BadManifest("The manifest does not begin with the root directory.")
        elif key <= previous:
            raise BadManifest(f"The manifest is out of order at {entry.path!r}.")
        else:
            parent = parent_of(entry.path)
            while parents and parents[-1] != parent:
                parents.pop()
            if not parents:
                raise BadManifest(f"The manifest has {entry.path!r} in no directory.")
        if entry.kind == "d":
            parents.append(entry.path)
        previous = key
        yield entry


def first_clash(entries: Iterable[Entry]) -> tuple[str, str] | None:
    """Two names of one directory that differ in case only; None if there are none."""
    folders: list[tuple[str, dict[str, str]]] = []
    for entry in entries:
        parent, _, name = entry.path.rpartition("/")
        while folders and folders[-1][0] != parent:
            folders.pop()
        if folders:
            other = folders[-1][1].setdefault(name.casefold(), entry.path)
            if other != entry.path:
                return other, entry.path
        if entry.kind == "d":
            folders.append((entry.path, {}))
    return None
