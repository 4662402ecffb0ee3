"""Trees in memory: a small file system with inodes, random trees and edits, and a Stage on it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from tidegate.protocol.batch import Header, Update
from tidegate.protocol.batch_apply import Application
from tidegate.protocol.batch_generate import GeneratedUpdate, generate
from tidegate.protocol.batch_group import FilePart
from tidegate.protocol.tree import (
    EMPTY_DIGEST,
    Attributes,
    Entry,
    encode_entry,
    order_key,
    parent_of,
)


@dataclass
class Inode:
    content: bytes = b""
    mode: int = 0o644
    mtime_ns: int = 0
    attributes: Attributes = ()


@dataclass
class Tree:
    """Paths to directories, symlinks (text) and inodes; names that share one are hard links."""

    dirs: dict[str, tuple[int, int]] = field(default_factory=lambda: {"": (0o755, 1)})
    symlinks: dict[str, tuple[str, int]] = field(default_factory=dict)
    files: dict[str, Inode] = field(default_factory=dict)

    def entries(self) -> list[Entry]:
        out: list[Entry] = []
        leaders: dict[int, str] = {}
        for path in sorted({*self.dirs, *self.symlinks, *self.files}, key=order_key):
            if path in self.dirs:
                out.append(Entry("d", path, *self.dirs[path]))
            elif path in self.symlinks:
                target, mtime = self.symlinks[path]
                out.append(Entry("l", path, 0o777, mtime, target=target))
            else:
                inode = self.files[path]
                leader = leaders.setdefault(id(inode), path)
                if leader != path:
                    out.append(Entry("h", path, target=leader))
                    continue
                digest = hashlib.sha256(inode.content).hexdigest()
                size = len(inode.content)
                entry = Entry("f", path, inode.mode, inode.mtime_ns, size, digest)
                out.append(entry._replace(attributes=inode.attributes))
        return out

    def read(self, entry: Entry, offset: int, into: memoryview) -> None:
        into[:] = self.files[entry.path].content[offset : offset + len(into)]

    def frozen(self) -> object:
        """Everything that must be equal in a faithful copy, contents and link groups included."""
        groups: dict[int, set[str]] = {}
        for path, inode in self.files.items():
            groups.setdefault(id(inode), set()).add(path)
        return (
            self.dirs,
            self.symlinks,
            {p: (i.content, i.mode, i.mtime_ns, i.attributes) for p, i in self.files.items()},
            sorted(sorted(group) for group in groups.values()),
        )


class MemoryStage:
    """A `Stage` over `Tree`s; `gone` names old paths this mirror lost."""

    def __init__(self, old: Tree, gone: frozenset[str] = frozenset()) -> None:
        self.old, self.new, self._gone = old, Tree(dirs={}), gone

    def make_dir(self, path: str) -> None:
        assert not path or parent_of(path) in self.new.dirs
        self.new.dirs[path] = (0, 0)

    def make_symlink(self, path: str, target: str) -> None:
        self.new.symlinks[path] = (target, 0)

    def share_old(self, entry: Entry) -> bool:
        if entry.path in self._gone:
            return False
        self.new.files[entry.path] = self.old.files[entry.path]
        return True

    def copy_old(self, path: str, old: str, sha256: str) -> bool:
        if old in self._gone:
            return False
        content = self.old.files[old].content
        self.new.files[path] = Inode(content)
        return hashlib.sha256(content).hexdigest() == sha256

    def copy_new(self, path: str, source: str) -> None:
        self.new.files[path].content = self.new.files[source].content

    def link_new(self, path: str, target: str) -> None:
        self.new.files[path] = self.new.files[target]

    def create(self, path: str, size_bytes: int) -> None:
        self.new.files[path] = Inode(bytes(size_bytes))

    def write(self, path: str, offset: int, data: bytes | memoryview) -> None:
        inode = self.new.files[path]
        inode.content = inode.content[:offset] + bytes(data) + inode.content[offset + len(data) :]

    def read_old(self, part: FilePart, into: memoryview) -> bool:
        if part.path in self._gone:
            return False
        content = self.old.files[part.path].content[part.offset : part.offset + part.length]
        into[:] = content
        return True

    def copy_part(
        self, part: FilePart, old: FilePart, digest: Callable[[memoryview], object]
    ) -> bool:
        data = bytearray(old.length)
        if not self.read_old(old, memoryview(data)):
            return False
        digest(memoryview(data))
        self.write(part.path, part.offset, bytes(data))
        return True

    def digest_new(self, path: str) -> str:
        return hashlib.sha256(self.new.files[path].content).hexdigest()

    def set_attributes(self, entry: Entry) -> None:
        if entry.kind == "d":
            self.new.dirs[entry.path] = (entry.mode, entry.mtime_ns)
        elif entry.kind == "l":
            self.new.symlinks[entry.path] = (entry.target, entry.mtime_ns)
        else:
            inode = self.new.files[entry.path]
            inode.mode, inode.mtime_ns = entry.mode, entry.mtime_ns
            inode.attributes = entry.attributes


def digest_of(entries: Iterable[Entry]) -> str:
    """The manifest digest of a whole tree."""
    return hashlib.sha256(b"".join(map(encode_entry, entries))).hexdigest()


def make_update(
    old: Tree | None, new: Tree, *, window_bytes: int = 1 << 20, delta: bool = True
) -> tuple[bytes, GeneratedUpdate]:
    """The update file between two trees in memory (`old` None: a snapshot)."""
    out = bytearray()
    before = old.entries() if old is not None else []
    header = Header(
        channel="test",
        from_version=0 if old is None else 1,
        to_version=2,
        before=digest_of(before) if old is not None else EMPTY_DIGEST,
        after=digest_of(new.entries()),
        window_bytes=window_bytes,
    )
    read_old = old.read if old is not None else new.read
    done = generate(header, before, new.entries(), read_old, new.read, out.extend, delta=delta)
    return bytes(out), done


def open_update(data: bytes) -> Update:
    return Update(lambda offset, length: data[offset : offset + length], len(data))


def apply_update(data: bytes, old: Tree, gone: frozenset[str] = frozenset()) -> MemoryStage:
    """Apply in memory; what is missing stays missing for the caller to look at."""
    update = open_update(data)
    update.verify()
    stage = MemoryStage(old, gone)
    known = old.entries() if update.header.from_version else []
    application = Application(update, lambda: known, stage)
    application.build()
    stage.missing = application.missing  # type: ignore[attr-defined]
    stage.finish = application.finish  # type: ignore[attr-defined]
    return stage


_NAMES = st.sampled_from(["a", "b", "a-b", "data1.bin", "data2.bin", "é", "\udcff", "B"])
_CONTENTS = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 5).map(lambda seed: hashlib.sha256(bytes([seed])).digest() * (seed * 97)),
)
_TIMES = st.integers(-(10**18), 4 * 10**18)
_MODES = st.integers(0, 0o7777)
#: Few files have extended attributes.
_ATTRIBUTES = st.one_of(
    st.just({}),
    st.just({}),
    st.dictionaries(
        st.text("abcé\udcff.", max_size=5).map("user.x".__add__), st.binary(max_size=9), max_size=3
    ),
).map(lambda found: tuple(sorted(found.items())))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    tree = Tree(dirs={"": (draw(_MODES), draw(_TIMES))})
    for _ in range(draw(st.integers(0, 14))):
        parent = draw(st.sampled_from(sorted(tree.dirs)))
        _put(draw, tree, f"{parent}/{draw(_NAMES)}" if parent else draw(_NAMES))
    return tree


def _put(draw: st.DrawFn, tree: Tree, path: str) -> None:
    if path in tree.dirs or path in tree.files or path in tree.symlinks:
        return
    kind = draw(st.sampled_from("dfffflh"))
    if kind == "d":
        tree.dirs[path] = (draw(_MODES), draw(_TIMES))
    elif kind == "l":
        tree.symlinks[path] = (draw(st.sampled_from(["a", "../..", "/etc"])), draw(_TIMES))
    elif kind == "h" and tree.files:
        tree.files[path] = tree.files[draw(st.sampled_from(sorted(tree.files)))]
    else:
        tree.files[path] = Inode(draw(_CONTENTS), draw(_MODES), draw(_TIMES), draw(_ATTRIBUTES))


@st.composite
def edits(draw: st.DrawFn, tree: Tree) -> Tree:
    """A tree some random edits away: writes, touches, moves, deletions, new names, new kinds."""
    copies = {id(i): replace(i) for i in tree.files.values()}
    new = Tree(dict(tree.dirs), dict(tree.symlinks), {})
    new.files = {path: copies[id(inode)] for path, inode in tree.files.items()}
    for _ in range(draw(st.integers(0, 8))):
        names = sorted({*new.files, *new.symlinks} | (set(new.dirs) - {""}))
        action = draw(st.sampled_from(["add", "write", "touch", "move", "drop", "unlink"]))
        if action == "add" or not names:
            parent = draw(st.sampled_from(sorted(new.dirs)))
            _put(draw, new, f"{parent}/{draw(_NAMES)}" if parent else draw(_NAMES))
            continue
        path = draw(st.sampled_from(names))
        if action == "drop":
            for kept in (new.dirs, new.files, new.symlinks):
                for name in [n for n in kept if n == path or n.startswith(path + "/")]:
                    del kept[name]
        elif path in new.files:
            inode = new.files[path]
            if action == "write":
                cut = draw(st.integers(0, len(inode.content)))
                inode.content = inode.content[:cut] + draw(_CONTENTS) + inode.content[cut + 3 :]
            elif action == "touch":
                inode.mode, inode.mtime_ns = draw(_MODES), draw(_TIMES)
                inode.attributes = draw(_ATTRIBUTES)
            elif action == "unlink":
                new.files[path] = replace(inode)
            elif action == "move" and path + "x" not in new.dirs:
                new.files[path + "x"] = new.files.pop(path)
    return new


def edited_pairs() -> st.SearchStrategy[tuple[Tree, Tree]]:
    return trees().flatmap(lambda tree: edits(tree).map(lambda new: (tree, new)))


def walk_entries(tree: Tree) -> Iterator[Entry]:
    yield from tree.entries()
