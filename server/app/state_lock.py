"""One server for one state folder: two would give out the same numbers."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from twisted.logger import Logger

from ..http.clock import Clock, Repeat
from .config import CannotStart
from .settings import ServerConfig

_NAME = "lock"


class StateInUse(CannotStart):
    """Another server has the folder."""


def lock_state(folder: Path) -> int:
    """Make the folder if need be and take it for this process; a descriptor to keep open.

    The kernel lets go of it when the process ends, however it ends. Raises `CannotStart`,
    `StateInUse` where another server has it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _close_to_others(folder)
        descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as fault:
        raise _unusable(folder, fault) from fault
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as fault:
        owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise StateInUse(
            f"The state folder {folder} is in use by process {owner or 'unknown'}; stop that "
            "server, or give another --state."
        ) from fault
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
    return descriptor


def look_at_state(config: ServerConfig) -> None:
    """Whether this user may write to the folder, or make it. Raises CannotStart."""
    there = next(one for one in (config.state, *config.state.parents) if os.path.lexists(one))
    if not there.is_dir():
        raise _unusable(config.state, FileExistsError())
    if not os.access(there, os.W_OK | os.X_OK):
        raise _unusable(config.state, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _unusable(folder: Path, fault: OSError) -> CannotStart:
    told = "it is no folder" if isinstance(fault, FileExistsError) else fault.strerror
    given = f"chown -R {os.geteuid()} {folder}, or " * isinstance(fault, PermissionError)
    return CannotStart(
        f"The state folder {folder} cannot be used: {told}; {given}give another --state."
    )


class LockKeeper:
    """Keeps a running server's lock, though its folder be removed and made anew.

    `lost` hears, once, when another server took the new folder first.
    """

    log = Logger()

    def __init__(
        self, reactor: Clock, folder: Path, descriptor: int, lost: Callable[[], object]
    ) -> None:
        self._folder = folder
        self._descriptor = descriptor
        self._lost = lost
        self._reported = False
        self.timer = Repeat(reactor, 2.0, self.look)

    def close(self) -> None:
        self.timer.stop()
        os.close(self._descriptor)

    def look(self) -> None:
        """Look now; what goes wrong is logged."""
        try:
            there = os.stat(self._folder / _NAME)
        except OSError:
            there = None
        if there is not None and os.path.samestat(there, os.fstat(self._descriptor)):
            return
        try:
            descriptor = lock_state(self._folder)
        except StateInUse as fault:
            self.timer.stop()
            self.log.error(
                "{fault} This server ends: two would give out the same numbers.", fault=fault
            )
            self._lost()
        except CannotStart:
            # A confined process may neither make the folder anew nor look who has it.
            if there is not None and not self._reported:
                self._reported = True
                self.log.error(
                    "The state folder {folder} is another one now, and this server may not use "
                    "it. If another server was started in it, stop one of the two.",
                    folder=str(self._folder),
                )
        else:
            os.close(self._descriptor)
            self._descriptor = descriptor
            self.log.error(
                "The lock of the state folder {folder} was removed; it is taken again.",
                folder=str(self._folder),
            )


def _close_to_others(folder: Path) -> None:
    """Whatever made the folder: only this user may enter it, and read the files in it.

    What the server makes later is private by the umask that `run` sets.
    """
    entries = list(os.scandir(folder))
    # A folder of others is never closed to them.
    ours = {_NAME, "keys.json", "tidegate.db", "admin.key"}
    if entries and not any(entry.name in ours for entry in entries):
        return
    status = folder.stat()
    if status.st_uid != os.geteuid():
        return
    if status.st_mode & 0o077:
        os.chmod(folder, 0o700)
    for entry in entries:
        if entry.is_file(follow_symlinks=False) and entry.stat().st_mode & 0o077:
            os.chmod(entry.path, 0o600)
