"""Several processes with one queue: how fast, and how they bear faults.

    python -m bench.cluster speed
    python -m bench.cluster faults

`speed` downloads over TLS from one process and from several, side by side, and asks for a small
file all the while; CPU seconds are those of the server's whole process tree. `faults` kills
(SIGKILL) and stops (SIGSTOP) the leader and the nodes at random under clients that write down what
they saw, and judges the history afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from bench.history import MIB, CrowdHistory, TicketClient, fetch, most_at_once
from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.subject import Suppressed, require

#: What a lease may idle before its slot is another's, in seconds; as the fault run sets it.
LEASE_IDLE_S = 2.0
#: On two busy cores a process that was killed is back after about 3 s.
_RESTART_S = 20.0
_ENDED = Suppressed("processes that ended while their time was read", OSError)
_MISSED = Suppressed("faults that hit no process", ValueError, OSError)


# -- a server -----------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(root: Path, *args: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`tidegate serve` on a free port: the process and its URL."""
    command = [sys.executable, "-m", "tidegate", "serve", str(root / "release")]
    command += ["--listen", "127.0.0.1:0", "--admin", "off", "--state", str(root / "state"), *args]
    environ = {"TIDEGATE_DRAIN_S": "1", "TIDEGATE_CLIENTS_PER_ADDRESS": "65536", **environ}
    with (root / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **environ},
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("ready "):
                    break
            else:
                raise click.ClickException((root / "log").read_text("utf-8"))
            yield process, line.split()[1]
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def children(pid: int) -> list[int]:
    """The processes that this one has started."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    except OSError:
        return []
    return [int(word) for word in text.split()]


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its children, as far as they live."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for one in (pid, *children(pid)):
        with _ENDED:
            fields = Path(f"/proc/{one}/stat").read_text("ascii").rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def memory_kb(pid: int) -> tuple[int, int]:
    """Memory that a process shares with nobody, and its part of all that it uses (PSS)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    private, pss = ("Private_Clean", "Private_Dirty"), ("Pss",)
    found = [sum(int(rows[name].split()[0]) for name in names) for names in (private, pss)]
    return found[0], found[1]


# -- speed --------------------------------------------------------------------------------------


def _make_certificate(root: Path) -> tuple[str, ...]:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2"),
            *("-subj", "/CN=localhost"),
        ],
        cwd=root,
        check=True,
        capture_output=True,
    )
    (root / "key.pem").chmod(0o600)
    return ("--tls-cert", str(root / "cert.pem"), "--tls-key", str(root / "key.pem"))


def _curl_all(url: str, streams: int, size_bytes: int) -> float:
    began = time.monotonic()
    command = ["curl", "-skf", "-o", "/dev/null", "-w", "%{size_download}"]
    curls = [
        subprocess.Popen([*command, "-A", f"c/{n}", f"{url}/big.bin"], stdout=subprocess.PIPE)
        for n in range(streams)
    ]
    found = [int(curl.communicate()[0] or 0) for curl in curls]
    took_s = time.monotonic() - began
    require_whole(found, size_bytes)
    return took_s


def require_whole(found_bytes: Sequence[int], size_bytes: int) -> None:
    """Raise NothingMeasured unless each download brought the whole file."""
    whole = sum(one == size_bytes for one in found_bytes)
    require(
        found_bytes and whole == len(found_bytes),
        f"{whole} of {len(found_bytes)} downloads brought all {size_bytes} bytes.",
    )


async def _small_latencies(url: str, stop: asyncio.Event) -> list[float]:
    """How long a small file takes, in seconds, asked again and again."""
    found = []
    context = ssl._create_unverified_context() if url.startswith("https") else None
    while not stop.is_set():
        began = time.monotonic()
        answer = await fetch(url, "/small.txt", {}, context)
        require(answer.status == 200, f"The small file was answered with {answer.status}.")
        found.append(time.monotonic() - began)
        await asyncio.sleep(0.01)
    return found


async def _measure(url: str, streams: int, size_bytes: int) -> tuple[float, list[float]]:
    stop = asyncio.Event()
    small = asyncio.create_task(_small_latencies(url, stop))
    took_s = await asyncio.to_thread(_curl_all, url, streams, size_bytes)
    stop.set()
    return took_s, await small


# -- faults -------------------------------------------------------------------------------------


async def _torment(parent: int, state: Path, until_s: float, rng: random.Random) -> dict[str, int]:
    """Kill and stop processes at random; how often what."""
    done: dict[str, int] = {}
    while time.monotonic() < until_s:
        await asyncio.sleep(rng.uniform(0.5, 2.5))
        processes = children(parent)
        with _MISSED:
            leader = int((state / "lock").read_text("ascii"))
            victim = leader if rng.random() < 0.5 else rng.choice(processes or [leader])
            if victim not in processes:
                continue
            role = "leader" if victim == leader else "node"
            if rng.random() < 0.7:
                os.kill(victim, signal.SIGKILL)
                what = f"{role} killed"
            else:
                os.kill(victim, signal.SIGSTOP)
                await asyncio.sleep(rng.uniform(0.2, 3.0))
                os.kill(victim, signal.SIGCONT)
                what = f"{role} stopped"
            done[what] = done.get(what, 0) + 1
    return done


