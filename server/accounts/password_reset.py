"""Resets a forgotten password on the host, whether or not the server runs.

`tidegate admin reset-password` leaves the new password's hash in the state folder, where only the
server's own user may write. The server applies it at its start and at the next login. It removes
the file once its database has the password, so that a crash in between does not lose the reset.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from twisted.logger import Logger

from ...protocol.disk.durable import replacing
from .hashing import password_hasher

_NAME = "password-reset.json"
log = Logger()


@dataclass(frozen=True, slots=True)
class Reset:
    """The user's name and the hash of the new password."""

    name: str
    password_hash: str = field(repr=False)


def leave_reset(state: Path, name: str, password: str) -> None:
    """Write the new password's hash for the server that uses this state folder. Raises OSError."""
    owner = state.stat()
    reset = {"name": name, "password_hash": password_hasher().hash(password)}
    with replacing(state / _NAME, mode=0o600) as out:
        out.write(json.dumps(reset).encode("ascii"))
        # Root writes it, the server's own user reads it.
        if os.geteuid() == 0:
            os.fchown(out.fileno(), owner.st_uid, owner.st_gid)


def read_reset(state: Path) -> Reset | None:
    """The waiting reset, or None. A file that cannot be trusted is removed."""
    path = state / _NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as fault:
        log.error("{path} cannot be read: {fault}", path=str(path), fault=fault.strerror)
        return None
    with os.fdopen(descriptor, encoding="ascii") as stream:
        facts = os.fstat(stream.fileno())
        text = stream.read(10_000)
    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o077:
        log.error("{path} was not written by this server's user; it is ignored.", path=str(path))
    else:
        try:
            found = json.loads(text)
            return Reset(str(found["name"]), str(found["password_hash"]))
        except (ValueError, KeyError, TypeError):
            log.error("{path} is damaged; run tidegate admin reset-password again.", path=str(path))
    _remove(path)
    return None


def forget_reset(state: Path, reset: Reset) -> None:
    """Remove the file of a reset that is stored, unless it holds another one by now."""
    if read_reset(state) == reset:
        _remove(state / _NAME)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as fault:
        log.error("{path} cannot be removed: {fault}", path=str(path), fault=fault.strerror)
