"""A PostgreSQL of the tests' own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import wait_for


def tool(name: str) -> str:
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / name).exists():
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        pytest.skip("PostgreSQL is not installed")
    return found


@contextlib.contextmanager
def postgres_running() -> Iterator[str]:
    """The URL of a PostgreSQL of one's own, reached by a unix socket; it refuses to run as root."""
    pytest.importorskip("psycopg")
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
    server = subprocess.Popen(
        [*prefix, postgres, "-D", str(data), "-k", str(folder), "-c", "listen_addresses=", "-F"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )
    try:
        ready = [tool("pg_isready"), "-q", "-h", str(folder)]
        wait_for(lambda: subprocess.run(ready, check=False).returncode == 0)
        yield f"postgresql://tide@/postgres?host={folder}"
    finally:
        # PostgreSQL's fast shutdown: the other one waits for every session.
        server.send_signal(signal.SIGINT)
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)