async def _faults(
    parent: int, url: str, state: Path, body: bytes, seconds: float, clients: int, seed: int
) -> tuple[CrowdHistory, dict[str, int]]:
    history, rng = CrowdHistory(), random.Random(seed)
    until_s = time.monotonic() + seconds
    crowd = [
        TicketClient([url], f"c{n}", body, history, random.Random(f"{seed} {n}"))
        for n in range(clients)
    ]
    tasks = [asyncio.create_task(one.run(until_s, until_s + 60.0)) for one in crowd]
    done = await _torment(parent, state, until_s, rng)
    await asyncio.gather(*tasks)
    return history, done


# -- commands -----------------------------------------------------------------------------------


@click.group()
def main() -> None:
    """Several processes with one queue: how fast, and how they bear faults."""


@main.command()
@click.option("--workers", default=2, show_default=True)
@click.option("--streams", default=4, show_default=True)
@click.option("--mib", default=256, show_default=True, help="Size of each download.")
@click.option("--rounds", default=3, show_default=True)
def speed(workers: int, streams: int, mib: int, rounds: int) -> None:
    """TLS downloads and small files from one process and from WORKERS, in turn."""
    rows: dict[int, list[tuple[float, float, float]]] = {1: [], workers: []}
    memory = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "release").mkdir()
        (root / "release" / "big.bin").write_bytes(os.urandom(MIB) * mib)
        (root / "release" / "small.txt").write_bytes(b"x" * 1000)
        tls = _make_certificate(root)
        for _ in range(rounds):
            for count in rows:
                shutil.rmtree(root / "state", ignore_errors=True)
                with serving(root, "--workers", str(count), *tls) as (process, url):
                    before = cpu_s(process.pid)
                    took_s, small = asyncio.run(_measure(url, streams, mib * MIB))
                    spent = cpu_s(process.pid) - before
                    size = streams * mib * MIB
                    p99 = sorted(small)[int(len(small) * 0.99)]
                    rows[count].append((size / took_s / 1e6, spent / size * 1e9, p99 * 1e3))
                    if count > 1:
                        found_kb = [memory_kb(pid) for pid in children(process.pid)]
                        memory = max(memory, *found_kb, key=lambda one: one[1])
    lines = []
    for count, found in rows.items():
        cells = [statistics.median(column) for column in zip(*found, strict=True)]
        lines.append((count, f"{cells[0]:.0f}", f"{cells[1]:.2f}", f"{cells[2]:.1f}"))
    click.echo(markdown.table(("processes", "MB/s", "CPU s/GB", "small file p99, ms"), lines))
    click.echo(
        f"The largest process with workers: {memory[0] / 1024:.0f} MiB of its own, "
        f"{memory[1] / 1024:.0f} MiB with its part of what is shared (PSS)."
    )


@main.command()
@click.option("--workers", default=3, show_default=True)
@click.option("--clients", default=100, show_default=True)
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--slots", default=6, show_default=True)
@click.option("--policy", default="ticket", show_default=True)
@click.option("--seed", default=1, show_default=True)
def faults(workers: int, clients: int, seconds: float, slots: int, policy: str, seed: int) -> None:
    """Kill and stop processes at random under CLIENTS; exit status 1 if a promise was broken."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "release").mkdir()
        body = random.Random(seed).randbytes(400_000)
        (root / "release" / "big.bin").write_bytes(body)
        args = [
            *("--workers", str(workers), "--slots", str(slots), "--reserve-small", "0"),
            *("--bandwidth", "4MB", "--policy", policy),
        ]
        environ = {
            "TIDEGATE_LEASE_IDLE_S": f"{LEASE_IDLE_S}",
            "TIDEGATE_TICKET_TTL_S": "30",
            "TIDEGATE_EARLY_PENALTY_S": "0",
        }
        with serving(root, *args, **environ) as (process, url):
            history, done = asyncio.run(
                _faults(
                    process.pid,
                    url,
                    root / "state",
                    body,
                    seconds,
                    clients,
                    seed,
                )
            )
            alive = _settled(process.pid, workers + 1)
        log = (root / "log").read_text("utf-8")
    most = most_at_once(history.bodies)
    click.echo(f"faults: {done}")
    click.echo(
        f"downloads {history.whole}, wrong {history.wrong}; broken off {history.broken}; told to "
        f"wait {history.waits}, at most after {history.longest_s:.1f} s; refused {history.refused}"
        f"; unfinished {history.unfinished}"
    )
    click.echo(
        f"tickets {len(history.owners)}, with two owners {history.two_owners}, changed under way "
        f"{history.changed}; places that grew {len(history.grew)}, at most by "
        f"{max((one for one, _, _ in history.grew), default=0)}; bodies at once {most} of {slots}"
    )
    click.echo(f"processes at the end: {alive} of {workers + 1}")
    bad = history.wrong or history.two_owners or alive != workers + 1 or "Traceback" in log
    if bad:
        click.echo(log[-5000:], err=True)
        sys.exit(1)
    require_harmed(done, history.whole)


def _settled(parent: int, count: int) -> int:
    """How many processes run, once a process that was killed last had time to start again."""
    end_s = time.monotonic() + _RESTART_S
    while (alive := len(children(parent))) != count and time.monotonic() < end_s:
        time.sleep(0.1)
    return alive


def require_harmed(done: Mapping[str, int], whole: int) -> None:
    """Raise NothingMeasured unless faults hit processes and clients still got whole files."""
    require(sum(done.values()), "No process was killed or stopped.")
    require(whole, "No client got a whole file.")


if __name__ == "__main__":
    end_cleanly()
    main()
