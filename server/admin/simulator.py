"""Runs the simulator for a preview: a process of its own, of low priority and bounded time.

A thread waits for it, because the server installs its own signal handlers and so the reactor hears
of no child's end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from server.admin.context import Off
from server.admin.preview import PreviewFailed

LIMIT_S = 120.0
_NICE = "10"
_ROOT = str(Path(__file__).resolve().parents[2])


class Simulator:
    """A `preview.Runner`; `off` runs a function on a thread."""

    def __init__(self, off: Off, limit_s: float = LIMIT_S) -> None:
        self._off = off
        self._limit_s = limit_s
        self._running: subprocess.Popen[bytes] | None = None
        self._closed = False

    async def __call__(self, request: bytes) -> bytes:
        found = await self._off(lambda: self._play(request))
        assert isinstance(found, bytes)
        return found

    def close(self) -> None:
        """End what runs, so that a server that stops need not wait for it."""
        self._closed = True
        if self._running is not None:
            self._running.kill()

    def _play(self, request: bytes) -> bytes:
        if self._closed:
            raise PreviewFailed("The server is about to stop.")
        paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "TIDEGATE_NICE": _NICE,
        }
        arguments = [sys.executable, "-m", "loadtest.sim.preview"]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        ) as process:
            self._running = process
            try:
                out, err = process.communicate(request, self._limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise PreviewFailed(
                    f"The simulation took longer than {self._limit_s:.0f} s; try another workload."
                ) from None
            finally:
                self._running = None
        if process.returncode != 0:
            lines = err.decode("utf-8", "replace").strip().splitlines()
            raise PreviewFailed(lines[-1] if lines else "The simulator ended without a word.")
        return out
