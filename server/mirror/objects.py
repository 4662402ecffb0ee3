"""The origin's store of published contents, each under its own SHA-256.

Deltas are made from these contents, and a drifted mirror repairs single files from them. The store
is served; a content under its digest can be cached for ever. A publish reads contents from the
store, because the tree may change meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...protocol.disk.durable import WriteBehind
from ...protocol.disk.pieces import clone, found_name, found_root, read_piece, stamp_of, write_piece
from ...protocol.tree import Entry
from ...protocol.tree_scan import Found, Stamp

#: The unit in which larger ones are copied, hashed and searched for holes.
_CHUNK_BYTES = 1 << 20
_HOLE = bytes(_CHUNK_BYTES)


class ObjectError(Exception):
    """A content cannot be stored or was damaged; the message says what to do."""


class ObjectStore:
    """Contents under `root/ab/abcdef…`. Writers hold the publish lock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        #: Reused: fresh memory for each chunk costs as much as the copying.
        self._buffer = memoryview(bytearray(_CHUNK_BYTES))

    def path(self, sha256: str) -> str:
        return f"{self.root}/{sha256[:2]}/{sha256}"

    def put(self, source: str) -> tuple[Stamp, str]:
        """Store the content of a regular file. Returns its stamp and SHA-256.

        Raises ObjectError when the file keeps changing.
        """
        # Reads of a file that changes meanwhile, before the publish is refused.
        for _ in range(3):
            handle = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                before = os.fstat(handle)
                if not stat.S_ISREG(before.st_mode):
                    raise ObjectError(f"{source} is not a regular file any more; publish again.")
                # Contents up to this size are read whole, so that a known one is not written again.
                small = before.st_size <= 4 << 20
                digest = self._put_small(handle) if small else self._put_large(handle)
                if stamp_of(os.fstat(handle)) == stamp_of(before):
                    return stamp_of(before), digest
            finally:
                os.close(handle)
        raise ObjectError(f"{source} keeps changing while it is read; publish when it is still.")

    def _put_small(self, handle: int) -> str:
        content = b"".join(iter(lambda: os.read(handle, _CHUNK_BYTES), b""))
        digest = hashlib.sha256(content).hexdigest()
        if not self.holds(digest, len(content)):
            out, name = self._temporary()
            with os.fdopen(out, "wb") as file:
                file.write(content)
            self._keep(name, digest)
        return digest

    def _put_large(self, handle: int) -> str:
        out, name = self._temporary()
        hasher = hashlib.sha256()
        try:
            with os.fdopen(out, "r+b") as file:
                cloned = clone(handle, file.fileno())
                source = file.fileno() if cloned else handle
                behind = WriteBehind(file.fileno())
                at = 0
                with ThreadPoolExecutor(1, "publish-digest") as helper:
                    while count := os.preadv(source, [self._buffer], at):
                        chunk = self._buffer[:count]
                        # Hashing and writing release the interpreter's lock and take equally long.
                        digested = helper.submit(hasher.update, chunk)
                        # Holes stay holes: a disk image takes no more here than at its source.
                        if not cloned and not _HOLE.startswith(chunk):
                            write_piece(file.fileno(), at, chunk)
                        at += count
                        behind.wrote(at)
                        digested.result()
                if not cloned:
                    file.truncate(at)
        except BaseException:
            os.unlink(name)
            raise
        self._keep(name, hasher.hexdigest())
        return hasher.hexdigest()

    def _temporary(self) -> tuple[int, str]:
        return tempfile.mkstemp(dir=self.root, prefix=".new-")

    def _keep(self, name: str, digest: str) -> None:
        os.chmod(name, 0o644)
        target = self.path(digest)
        try:
            os.replace(name, target)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.replace(name, target)

    def holds(self, sha256: str, size_bytes: int) -> bool:
        try:
            return os.stat(self.path(sha256)).st_size == size_bytes
        except FileNotFoundError:
            return False

    def read(self, entry: Entry, offset: int, into: memoryview) -> None:
        """Fill `into` from a stored content. A whole content is checked against its digest.

        Raises ObjectError, and removes the content, when it is lost or damaged.
        """
        path = self.path(entry.sha256)
        try:
            with open(path, "rb", buffering=0) as file:
                there = read_piece(file.fileno(), offset, into)
        except FileNotFoundError:
            there = False
        whole = len(into) == entry.size_bytes
        if not there or (whole and hashlib.sha256(into).hexdigest() != entry.sha256):
            Path(path).unlink(missing_ok=True)
            raise ObjectError(
                f"The stored content of {entry.path!r} is lost or damaged; publish with --paranoid."
            )

    def drop(self, gone: Iterable[Entry], keep: Iterable[Entry]) -> None:
        """Remove the contents of `gone` that no entry in `keep` has."""
        dropped = {entry.sha256 for entry in gone if entry.kind == "f"}
        dropped.difference_update(entry.sha256 for entry in keep if entry.kind == "f")
        for sha256 in dropped:
            Path(self.path(sha256)).unlink(missing_ok=True)

    def sweep(self, keep: Iterable[Entry]) -> None:
        """Remove all files that no entry in `keep` needs, temporary ones of dead runs included."""
        wanted = {bytes.fromhex(entry.sha256) for entry in keep if entry.kind == "f"}
        for path in self._all():
            try:
                needed = bytes.fromhex(path.name) in wanted
            except ValueError:
                needed = False
            if not needed:
                path.unlink(missing_ok=True)

    def _all(self) -> Iterator[Path]:
        for folder in self.root.iterdir():
            if folder.is_dir():
                yield from folder.iterdir()
            else:
                yield folder


class PublishedDisk:
    """A `tree_scan.FileSystem` on the tree to publish: `digest` stores the file's content."""

    def __init__(self, root: Path, store: ObjectStore) -> None:
        self._root = root
        self._store = store

    def root(self) -> Found:
        return found_root(self._root)

    def list(self, path: str) -> Iterator[Found]:
        with os.scandir(f"{self._root}/{path}") as names:
            yield from map(found_name, names)

    def digest(self, path: str, found: Found) -> tuple[Stamp, str]:
        return self._store.put(f"{self._root}/{path}")
