"""Measures downloads with and without exchange among peers, in network namespaces.

usage: python -m bench.peers [--clients 12] [--mib 16] [--line 20] [--up 10] [--share 1.0]

N clients with lines of their own fetch one file from a server with a thin line at the same time:
first by plain HTTP, then with `--peers` for a share of them. Needs root, and the `peers` extra.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from bench.multicast.network import SENDER_SITE, MulticastLab
from bench.shared.ending import end_cleanly
from bench.shared.namespaces import LabFailed, inside
from bench.shared.processes import wait_for
from bench.shared.subject import require


@dataclass(frozen=True, slots=True)
class PeerRound:
    """One round: the seconds until each client was done, and the server's bytes in file sizes.

    `sharing_s` is of clients that exchanged with peers, `alone_s` of the others.
    """

    alone_s: tuple[float, ...]
    sharing_s: tuple[float, ...]
    origin_files: float

    @property
    def all_s(self) -> tuple[float, ...]:
        return self.alone_s + self.sharing_s


def _serve(network: MulticastLab, folder: Path, env: dict[str, str]) -> None:
    config = folder / "tidegate.toml"
    config.write_text(
        f'listen = ["{SENDER_SITE}"]\nadmin = "off"\n\n'
        # Also for small files.
        "[torrent]\nenabled = true\nleast = 1\n"
    )
    words = [sys.executable, "-m", "tidegate", "serve", str(folder / "release")]
    words += ["--config", str(config), "--state", str(folder / "state")]
    log = folder / "server.log"
    server = network.start(network.sender(), words, log, folder, env)
    wait_for("The server", log, "ready ", server)


def play(
    network: MulticastLab, size_bytes: int, clients: int, sharing: int, seed: int
) -> PeerRound:
    """One round of `clients`, of which the first `sharing` exchange with peers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "release").mkdir()
        content = random.Random(seed).randbytes(size_bytes)
        digest = hashlib.sha256(content).digest()
        (folder / "release" / "big.iso").write_bytes(content)
        env = dict(os.environ)
        _serve(network, folder, env)
        url = f"http://{SENDER_SITE}/big.iso"
        # The torrent is made before the crowd comes, as at a release.
        ask = inside(network.sender(), "curl", "-sf", "--retry", "5")
        subprocess.run([*ask, "-o", "/dev/null", url + ".torrent"], check=True)
        before, _ = network.wire()
        began_s = time.monotonic()
        running: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(clients):
            own = folder / f"client-{number}"
            own.mkdir()
            words = [sys.executable, "-m", "tidegate", "get", "--json", url]
            words += ["--peers"] if number < sharing else []
            running[number] = network.start(
                network.receiver(number),
                words,
                own / "log",
                own,
                env | {"TIDEGATE_DATA": str(own / "data"), "HOME": str(own)},
            )
        done_s: dict[int, float] = {}
        patience_s = 600.0
        while running:
            if time.monotonic() - began_s > patience_s:
                raise LabFailed(f"{len(running)} clients are not done after {patience_s:.0f} s")
            for number, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[number]
                done_s[number] = time.monotonic() - began_s
                got = folder / f"client-{number}" / "big.iso"
                if process.returncode or hashlib.sha256(got.read_bytes()).digest() != digest:
                    raise LabFailed((folder / f"client-{number}" / "log").read_text())
            time.sleep(0.05)
        sent = network.wire()[0] - before
        network.stop()
    return PeerRound(
        tuple(s for number, s in done_s.items() if number >= sharing),
        tuple(s for number, s in done_s.items() if number < sharing),
        sent / size_bytes,
    )


def require_exchange(without: PeerRound, with_peers: PeerRound) -> None:
    """Raise NothingMeasured unless clients received bytes from each other."""
    clients = len(without.all_s)
    require(
        without.origin_files >= clients,
        f"Without peers the server sent {without.origin_files:.2f} files to {clients} clients.",
    )
    require(len(with_peers.sharing_s) > 1, "Fewer than two clients were told to exchange.")
    require(
        with_peers.origin_files < clients,
        f"With peers the server sent {with_peers.origin_files:.2f} files to {clients} clients: "
        "they exchanged nothing.",
    )


def row(name: str, outcome: PeerRound) -> str:
    parts = [f"{name:<16}{max(outcome.all_s):>8.1f}{mean(outcome.all_s):>8.1f}"]
    for group in (outcome.sharing_s, outcome.alone_s):
        parts.append(f"{mean(group):>9.1f}" if group else f"{'-':>9}")
    return "".join(parts) + f"{outcome.origin_files:>9.2f}"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--mib", type=float, default=16)
    parser.add_argument("--line", type=float, default=20, help="the server's, Mbit/s")
    parser.add_argument("--up", type=float, default=10, help="each client's, Mbit/s")
    parser.add_argument("--share", type=float, default=1.0, help="of the clients, that exchange")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(given)
    size_bytes = int(options.mib * (1 << 20))
    if size_bytes < 1 or options.clients < 1 or not 0 <= options.share <= 1:
        parser.error("--mib and --clients must be above 0, and --share between 0 and 1")
    sharing = round(options.share * options.clients)
    print(f"{'':<16}{'last s':>8}{'mean s':>8}{'sharing':>9}{'others':>9}{'origin':>9}")
    found = []
    for name, count in (("without peers", 0), ("with peers", sharing)):
        with MulticastLab(
            options.clients, rate_mbit=options.line, prefix="tgp", upload_mbit=options.up
        ) as network:
            found.append(play(network, size_bytes, options.clients, count, options.seed))
        print(row(name, found[-1]), flush=True)
    without, with_peers = found
    require_exchange(without, with_peers)
    print(f"last done: {max(with_peers.all_s) / max(without.all_s):.2f} of that without peers")
    return 0


if __name__ == "__main__":
    end_cleanly()
    sys.exit(main())
