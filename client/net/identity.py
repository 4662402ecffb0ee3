"""Who this user is to servers, and where that is kept.

One random secret a user; a server hears a name that is made from it for that origin alone, so no
two servers can tell that they serve the same person, and each finds its client again.
"""

from __future__ import annotations

import contextlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path

from ...protocol.version import __version__
from .urls import Url

#: What every request says, in this order, unless the user says otherwise.
STANDARD_FIELDS = (
    ("User-Agent", f"tidegate/{__version__}"),
    ("Accept", "*/*"),
    ("Accept-Encoding", "identity"),
)
CLIENT_FIELD = "Tidegate-Client"
_SECRET = "client-id"


def data_folder(environ: Mapping[str, str] | None = None) -> Path:
    """`$TIDEGATE_DATA`, else `$XDG_DATA_HOME/tidegate`, else `~/.local/share/tidegate`."""
    env = os.environ if environ is None else environ
    if env.get("TIDEGATE_DATA"):
        return Path(env["TIDEGATE_DATA"])
    base = env.get("XDG_DATA_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(env.get("HOME") or "/nonexistent", ".local", "share")
    return Path(base, "tidegate")


def client_name(secret: str, url: Url) -> str:
    """The 128-bit name that the origin of `url` hears: an HMAC (RFC 2104) of that origin."""
    origin = f"{url.scheme}://{url.host}:{url.port}"
    return hmac.digest(secret.encode(), origin.encode(), "sha256")[:16].hex()


def client_secret(folder: Path) -> str:
    """The user's 128 random bits in hexadecimal digits; made once, readable by the user alone."""
    path = folder / _SECRET
    try:
        found = path.read_text("ascii")[:64].strip()
        if len(found) == 32 and int(found, 16) >= 0:
            return found
    except (OSError, ValueError):
        pass
    made = os.urandom(16).hex()
    # Without a folder to keep it in, each download is a stranger's.
    with contextlib.suppress(OSError):
        # Needed once in a user's life.
        from ...protocol.disk.durable import write_whole

        write_whole(path, f"{made}\n".encode("ascii"), mode=0o600)
    return made


def forget(folder: Path) -> list[Path]:
    """Remove the secret and what was remembered of servers; returns what was there.

    Raises OSError where it cannot be removed.
    """
    gone = []
    # What a user leaves behind between downloads, beside part files: see `forget`.
    for name in (_SECRET, "rates.json"):
        with contextlib.suppress(FileNotFoundError):
            (folder / name).unlink()
            gone.append(folder / name)
    return gone
