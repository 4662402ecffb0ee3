"""Starts programs, waits until they are ready, and reads what they have used."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path


class NotStarted(SystemExit):
    """A program did not start; the message says which and why, and ends a bench with status 1."""


@contextlib.contextmanager
def process(
    command: Sequence[object], log: Path, **options: object
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command with its output in `log`; at the end SIGTERM, then SIGKILL."""
    with log.open("ab") as out:
        started = subprocess.Popen(  # type: ignore[call-overload]
            [str(word) for word in command],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            **options,
        )
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(40)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


def wait_for(
    name: str, log: Path, text: str, running: subprocess.Popen[bytes], most_s: float = 60.0
) -> str:
    """Wait for a line of `log` with `text`. Raises NotStarted with the log's end."""
    until = time.monotonic() + most_s
    while time.monotonic() < until and running.poll() is None:
        for line in log.read_text("utf-8", "replace").splitlines():
            if text in line:
                return line
        time.sleep(0.05)
    tail = "\n".join(log.read_text("utf-8", "replace").splitlines()[-5:])
    raise NotStarted(f"{name} did not start; its last words:\n{tail}")


def cpu_s(pid: int) -> float:
    """User and system seconds of a process so far. Raises OSError once it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
