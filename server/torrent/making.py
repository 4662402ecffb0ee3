"""Hashes one file for its torrent in a separate process: libtorrent holds the interpreter's lock.

usage: python -m tidegate.server.torrent.making FD NAME SIZE

Reads the open file FD. Prints, bencoded, the info dictionary and the piece layers of a hybrid
torrent of versions 1 and 2 (BEP 3, BEP 52).
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any


def make(fd: int, name: str, size_bytes: int) -> bytes:
    """The bencoded `info` and `layers` of the open file. Raises RuntimeError when it changed."""
    import libtorrent

    # The library opens by name. /proc/self/fd/FD is the open file even after it was replaced.
    called = str(fd)
    torrent = libtorrent.create_torrent([libtorrent.create_file_entry(called, size_bytes)], 0)
    libtorrent.set_piece_hashes(torrent, "/proc/self/fd")
    made: dict[bytes, Any] = dict(torrent.generate())
    info = made[b"info"]
    info[b"name"] = name.encode("utf-8")
    info[b"file tree"] = {info[b"name"]: info[b"file tree"][called.encode("ascii")]}
    found: bytes = libtorrent.bencode({b"info": info, b"layers": made.get(b"piece layers", {})})
    return found


def main() -> None:
    """Print the parts of the torrent; exits with a message when the file cannot be hashed."""
    fd, name, size = sys.argv[1:]
    with contextlib.suppress(OSError):
        # On a shared core this process gets a tenth of what the server gets.
        os.nice(10)
    try:
        made = make(int(fd), name, int(size))
    except (RuntimeError, OSError) as error:
        sys.exit(f"{name} cannot be hashed: {error}")
    sys.stdout.buffer.write(made)


if __name__ == "__main__":
    main()
