"""Measures what a decision of the gate costs: one process, without nginx.

usage: python -m bench.gate [--decisions 20000] [--connections 8] [--policy ticket]

Clients of a thousand networks ask over kept connections for a large file, as nginx passes them on.
Each is admitted, and its end is reported at once by a datagram.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.shared.processes import cpu_s, process, wait_for

_FILE_BYTES = 400_000


def _ask(folder: Path, network: int, count: int) -> None:
    """Make `count` downloads, one after another, each of a client of its own."""
    with (
        socket.socket(socket.AF_UNIX) as gate,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as report,
    ):
        gate.connect(f"{folder}/gate.sock")
        report.connect(f"{folder}/gate.sock.end")
        for number in range(count):
            client = f"10.{network}.{number >> 8 & 255}.{number & 255}"
            gate.sendall(
                b"GET /big.iso HTTP/1.1\r\nHost: download.example\r\nUser-Agent: Wget/1.21\r\n"
                b"X-Forwarded-For: %b\r\n"
                b"Tidegate-Mover: nginx HTTP/1.1 %b 5000 192.0.2.1 80\r\n\r\n"
                % (client.encode(), client.encode())
            )
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += gate.recv(65_536)
            lease = re.search(rb"Tidegate-Lease: ([0-9a-f]{32})", answer)
            if lease is None:
                sys.exit(f"not admitted: {answer[:200]!r}")
            report.send(b"<190>Nov 26 20:00:00 tidegate: %b 200 %d OK" % (lease[1], _FILE_BYTES))


def measure(decisions: int, connections: int, policy: str) -> str:
    """One line with the figures."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "release").mkdir()
        (folder / "release" / "big.iso").write_bytes(bytes(_FILE_BYTES))
        words = [sys.executable, "-m", "tidegate", "gate", str(folder / "release")]
        words += ["--listen", f"unix:{folder}/gate.sock", "--state", str(folder / "state")]
        words += ["--admin", "off", "--policy", policy, "--slots", "4000", "--reserve-small", "0"]
        words += ["--user", "root"] if os.geteuid() == 0 else []
        log = folder / "log"
        with process(words, log) as gate:
            wait_for("The gate", log, "ready ", gate)
            _ask(folder, 255, 500)
            used_s, began_s = cpu_s(gate.pid), time.monotonic()
            askers = [
                threading.Thread(target=_ask, args=(folder, one, decisions // connections))
                for one in range(connections)
            ]
            for asker in askers:
                asker.start()
            for asker in askers:
                asker.join()
            took_s, used_s = time.monotonic() - began_s, cpu_s(gate.pid) - used_s
    done = decisions // connections * connections
    return (
        f"{policy}: {done} decisions in {took_s:.1f} s; {1e6 * used_s / done:.0f} µs of the gate's "
        f"CPU each, {done / max(used_s, 0.01):.0f} a second of one core"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decisions", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--policy", default="ticket")
    given = parser.parse_args()
    sys.stdout.write(f"{measure(given.decisions, given.connections, given.policy)}\n")


if __name__ == "__main__":
    main()
