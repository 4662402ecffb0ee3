"""Hot object: real receivers (`tidegate get --multicast`) that all want one file together."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import gevent
from gevent import subprocess
from locust import User, task

from loadtest import options
from loadtest.catalogue import CATALOGUE
from loadtest.content import files_of
from loadtest.recorder import tally
from loadtest.replay import SCHEDULE, Replay, population

__all__ = ["HotObject", "Receiver", "options"]

_LIMIT_S = 600.0


class Receiver(User):
    """One receiver process an arrival; it verifies the file itself, and its exit code tells."""

    @task
    def receive(self) -> None:
        """Fetch the population's largest file, whatever the visitor would have wanted."""
        arrival = SCHEDULE.take()
        if arrival is None:
            gevent.sleep(1.0)
            return
        file = max(
            files_of(population(self.environment.parsed_options)), key=lambda f: f.size_bytes
        )
        url = self.host + CATALOGUE.find(self.host, file).path
        tally().count("arrived")
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory) / "file"
            command = [sys.executable, "-m", "tidegate", "get", url, "--multicast", "--json"]
            done = subprocess.run(
                [*command, "-o", str(out)], capture_output=True, timeout=_LIMIT_S, check=False
            )
            size = out.stat().st_size if out.exists() else 0
        took_s = time.monotonic() - began_s
        fault = None
        if done.returncode:
            fault = RuntimeError(f"exit {done.returncode}: {_last(done.stdout)}")
        elif size != file.size_bytes:
            fault = RuntimeError(f"{size} bytes of {file.size_bytes}")
        self.environment.events.request.fire(
            request_type="MCAST",
            name="receive",
            response_time=took_s * 1000,
            response_length=size,
            exception=fault,
            context={},
        )
        tally().count("failed" if fault else "finished")
        if not fault:
            tally().count("verified_bytes", size)
            tally().observe("session", took_s)
        tally().count("visitors_done")


def _last(output: bytes) -> str:
    """The last event that the receiver printed, in words."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    try:
        return str(json.loads(lines[-1])) if lines else "it said nothing"
    except ValueError:
        return lines[-1][:200]


class HotObject(Replay):
    """Arrivals of `--workload`, thinned until they fit this machine."""
