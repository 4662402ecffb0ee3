"""Runs a command with network and process numbers of its own; what it cost and left behind. Root.

`run_apart` is for tests; this file itself is the first process there.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SPACES = Path("/run/netns")
#: What ends with the command may take so long.
_LEAVING_S = 10.0


@dataclass(frozen=True, slots=True)
class ApartRun:
    """How a command ended, what it said, and what it left behind: programs, network namespaces."""

    code: int
    said: str
    programs: list[str]
    spaces: list[str]
    cpu_s: float


def run_apart(words: Sequence[str], *, end_at: int = 0, timeout_s: float = 240.0) -> ApartRun:
    """Run `words`; where `end_at` is given, SIGTERM comes once so many namespaces are there.

    Raises subprocess.TimeoutExpired; then nothing of it runs any more, either.
    """
    # As a program this file has no path to the other tests.
    from tests.installed import PYTHON

    with tempfile.NamedTemporaryFile("r") as report:
        apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        done = subprocess.run(
            [*apart, PYTHON, "-I", __file__, report.name, str(end_at), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return ApartRun(said=done.stdout, **json.load(report))


def _programs() -> list[str]:
    """What runs here beside this process."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                text = Path("/proc", name, "cmdline").read_bytes()
            except OSError:
                continue
            # What has ended and was not asked for has no words any more.
            if text:
                found.append(text.replace(b"\0", b" ").decode(errors="replace"))
    return found


def _spaces() -> list[str]:
    return sorted(path.name for path in _SPACES.iterdir())


def _main(report: str, end_at: int, words: list[str]) -> None:
    _SPACES.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(_SPACES)], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with subprocess.Popen(words) as command:
        while end_at and command.poll() is None:
            if len(_spaces()) >= end_at:
                command.send_signal(signal.SIGTERM)
                break
            time.sleep(0.02)
        code = command.wait()
    until_s = time.monotonic() + _LEAVING_S
    while (programs := _programs()) and time.monotonic() < until_s:
        time.sleep(0.05)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {"code": code, "programs": programs, "spaces": _spaces()}
    Path(report).write_text(json.dumps({**found, "cpu_s": used.ru_utime + used.ru_stime}))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
