"""Live policies beside nginx and the simulator, on a line that really is limited. Needs root.

    python -m bench.policies.lab                      every policy, three traces, the whole table
    python -m bench.policies.lab --policy fair --trace mixed --told none --told right --rate 8
    python -m bench.policies.lab --policy fair --trace mixed --told none --workers 1 --workers 2
    python -m bench.policies.lab --policy fair --trace burst --told none --rtt 20

A server in one network namespace, its clients in another, a token bucket between them. With --rtt
there is a path instead (`path.c`): the line stands behind the server's card, and what clients send
is delayed. The same crowd is replayed against nginx, against the server under each policy with
nothing configured, with the right cap and with one that is twice too high, and in the simulator.

Debian packages: gcc, iproute2, nginx-light.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from bench.policies.crowd import READER_BYTES
from bench.shared import markdown, namespaces
from bench.shared.ending import end_cleanly
from bench.shared.namespaces import SERVER, inside, shape
from bench.shared.processes import process, wait_for
from bench.shared.subject import require
from tidegate.loadtest.sim.conditions import CongestionWindow, NetworkPath
from tidegate.loadtest.sim.engine import Engine
from tidegate.loadtest.sim.metrics import measure
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.trace import to_trace
from tidegate.loadtest.workloads import MB, File, Visitor, Workload
from tidegate.policies.settings import SMALL_BELOW_BYTES

#: The part of the line that is there from a time on, in seconds: time, part.
Steps = tuple[tuple[float, float], ...]
#: What the line lets through.
RATE_MBIT = 33.5
LINE_BYTES_S = namespaces.payload_bytes_s(RATE_MBIT)
#: What the line holds before it, in seconds of the line.
QUEUE_S = 0.06


def mixed(seed: int) -> Workload:
    """150 downloads of 0.1 to 10 MB in 25 s, 1.5 times what the line carries."""
    return _trace("mixed", seed, 150, 25.0, 0.1 * MB, 10 * MB, 0.5 * MB, 2.5 * MB, 1.5)


def small_and_huge(seed: int) -> Workload:
    """120 downloads of 0.05 to 40 MB in 30 s: few files hold most bytes."""
    return _trace("small and huge", seed, 120, 30.0, 0.05 * MB, 40 * MB, 0.3 * MB, 3 * MB, 1.3)


def slow_clients(seed: int) -> Workload:
    """160 downloads by clients of 80 to 800 kB/s in 30 s."""
    return _trace("slow clients", seed, 160, 30.0, 0.2 * MB, 5 * MB, 0.08 * MB, 0.8 * MB, 1.3)


def burst(seed: int) -> Workload:
    """120 downloads of 0.1 to 10 MB within a second, 20 s of the line."""
    return _trace("burst", seed, 120, 1.0, 0.1 * MB, 10 * MB, 0.5 * MB, 2.5 * MB, 20.0)


TRACES = {"mixed": mixed, "burst": burst, "huge": small_and_huge, "slow": slow_clients}


def _trace(
    name: str,
    seed: int,
    count: int,
    span_s: float,
    low: float,
    high: float,
    slowest: float,
    fastest: float,
    load: float,
) -> Workload:
    """Sizes and speeds log-uniform, sizes scaled so that together they make `load`."""
    rng = random.Random(f"{name}/{seed}")
    sizes = [low * (high / low) ** rng.random() for _ in range(count)]
    scale = load * span_s * LINE_BYTES_S / sum(sizes)
    visitors = []
    for number, at in enumerate(sorted(rng.uniform(0.0, span_s) for _ in range(count))):
        size = max(1000, int(sizes[number] * scale))
        rate = slowest * (fastest / slowest) ** rng.random()
        visitors.append(Visitor(f"c{number}", at, rate, (File(f"f{number}.bin", size),)))
    return Workload(name, seed, tuple(visitors), LINE_BYTES_S, SMALL_BELOW_BYTES)


def begun(workload: Workload, part: float) -> Workload:
    """The first clients of a crowd, this part of all."""
    count = max(1, round(part * len(workload.visitors)))
    return replace(workload, visitors=workload.visitors[:count])


def scaled(workload: Workload, factor: float) -> Workload:
    """The same crowd on a line `factor` times as wide: files and clients' lines grow with it."""
    visitors = tuple(
        replace(
            visitor,
            rate_bytes_s=visitor.rate_bytes_s * factor,
            files=tuple(
                replace(file, size_bytes=int(file.size_bytes * factor)) for file in visitor.files
            ),
        )
        for visitor in workload.visitors
    )
    line_bytes_s = workload.bandwidth_bytes_s * factor
    return replace(workload, visitors=visitors, bandwidth_bytes_s=line_bytes_s)


