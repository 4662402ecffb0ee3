"""What a change of policy would do: asked of the simulator, in a process of its own.

A thread waits for that process, because the server installs its own signal handlers and so the
reactor hears of no child's end.

A preview plays the same arrivals twice, under the policy that runs and under the proposed one, with
the same policy code as the server. One preview runs at a time, at low priority; a few wait; the
last results are kept in memory.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock

from ...protocol.bounded_table import BoundedTable
from ..accounts.hashing import Off
from ..store.records import ArrivalRecord

RECORDED = "recorded"
#: Workloads of the load test that are small enough for an answer within seconds.
WORKLOADS: Mapping[str, str] = {
    RECORDED: "The last hour's recorded arrivals",
    "exp2": "Paper: 400 clients in ten minutes, few large files",
    "exp1": "Paper: 200 clients in ten minutes, sizes from 1 kB to 1 MB",
    "release": "A release day: 2,000 clients come faster than the link can serve",
}
#: Runs the simulator on the JSON document that a function makes, and gives another.
Runner = Callable[[Callable[[], bytes]], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two policies that are compared."""

    policy: str
    settings: Mapping[str, Any]


def _measure(label: str, unit: str, *, more_is_worse: bool = True) -> Any:
    return field(metadata={"label": label, "unit": unit, "more_is_worse": more_is_worse})


@dataclass(frozen=True, slots=True)
class Measures:
    """What the simulator found for one side.

    Waits are seconds from arrival to the first byte; pauses come after it.
    """

    wait_small_mean_s: float | None = _measure("Small files: mean wait", "s")
    wait_small_p95_s: float | None = _measure("Small files: 95 % wait less than", "s")
    wait_large_mean_s: float | None = _measure("Large files: mean wait", "s")
    wait_large_p95_s: float | None = _measure("Large files: 95 % wait less than", "s")
    paused_large_mean_s: float | None = _measure("Large files: paused after the start, mean", "s")
    session_mean_s: float | None = _measure("Whole visit, mean", "s")
    abandoned: int = _measure("Left without their file", "count")
    attempts: float = _measure("Attempts per download", "ratio")
    slots_used: float = _measure("Slots used on average", "slots", more_is_worse=False)
    picture_svg: str = ""


@dataclass(frozen=True, slots=True)
class Preview:
    """A comparison: `state` is waiting, running, done or failed."""

    key: str
    workload: str
    jobs: int
    present: Side
    proposed: Side
    base_revision: int
    note: str = ""
    state: str = "waiting"
    fault: str = ""
    before: Measures | None = None
    after: Measures | None = None
    took_s: float = 0.0


@dataclass(slots=True)
class Previews:
    """All previews of this server, newest last."""

    runner: Runner
    now: Callable[[], float]
    can_pause: bool = True
    by_key: BoundedTable[str, Preview] = field(default_factory=lambda: BoundedTable(40))
    _turn: DeferredLock = field(default_factory=DeferredLock)

    def room(self) -> bool:
        """Whether one more may wait for its turn."""
        return len(self._turn.waiting) < 4

    def begin(
        self,
        preview: Preview,
        arrivals: Sequence[ArrivalRecord],
        capacity_bytes_s: float | None,
    ) -> None:
        """Run a preview in its turn; `by_key` has what became of it."""
        request = {
            "workload": preview.workload,
            "capacity_bytes_s": capacity_bytes_s,
            "can_pause": self.can_pause,
            "sides": [
                {"policy": side.policy, "settings": dict(side.settings)}
                for side in (preview.present, preview.proposed)
            ],
        }
        self.by_key[preview.key] = preview
        Deferred.fromCoroutine(self._run(preview.key, lambda: _encoded(request, arrivals)))

    async def _run(self, key: str, encode: Callable[[], bytes]) -> None:
        async with self._turn:
            await self._simulate(key, encode)

    async def _simulate(self, key: str, encode: Callable[[], bytes]) -> None:
        self._change(key, state="running")
        began = self.now()
        try:
            found = json.loads(await self.runner(encode))
            before, after = (Measures(**side) for side in found["sides"])
        except PreviewFailed as fault:
            self._change(key, state="failed", fault=str(fault))
        except (ValueError, TypeError, KeyError) as fault:
            self._change(key, state="failed", fault=f"The simulator answered oddly: {fault}")
        else:
            took = self.now() - began
            self._change(
                key,
                state="done",
                before=before,
                after=after,
                jobs=int(found.get("jobs", 0)),
                took_s=took,
            )

    def _change(self, key: str, **changes: Any) -> None:
        if key in self.by_key:
            self.by_key[key] = replace(self.by_key[key], **changes)


def _encoded(request: Mapping[str, Any], arrivals: Sequence[ArrivalRecord]) -> bytes:
    """The document for the simulator, made of parts: one call would hold all threads for 30 ms."""
    at_once = 500  # Arrivals are encoded by one call in less than a millisecond.
    rows = [
        json.dumps([[a.at_s, a.client, a.file, a.size_bytes, None] for a in some])[1:-1]
        for some in (arrivals[at : at + at_once] for at in range(0, len(arrivals), at_once))
    ]
    return f'{json.dumps(request)[:-1]}, "arrivals": [{", ".join(rows)}]}}'.encode()


class PreviewFailed(Exception):
    """The simulator gave up; the message says why in one sentence."""


def new_key() -> str:
    return secrets.token_urlsafe(9)


class Simulator:
    """A `preview.Runner`; `off` runs a function on a thread."""

    def __init__(self, off: Off) -> None:
        self._off = off
        self._running: subprocess.Popen[bytes] | None = None
        self._closed = False

    async def __call__(self, encode: Callable[[], bytes]) -> bytes:
        found = await self._off(lambda: self._play(encode()))
        assert isinstance(found, bytes)
        return found

    def close(self) -> None:
        """End what runs, so that a server that stops need not wait for it."""
        self._closed = True
        if self._running is not None:
            self._running.kill()

    def _play(self, request: bytes) -> bytes:
        if self._closed:
            raise PreviewFailed("The server is being stopped or restarted.")
        environment = {**os.environ, "TIDEGATE_NICE": "10"}
        arguments = [sys.executable, "-P", "-m", "tidegate.loadtest.sim.preview"]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        ) as process:
            self._running = process
            try:
                out, err = process.communicate(request, 120.0)
            except subprocess.TimeoutExpired:
                process.kill()
                raise PreviewFailed(
                    "The simulation took longer than 120 s; try another workload."
                ) from None
            finally:
                self._running = None
        if process.returncode != 0:
            lines = err.decode("utf-8", "replace").strip().splitlines()
            raise PreviewFailed(lines[-1] if lines else "The simulator ended without a word.")
        return out
