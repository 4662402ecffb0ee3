"""Server CPU, throughput and memory, side by side with nginx, Twisted's own server and aiohttp.

`make bench` runs it. All servers run at once and are measured in turn, round by round, so that a
noisy moment of the machine hits everybody; the table shows medians. CPU is user plus system time
of a server's processes from /proc, so the load generator (wrk) does not count. Tidegate runs as
its users run it: the `tidegate serve` command with admission on.

Needs the Debian packages nginx and wrk. Options: --rounds N, --seconds S, --stalled N, --json FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import click

HERE = Path(__file__).parent
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BIG_BYTES = 256 << 20

NGINX = """
worker_processes 1; worker_rlimit_nofile 20000; daemon off; pid {scratch}/nginx.pid;
error_log {scratch}/nginx.log warn;
events {{ worker_connections 9000; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000;
  default_type application/octet-stream; send_timeout 600s;
  open_file_cache max=1000 inactive=60s; open_file_cache_valid 30s;
  client_body_temp_path {scratch}/b; proxy_temp_path {scratch}/p; fastcgi_temp_path {scratch}/f;
  uwsgi_temp_path {scratch}/u; scgi_temp_path {scratch}/s;
  server {{ listen 127.0.0.1:{port} backlog=4096; root {root}; }}
}}
"""
# One address plays 2 000 clients here, so it may be as many as it likes.
TIDEGATE = """
clients_per_address = 65536
[admission]
slots = 4096
connections_per_lease = 1024
"""


@dataclass
class Peer:
    """One running server and what was measured of it."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    results: dict[str, list[float]] = field(default_factory=dict)

    def pids(self) -> list[int]:
        """The server's processes: the one started and all below it."""
        found, parents = [self.process.pid], [self.process.pid]
        while parents:
            try:
                text = Path(f"/proc/{parents[0]}/task/{parents[0]}/children").read_text()
            except OSError:
                text = ""
            children = [int(pid) for pid in text.split()]
            found += children
            parents = parents[1:] + children
        return found

    def cpu_s(self) -> float:
        """User and system time so far."""
        total = 0
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS_PER_S

    def resident_bytes(self) -> int:
        """Resident memory of all processes."""
        total = 0
        for pid in self.pids():
            status = Path(f"/proc/{pid}/status").read_text()
            total += int(status.partition("VmRSS:")[2].split()[0]) * 1024
        return total

    def note(self, measure: str, value: float) -> None:
        """Remember one round's value."""
        self.results.setdefault(measure, []).append(value)

    def median(self, measure: str) -> float:
        """The median over the rounds; NaN where nothing was measured."""
        values = self.results.get(measure)
        return statistics.median(values) if values else float("nan")


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def start_all(root: Path, scratch: Path, only: list[str]) -> list[Peer]:
    """Start every peer and wait until each answers."""
    tidegate_config = scratch / "tidegate.toml"
    tidegate_config.write_text(TIDEGATE)

    def nginx(port: int) -> list[str]:
        config = scratch / "nginx.conf"
        config.write_text(NGINX.format(scratch=scratch, port=port, root=root))
        return ["nginx", "-c", str(config), "-e", str(scratch / "nginx.log")]

    def tidegate(port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "tidegate", "serve", str(root), "--admin", "off"),
            *("--listen", f"127.0.0.1:{port}", "--state", str(scratch / "state")),
            *("--config", str(tidegate_config)),
        ]

    def twist(port: int) -> list[str]:
        listen = f"tcp:{port}:interface=127.0.0.1"
        return [
            *(sys.executable, "-m", "twisted", "--log-file", os.devnull),
            *("web", "--path", str(root), "--listen", listen),
        ]

    def aiohttp(port: int) -> list[str]:
        return [sys.executable, str(HERE / "aiohttp_static.py"), str(root), str(port)]

    commands: dict[str, Callable[[int], list[str]]] = {
        "nginx": nginx,
        "tidegate": tidegate,
        "twist web": twist,
        "aiohttp": aiohttp,
    }
    peers = []
    log: IO[bytes] = (scratch / "peers.log").open("wb")
    for name, command in commands.items():
        if only and name not in only:
            continue
        port = free_port()
        process = subprocess.Popen(
            command(port), stdout=log, stderr=log, cwd=HERE.parent, start_new_session=True
        )
        peers.append(Peer(name, port, process))
    for peer in peers:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", peer.port), 1).close()
                break
            except OSError as error:
                if peer.process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(
                        f"{peer.name} did not start; see {scratch / 'peers.log'}."
                    ) from error
                time.sleep(0.1)
    return peers


WRK_NUMBER = re.compile(r"([0-9]+) requests in [0-9.]+\w+, ([0-9.]+)(B|KB|MB|GB|TB) read")
WRK_BAD = re.compile(r"Non-2xx or 3xx responses: ([0-9]+)")
UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


