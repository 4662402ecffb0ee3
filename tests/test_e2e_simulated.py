"""A recorded trace, replayed in virtual time and against a real server: the same decisions."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from itertools import permutations
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.running import serving
from tidegate.loadtest.sim.conditions import Conditions
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.metrics import columns
from tidegate.loadtest.sim.outcome import DOWNLOAD_FIELDS
from tidegate.loadtest.trace import from_trace
from tidegate.loadtest.workloads import Workload
from tidegate.policies.registry import make_policy
from tidegate.policies.settings import PolicySettings
from tidegate.server.admission.downloads import DOWNLOADS
from tidegate.server.admission.leases import TICK_S

pytestmark = pytest.mark.e2e

#: What a server recorded over two minutes, on a line of 200 kB/s (t_s, megabytes).
RECORDED = ((0, 0.005), (10, 0.8), (20, 3), (26, 6), (34, 12), (40, 0.4), (50, 1), (56, 2))
RATE_BYTES_S = 200_000.0
#: Replayed this much faster: arrivals nearer, the line wider. The order of ends is the same on a
#: line of only 0.6 times the rate, so a busy machine does not change it.
FASTER = 16.0
#: The policy looks at the transfers four times a second, and what it sees of their speeds depends
#: on when. On a live server that is chance, so the simulator plays several of such phases.
PHASES = [TICK_S * (number + 0.5) / 8 for number in range(8)]
#: What the simulator puts this far apart, whatever the phase, must come in the same order.
APART_S = 0.25
CLIENTS = [f"127.0.1.{number}" for number in range(1, len(RECORDED) + 1)]


def trace() -> Workload:
    """The recording, faster."""
    lines = [
        json.dumps(
            {
                "t_s": t_s / FASTER,
                "client": client,
                "file": f"file-{client}",
                "size_bytes": int(megabytes * 1e6),
                "rate_bytes_s": None,
            }
        )
        for client, (t_s, megabytes) in zip(CLIENTS, RECORDED, strict=True)
    ]
    return from_trace(lines, bandwidth_bytes_s=RATE_BYTES_S * FASTER)


Times = dict[str, dict[str, float]]


def simulated(workload: Workload, policy: str, first_tick_s: float) -> Times:
    """When each client started and ended."""
    settings = PolicySettings(
        slots=2, reserve_small=1, bandwidth_bytes_s=workload.bandwidth_bytes_s
    )
    conditions = Conditions(
        workload.bandwidth_bytes_s,
        hold=True,
        attempt_s=0.0,
        accept_s=0.0,
        tick_s=TICK_S,
        first_tick_s=first_tick_s,
        look_s=DOWNLOADS.look_s,
        ceiling_bytes_s=workload.bandwidth_bytes_s,
    )
    engine = Engine(workload, make_policy(policy, settings, random.Random(1)), conditions)
    rows = columns(engine.run().downloads, DOWNLOAD_FIELDS)
    names = [workload.visitors[int(number)].key for number in rows["client"]]
    return {
        "started": dict(zip(names, rows["first_byte_s"].tolist(), strict=True)),
        "ended": dict(zip(names, rows["ended_s"].tolist(), strict=True)),
    }


class Caller(threading.Thread):
    """One client on an address of its own, that waits inside its request as curl does."""

    def __init__(self, url: str, client: str, file: str, at: float) -> None:
        super().__init__(daemon=True)
        self.url, self.client, self.file, self.at = url, client, file, at
        self.started_s = self.ended_s = 0.0
        self.received = 0

    def run(self) -> None:
        """Ask at the time of the trace, and read to the end."""
        time.sleep(max(0.0, self.at - time.monotonic()))
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, source_address=(self.client, 0)
        )
        connection.request("GET", f"/{self.file}", headers={"User-Agent": "curl/8.5.0"})
        answer = connection.getresponse()
        while block := answer.read1(1 << 16):
            self.started_s = self.started_s or time.monotonic()
            self.received += len(block)
        self.ended_s = time.monotonic()
        connection.close()


def live(workload: Workload, policy: str, tmp_path: Path) -> Times:
    """The same of a real server with real sockets."""
    release = tmp_path / "release"
    release.mkdir()
    for visitor in workload.visitors:
        for file in visitor.files:
            (release / file.name).write_bytes(random.Random(file.name).randbytes(file.size_bytes))
    flags = ("--policy", policy, "--slots", "2", "--reserve-small", "1")
    line = ("--bandwidth", f"{workload.bandwidth_bytes_s / 1e6}MB")
    with serving(release, tmp_path / "state", *flags, *line) as server:
        begin = time.monotonic() + 0.5
        callers = [
            Caller(server.url, visitor.key, visitor.files[0].name, begin + visitor.arrival_s)
            for visitor in workload.visitors
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(120.0)
    for caller, visitor in zip(callers, workload.visitors, strict=True):
        assert caller.received == visitor.total_bytes, caller.client
    return {
        "started": {caller.client: caller.started_s for caller in callers},
        "ended": {caller.client: caller.ended_s for caller in callers},
    }


@pytest.mark.parametrize("policy", ["ticket", "fair"])
def test_a_live_server_decides_as_the_simulator_did(policy: str, tmp_path: Path) -> None:
    workload = trace()
    played = [simulated(workload, policy, phase) for phase in PHASES]
    happened = live(workload, policy, tmp_path)
    for what, times in happened.items():
        for one, other in permutations(times, 2):
            if all(run[what][one] + APART_S < run[what][other] for run in played):
                assert times[one] < times[other], (what, one, other)
