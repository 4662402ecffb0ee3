"""A sender, a bridge and N receivers as network namespaces. Needs root.

Receivers have independent losses (nft on the input hook, UDP only) of single datagrams, or in
bursts by the Gilbert-Elliott model. The rate is a token bucket on the sender's interface that
counts Ethernet frames.
"""

from __future__ import annotations

import math
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.shared import namespaces
from bench.shared.namespaces import inside, run, shape

SENDER_ADDRESS = "10.77.0.1"
SENDER_SITE = f"{SENDER_ADDRESS}:8080"
#: A receiver's bursts repeat after this many datagrams.
_CYCLE = 1 << 16


def bursts_of_loss(share: float, mean: float, rng: random.Random) -> Iterator[tuple[int, int]]:
    """The first and the last datagram of each burst in a cycle, by the Gilbert-Elliott model.

    The good state loses no datagram, the bad state all. `mean` is the mean length of bursts,
    `share` the share of lost datagrams.
    """
    at = 0
    while True:
        at += _stay(mean * (1 - share) / share, rng)
        last = at + _stay(mean, rng) - 1
        if last >= _CYCLE:
            return
        yield at, last
        at = last + 1


def _stay(mean: float, rng: random.Random) -> int:
    """The length of a state of this mean length, geometrically distributed."""
    return 1 + int(rng.expovariate(-math.log(1 - 1 / mean))) if mean > 1 else 1


@dataclass
class MulticastLab:
    """The network; `with MulticastLab(...) as network:` builds and removes it."""

    receivers: int = 8
    loss_percent: float = 0.0
    rate_mbit: float = 100.0
    prefix: str = "tgm"
    losses: Sequence[float] | None = None
    #: (a, b): the first a of every b datagrams are lost.
    bursts: tuple[int, int] | None = None
    #: The mean length of bursts of losses; None: single losses.
    mean_burst: float | None = None
    #: Whether one of 50 datagrams has changed bits.
    mangled: bool = False

    def __post_init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def sender(self) -> str:
        return f"{self.prefix}-s"

    def receiver(self, number: int) -> str:
        return f"{self.prefix}-r{number}"

    @staticmethod
    def address(number: int) -> str:
        return f"10.77.0.{11 + number}"

    def _names(self) -> list[str]:
        names = [self.sender(), f"{self.prefix}-b"]
        return [*names, *(self.receiver(i) for i in range(self.receivers))]

    def __enter__(self) -> MulticastLab:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        bridge = f"{self.prefix}-b"
        namespaces.make(self._names(), bridge)
        self._port(self.sender(), SENDER_ADDRESS)
        shape(self.sender(), "eth0", self.rate_mbit, "burst 32kb latency 50ms")
        for number in range(self.receivers):
            name = self.receiver(number)
            self._port(name, self.address(number))
            loss = self.losses[number] if self.losses else self.loss_percent
            if loss and self.mean_burst is not None:
                found = bursts_of_loss(loss / 100, self.mean_burst, random.Random(number))
                spans = ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in found)
                self._rule(number, f"numgen inc mod {_CYCLE} {{ {spans} }} drop")
            elif loss:
                self._rule(number, f"numgen random mod 10000 < {round(loss * 100)} drop")
            if self.bursts:
                self._rule(number, f"numgen inc mod {self.bursts[1]} < {self.bursts[0]} drop")
            if self.mangled:
                # The checksum follows the change, so the datagram is delivered.
                self._rule(number, "udp length > 1000 numgen random mod 50 == 0 @th,4000,8 set 90")
        time.sleep(0.5)

    def _port(self, name: str, address: str) -> None:
        namespaces.plug(name, f"{self.prefix}-b", name, address)
        run("ip", "-n", name, "route", "add", "224.0.0.0/4", "dev", "eth0")

    def _rule(self, number: int, rule: str) -> None:
        rules = (
            "add table inet lab; add chain inet lab in { type filter hook input priority 0; }; "
            f"add rule inet lab in meta l4proto udp {rule}"
        )
        run(*inside(self.receiver(number), "nft", rules))

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
                inside(name, *words),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
            )
        self.processes.append(process)
        return process

    def wire(self) -> int:
        """Bytes that the sender's interface has sent."""
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        return int(run(*inside(self.sender(), "cat", path)))

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
        deadline = time.monotonic() + 2
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        # It ends what still runs in them.
        namespaces.remove(self._names())
        for process in self.processes:
            process.wait()
        self.processes.clear()
