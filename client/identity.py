"""Who this user is to servers, and where that is kept.

Loaded before the first request goes out, so nothing is imported that takes long.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # known to type checkers by its name; importing `typing` takes too long
    from collections.abc import Mapping

USER_AGENT = "tidegate/0.1.0"
#: What every request says, in this order, unless the user says otherwise.
STANDARD_FIELDS = (("User-Agent", USER_AGENT), ("Accept", "*/*"), ("Accept-Encoding", "identity"))
CLIENT_FIELD = "Tidegate-Client"
WAIT_FIELD = ("Tidegate-Wait", "ticket")


def data_folder_name(environ: Mapping[str, str] | None = None) -> str:
    """`$TIDEGATE_DATA`, else `$XDG_DATA_HOME/tidegate`, else `~/.local/share/tidegate`."""
    env = os.environ if environ is None else environ
    if env.get("TIDEGATE_DATA"):
        return env["TIDEGATE_DATA"]
    base = env.get("XDG_DATA_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(env.get("HOME") or "/nonexistent", ".local", "share")
    return os.path.join(base, "tidegate")


def client_id(folder: str | os.PathLike[str]) -> str:
    """The random 128-bit name by which a server finds this user's place again; made once."""
    path = os.path.join(folder, "client-id")
    try:
        with open(path, encoding="ascii") as file:
            found = file.read(64).strip()
        if len(found) == 32 and int(found, 16) >= 0:
            return found
    except (OSError, ValueError):
        pass
    made = os.urandom(16).hex()
    fresh = f"{path}.{os.getpid()}"
    try:
        os.makedirs(folder, exist_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(made + "\n")
        os.replace(fresh, path)
    except OSError:
        pass
    return made
