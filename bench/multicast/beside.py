"""A TCP download beside a session, in namespaces: what share of the bottleneck it gets.

    python -m bench.multicast.beside --receivers 3 --line 20 --seconds 20

Each receiver has a line of its own, slower than the sender's; over it come the session and one TCP
download from another host. Printed: TCP's share of what each line carried, second by second. Needs
root.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence

import click

from bench.multicast.bench import MulticastBench, Ours
from bench.multicast.network import MulticastLab
from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.namespaces import inside, run

_PORT = 9000
_SOURCE = f"""
import socket, threading
def pour(one):
    try:
        while True: one.sendall(bytes(65536))
    except OSError: pass
with socket.create_server(("0.0.0.0", {_PORT})) as listener:
    while True: threading.Thread(target=pour, args=(listener.accept()[0],), daemon=True).start()
"""
_SINK = f"""
import socket, sys
one = socket.create_connection((sys.argv[1], {_PORT}))
while one.recv(262144): pass
"""
#: The session and the download have found their rates by then.
_SETTLED_S = 4


class Lines:
    """What the receivers' lines carry: call `watch` while a session runs."""

    def __init__(self, network: MulticastLab, seconds: int, congestion: str) -> None:
        self._network = network
        self._seconds = seconds
        self._congestion = congestion
        #: Of each receiver, by second: TCP and UDP bytes that came.
        self.carried: list[list[tuple[int, int]]] = []

    def watch(self, ours: Ours) -> None:
        """Start the downloads, and count."""
        network, folder = self._network, ours.scratch
        if self._congestion:
            route = f"route change 10.77.0.0/24 dev eth0 congctl {self._congestion}"
            run("ip", "-n", network.second_sender(), *route.split())
        source = [sys.executable, "-c", _SOURCE]
        network.start(network.second_sender(), source, folder / "source.log", folder)
        time.sleep(1.0)
        names = [network.receiver(number) for number in range(network.receivers)]
        for name in names:
            run(*inside(name, "nft", "add table ip beside"))
            chain = "{ type filter hook input priority 10; }"
            run(*inside(name, "nft", f"add chain ip beside in {chain}"))
            for kind in ("tcp", "udp"):
                rule = f"add rule ip beside in meta l4proto {kind} counter"
                run(*inside(name, "nft", rule))
            words = [sys.executable, "-c", _SINK, network.second_address]
            network.start(name, words, folder / f"{name}.sink.log", folder)
        last = [self._counts(name) for name in names]
        self.carried = [[] for _ in names]
        begun = time.monotonic()
        for second in range(1, self._seconds + 1):
            time.sleep(max(0.0, begun + second - time.monotonic()))
            for number, name in enumerate(names):
                now = self._counts(name)
                before, last[number] = last[number], now
                self.carried[number].append((now[0] - before[0], now[1] - before[1]))

    @staticmethod
    def _counts(name: str) -> tuple[int, int]:
        text = run(*inside(name, "nft", "list table ip beside"))
        tcp, udp = (int(rest.split()[0]) for rest in text.split(" bytes ")[1:])
        return tcp, udp

    def shares(self, number: int) -> list[float]:
        """TCP's share in each second in which the session sent, after both have settled."""
        settled = self.carried[number][_SETTLED_S:]
        while settled and settled[-1][1] < 0.02 * sum(settled[-1]):
            settled.pop()
        return [tcp / max(1, tcp + udp) for tcp, udp in settled]


def table(shares: Sequence[Sequence[float]]) -> str:
    """A row a receiver."""
    rows = []
    for number, mine in enumerate(shares):
        ordered = sorted(mine)
        middle = f"{statistics.mean(mine):.0%}" if mine else "–"
        least = f"{ordered[0]:.0%} to {ordered[-1]:.0%}" if mine else "–"
        rows.append([str(number), middle, least, str(len(mine))])
    return markdown.table(["receiver", "TCP's share", "by second", "seconds"], rows)


@click.command()
@click.option("--receivers", default=3, show_default=True)
@click.option("--line", default=20.0, show_default=True, help="Mb/s of each receiver's line.")
@click.option("--seconds", default=24, show_default=True)
@click.option("--congestion", default="", help="TCP's: cubic, reno, bbr; empty: the machine's.")
@click.option("--prefix", default="tgt", show_default=True)
def main(receivers: int, line: float, seconds: int, congestion: str, prefix: str) -> None:
    """Print TCP's share of each line."""
    if os.geteuid() != 0:
        sys.exit("This lab builds network namespaces: run it as root.")
    rate = 0.95 * line
    bench = MulticastBench(rate * seconds / 8 * 1e6 / (1 << 20), rate_mbit=rate)
    each = dict.fromkeys(range(receivers), line)
    network = MulticastLab(receivers, prefix=prefix, second=True, receiver_rates_mbit=each)
    lines = Lines(network, seconds, congestion)
    try:
        bench.run("ours", network, act=lines.watch, timeout_s=0, expected=())
    finally:
        bench.close()
    print(table([lines.shares(number) for number in range(receivers)]))


if __name__ == "__main__":
    end_cleanly()
    main()