@contextmanager
def line(
    rate_mbit: float, prefix: str, rtt_s: Sequence[float] = (), *networks: str
) -> Iterator[None]:
    """Two namespaces, named by the prefix, and the line between them; with `rtt_s` a path.

    All addresses of 10/8 and of `networks` are clients'.
    """
    server, clients = f"{prefix}-s", f"{prefix}-c"
    with ExitStack() as ending:
        ending.callback(namespaces.remove, (server, clients))
        namespaces.make((server, clients))
        if rtt_s:
            ending.enter_context(path(server, clients, rate_mbit, rtt_s))
        else:
            namespaces.connect(server, clients)
        namespaces.crowd(server, clients, "10.0.0.0/8", *networks)
        if not rtt_s:
            shape(server, "eth0", rate_mbit, f"burst 32k latency {QUEUE_S * 1e3:.0f}ms")
        yield


@contextmanager
def path(server: str, clients: str, rate_mbit: float, rtt_s: Sequence[float]) -> Iterator[None]:
    """A line behind the server's card, and round-trip times; clients take turns in having these."""
    with tempfile.TemporaryDirectory(prefix="tidegate-path-") as folder:
        program = Path(folder) / "path"
        source = Path(__file__).with_name("path.c")
        subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True)
        delays = ",".join(f"{1e3 * one:g}" for one in rtt_s)
        queue = f"{QUEUE_S * rate_mbit * 1e6 / 8:.0f}"
        rate_bits_s = f"{rate_mbit * 1e6:.0f}"
        command = [str(program), server, clients, rate_bits_s, queue, delays]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as relay:
            try:
                assert relay.stdout is not None
                if relay.stdout.readline() != b"ready\n":
                    raise RuntimeError("the path did not start")
                yield
            finally:
                relay.kill()


@contextmanager
def serving(
    folder: Path, policy: str, told_bytes_s: float | None, prefix: str, *options: str
) -> Iterator[None]:
    """nginx, or a fresh server of ours under a policy, in the server's namespace."""
    files = folder / "files"
    if policy == "nginx":
        config = folder / "nginx.conf"
        config.write_text(
            f"worker_processes 1; daemon off; pid {folder}/nginx.pid; user root;\n"
            f"error_log stderr notice; events {{ worker_connections 4096; }}\n"
            f"http {{ access_log off; sendfile on; server {{ listen {SERVER}:8080;"
            f" root {files}; }} }}\n"
        )
        command = ["nginx", "-c", str(config)]
    else:
        command = [sys.executable, "-m", "tidegate", "serve", str(files), "--admin", "off"]
        command += ["--listen", f"{SERVER}:8080", "--state", tempfile.mkdtemp(dir=folder)]
        command += ["--policy", policy, *options]
        if told_bytes_s is not None:
            command += ["--bandwidth", f"{int(told_bytes_s * 8)}bit"]
    log, environ = folder / "server.log", {**os.environ, "TIDEGATE_DRAIN_S": "0"}
    log.unlink(missing_ok=True)
    with process(inside(f"{prefix}-s", *command), log, env=environ) as server:
        wait_for(policy, log, "start worker process " if policy == "nginx" else "ready ", server)
        yield
        require(server.poll() is None, f"{policy}: the server ended before its clients.")


