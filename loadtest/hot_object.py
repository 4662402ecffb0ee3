"""Hot object: real receivers (`tidegate get --multicast`) that all want one file together."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gevent import subprocess
from locust import User, task

from tidegate.loadtest import options
from tidegate.loadtest.catalogue import CATALOGUE
from tidegate.loadtest.content import files_of
from tidegate.loadtest.recorder import must_count, tally
from tidegate.loadtest.replay import ARRIVALS, Replay, population
from tidegate.loadtest.workloads import address_of

__all__ = ["HotObject", "ReceiverUser", "options"]

must_count("multicast_bytes", "no byte came by multicast")


class ReceiverUser(User):
    """One receiver process an arrival; it verifies the file itself, and its exit code tells."""

    @task
    def receive(self) -> None:
        """Fetch the population's largest file, whatever the visitor would have wanted."""
        options = self.environment.parsed_options
        number, _ = ARRIVALS.take(options)
        file = max(files_of(population(options)), key=lambda f: f.size_bytes)
        url = self.host + CATALOGUE.find(self.host, file).path
        tally().count("arrived")
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory) / "file"
            command = [sys.executable, "-m", "tidegate", "get", url, "--multicast", "--json"]
            if options.addresses == "forwarded":
                command += ["-H", f"X-Forwarded-For: {address_of(number)}"]
            # Receivers with one identity would be one client to the server.
            identity = {"TIDEGATE_DATA": directory}
            try:
                done = subprocess.run(
                    [*command, "-o", str(out)],
                    capture_output=True,
                    timeout=600.0,
                    check=False,
                    env=os.environ | identity,
                )
                status, told = done.returncode, last_event(done.stderr)
            except subprocess.TimeoutExpired as late:
                status, told = -1, {"text": f"not done after {late.timeout:.0f} s"}
            size = out.stat().st_size if out.exists() else 0
        took_s = time.monotonic() - began_s
        fault = None
        if status:
            fault = RuntimeError(f"exit {status}: {told.get('text', told)}")
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
            tally().count("multicast_bytes", by_multicast(told))
            tally().observe("session", took_s)
        tally().count("visitors_done")


def last_event(output: bytes) -> dict[str, Any]:
    """The last event that the receiver printed: of a finished download, all about it."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    try:
        found = json.loads(lines[-1])
    except (IndexError, ValueError):
        found = None
    return found if isinstance(found, dict) else {"text": lines[-1][:200] if lines else "nothing"}


def by_multicast(done: Mapping[str, Any]) -> int:
    """How many bytes of a finished download came by multicast."""
    sources = done.get("mirrors", ())
    return sum(int(one["bytes"]) for one in sources if str(one["url"]).startswith("udp:"))


class HotObject(Replay):
    """Arrivals of `--workload`, thinned until they fit this machine."""