def load(
    peer: Peer, path: str, connections: int, seconds: int, *fields: str
) -> tuple[int, float, float]:
    """Run wrk; requests answered, bytes read and the server's CPU seconds meanwhile."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s"]
    for one in fields:
        command += ["-H", one]
    before = peer.cpu_s()
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{peer.port}{path}"],
        check=True,
        capture_output=True,
        text=True,
    )
    cpu_s = peer.cpu_s() - before
    bad = WRK_BAD.search(done.stdout)
    match = WRK_NUMBER.search(done.stdout)
    if bad or not match:
        raise SystemExit(f"{peer.name} refused requests for {path}:\n{done.stdout}")
    return int(match[1]), float(match[2]) * UNITS[match[3]], cpu_s


def measure_round(peer: Peer, seconds: int) -> None:
    """One round of every workload on one server."""
    for path, measure in (("/1k.bin", "1k"), ("/10k.bin", "10k")):
        requests, _, cpu_s = load(peer, path, 64, seconds)
        peer.note(f"{measure} requests/s", requests / seconds)
        peer.note(f"{measure} µs", cpu_s / requests * 1e6)
    ranged = "Range: bytes=52428800-53477375"
    for measure, connections, fields in (("big", 4, ()), ("range", 16, (ranged,))):
        _, read_bytes, cpu_s = load(peer, "/256m.bin", connections, seconds, *fields)
        peer.note(f"{measure} GB/s", read_bytes / seconds / 1e9)
        peer.note(f"{measure} s/GB", cpu_s / (read_bytes / 1e9))


def stalled_bytes(peer: Peer, count: int) -> float:
    """Resident memory that each of `count` downloads costs that begin and are not read on."""

    def begin(number: int) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(30)
        sock.connect(("127.0.0.1", peer.port))
        client = f"Tidegate-Client: {number:032x}\r\n"
        sock.sendall(f"GET /256m.bin HTTP/1.1\r\nHost: bench\r\n{client}\r\n".encode())
        answer = sock.recv(15)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"{peer.name} refused a download: {answer!r}")
        return sock

    warm = [begin(number) for number in range(100)]
    time.sleep(1.0)
    before = peer.resident_bytes()
    held = [begin(number) for number in range(100, 100 + count)]
    time.sleep(1.0)
    each = (peer.resident_bytes() - before) / count
    for sock in (*warm, *held):
        sock.close()
    return each


COLUMNS = (
    ("1 KiB requests/s", "1k requests/s", "{:,.0f}"),
    ("CPU µs", "1k µs", "{:.1f}"),
    ("10 KiB requests/s", "10k requests/s", "{:,.0f}"),
    ("CPU µs", "10k µs", "{:.1f}"),
    ("256 MiB GB/s", "big GB/s", "{:.2f}"),
    ("CPU s/GB", "big s/GB", "{:.3f}"),
    ("1 MiB ranges GB/s", "range GB/s", "{:.2f}"),
    ("CPU s/GB", "range s/GB", "{:.3f}"),
    ("KiB per stalled download", "stalled KiB", "{:.1f}"),
)


def table(peers: list[Peer]) -> str:
    """The medians as a Markdown table, and Tidegate's ratios to its peers."""
    lines = [
        "| server | " + " | ".join(title for title, _, _ in COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for peer in peers:
        cells = [form.format(peer.median(measure)) for _, measure, form in COLUMNS]
        lines.append(f"| {peer.name} | " + " | ".join(cells) + " |")
    named = {peer.name: peer for peer in peers}
    ours = named.get("tidegate")
    for other in ("nginx", "twist web"):
        if ours is not None and other in named:
            ratios = ", ".join(
                f"{label} {ours.median(m) / named[other].median(m):.2f}"
                for label, m in (
                    ("1 KiB", "1k µs"),
                    ("10 KiB", "10k µs"),
                    ("256 MiB", "big s/GB"),
                    ("1 MiB ranges", "range s/GB"),
                )
            )
            lines.append(f"\nTidegate's CPU ÷ that of {other}: {ratios}.")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--stalled", type=int, default=2000)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    for tool in ("nginx", "wrk"):
        if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin") is None:
            raise SystemExit(f"{tool} is missing; install the Debian package {tool}.")
    os.environ["PATH"] += ":/usr/sbin"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3 * options.stalled + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SystemExit(f"The limit on open files is {hard}; raise it to {wanted} (ulimit -n).")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        scratch = Path(folder)
        root = scratch / "root"
        root.mkdir()
        for path in (scratch, root):
            path.chmod(0o755)
        (root / "1k.bin").write_bytes(os.urandom(1 << 10))
        (root / "10k.bin").write_bytes(os.urandom(10 << 10))
        (root / "256m.bin").write_bytes(os.urandom(1 << 20) * (BIG_BYTES >> 20))
        peers = start_all(root, scratch, options.only)
        try:
            # Caches warm, digests computed: the state a release server is in.
            for peer in peers:
                load(peer, "/1k.bin", 8, 1)
                load(peer, "/256m.bin", 1, 1)
            for number in range(options.rounds):
                for peer in peers[number % len(peers) :] + peers[: number % len(peers)]:
                    measure_round(peer, options.seconds)
                click.echo(f"round {number + 1} of {options.rounds} done", err=True)
            for peer in peers:
                if options.stalled:
                    peer.note("stalled KiB", stalled_bytes(peer, options.stalled) / 1024)
        finally:
            for peer in peers:
                os.killpg(peer.process.pid, signal.SIGTERM)
                try:
                    peer.process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(peer.process.pid, signal.SIGKILL)
                    peer.process.wait()
    click.echo(table(peers))
    if options.json is not None:
        results = {peer.name: peer.results for peer in peers}
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
