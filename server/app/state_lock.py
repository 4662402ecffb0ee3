"""One server for one state folder: two would give out the same numbers."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from server.app.config import CannotStart

_NAME = "lock"
#: What a state folder of ours holds; a folder of others is never closed to them.
_OURS = frozenset({_NAME, "keys.json", "tidegate.db", "admin.key"})


def lock_state(folder: Path) -> int:
    """Make the folder if need be and take it for this process; a descriptor to keep open.

    The kernel lets go of it when the process ends, however it ends. Raises `CannotStart`.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _close_to_others(folder)
        descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as fault:
        raise CannotStart(
            f"The state folder {folder} cannot be used: {fault.strerror}; give another --state."
        ) from fault
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as fault:
        owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise CannotStart(
            f"The state folder {folder} is in use by process {owner or 'unknown'}; stop that "
            "server, or give another --state."
        ) from fault
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
    return descriptor


def _close_to_others(folder: Path) -> None:
    """Whatever made the folder: only this user may enter it, and read the files in it.

    What the server makes later is private by the umask that `run` sets.
    """
    entries = list(os.scandir(folder))
    if entries and not any(entry.name in _OURS for entry in entries):
        return
    if folder.stat().st_uid != os.geteuid():
        return
    os.chmod(folder, 0o700)
    for entry in entries:
        if entry.is_file(follow_symlinks=False) and entry.stat().st_mode & 0o077:
            os.chmod(entry.path, 0o600)
