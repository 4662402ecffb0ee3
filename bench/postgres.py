"""A PostgreSQL of one's own, in a folder of its own, reached by a unix socket only."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_START_S = 60.0


class NoPostgres(Exception):
    """PostgreSQL is not installed."""


def tool(name: str) -> str:
    """One of its programs. Raises NoPostgres."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / name).exists():
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        raise NoPostgres("PostgreSQL is not installed (Debian: postgresql)")
    return found


@contextlib.contextmanager
def postgres_running(*, durable: bool = False) -> Iterator[str]:
    """Its URL; it refuses to run as root. `durable`: commits wait for the disk."""
    initdb, postgres = tool("initdb"), tool("postgres")
    folder = Path(tempfile.mkdtemp(prefix="tg-pg-"))
    user = getpass.getuser()
    prefix: list[str] = []
    if os.geteuid() == 0:
        user = "postgres"
        prefix = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        shutil.chown(folder, user, user)
    data = folder / "data"
    subprocess.run(
        [*prefix, initdb, "-A", "trust", "-U", "tide", "-N", "-D", str(data)],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    quick = [] if durable else ["-F"]
    server = subprocess.Popen(
        [*prefix, postgres, "-D", str(data), "-k", str(folder), "-c", "listen_addresses=", *quick],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )
    try:
        ready = [tool("pg_isready"), "-q", "-h", str(folder)]
        end_s = time.monotonic() + _START_S
        while subprocess.run(ready, check=False).returncode and time.monotonic() < end_s:
            time.sleep(0.05)
        yield f"postgresql://tide@/postgres?host={folder}"
    finally:
        # PostgreSQL's fast shutdown: the other one waits for every session.
        server.send_signal(signal.SIGINT)
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)
