"""Starts the real server as a process of its own and talks to it like anybody else."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import random
import select
import signal
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tests.faulty_disk import faulty_disk
from tests.installed import PYTHON, TIDEGATE

ROOT = Path(__file__).parent.parent


class ForkServer:
    """The other end of `tests.fork_server`: processes that need not load anything."""

    def __init__(self, **environ: str) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [PYTHON, "-m", "tests.fork_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                cwd="/",
                env={**os.environ, **environ},
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._close)

    def start(
        self,
        arguments: Sequence[str],
        folder: Path,
        environ: Mapping[str, str],
        log: IO[str] | None = None,
    ) -> ForkedProcess:
        """A process of `tidegate` with these arguments. `log` gets output and errors."""
        order = {"arguments": arguments, "folder": str(folder), "environ": dict(environ)}
        ours, theirs = zip(*(os.pipe() for _ in range(1 if log else 3)), strict=True)
        logs = [log.fileno()] * 2 if log else []
        socket.send_fds(self._link, [json.dumps(order).encode()], [*logs, *theirs])
        for descriptor in theirs:
            os.close(descriptor)
        return ForkedProcess(*reversed(ours))

    def _close(self) -> None:
        self._link.close()
        self._process.wait()


class ForkedProcess:
    """What `subprocess.Popen` is, for a process that another one made."""

    def __init__(self, status: int, errors: int | None = None, output: int | None = None) -> None:
        # They are closed by whom they are for, as a Popen's.
        self.stdout = None if output is None else open(output)  # noqa: SIM115
        self.stderr = None if errors is None else open(errors)  # noqa: SIM115
        self._status = open(status)  # noqa: SIM115
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status if it has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, negative for a signal; raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("tidegate", timeout or 0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            # It may have ended, and its status not have come yet.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


#: How names begin that the interpreter or the linker reads: they must be there when it starts.
BEFORE_MAIN = ("LD_", "PYTHON", "TZ")

#: Started when the first server is wanted, for this process of pytest; another has a faulty disk.
fork_server = functools.cache(ForkServer)


def run_forked(*words: str) -> tuple[int, str]:
    """The exit status of `tidegate` with these words, and what it says."""
    with tempfile.TemporaryFile("w+") as log:
        code = fork_server().start(words, Path("/"), os.environ, log).wait(100)
        log.seek(0)
        return code, log.read()


class RunningServer:
    """One `tidegate serve` process; `url` is its first listener, `lines` what it printed.

    It is ready when this returns, unless `ready` is false. `program` is another installation's
    command, which may have words of its own.
    """

    def __init__(
        self,
        directory: Path,
        state: Path,
        *args: str,
        ready: bool = True,
        program: Path | Sequence[str] | None = None,
        **environ: str,
    ) -> None:
        words = ["serve", str(directory), "--listen", "127.0.0.1:0", "--admin", "off"]
        words += ["--state", str(state), *args]
        self.lines: list[str] = []
        self.errors: list[str] = []
        self.urls: list[str] = []
        environment = {**os.environ, **environ}
        command = [program] if isinstance(program, Path) else program or [TIDEGATE]
        before = {name: environ[name] for name in environ if name.startswith(BEFORE_MAIN)}
        disk = faulty_disk().environ if "FAULTY_DISK" in environ else {}
        is_forked = not program and before.items() <= disk.items()
        self.process: subprocess.Popen[str] | ForkedProcess = (
            fork_server(**disk).start(words, state.parent, environment)
            if is_forked
            else subprocess.Popen(
                [*command, *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=state.parent if state.parent.is_dir() else None,
                env=environment,
            )
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
        return self.process.wait()

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
    """Come back when the condition holds, or when the limit has passed, which pytest then tells.

    A condition that takes long, as one that starts a program, is looked at less often.
    """
    end_s = time.monotonic() + limit_s
    while True:
        began_s = time.monotonic()
        if condition():
            return
        now_s = time.monotonic()
        if now_s >= end_s:
            warnings.warn(f"waited in vain for {limit_s:.0f} s", stacklevel=2)
            return
        time.sleep(min(0.5, max(0.02, 3 * (now_s - began_s))))


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
