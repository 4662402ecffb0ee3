"""Is a line that nobody told found and followed, live? Needs root.

    python -m bench.policies.follow
    python -m bench.policies.follow --rate 10 --told double

Twenty-four large downloads fill a line between two namespaces. After 20 s the line falls to 30 %,
after 40 s it rises again, and from 65 s on another program sends on it for 15 s. Then twenty
clients whose own lines are a fortieth of it each, which must not be capped. What leaves is counted
behind the token bucket, and the server's cap read from its metrics, four times a second.

Debian packages: iproute2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.policies.lab import PAYLOAD, PREFIX, SERVER, TOLD, lay_out, line, serving
from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.namespaces import inside, run, shape
from tidegate.loadtest.trace import to_trace
from tidegate.loadtest.workloads import MB, File, Visitor, Workload

#: When the line falls, rises, when another program sends, when all is over.
_STEPS_S = 20.0, 40.0, 65.0, 80.0
_PART = 0.3
_ADMIN = "127.0.0.1:9180"
_METRICS = f"http://{_ADMIN}/metrics"
_QUEUE = "burst 32k latency 60ms"
_CAP = re.compile(r"^tidegate_capacity_bytes_per_second(?:{[^}]*})? (\S+)$", re.MULTILINE)
#: A program that sends as much as it can, and one that takes it: they have the port 9100.
_SENDS = "import socket as s; c = s.create_connection((s.gethostbyname('10.91.0.2'), 9100))\n"
_SENDS += "while True: c.sendall(bytes(65536))"
_TAKES = "import socket as s; a = s.create_server(('10.91.0.2', 9100)).accept()[0]\n"
_TAKES += "while a.recv(65536): pass"


@dataclass(frozen=True, slots=True)
class LineReading:
    """What had left by then, and the cap in bytes of downloads a second; infinite for none."""

    at_s: float
    wire_bytes: int
    cap_bytes_s: float


def sample(seconds: float) -> Iterator[LineReading]:
    """Four times a second, in the server's namespace."""
    # Its admin page may come after its files.
    for _ in range(100):
        with contextlib.suppress(OSError), urllib.request.urlopen(_METRICS, timeout=5):
            break
        time.sleep(0.1)
    began = time.monotonic()
    while (at_s := time.monotonic() - began) < seconds:
        bucket = json.loads(run("tc", "-s", "-j", "qdisc", "show", "dev", "eth0"))[0]
        with urllib.request.urlopen(_METRICS, timeout=5) as answer:
            found = _CAP.search(answer.read().decode())
        cap = float(found[1]) if found else math.inf
        yield LineReading(at_s, int(bucket["bytes"]), cap if cap > 0.0 else math.inf)
        time.sleep(max(0.0, began + 0.25 * (round(at_s / 0.25) + 1) - time.monotonic()))


