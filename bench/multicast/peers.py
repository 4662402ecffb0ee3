"""The peers' command lines, as their manuals advise for a LAN at a known rate.

Each function starts receivers and sender.
Debian packages: uftp, udpcast, nginx, curl.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.multicast.network import SENDER_SITE, MulticastLab

#: What the sender's wire had carried at the start, and the time.
Begun = tuple[int, float]
Peer = Callable[[MulticastLab, Path, Path, list[Path], float], Begun]


def _begin(network: MulticastLab, words: list[str], scratch: Path) -> Begun:
    time.sleep(1)
    before, begun = network.wire(), time.monotonic()
    network.start(network.sender(), words, scratch / "sender.log", scratch)
    return before, begun


def uftp(network: MulticastLab, file: Path, scratch: Path, outs: list[Path], kbit: float) -> Begun:
    """uftp: NACK-based transfer. Its rate is that of the payload."""
    ids = [f"0x{0x0A4D000B + number:08X}" for number in range(len(outs))]
    for number, out in enumerate(outs):
        words = ["uftpd", "-d", "-I", "eth0", "-U", ids[number], "-B", "4194304", "-t"]
        words += ["-D", str(out.parent)]
        network.start(network.receiver(number), words, scratch / f"r{number}.log", out.parent)
    words = ["uftp", "-I", "eth0", "-B", "1048576", "-b", "1400", "-H", ",".join(ids)]
    return _begin(network, [*words, "-R", str(int(kbit)), str(file)], scratch)


def udpcast(
    network: MulticastLab, file: Path, scratch: Path, outs: list[Path], kbit: float
) -> Begun:
    """udpcast: slices with retransmission. Without the hello interval it stalls after losses."""
    for number, out in enumerate(outs):
        words = ["udp-receiver", "--file", str(out), "--interface", "eth0", "--nokbd"]
        words += ["--portbase", "9000"]
        network.start(network.receiver(number), words, scratch / f"r{number}.log", out.parent)
    words = ["udp-sender", "--file", str(file), "--interface", "eth0", "--nokbd", "--portbase"]
    words += ["9000", "--full-duplex", "--min-receivers", str(len(outs)), "--max-bitrate"]
    words += [f"{int(kbit)}k", "--rexmit-hello-interval", "100"]
    return _begin(network, words, scratch)


def tcp(network: MulticastLab, file: Path, scratch: Path, outs: list[Path], kbit: float) -> Begun:
    """One nginx, and one curl for each receiver."""
    del kbit
    temporary = "".join(
        f"{kind}_temp_path {scratch}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = scratch / "nginx.conf"
    configuration.write_text(
        f"worker_processes 1; daemon off; pid {scratch}/pid; error_log {scratch}/error.log;\n"
        "events { worker_connections 512; }\n"
        f"http {{ sendfile on; tcp_nopush on; access_log off; {temporary}\n"
        f"server {{ listen {SENDER_SITE}; root {file.parent}; }} }}\n"
    )
    for folder in (scratch, file.parent, file.parent.parent):
        folder.chmod(0o755)
    words = ["nginx", "-c", str(configuration)]
    network.start(network.sender(), words, scratch / "sender.log", scratch)
    time.sleep(1)
    before, begun = network.wire(), time.monotonic()
    for number, out in enumerate(outs):
        words = ["curl", "-sS", "-o", str(out), f"http://{SENDER_SITE}/{file.name}"]
        network.start(network.receiver(number), words, scratch / f"r{number}.log", out.parent)
    return before, begun


PEERS: dict[str, Peer] = {"uftp": uftp, "udpcast": udpcast, "tcp": tcp}


def available(tool: str) -> bool:
    """Whether a tool of `PEERS` is installed. If not, a message names it."""
    found = (
        shutil.which({"uftp": "uftp", "udpcast": "udp-sender", "tcp": "nginx"}[tool]) is not None
    )
    if not found:
        print(f"{tool} is not installed and is left out", file=sys.stderr)
    return found
