"""A sender, a bridge and N receivers as network namespaces; cleans up after itself. Needs root.

Losses are independent per receiver (nft on its input hook, UDP only unless asked otherwise), the
rate is a token bucket on the sender's interface that counts Ethernet frames. `gso_max_segs 1`
everywhere: a segmented batch would cross a veth as one packet, and a loss rule would drop it whole.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

SENDER_ADDRESS = "10.77.0.1"


class LabFailed(Exception):
    """A command of the lab did not work; the message is its own."""


def run(*words: str, check: bool = True) -> str:
    """Output of a command; raises LabFailed with what it said."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise LabFailed(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@dataclass
class Network:
    """`with Network(...) as network:` builds and removes it."""

    receivers: int = 8
    loss_percent: float = 0.0
    rate_mbit: float = 100.0
    prefix: str = "tgm"
    losses: Sequence[float] | None = None
    receiver_rates_mbit: dict[int, float] = field(default_factory=dict)
    tcp_loss: bool = False
    #: So many datagrams in a row are lost of each so many.
    bursts: tuple[int, int] | None = None
    #: One of fifty datagrams has some bits changed on the way.
    mangled: bool = False
    #: Another host, for a mirror.
    second: bool = False
    #: What each receiver's line carries away from it.
    upload_mbit: float | None = None

    def __post_init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def sender(self) -> str:
        """Name of the sender's namespace."""
        return f"{self.prefix}-s"

    def receiver(self, number: int) -> str:
        """Name of a receiver's namespace."""
        return f"{self.prefix}-r{number}"

    @staticmethod
    def address(number: int) -> str:
        """A receiver's address."""
        return f"10.77.0.{11 + number}"

    @property
    def second_address(self) -> str:
        """The other mirror's address."""
        return "10.77.0.2"

    def second_sender(self) -> str:
        """Name of the other mirror's namespace."""
        return f"{self.prefix}-m"

    def _names(self) -> list[str]:
        names = [self.sender(), f"{self.prefix}-b"]
        if self.second:
            names.append(self.second_sender())
        return [*names, *(self.receiver(i) for i in range(self.receivers))]

    def __enter__(self) -> Network:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        bridge = f"{self.prefix}-b"
        for name in self._names():
            run("ip", "netns", "del", name, check=False)
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", bridge, *["link", "add", "br0", "type", "bridge", "mcast_snooping", "0"])
        run("ip", "-n", bridge, "link", "set", "br0", "up")
        self._port(self.sender(), SENDER_ADDRESS)
        shape = f"root tbf rate {self.rate_mbit}mbit burst 32kb latency 50ms"
        self._shape(self.sender(), "eth0", shape)
        if self.second:
            self._port(self.second_sender(), self.second_address)
            self._shape(self.second_sender(), "eth0", shape)
        for number in range(self.receivers):
            name = self.receiver(number)
            self._port(name, self.address(number))
            if self.upload_mbit is not None:
                up = f"root tbf rate {self.upload_mbit}mbit burst 16kb latency 50ms"
                self._shape(name, "eth0", up)
            loss = self.losses[number] if self.losses else self.loss_percent
            if loss:
                self.set_loss(number, loss)
            if self.bursts:
                self._rule(number, f"numgen inc mod {self.bursts[1]} < {self.bursts[0]} drop")
            if self.mangled:
                # The checksum follows the change, so the datagram is delivered.
                self._rule(number, "udp length > 1000 numgen random mod 50 == 0 @th,4000,8 set 90")
            if number in self.receiver_rates_mbit:
                rate = self.receiver_rates_mbit[number]
                self._shape(bridge, name, f"root tbf rate {rate}mbit burst 32kb latency 50ms")
        time.sleep(0.5)

    def _port(self, name: str, address: str) -> None:
        bridge = f"{self.prefix}-b"
        ends = ["ip", "link", "add", "eth0", "netns", name, "gso_max_segs", "1", "type", "veth"]
        run(*ends, "peer", "name", name, "netns", bridge, "gso_max_segs", "1")
        run("ip", "-n", bridge, "link", "set", name, "master", "br0", "up")
        run("ip", "-n", name, "addr", "add", f"{address}/24", "brd", "+", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "route", "add", "224.0.0.0/4", "dev", "eth0")

    @staticmethod
    def _shape(name: str, device: str, words: str) -> None:
        run("ip", "netns", "exec", name, *f"tc qdisc add dev {device} {words}".split())

    def set_loss(self, number: int, percent: float) -> None:
        """Independent loss of what arrives at one receiver."""
        what = "{ udp, tcp }" if self.tcp_loss else "udp"
        self._rule(number, f"numgen random mod 10000 < {round(percent * 100)} drop", what)

    def _rule(self, number: int, rule: str, what: str = "udp") -> None:
        rules = (
            "add table inet lab; add chain inet lab in { type filter hook input priority 0; }; "
            f"add rule inet lab in meta l4proto {what} {rule}"
        )
        run("ip", "netns", "exec", self.receiver(number), "nft", rules)

    def start(
        self,
        name: str,
        words: Sequence[str],
        log: Path,
        cwd: Path,
        env: dict[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program in a namespace."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["ip", "netns", "exec", name, *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
            )
        self.processes.append(process)
        return process

    def wire(self) -> tuple[int, int]:
        """Bytes and packets the sender has put on its interface."""
        base = "/sys/class/net/eth0/statistics/"
        text = run(
            "ip", "netns", "exec", self.sender(), "cat", f"{base}tx_bytes", f"{base}tx_packets"
        )
        sent, packets = text.split()
        return int(sent), int(packets)

    def stop(self) -> None:
        """End everything that was started here, by its own process id."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + 2
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def __exit__(self, *_: object) -> None:
        self.stop()
        for name in self._names():
            for pid in run("ip", "netns", "pids", name, check=False).split():
                run("kill", "-KILL", pid, check=False)
            run("ip", "netns", "del", name, check=False)
