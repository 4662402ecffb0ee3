"""The new tree on disk, built beside the live one, sharing what has not changed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...protocol.batch_group import FilePart
from ...protocol.disk.durable import WriteBehind
from ...protocol.disk.pieces import clone, found_name, found_root, read_piece, stamp_of
from ...protocol.errors import BadManifest
from ...protocol.tree import ATTRIBUTE_PREFIX, KEPT_MODE, Attributes, Entry, leads_out
from ...protocol.tree_scan import Found, Stamp
from .problem import MirrorProblem

#: Zeros of this length become holes.
_HOLE = bytes(1 << 16)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class DiskStage:
    """`protocol.batch_apply.Stage` on a directory.

    `lost`: paths of the old tree whose content is wrong or gone. `touched`: those whose content
    is right but not their attributes, so that they may be copied but not shared. No path an update
    names is followed through a symbolic link, in either tree.
    """

    def __init__(self, new: Path, old: Path | None, lost: set[str], touched: set[str]) -> None:
        self._new = str(new)
        self._old = str(old) if old is not None else None
        self._lost = lost
        self._touched = touched
        self._straight: dict[str, bool] = {}
        #: Symbolic links of the new tree that lead out of it, so that it must not go live.
        self.leading_out: list[str] = []
        #: One place for all that is copied: fresh memory costs as much as the copying.
        self._room = memoryview(bytearray(1 << 20))
        self._helper = ThreadPoolExecutor(1, "mirror-digest")

    def close(self) -> None:
        """Nothing is built any more."""
        self._helper.shutdown()

    def _at(self, path: str) -> str:
        return f"{self._new}/{path}" if path else self._new

    def _before(self, path: str) -> str | None:
        """The old tree's file, if it can be trusted to be what its manifest says."""
        if self._old is None or path in self._lost or not self._leads_inside(self._old, path):
            return None
        return f"{self._old}/{path}"

    def _leads_inside(self, root: str, path: str) -> bool:
        """Whether no folder on the way to `path` is a symbolic link."""
        folder = f"{root}/{path}".rpartition("/")[0]
        known = self._straight.get(folder)
        if known is None:
            if len(self._straight) >= 10_000:
                self._straight.clear()
            known = os.path.realpath(folder) == os.path.realpath(root) + folder[len(root) :]
            self._straight[folder] = known
        return known

    def make_dir(self, path: str) -> None:
        os.mkdir(self._at(path), 0o700)

    def make_symlink(self, path: str, target: str) -> None:
        if leads_out(path, target):
            self.leading_out.append(path)
        os.symlink(target, self._at(path))

    def share_old(self, entry: Entry) -> bool:
        before = self._before(entry.path)
        if before is None:
            return False
        if entry.path not in self._touched:
            try:
                os.link(before, self._at(entry.path), follow_symlinks=False)
            except FileNotFoundError:
                return False
            except OSError:
                # Too many links, or a file system without them.
                pass
            else:
                return True
        if not self.copy_old(entry.path, entry.path, entry.sha256):
            return False
        self.set_attributes(entry)
        return True

    @contextlib.contextmanager
    def _old_file(self, path: str) -> Iterator[int | None]:
        """The old tree's file, open to read; None where it is of no use."""
        before = self._before(path)
        with contextlib.ExitStack() as stack:
            handle = None
            with contextlib.suppress(OSError):
                if before is not None:
                    handle = stack.enter_context(_closing(_open_file(before)))
            yield handle

    def copy_old(self, path: str, old: str, sha256: str) -> bool:
        target = self._at(path)
        with self._old_file(old) as source:
            if source is None:
                return False
            # Its stamp was compared with the one it had when it was verified, as for sharing.
            _copy(source, target)
        if old != path and self.digest_new(path) != sha256:
            os.unlink(target)
            return False
        return True

    def copy_new(self, path: str, source: str) -> None:
        if not self._leads_inside(self._new, source):
            raise BadManifest(f"The update takes {source!r} through a symbolic link.")
        with _closing(_open_file(self._at(source))) as handle:
            os.unlink(self._at(path))
            _copy(handle, self._at(path))

    def link_new(self, path: str, target: str) -> None:
        if not self._leads_inside(self._new, target):
            raise BadManifest(f"The hard link {path!r} points through a symbolic link.")
        os.link(self._at(target), self._at(path), follow_symlinks=False)

    def create(self, path: str, size_bytes: int) -> None:
        os.close(os.open(self._at(path), _CREATE, 0o600))

    def write(self, path: str, offset: int, data: bytes | memoryview) -> None:
        with _closing(os.open(self._at(path), _WRITE)) as handle:
            _write(handle, offset, memoryview(data))

    def read_old(self, part: FilePart, into: memoryview) -> bool:
        with self._old_file(part.path) as handle:
            return handle is not None and read_piece(handle, part.offset, into)

    def copy_part(
        self, part: FilePart, old: FilePart, digest: Callable[[memoryview], object]
    ) -> bool:
        with self._old_file(old.path) as source:
            if source is None:
                return False
            with _closing(os.open(self._at(part.path), _WRITE)) as target:
                behind = WriteBehind(target, part.offset)
                for at in range(0, part.length, len(self._room)):
                    piece = self._room[: part.length - at]
                    if not read_piece(source, old.offset + at, piece):
                        return False
                    # Both let go of the interpreter, and take about as long as each other.
                    digested = self._helper.submit(digest, piece)
                    _write(target, part.offset + at, piece)
                    behind.wrote(part.offset + at + len(piece))
                    digested.result()
            return True

    def digest_new(self, path: str) -> str:
        with open(os.open(self._at(path), _READ), "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()

    def set_attributes(self, entry: Entry) -> None:
        path = self._at(entry.path)
        # First: a mode may forbid it.
        for name, value in entry.attributes:
            try:
                os.setxattr(path, name, value, follow_symlinks=False)
            except OSError as fault:
                raise MirrorProblem(
                    "no-attributes",
                    f"The channel has extended attributes ({name!r} of {entry.path!r}), and the "
                    f"file system of the mirror does not take them: {fault.strerror}.",
                ) from fault
        if entry.kind != "l":
            os.chmod(path, entry.mode & KEPT_MODE)
        os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)


