"""Starts the real server as a process of its own and talks to it like anybody else."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


class RunningServer:
    """One `tidegate serve` process; `url` is its first listener, `lines` what it printed.

    It is ready when this returns, unless nobody cares whether it will be.
    """

    def __init__(
        self, directory: Path, state: Path, *args: str, ready: bool = True, **environ: str
    ) -> None:
        command = [sys.executable, "-m", "tidegate", "serve", str(directory)]
        command += ["--listen", "127.0.0.1:0", "--admin", "off", "--state", str(state), *args]
        self.lines: list[str] = []
        self.errors: list[str] = []
        self.urls: list[str] = []
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=state.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        )
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in (
                (self.process.stdout, self.lines),
                (self.process.stderr, self.errors),
            )
        ]
        for reader in self._readers:
            reader.start()
        if not ready:
            return
        wait_for(lambda: self.urls or self.process.poll() is not None, 90)
        if not self.urls:
            self.stop()
            raise AssertionError("the server did not start: " + "".join(self.errors))

    @property
    def url(self) -> str:
        return self.urls[0]

    def _read(self, stream: Any, lines: list[str]) -> None:
        for line in stream:
            if line.startswith("ready "):
                self.urls.append(line.split()[1])
            # Said at every start, sooner or later: no trouble.
            if "#info] The walk over" not in line:
                lines.append(line)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self._ended()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._ended()
        return self.process.returncode

    def _ended(self) -> None:
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def serving(directory: Path, state: Path, *args: str, **environ: Any) -> Iterator[RunningServer]:
    """A server for the length of a `with`."""
    server = RunningServer(directory, state, *args, **environ)
    try:
        yield server
    finally:
        server.stop()


def wait_for(condition: Any, limit_s: float = 20.0) -> None:
    """Come back when the condition holds, or when the limit has passed."""
    end_s = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.02)


def make_release(directory: Path, **sizes: int) -> dict[str, str]:
    """Files of random bytes, `_` in a name standing for a dot; their SHA-256 by name."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    digests = {}
    for key, size_bytes in sizes.items():
        name = key.replace("_", ".")
        body = rng.randbytes(size_bytes)
        (directory / name).write_bytes(body)
        digests[name] = hashlib.sha256(body).hexdigest()
    return digests


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def journal(state: Path) -> dict[int, str]:
    """State of every ticket by number, as the database has it."""
    try:
        database = sqlite3.connect(f"file:{state / 'tidegate.db'}?mode=ro", uri=True, timeout=5)
    except sqlite3.OperationalError:
        return {}
    try:
        return dict(database.execute("SELECT number, state FROM tickets"))
    finally:
        database.close()
