"""A PostgreSQL of the tests' own, in a folder of its own."""

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

import pytest

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


class Postgres:
    """One in a folder of its own that is made now; it refuses to run as root.

    `address`: it is reached there, too.
    """

    def __init__(self, *, address: str = "") -> None:
        initdb = tool("initdb")
        self._address = address
        self._folder = folder = Path(tempfile.mkdtemp(prefix="tg-pg-"))
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
        if address:
            with (data / "pg_hba.conf").open("a", encoding="ascii") as rules:
                rules.write("host all all all trust\n")
        self._command = [*prefix, tool("postgres"), "-D", str(data), "-k", str(folder)]
        self._command += ["-c", f"listen_addresses={address}", "-F"]
        self._server: subprocess.Popen[bytes] | None = None

    def use_certificate(self, pem: Path) -> None:
        """Speak TLS with the certificate and key in this file, from the next start on."""
        own = self._folder / "data" / "server.pem"
        shutil.copyfile(pem, own)
        own.chmod(0o600)
        if os.geteuid() == 0:
            shutil.chown(own, "postgres", "postgres")
        self._command += ["-c", "ssl=on"]
        self._command += ["-c", f"ssl_cert_file={own}", "-c", f"ssl_key_file={own}"]

    @property
    def url(self) -> str:
        """Where it is reached: at its address, if it has one."""
        return f"postgresql://tide@{self._address}/postgres?{self._rest}"

    @property
    def _rest(self) -> str:
        return "port=5432" if self._address else f"host={self._folder}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        ready = [tool("pg_isready"), "-q", "-h", str(self._folder)]
        end_s = time.monotonic() + _START_S
        while time.monotonic() < end_s:
            # After a kill the last of its children may hold what it needs for a moment.
            if self._server is None or self._server.poll() is not None:
                self._server = subprocess.Popen(
                    self._command,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd=self._folder,
                )
            if not subprocess.run(ready, check=False).returncode:
                return
            time.sleep(0.05)

    def processes(self) -> list[int]:
        """The server and its children."""
        if self._server is None:
            return []
        pid = self._server.pid
        try:
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
        except OSError:
            text = ""
        return [pid, *map(int, text.split())]

    def kill(self) -> None:
        """Kill all of it (SIGKILL)."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._server is not None:
            self._server.wait()
            self._server = None

    def remove(self) -> None:
        """Stop it (its fast shutdown: the other one waits for every session), with its folder."""
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)
            self._server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def postgres_running() -> Iterator[str]:
    """Its URL; the test is skipped where PostgreSQL is not installed."""
    pytest.importorskip("psycopg")
    try:
        server = Postgres()
    except NoPostgres as fault:
        pytest.skip(str(fault))
    try:
        server.start()
        yield server.url
    finally:
        server.remove()
