"""`user`: root opens the ports, and a user without rights serves."""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
import sysconfig
from pathlib import Path

from .config import CannotStart

ROOT = "root"
"""What `user` says where the server is to stay root."""


def user_to_become(name: str | None) -> str | None:
    """The user that serves, by the setting `user`; None: the one that started the server.

    Raises `CannotStart` for root that serves without having been named.
    """
    if os.geteuid() != 0:
        return name
    if name is None:
        raise CannotStart(
            "This is root, and a bug in the server would have root's rights: give --user NAME with "
            "the user that serves (useradd --system NAME makes one), or --user root to stay root."
        )
    return None if name == ROOT else name


def become(name: str, state: Path) -> None:
    """Be this user from now on, for good; a state folder that is not there yet is made theirs.

    Call it before any other thread runs. Raises `CannotStart`.
    """
    try:
        entry = pwd.getpwnam(name)
    except KeyError as fault:
        raise CannotStart(
            f"There is no user {name}: create one (useradd --system {name}), or name another in "
            "`user`."
        ) from fault
    if os.geteuid() == entry.pw_uid:
        return
    if os.geteuid() != 0:
        raise CannotStart(
            f"Only root can become {name}: leave `user` out, or start the server as root."
        )
    # Where it cannot be made, or is somebody else's, who uses it tells so.
    with contextlib.suppress(OSError):
        state.mkdir(mode=0o700, parents=True)
        os.chown(state, entry.pw_uid, entry.pw_gid)
    os.initgroups(name, entry.pw_gid)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    # Modules that are imported from here on would be missing, with words about something else.
    for path in _program_paths():
        if not os.access(path, os.R_OK | os.X_OK):
            raise CannotStart(
                f"The user {name} cannot read the program at {path}: install Python and Tidegate "
                "where every user can read them, such as /opt or /usr/local and not below /root."
            )


def _program_paths() -> list[str]:
    """What the process reads and runs while it serves: Python, its library and Tidegate."""
    library = sysconfig.get_paths()
    package = Path(__file__).resolve().parents[2]
    return [sys.executable, library["stdlib"], library["platlib"], str(package)]