@contextlib.contextmanager
def _closing(handle: int) -> Iterator[int]:
    """An open file, closed at the end of the block."""
    try:
        yield handle
    finally:
        os.close(handle)


def _open_file(path: str) -> int:
    """Open a regular file to read; whatever else stands there is as good as nothing."""
    handle = os.open(path, _READ)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return handle


def _write(handle: int, offset: int, view: memoryview) -> None:
    # Beyond its end a file is a hole already, so zeros need no room there.
    fresh = offset >= os.fstat(handle).st_size
    end = offset + len(view)
    while view:
        if fresh and not view[0] and bytes(view[: len(_HOLE)]) == _HOLE[: len(view)]:
            done = min(len(_HOLE), len(view))
        else:
            done = os.pwrite(handle, view[: len(_HOLE)] if fresh else view, offset)
        view, offset = view[done:], offset + done
    if fresh:
        os.ftruncate(handle, end)


def _copy(source: int, target: str) -> None:
    """Copy an open file to a new one, sharing extents where possible."""
    with _closing(os.open(target, _CREATE, 0o600)) as handle:
        if clone(source, handle):
            return
        size_bytes = os.fstat(source).st_size
        os.ftruncate(handle, size_bytes)
        for start, end in _data_of(source, size_bytes):
            _copy_part(source, handle, start, end)


def _data_of(source: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that are no holes, as half-open ranges."""
    end = 0
    while end < size_bytes:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
            end = os.lseek(source, start, os.SEEK_HOLE)
        except OSError as fault:
            if fault.errno == errno.ENXIO:
                return
            start, end = end, size_bytes
        yield start, end


def _copy_part(source: int, handle: int, offset: int, end: int) -> None:
    try:
        while offset < end:
            # In parts, so that a stop is noticed.
            count = os.copy_file_range(source, handle, min(1 << 30, end - offset), offset, offset)
            if not count:
                return
            offset += count
    except OSError as fault:
        if fault.errno == errno.ENOSPC:
            raise
    while offset < end and (chunk := os.pread(source, min(1 << 20, end - offset), offset)):
        offset += os.pwrite(handle, chunk, offset)


def attributes_of(path: str) -> Attributes:
    """The extended attributes of a live file that could have been published."""
    try:
        names = os.listxattr(path, follow_symlinks=False)
        mine = sorted(name for name in names if name.startswith(ATTRIBUTE_PREFIX))
        return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in mine)
    except OSError:
        return ()


class LiveDisk:
    """`protocol.tree_scan.FileSystem` on a tree that is served: looks, and reads what it must."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)

    def root(self) -> Found:
        return found_root(self._root)

    def list(self, path: str) -> Iterator[Found]:
        try:
            names = os.scandir(f"{self._root}/{path}")
        except OSError:
            return
        with names:
            for name in names:
                try:
                    found = found_name(name)
                except FileNotFoundError:
                    # Removed under our eyes.
                    continue
                yield found

    def digest(self, path: str, found: Found) -> tuple[Stamp, str]:
        try:
            with open(os.open(f"{self._root}/{path}", _READ), "rb") as content:
                before = os.fstat(content.fileno())
                return stamp_of(before), hashlib.file_digest(content, "sha256").hexdigest()
        except OSError:
            # Unreadable or gone this very moment: no content has this digest.
            return found.stamp, "0" * 64


def remove_tree(root: Path) -> None:
    """Remove a whole tree, read-only directories included."""
    if root.is_symlink() or not root.is_dir():
        root.unlink(missing_ok=True)
        return
    stack = [str(root)]
    emptied: list[str] = []
    while stack:
        folder = stack.pop()
        emptied.append(folder)
        os.chmod(folder, 0o700)
        with os.scandir(folder) as names:
            for name in names:
                if name.is_dir(follow_symlinks=False):
                    stack.append(name.path)
                else:
                    os.unlink(name.path)
    for folder in reversed(emptied):
        os.rmdir(folder)


def ignores_case(folder: Path) -> bool:
    """Whether the file system takes two spellings of a name for one."""
    probe = folder / ".tidegate-CASE"
    probe.touch()
    try:
        return (folder / ".tidegate-case").exists()
    finally:
        probe.unlink()
