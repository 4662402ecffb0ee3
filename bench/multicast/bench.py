"""Runs one tool in a fresh network, and measures bytes on the wire, time and CPU."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.multicast.network import SENDER_ADDRESS, SENDER_SITE, MulticastLab
from bench.multicast.peers import PEERS, Begun
from bench.shared.processes import cpu_s, wait_for


@dataclass(frozen=True)
class TrialRow:
    """One run: `good` of `receivers` have the right file."""

    tool: str
    loss: float
    good: int
    receivers: int
    ratio: float
    seconds: float
    note: str = ""
    results: list[dict[str, Any]] = field(default_factory=list)


class MulticastBench:
    """Sends one file from a scratch folder in memory."""

    def __init__(
        self,
        mib: float,
        fec: str = "auto",
        rate_mbit: float = 99.8,
        python: str = sys.executable,
    ) -> None:
        self.fec = fec
        self.python = python
        self.rate_mbit = rate_mbit
        memory = Path("/dev/shm")
        self.folder = Path(
            tempfile.mkdtemp(prefix="tidegate-lab-", dir=memory if memory.is_dir() else None)
        )
        self.release = self.folder / "release"
        self.release.mkdir()
        self.file = self.release / "obj.bin"
        self.file.write_bytes(os.urandom(int(mib * (1 << 20))))
        self.digest = hashlib.sha256(self.file.read_bytes()).digest()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(
        self,
        tool: str,
        network: MulticastLab,
        *,
        timeout_s: float = 90.0,
        late_s: dict[int, float] | None = None,
    ) -> TrialRow:
        """Run `tool` once in `network`, which is built and removed here.

        `late_s`: receiver -> delay of its request.
        """
        scratch = Path(tempfile.mkdtemp(dir=self.folder))
        outs = [scratch / f"r{number}" / "obj.bin" for number in range(network.receivers)]
        for out in outs:
            out.parent.mkdir()
        results: list[dict[str, Any]] = []
        note = ""
        try:
            with network:
                if tool == "ours":
                    server, used_s, (before, begun) = self._ours(
                        network, scratch, outs, late_s or {}
                    )
                else:
                    kbit = network.rate_mbit * 950
                    before, begun = PEERS[tool](network, self.file, scratch, outs, kbit)
                whole = self._wait(outs, begun, timeout_s)
                time.sleep(0.2)
                sent = network.wire() - before
                if tool == "ours":
                    # `ip netns exec` has replaced itself by its command.
                    used_s = cpu_s(server) - used_s
            good = sum(map(self._right, outs))
            if tool == "ours":
                results = [_result(out.parent.with_suffix(".log")) for out in outs]
                note = _note(results, used_s)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        ratio = sent / max(1, self.file.stat().st_size)
        loss, count = network.loss_percent, network.receivers
        return TrialRow(tool, loss, good, count, ratio, whole - begun, note, results)

    def _ours(
        self, network: MulticastLab, scratch: Path, outs: list[Path], late_s: dict[int, float]
    ) -> tuple[int, float, Begun]:
        """Start server and receivers. Returns the server's pid and its CPU time by then."""
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        log = scratch / "server.log"
        words = [self.python, "-m", "tidegate", "serve", str(self.release), "--admin", "off"]
        words += ["--listen", SENDER_SITE, "--state", str(scratch / "state"), "--multicast"]
        words += ["--multicast-fec", self.fec, "--multicast-interface", SENDER_ADDRESS]
        words += ["--multicast-rate", f"{self.rate_mbit}Mbit"]
        words += ["--multicast-threshold", str(min(3, max(2, network.receivers)))]
        server = network.start(network.sender(), words, log, scratch, env)
        url = f"http://{SENDER_SITE}/obj.bin"
        go, receivers = scratch / "go", []
        for number, out in enumerate(outs):
            own_go = out.parent / "go" if number in late_s else go
            words = [self.python, "-m", "bench.multicast.receive", str(out)]
            words += [network.address(number), str(own_go), url]
            own_log = out.parent.with_suffix(".log")
            receivers.append(
                (own_log, network.start(network.receiver(number), words, own_log, scratch, env))
            )
        wait_for("The server", log, "ready http", server)
        # A minute for each: 64 receivers on a busy machine need more than one together.
        for own_log, receiver in receivers:
            wait_for(own_log.stem, own_log, "ready", receiver)
        time.sleep(0.3)
        before, begun, used_s = network.wire(), time.monotonic(), cpu_s(server.pid)
        go.touch()
        for number, delay_s in sorted(late_s.items(), key=lambda item: item[1]):
            time.sleep(max(0.0, begun + delay_s - time.monotonic()))
            (outs[number].parent / "go").touch()
        return server.pid, used_s, (before, begun)

    def _wait(self, outs: list[Path], begun: float, timeout_s: float) -> float:
        """The time at which the last output has its full size, or of the timeout."""
        size = self.file.stat().st_size
        left = list(outs)
        while left and time.monotonic() < begun + timeout_s:
            left = [path for path in left if not path.exists() or path.stat().st_size != size]
            time.sleep(0.005)
        return time.monotonic()

    def _right(self, path: Path) -> bool:
        return path.exists() and hashlib.sha256(path.read_bytes()).digest() == self.digest


def _result(log: Path) -> dict[str, Any]:
    """What a receiver printed last."""
    lines = log.read_text().strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return {"failed": " ".join(lines)[-300:] or "it printed nothing"}
    return found


def _note(results: list[dict[str, Any]], server_cpu_s: float) -> str:
    cpu = max((one.get("cpu_s", 0.0) for one in results), default=0.0)
    tcp = sum(one.get("bytes", {}).get("http", 0) for one in results)
    messages = {line.partition(" (")[0] for one in results for line in one.get("messages", ())}
    failed = {one["failed"] for one in results if "failed" in one}
    text = f"cpu {cpu:.2f} s/receiver, server {server_cpu_s:.2f} s"
    if tcp:
        text += f", {tcp / 1e6:.1f} MB by TCP"
    told = failed | {line for line in messages if "unicast" in line}
    return text + "".join(f", {one}" for one in sorted(told))
