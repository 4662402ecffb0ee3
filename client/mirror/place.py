"""Where a mirror lives on disk, and the one step in which a new version becomes the live one.

Beside the live directory `NAME` stands `.NAME.tidegate`: the trees (one a version), the state, the
trusted metadata, the downloads. If `NAME` is free or a symbolic link, it is (made) a link into
the trees and switching replaces the link; if it is a real directory, switching exchanges it with
the new tree in one renameat2(2). Either way a reader sees the old tree or the new one.

Before a switch the state names the inode of the tree that is about to go live. Whatever moment
the process dies, the next run compares that inode with the live one and knows which it is.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...protocol.disk.durable import LIBC, write_whole
from .problem import MirrorProblem
from .stage import remove_tree


@dataclass(frozen=True, slots=True)
class MirrorRecord:
    """What this mirror is: `version` 0 means nothing yet. `tree` names the live tree's folder.

    `going` and `going_inode` name the tree of a switch that was begun. `previous` are the trees
    kept for readers and for rolling back, newest last. `shunned`: versions up to this one are not
    taken again after a rollback.
    """

    channel: str = ""
    url: str = ""
    version: int = 0
    manifest_sha256: str = ""
    tree: str = ""
    previous: tuple[tuple[int, str, str], ...] = ()
    going: int = 0
    going_tree: str = ""
    going_manifest: str = ""
    going_inode: int = 0
    shunned: int = 0


def exchange(one: Path, other: Path) -> None:
    """Swap two names in one step (renameat2, Linux)."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    done = LIBC.renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange)
    if done != 0:
        code = ctypes.get_errno()
        if code in (errno.EINVAL, errno.ENOSYS):
            raise MirrorProblem(
                "no-exchange",
                f"The file system of {other} cannot exchange directories: move {other} away, so "
                "that the mirror can put a symbolic link there.",
            )
        raise OSError(code, os.strerror(code), str(other))


class Place:
    """The directories of one mirror. Use it inside `locked`."""

    def __init__(self, live: Path, state: Path | None = None) -> None:
        self.live = Path(os.path.abspath(live))
        self.home = state or self.live.parent / f".{self.live.name}.tidegate"
        self.trees = self.home / "trees"
        self.trust = self.home / "tuf"
        self.downloads = self.home / "downloads"
        self.manifests = self.home / "manifests"
        self.state = MirrorRecord()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the mirror; load and, after a crash, put right its state."""
        for folder in (self.trees, self.trust, self.downloads, self.manifests):
            folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as fault:
                raise MirrorProblem(
                    "busy", f"Another `mirror follow` is at work on {self.live}.", passing=True
                ) from fault
            self.load()
            self._recover()
            yield
        finally:
            os.close(handle)

    def load(self) -> MirrorRecord:
        """Read the state without changing anything."""
        try:
            fields = json.loads((self.home / "state.json").read_bytes())
            fields["previous"] = tuple(tuple(row) for row in fields["previous"])
            self.state = MirrorRecord(**fields)
        except FileNotFoundError:
            self.state = MirrorRecord()
        except OSError as fault:
            text = f"{self.home / 'state.json'} cannot be read: {fault.strerror}."
            raise MirrorProblem("bad-state", text) from fault
        except (ValueError, TypeError, KeyError) as fault:
            raise MirrorProblem(
                "bad-state",
                f"{self.home / 'state.json'} cannot be read; remove {self.home} "
                "and follow again with --replace.",
            ) from fault
        return self.state

    def save(self, state: MirrorRecord) -> None:
        self.state = state
        write_whole(self.home / "state.json", json.dumps(asdict(state)).encode())

    @property
    def live_tree(self) -> Path | None:
        """The tree readers see, if this mirror has put one there."""
        return self.live if self.state.version and self.live.is_dir() else None

    @property
    def manifest(self) -> Path:
        return self.manifests / self.state.manifest_sha256

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    def check_free(self, replace_existing: bool) -> None:
        """Refuse to put a tree over a directory that holds other files."""
        if self.state.version or replace_existing or not self.live.exists():
            return
        if not self.live.is_dir() or any(self.live.iterdir()):
            raise MirrorProblem(
                "not-empty",
                f"{self.live} already holds something: give an empty or new directory, or "
                "--replace to put the mirror in its place (what is there is removed later).",
            )

    def fresh(self, version: int) -> Path:
        """An unused path for a tree to be built at."""
        number = 1
        while (self.trees / f"{version}.{number}").exists():
            number += 1
        return self.trees / f"{version}.{number}"

    def switch(self, tree: Path, version: int, manifest_sha256: str) -> None:
        """Make `tree` the live one; it must be complete and durable."""
        self.save(
            replace(
                self.state,
                going=version,
                going_tree=tree.name,
                going_manifest=manifest_sha256,
                going_inode=tree.stat().st_ino,
            )
        )
        if self.live.is_dir() and not self.live.is_symlink():
            exchange(tree, self.live)
        else:
            link = self.home / "next-link"
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(tree, self.live.parent))
            os.replace(link, self.live)
        self._settle()

    def _recover(self) -> None:
        if self.state.going:
            self._settle()
        for path in self.home.glob(".new-*"):
            path.unlink()
        kept = {self.state.tree, *(name for _, name, _ in self.state.previous)}
        for tree in self.trees.iterdir():
            if tree.name not in kept:
                remove_tree(tree)

    def _settle(self) -> None:
        """Find out whether the begun switch happened, and write that down."""
        state = self.state
        try:
            happened = self.live.stat().st_ino == state.going_inode
        except FileNotFoundError:
            happened = False
        idle = replace(state, going=0, going_tree="", going_manifest="", going_inode=0)
        if not happened:
            self.save(idle)
            return
        exchanged = not self.live.is_symlink()
        # After an exchange the old tree lies where the new one was built.
        old_name = state.going_tree if exchanged else state.tree
        previous = tuple(row for row in state.previous if row[1] != state.going_tree)
        if old_name and (self.trees / old_name).is_dir():
            previous = (*previous, (state.version, old_name, state.manifest_sha256))
        self.save(
            replace(
                idle,
                version=state.going,
                manifest_sha256=state.going_manifest,
                tree="" if exchanged else state.going_tree,
                previous=previous,
            )
        )

    def forget(self, keep_previous: int) -> None:
        """Remove older trees and manifests beyond the newest `keep_previous`."""
        previous = self.state.previous
        kept = previous[len(previous) - keep_previous :] if keep_previous else ()
        if kept != previous:
            self.save(replace(self.state, previous=kept))
        names = {self.state.tree, *(name for _, name, _ in kept)}
        for tree in self.trees.iterdir():
            if tree.name not in names:
                remove_tree(tree)
        for path in self.downloads.iterdir():
            remove_tree(path)
        digests = {self.state.manifest_sha256, *(digest for _, _, digest in kept)}
        for manifest in self.manifests.iterdir():
            if manifest.name not in digests:
                manifest.unlink()
