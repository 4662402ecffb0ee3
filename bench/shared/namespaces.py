"""Network namespaces and the lines between them, for labs. Needs root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

#: Where the server of a crowd listens.
SERVER = "192.0.2.1"


class LabFailed(Exception):
    """A command of the lab did not work; the message is its own."""


def run(*words: str, check: bool = True) -> str:
    """Output of a command; raises LabFailed with what it said."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise LabFailed(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def inside(name: str, *words: str) -> list[str]:
    """The command that runs `words` in a namespace."""
    return ["ip", "netns", "exec", name, *words]


def make(names: Iterable[str], bridge: str | None = None) -> None:
    """Namespaces with a loopback; `bridge` is one of them that gets a bridge, `br0`."""
    names = list(names)
    # Those of a run that was killed.
    remove(names)
    for name in names:
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
    if bridge is not None:
        run("ip", "-n", bridge, *["link", "add", "br0", "type", "bridge", "mcast_snooping", "0"])
        run("ip", "-n", bridge, "link", "set", "br0", "up")


def remove(names: Iterable[str]) -> None:
    """The namespaces, and what still runs in them."""
    for name in names:
        for pid in run("ip", "netns", "pids", name, check=False).split():
            run("kill", "-KILL", pid, check=False)
        run("ip", "netns", "del", name, check=False)


def connect(name: str, other: str, device: str = "eth0") -> None:
    """A line from `eth0` of one namespace to `device` of another, without addresses."""
    # A segmented batch would pass a token bucket or a loss rule as one packet.
    one_by_one = "gso_max_segs 1"
    ends = f"eth0 netns {name} {one_by_one} type veth peer name {device} netns {other} {one_by_one}"
    run("ip", "link", "add", *ends.split())


def plug(name: str, bridge: str, device: str, own: str) -> None:
    """A line to the bridge's namespace, plugged into its bridge; `own` is the address."""
    connect(name, bridge, device)
    join_bridge(bridge, device)
    address(name, f"{own}/24")


def join_bridge(bridge: str, device: str) -> None:
    """Plug a device of the bridge's namespace into its bridge."""
    run("ip", "-n", bridge, "link", "set", device, "master", "br0", "up")


def address(name: str, network: str) -> None:
    """Give `eth0` its address, as `10.0.0.1/24`, and start it."""
    run("ip", "-n", name, "addr", "add", network, "brd", "+", "dev", "eth0")
    run("ip", "-n", name, "link", "set", "eth0", "up")


def crowd(server: str, clients: str, *networks: str) -> None:
    """Give `SERVER` to the one end of a line, and all addresses of these networks to the other."""
    address(server, f"{SERVER}/24")
    address(clients, "192.0.2.2/24")
    for network in networks:
        run("ip", "-n", clients, *f"route add local {network} dev lo".split())
        run("ip", "-n", server, *f"route add {network} via 192.0.2.2".split())


def shape(name: str, device: str, rate_mbit: float, queue: str, verb: str = "replace") -> None:
    """A token bucket on what leaves a device; `queue` has its burst and latency."""
    words = f"tc qdisc {verb} dev {device} root tbf rate {rate_mbit * 1e6:.0f}bit {queue}"
    run(*inside(name, *words.split()))


def payload_bytes_s(rate_mbit: float) -> float:
    """What a line carries of files: a frame of 1 514 bytes has 1 448 bytes of them."""
    return rate_mbit * 1e6 / 8 * (1448 / 1514)
