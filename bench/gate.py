"""Measures what a decision of the gate costs without nginx, or clients cost behind a real one.

usage: python -m bench.gate [--decisions 20000 | --waiting N | --beside N] [--policy ticket]

Clients of a thousand networks ask over kept connections for a large file, as nginx passes them on.
Each is admitted, and its end is reported at once by a datagram. With --waiting that many clients
wait inside their requests instead, each from an address of its own. With --beside a client makes N
downloads of 256 MiB, and twice N thousand of 10 kB, from nginx alone and from both.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.shared.ports import free_port
from bench.shared.processes import cpu_s, process, wait_for

_FILE_BYTES = 400_000


def _ask(folder: Path, network: int, count: int) -> None:
    """Make `count` downloads, one after another, each of a client of its own."""
    with (
        socket.socket(socket.AF_UNIX) as gate,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as report,
        socket.create_server(("127.0.0.1", 0)) as port,
        # The connection of all these clients to the mover, which the gate looks at.
        socket.create_connection(port.getsockname()) as own,
        port.accept()[0],
    ):
        ends = b"127.0.0.1 %d 127.0.0.1 %d" % (own.getsockname()[1], port.getsockname()[1])
        gate.connect(f"{folder}/gate.sock")
        report.connect(f"{folder}/gate.sock.end")
        for number in range(count):
            client = f"10.{network}.{number >> 8 & 255}.{number & 255}"
            gate.sendall(
                b"GET /big.iso HTTP/1.1\r\nHost: download.example\r\nUser-Agent: Wget/1.21\r\n"
                b"X-Forwarded-For: %b\r\nTidegate-Mover: nginx HTTP/1.1 %b\r\n\r\n"
                % (client.encode(), ends)
            )
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += gate.recv(65_536)
            lease = re.search(rb"Tidegate-Lease: ([0-9a-f]{32})", answer)
            if lease is None:
                sys.exit(f"not admitted: {answer[:200]!r}")
            report.send(b"<190>Nov 26 20:00:00 tidegate: %b 200 %d OK" % (lease[1], _FILE_BYTES))


@contextlib.contextmanager
def _gate(folder: Path, policy: str, slots: int, size_bytes: int, *places: str) -> Iterator[int]:
    """A gate for one file, which listens at `places` as well; its process."""
    (folder / "release").mkdir()
    (folder / "release" / "big.iso").write_bytes(bytes(size_bytes))
    words = [sys.executable, "-m", "tidegate", "gate", str(folder / "release")]
    words += ["--state", str(folder / "state")]
    for place in (f"unix:{folder}/gate.sock", *places):
        words += ["--listen", place]
    words += ["--admin", "off", "--policy", policy, "--slots", str(slots), "--reserve-small", "0"]
    words += ["--user", "root"] if os.geteuid() == 0 else []
    log = folder / "log"
    with process(words, log) as gate:
        wait_for("The gate", log, "ready ", gate)
        yield gate.pid


def measure(decisions: int, policy: str) -> str:
    """One line with the figures."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with _gate(folder, policy, 4000, _FILE_BYTES) as gate:
            _ask(folder, 255, 500)
            used_s, began_s = cpu_s(gate), time.monotonic()
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda one: _ask(folder, one, decisions // 8), range(8)))
            took_s, used_s = time.monotonic() - began_s, cpu_s(gate) - used_s
    done = decisions // 8 * 8
    return (
        f"{policy}: {done} decisions in {took_s:.1f} s; {1e6 * used_s / done:.0f} µs of the gate's "
        f"CPU each, {done / max(used_s, 0.01):.0f} a second of one core"
    )


@contextlib.contextmanager
def _nginx(
    folder: Path, gate: str, more: str = "", workers: int = 1
) -> Iterator[tuple[list[int], int]]:
    """A real nginx before the gate, with `more` servers: its processes and its port."""
    port, log = free_port(), folder / "nginx.log"
    words = [sys.executable, "-m", "tidegate", "gate", "snippet", "nginx", "--complete"]
    words += ["--root", f"{folder}/release", "--gate", gate]
    words += ["--report", f"unix:{folder}/gate.sock.end"]
    words += ["--listen", f"127.0.0.1:{port}", "--small-below", "10000"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    text = text.replace("worker_connections 8192", "worker_connections 32768")
    text = text.replace("nofile 16384", "nofile 65536")
    text = text.replace("worker_processes auto", f"worker_processes {workers}")
    text = text.replace("error_log stderr", "error_log stderr notice")
    (folder / "nginx").mkdir()
    (folder / "nginx.conf").write_text(text.rstrip().removesuffix("}") + more + "}")
    user = "user root; " if os.geteuid() == 0 else ""
    options = f"{user}daemon off;"
    command = ("nginx", "-p", folder / "nginx", "-c", folder / "nginx.conf", "-g", options)
    with process(command, log) as nginx:
        wait_for("nginx", log, "start worker process ", nginx)
        children = Path(f"/proc/{nginx.pid}/task/{nginx.pid}/children").read_text()
        yield [nginx.pid, *map(int, children.split())], port


def _memory(pids: Sequence[int]) -> int:
    """What these processes have in memory, their part of what they share included; bytes."""
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(1024 * int(re.findall(r"(?m)^Pss: +(\d+) kB", text)[0]) for text in texts)


def measure_waiting(count: int, policy: str) -> str:
    """One line with what a client costs that waits inside its request."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        # They come faster than the gate accepts, and the queue of a unix socket is full at 4096.
        place = f"127.0.0.1:{free_port()}"
        gate = stack.enter_context(_gate(folder, policy, 1, 100 * _FILE_BYTES, place))
        # A process of nginx has two descriptors for each.
        movers, port = stack.enter_context(_nginx(folder, place, workers=1 + count // 5000))
        clients = []

        def ask(number: int) -> None:
            one = stack.enter_context(socket.socket())
            # The slot's client takes nothing.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.bind((f"127.{1 + number // 250}.{number % 250}.1", 0))
            one.connect(("127.0.0.1", port))
            clients.append(one)
            one.sendall(
                b"GET /big.iso HTTP/1.1\r\nHost: download.example\r\nUser-Agent: Wget/1.21\r\n\r\n"
            )

        def settle() -> None:
            """Come back when the gate has answered or parked all, and rests."""
            before = used_s = -1.0
            while before != (before := len(os.listdir(f"/proc/{gate}/fd"))) or (
                cpu_s(gate) - used_s > 0.05 + count / 50_000
            ):
                used_s = cpu_s(gate)
                time.sleep(1.0)

        for number in range(50):
            ask(number)
        settle()
        at_gate, at_mover = _memory([gate]), _memory(movers)
        used = [cpu_s(gate), sum(map(cpu_s, movers))]
        for number in range(50, count + 50):
            ask(number)
        settle()
        at_gate, at_mover = _memory([gate]) - at_gate, _memory(movers) - at_mover
        used = [cpu_s(gate) - used[0], sum(map(cpu_s, movers)) - used[1]]
        answered = sum(bool(select.select([one], [], [], 0)[0]) for one in clients[:1000])
        # The slot goes on from a client that takes nothing for long.
        if answered > 50:
            sys.exit(f"{answered} of the first 1000 clients do not wait")
    return (
        f"{policy}: {count} clients wait; each takes {at_gate / count / 1000:.1f} kB and "
        f"{1e6 * used[0] / count:.0f} µs to come at the gate, {at_mover / count / 1000:.1f} kB and "
        f"{1e6 * used[1] / count:.0f} µs at nginx"
    )


def measure_beside(count: int, policy: str) -> str:
    """A line for each size, with what a download costs nginx alone and a gate with its nginx."""
    alone, rounds, lines = free_port(), min(5, count), []
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        gate = stack.enter_context(_gate(folder, policy, 4000, 1 << 28))
        (folder / "release" / "small.bin").write_bytes(bytes(10_000))
        (folder / "release" / "listed.bin").write_bytes(bytes(9_999))
        server = f'server {{ listen 127.0.0.1:{alone}; root "{folder}/release"; }}'
        movers, port = stack.enter_context(_nginx(folder, f"unix:{folder}/gate.sock", server))
        for name in ("big.iso", "small.bin", "listed.bin"):
            times = count // rounds * (1 if name == "big.iso" else 1000)
            used = {alone: 0.0, port: 0.0}
            for one in [*used] * rounds:
                used[one] -= sum(map(cpu_s, [gate, *movers]))
                # curl leaves the fragment out: it asks for the same over one connection.
                url = f"http://127.0.0.1:{one}/{name}#[1-{times}]"
                subprocess.run(["curl", "-sSf", "-o", os.devnull, url], check=True)
                used[one] += sum(map(cpu_s, [gate, *movers]))
            each = [1e6 * used_s / (times * rounds) for used_s in used.values()]
            lines.append(f"{name}: {each[0]:.0f} µs by nginx alone, {each[1]:.0f} µs by both")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decisions", type=int, default=20_000)
    parser.add_argument("--policy", default="ticket")
    parser.add_argument("--waiting", type=int)
    parser.add_argument("--beside", type=int)
    given = parser.parse_args()
    text = (
        (given.beside and measure_beside(given.beside, given.policy))
        or (given.waiting and measure_waiting(given.waiting, given.policy))
        or measure(given.decisions, given.policy)
    )
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