def replay(folder: Path, rows: Iterable[str], prefix: str, *options: str) -> list[dict[str, float]]:
    """The crowd of a trace against whatever serves; one dict a client."""
    trace = folder / "trace.jsonl"
    trace.write_text("\n".join(rows), "utf-8")
    command = inside(f"{prefix}-c", sys.executable, "-m", "bench.policies.crowd")
    command += [f"http://{SERVER}:8080", str(trace), "--bind", "10.0.0.0", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=400, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def lay_out(folder: Path, workload: Workload) -> None:
    """The files, empty but of the right size: what is in them does not matter."""
    files = folder / "files"
    files.mkdir(exist_ok=True)
    for visitor in workload.visitors:
        for file in visitor.files:
            with (files / file.name).open("wb") as out:
                out.truncate(file.size_bytes)


def simulated(
    policy: str,
    workload: Workload,
    told_bytes_s: float | None,
    seeds: Iterable[int] = (0,),
    rtt_s: Sequence[float] = (),
    steps: Steps = (),
) -> float:
    """Mean session time of the same crowd in the simulator.

    The server finds the line below `told_bytes_s`.
    """
    queue_bytes = int(QUEUE_S * workload.bandwidth_bytes_s)
    # What a client's kernel takes ahead is what it advertises, too: half of the buffer.
    window_bytes = READER_BYTES // 2
    network = (
        NetworkPath(tuple(rtt_s), queue_bytes, largest_window_bytes=window_bytes) if rtt_s else None
    )
    if policy == "nginx":
        policy = "ps"
    name = "http" if policy == "fcfs" else policy
    reserve = 6 if name in ("reserve", "ticket", "fair", "adaptive") else 0
    scenario = Scenario(
        name,
        slots=36 - reserve,
        reserve_small=reserve,
        bandwidth_bytes_s=workload.bandwidth_bytes_s,
    )
    means = []
    conditions = replace(
        scenario.conditions(workload),
        attempt_s=0.0,
        accept_s=0.0,
        ceiling_bytes_s=told_bytes_s,
        reader_bytes=READER_BYTES,
        network=network,
        line=steps,
    )
    settings = {"bandwidth_bytes_s": told_bytes_s}
    told = replace(scenario, tells_bandwidth=False, settings=settings)
    for seed in seeds:
        tally = Engine(workload, told.make_policy(workload, seed), conditions, seed).run()
        means.append(measure(workload, conditions, tally)["mean_session_s"])
    return statistics.fmean(means)


def ideal(workload: Workload, rtt_s: Sequence[float]) -> float:
    """Mean session time with the shortest first over TCP, by known speeds of all clients.

    Without a round trip it is the fluid bound.
    """
    step_s, now = 0.005, 0.0
    network = NetworkPath(tuple(rtt_s) or (1e-6,), largest_window_bytes=READER_BYTES // 2)
    clients = [_IdealClient(network, n, one) for n, one in enumerate(workload.visitors)]
    here: list[_IdealClient] = []
    coming, times = sorted(clients, key=lambda one: -one.comes_s), []
    while coming or here:
        while coming and coming[-1].comes_s <= now:
            here.append(coming.pop())
        room = workload.bandwidth_bytes_s * step_s
        for client in sorted(here, key=lambda one: one.left):
            room -= client.take(now, room, step_s)
        now += step_s
        times += [now - one.came_s + one.last_byte_s for one in here if one.left < 1.0]
        here = [one for one in here if one.left >= 1.0]
    return statistics.fmean(times)


class _IdealClient:
    """A download of `ideal`."""

    def __init__(self, network: NetworkPath, number: int, visitor: Visitor) -> None:
        self.came_s = visitor.arrival_s
        self.comes_s = visitor.arrival_s + network.connect_s(number)
        self.last_byte_s = network.last_byte_s(number)
        self.left = float(visitor.total_bytes)
        self._rate = visitor.rate_bytes_s
        self._window = CongestionWindow(network, network.rtt_of(number))
        self._since_look = 0.0

    def take(self, now: float, room: float, step_s: float) -> float:
        """What it has of this in a step."""
        window = self._window
        if room <= 0.0:
            window.rest(now)
            return 0.0
        window.resume(now)
        if now >= window.due_s:
            window.grow(self._since_look / window.look_s())
            self._since_look, window.due_s = 0.0, now + window.look_s()
        sent = min(self.left, room, step_s * min(self._rate, window.rate_bytes_s()))
        self.left -= sent
        self._since_look += sent
        return sent


#: What the server is told of its line, as a part of it; the first three by default.
TOLD = {"none": None, "right": 0.98, "double": 2.0, "below": 0.94, "above": 1.12, "fourfold": 4.0}


def _milliseconds(text: str) -> tuple[float, ...]:
    return tuple(float(part) / 1e3 for part in text.split(","))


def main() -> int:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    servers = ["fcfs", "reserve", "ticket", "fair", "adaptive"]
    parser.add_argument("--policy", action="append", choices=servers)
    parser.add_argument("--trace", action="append", choices=sorted(TRACES))
    parser.add_argument("--told", action="append", choices=sorted(TOLD))
    parser.add_argument("--workers", type=int, action="append", help="processes; 1")
    parser.add_argument("--rate", type=float, default=RATE_MBIT, help="of the line, Mbit/s")
    parser.add_argument("--rtt", type=_milliseconds, default=(), help="ms: 20, or 10,100 by turns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", type=float, default=1.0, help="of the crowd: its first clients")
    parser.add_argument("--prefix", default="tgl", help="of the namespaces")
    given = parser.parse_args()
    if os.getuid():
        parser.error("network namespaces need root")
    with suppress(OSError):  # a container may not
        # A line, its server and its crowd do not wait for a busy machine.
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    columns = "trace|server|told|live mean s|simulated|live ÷ simulated|÷ nginx|÷ ideal"
    columns += "|later|longest silence s|not done"
    rows = []
    for trace in given.trace or TRACES:
        workload = scaled(begun(TRACES[trace](given.seed), given.part), given.rate / RATE_MBIT)
        folder_of = tempfile.TemporaryDirectory(prefix="tidegate-policies-")
        with folder_of as name, line(given.rate, given.prefix, given.rtt):
            folder = Path(name)
            lay_out(folder, workload)
            ideal_s = ideal(workload, given.rtt)
            plain: dict[float, float] = {}
            told_of = given.policy or servers, given.told or TOLD, given.workers or [1]
            for policy, told, workers in [("nginx", "none", 1), *itertools.product(*told_of)]:
                part = TOLD[told]
                bound = None if part is None else part * workload.bandwidth_bytes_s
                polls = ("--poll",) if policy in ("ticket", "reserve", "fcfs") else ()
                with serving(folder, policy, bound, given.prefix, "--workers", f"{workers}"):
                    found = replay(folder, to_trace(workload), given.prefix, *polls)
                require_crowd(policy, found, workload)
                plain = plain or _sessions(found)
                simulated_s = simulated(policy, workload, bound, range(3), given.rtt)
                server = policy if workers == 1 else f"{policy}, {workers} workers"
                rows.append([trace, server, told, *_figures(found, plain, simulated_s, ideal_s)])
                sys.stderr.write(markdown.row(*rows[-1]) + "\n")
    sys.stdout.write(markdown.table(columns.split("|"), rows) + "\n")
    return 0


def require_crowd(policy: str, found: Sequence[Mapping[str, float]], workload: Workload) -> None:
    """Raise NothingMeasured unless the whole crowd came, was served, and met the line's limit."""
    count = len(workload.visitors)
    require(len(found) == count, f"{policy}: {len(found)} of {count} clients came.")
    done = [one for one in found if one["done_s"] is not None]
    require(done, f"{policy}: no client of {count} was done.")
    # All others are compared with what nginx's clients had.
    require(policy != "nginx" or len(done) == count, f"nginx: {len(done)} of {count} were done.")
    span_s = max(one["done_s"] for one in done) - min(one["came_s"] for one in found)
    bytes_s = sum(one["size_bytes"] for one in done) / span_s
    line_bytes_s = workload.bandwidth_bytes_s
    # The token bucket's burst and the kernel's buffers may let through more for a while.
    require(
        bytes_s <= 1.25 * line_bytes_s,
        f"{policy}: {bytes_s:.0f} B/s came over a line of {line_bytes_s:.0f} B/s: it has no limit.",
    )


def _sessions(found: Sequence[Mapping[str, float]]) -> dict[float, float]:
    """How long each client took, by when it came; infinite if it was never done."""
    return {
        one["came_s"]: math.inf if one["done_s"] is None else one["done_s"] - one["came_s"]
        for one in found
    }


def _figures(
    found: Sequence[Mapping[str, float]],
    plain: Mapping[float, float],
    simulated_s: float,
    ideal_s: float,
) -> list[str]:
    """The rest of a row; `plain` is what nginx's clients took."""
    sessions = _sessions(found)
    times = [took_s for took_s in sessions.values() if took_s < math.inf]
    live_s, nginx_s = statistics.fmean(times), statistics.fmean(plain.values())
    ratios = (live_s / other_s for other_s in (simulated_s, nginx_s, ideal_s))
    # By more than 5 % and 5 s.
    later = sum(s > max(1.05 * plain[at], plain[at] + 5.0) for at, s in sessions.items())
    silence_s = max(one["silence_s"] for one in found)
    figures = [f"{live_s:.2f}", f"{simulated_s:.2f}", *(f"{one:.2f}" for one in ratios)]
    figures += [f"{100 * later / len(found):.1f} %", f"{silence_s:.1f}"]
    return [*figures, f"{len(found) - len(times)}"]


if __name__ == "__main__":
    end_cleanly()
    sys.exit(main())
