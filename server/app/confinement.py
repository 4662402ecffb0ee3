"""What this process may write, whatever a bug in it is made to do: its state, and nothing else.

Landlock (Linux 5.13, landlock(7)) takes the right to write anywhere else from the process and all
it starts, for good; above all the served tree, which a parser's bug could otherwise change. Reading
stays as it was. Where the kernel has no Landlock nothing happens, and that is said.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..http.log_outlets import log_file
from .settings import ServerConfig

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_SET_NO_NEW_PRIVILEGES = 38

_WRITE_FILE = 1 << 1
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_DIR, _MAKE_REGULAR, _MAKE_SOCKET = 1 << 7, 1 << 8, 1 << 9
_MAKE_OTHERS = 1 << 6 | 1 << 10 | 1 << 11 | 1 << 12
_REFER, _TRUNCATE = 1 << 13, 1 << 14

#: Everything that changes a file system, in the oldest version; later ones know more.
_FIRST = (
    _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REGULAR | _MAKE_SOCKET
) | _MAKE_OTHERS
_IN_FOLDER = (
    _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REGULAR | _REFER
)


@dataclass(frozen=True, slots=True)
class Writable:
    """A path below which (or a file to which) something may be written."""

    path: Path
    rights: int


def writable(config: ServerConfig) -> list[Writable]:
    """What a server of this configuration writes."""
    # Where several processes serve, they meet at a socket there.
    meeting = _MAKE_SOCKET if config.worker_count() > 1 or config.cluster is not None else 0
    found = [Writable(config.state, _IN_FOLDER | meeting)]
    if config.database is not None and config.database.startswith("sqlite:///"):
        found.append(Writable(Path(config.database.removeprefix("sqlite:///")).parent, _IN_FOLDER))
    log = log_file(config.access_log)
    if log is not None:
        found.append(Writable(log, _WRITE_FILE))
        folder = log.absolute().parent.resolve()
        if not config.directory.resolve().is_relative_to(folder):
            # A file that was renamed is made anew.
            found.append(Writable(folder, _WRITE_FILE | _MAKE_REGULAR))
    found += [
        Writable(Path(place.removeprefix("unix:")).parent, _MAKE_SOCKET | _REMOVE_FILE)
        for place in config.listen
        if place.startswith("unix:")
    ]
    # Parity is computed by a process of its own, over a file in memory.
    found.append(Writable(Path("/dev/shm"), _WRITE_FILE | _MAKE_REGULAR | _REMOVE_FILE | _TRUNCATE))
    found.append(Writable(Path("/dev/null"), _WRITE_FILE))
    return found


def confine(places: Iterable[Writable]) -> bool:
    """Give up the right to write anywhere else, for this thread and all it starts.

    Call it before any other thread runs. False where the kernel cannot do it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)
    if version < 1:
        return False
    handled = _FIRST | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    rules = libc.syscall(_CREATE_RULESET, struct.pack("=Q", handled), ctypes.c_size_t(8), 0)
    if rules < 0:
        return False
    try:
        for place in places:
            with contextlib.suppress(OSError):
                _allow(libc, rules, place, handled)
        if libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            return False
        return bool(libc.syscall(_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, place: Writable, handled: int) -> None:
    handle = os.open(place.path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", place.rights & handled, handle)
        if libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0) != 0:
            raise OSError(ctypes.get_errno(), f"no Landlock rule for {place.path}")
    finally:
        os.close(handle)


def prepare(config: ServerConfig) -> None:
    """Make what must be there before a right can be given on it; faults are told by who uses it."""
    with contextlib.suppress(OSError):
        config.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = log_file(config.access_log)
    if log is not None:
        with contextlib.suppress(OSError):
            # A named pipe is not waited for, see `log_outlets`.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
            os.close(os.open(log, flags, 0o640))