@contextmanager
def _running(space: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    silent = subprocess.DEVNULL
    process = subprocess.Popen(inside(space, *command), stdout=silent, stderr=silent)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def watched(
    folder: Path,
    crowd: Workload,
    told_bytes_s: float | None,
    seconds: float,
    prefix: str,
    steps: Sequence[tuple[float, Callable[[], None]]] = (),
) -> list[LineReading]:
    """What was sampled while the crowd was there; each step is taken at its time."""
    lay_out(folder, crowd)
    trace = folder / "trace.jsonl"
    trace.write_text("\n".join(to_trace(crowd)), "utf-8")
    replay = [sys.executable, "-m", "bench.policies.crowd"]
    replay += [f"http://{SERVER}:8080", str(trace), "--bind", "10.91.0.0"]
    mine = [sys.executable, "-m", "bench.policies.follow", "--sample", str(seconds)]
    words = inside(f"{prefix}-s", *mine)
    rows: list[LineReading] = []
    timers = [threading.Timer(at_s, step) for at_s, step in steps]
    with (
        serving(folder, "fair", told_bytes_s, 1, prefix, _ADMIN),
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as sampler,
    ):
        assert sampler.stdout is not None
        rows.append(LineReading(**json.loads(sampler.stdout.readline())))
        with _running(f"{prefix}-c", *replay):
            for timer in timers:
                timer.start()
            try:
                rows += [LineReading(**json.loads(row)) for row in sampler.stdout]
            finally:
                for timer in timers:
                    timer.cancel()
    return rows


def carried(samples: Sequence[LineReading], since_s: float, until_s: float) -> float:
    """Bytes a second on the wire in that time."""
    inside_it = [one for one in samples if since_s <= one.at_s <= until_s]
    if len(inside_it) < 2:
        return math.nan
    first, last = inside_it[0], inside_it[-1]
    return (last.wire_bytes - first.wire_bytes) / (last.at_s - first.at_s)


def first(
    samples: Sequence[LineReading],
    since_s: float,
    until_s: float,
    holds: Callable[[LineReading], bool],
) -> float:
    """How long after `since_s` it holds for the first time; infinite if never before the end."""
    return next(
        (one.at_s - since_s for one in samples if since_s <= one.at_s <= until_s and holds(one)),
        math.inf,
    )


def followed(
    rate_mbit: float, told: str, prefix: str, scale: float = 1.0
) -> list[tuple[str, float, float]]:
    """Each step: what it is, after how many seconds it was followed, what was used of the line.

    All times are `scale` times as long.
    """
    falls_s, rises_s, others_s, ends_s = (scale * at_s for at_s in _STEPS_S)
    wire_bytes_s = rate_mbit * 1e6 / 8
    payload_bytes_s = wire_bytes_s * PAYLOAD
    part = TOLD[told]
    bound = None if part is None else part * payload_bytes_s
    size = int(2.0 * wire_bytes_s * ends_s / 24)
    large = [
        Visitor(f"l{n}", 0.05 * n, 2 * wire_bytes_s, (File(f"l{n}", size),)) for n in range(24)
    ]
    own = payload_bytes_s / 40
    slow = [Visitor(f"s{n}", 0.05 * n, own, (File(f"s{n}", int(own * 60)),)) for n in range(20)]
    rows: list[tuple[str, float, float]] = []
    with tempfile.TemporaryDirectory(prefix="tidegate-follow-") as name, line(rate_mbit, prefix):
        folder, server, clients = Path(name), f"{prefix}-s", f"{prefix}-c"

        def change(to: float) -> Callable[[], None]:
            return lambda: shape(server, "eth0", rate_mbit * to, _QUEUE, "change")

        def others() -> None:
            with _running(clients, sys.executable, "-c", _TAKES):
                time.sleep(0.5 * scale)
                with _running(server, sys.executable, "-c", _SENDS):
                    time.sleep(ends_s - others_s - 1.0 * scale)

        crowd = Workload("large", 1, tuple(large), payload_bytes_s, MB // 4)
        steps = ((falls_s, change(_PART)), (rises_s, change(1.0)), (others_s, others))
        seen = watched(folder, crowd, bound, ends_s, prefix, steps)
        low = _PART * payload_bytes_s

        def near(one: LineReading) -> bool:
            return one.cap_bytes_s <= 1.02 * payload_bytes_s

        # The programs of the crowd took their time to start.
        least = seen[0].wire_bytes + 0.25 * wire_bytes_s
        began_s = first(seen, 0.0, falls_s, lambda one: one.wire_bytes >= least)
        after_s = first(seen, began_s, falls_s, near)
        rows.append(("found", after_s, carried(seen, 5.0 * scale, falls_s) / wire_bytes_s))
        after_s = first(seen, falls_s, rises_s, lambda one: one.cap_bytes_s <= 1.1 * low)
        used = carried(seen, falls_s + 5.0 * scale, rises_s) / (_PART * wire_bytes_s)
        rows.append(("falls to 30 %", after_s, used))
        after_s = first(
            seen,
            rises_s,
            others_s,
            lambda one: carried(seen, one.at_s - 1.0, one.at_s) >= 0.95 * wire_bytes_s,
        )
        rows.append(
            ("rises again", after_s, carried(seen, rises_s + 15.0 * scale, others_s) / wire_bytes_s)
        )
        rows.append(
            (
                "another sends",
                math.inf,
                carried(seen, others_s + 3.0 * scale, ends_s - 2.0 * scale) / wire_bytes_s,
            )
        )
        crowd = Workload("slow", 1, tuple(slow), payload_bytes_s, MB // 4)
        seen = watched(folder, crowd, bound, 25.0 * scale, prefix)
        capped_s = first(seen, 0.0, math.inf, lambda one: one.cap_bytes_s < 20 * own)
        used = carried(seen, 5.0 * scale, 25.0 * scale) * PAYLOAD / (20 * own)
        rows.append(("clients are slow (after: capped)", capped_s, used))
    return rows


def table(rows: Sequence[tuple[str, float, float]]) -> str:
    """Markdown."""
    words = [
        (what, "–" if not math.isfinite(after_s) else f"{after_s:.1f}", f"{100 * used:.1f} %")
        for what, after_s, used in rows
    ]
    return markdown.table(("the line", "followed after s", "used from then on"), words)


def main() -> int:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rate", type=float, default=20.0, help="of the line, Mbit/s")
    parser.add_argument("--told", choices=sorted(TOLD), default="none")
    parser.add_argument("--prefix", default=PREFIX, help="of the namespaces")
    parser.add_argument("--scale", type=float, default=1.0, help="of all times; 1")
    parser.add_argument("--sample", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.sample is not None:
        for one in sample(given.sample):
            sys.stdout.write(json.dumps(asdict(one)) + "\n")
            sys.stdout.flush()
        return 0
    if os.getuid():
        parser.error("network namespaces need root")
    sys.stdout.write(table(followed(given.rate, given.told, given.prefix, given.scale)) + "\n")
    return 0


if __name__ == "__main__":
    end_cleanly()
    sys.exit(main())
