"""The multicast table: one sender at 100 Mb/s, N receivers, independent loss; ours and the peers.

    python labs/multicast/lab.py [--receivers 8] [--mib 32] [--loss 0,1,5,10] [--rounds 3]
                                 [--tools ours,uftp,udpcast,norm,tcp] [--fec auto] [--rate 99.5]

Each cell is bytes on the sender's wire (all headers, both protocols) divided by the file's size,
and seconds until the last receiver holds the right file. The interpreter's start is not counted:
our receivers import first and wait for the go, as the peers' daemons do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from labs.multicast.network import SENDER_ADDRESS, Network
from labs.multicast.peers import PEERS, available

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 90.0


@dataclass(frozen=True)
class Row:
    """One run."""

    tool: str
    loss: float
    good: int
    receivers: int
    ratio: float
    seconds: float
    note: str = ""


class Bench:
    """A scratch folder with the file, and what runs in it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="tidegate-lab-", dir="/dev/shm"))
        self.release = self.folder / "release"
        self.release.mkdir()
        self.file = self.release / "obj.bin"
        self.file.write_bytes(os.urandom(options.mib << 20))
        self.digest = hashlib.sha256(self.file.read_bytes()).digest()

    def close(self) -> None:
        """Remove the scratch folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, tool: str, loss: float, **network_options: object) -> Row:
        """One tool once."""
        options = self.options
        scratch = Path(tempfile.mkdtemp(dir=self.folder))
        network = Network(
            options.receivers,
            loss,
            options.line,
            **network_options,  # type: ignore[arg-type]
        )
        with network:
            outs = []
            for number in range(options.receivers):
                (scratch / f"r{number}").mkdir()
                outs.append(scratch / f"r{number}" / "obj.bin")
            before, begun = (0, 0), 0.0
            if tool == "ours":
                before, begun = self._ours(network, scratch, outs)
            else:
                before, begun = PEERS[tool](
                    network, self.file, scratch, outs, self.options.line * 950
                )
            whole = self._wait(outs, begun)
            time.sleep(0.2)
            after = network.wire()
            server_cpu = network.cpu_seconds(network.processes[0]) if tool == "ours" else 0.0
            note = self._note(tool, scratch, server_cpu)
        good = sum(
            path.exists() and hashlib.sha256(path.read_bytes()).digest() == self.digest
            for path in outs
        )
        shutil.rmtree(scratch)
        size = self.file.stat().st_size
        ratio = (after[0] - before[0]) / size
        return Row(tool, loss, good, options.receivers, ratio, whole - begun, note)

    def _ours(
        self, network: Network, scratch: Path, outs: list[Path]
    ) -> tuple[tuple[int, int], float]:
        options = self.options
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        serve = [sys.executable, "-m", "tidegate", "serve", str(self.release)]
        serve += ["--listen", f"{SENDER_ADDRESS}:8080", "--admin", "off"]
        serve += ["--state", str(scratch / "state"), "--multicast"]
        serve += ["--multicast-interface", SENDER_ADDRESS, "--multicast-fec", options.fec]
        serve += ["--multicast-rate", f"{options.rate}Mbit"]
        serve += ["--multicast-threshold", str(min(3, max(2, options.receivers)))]
        network.start(network.sender(), serve, scratch / "server.log", scratch, env)
        go = scratch / "go"
        url = f"http://{SENDER_ADDRESS}:8080/obj.bin"
        for number, out in enumerate(outs):
            words = [sys.executable, str(ROOT / "labs/multicast/receive.py"), url, str(out)]
            words += [network.address(number), str(out.parent / "ready"), str(go)]
            log = scratch / f"r{number}.log"
            network.start(network.receiver(number), words, log, scratch, env)
        _until(lambda: b"ready http" in (scratch / "server.log").read_bytes(), "the server")
        _until(lambda: all((o.parent / "ready").exists() for o in outs), "the receivers")
        time.sleep(0.3)
        before = network.wire()
        begun = time.monotonic()
        go.touch()
        return before, begun

    def _wait(self, outs: list[Path], begun: float) -> float:
        """When the last output has its full size (or the timeout)."""
        size = self.file.stat().st_size
        left = list(outs)
        while left and time.monotonic() < begun + TIMEOUT_S:
            left = [path for path in left if not path.exists() or path.stat().st_size != size]
            time.sleep(0.005)
        return time.monotonic()

    def _note(self, tool: str, scratch: Path, server_cpu: float) -> str:
        if tool != "ours":
            return ""
        cpu, overruns, repaired, reasons = 0.0, 0, 0, set()
        for number in range(self.options.receivers):
            lines = (scratch / f"r{number}.log").read_text().strip().splitlines()
            try:
                result = json.loads(lines[-1])
            except (IndexError, ValueError):
                reasons.add(" ".join(lines)[-200:] or "no result")
                continue
            cpu = max(cpu, result.get("cpu_s", 0.0))
            overruns += result.get("overruns", 0)
            repaired += result.get("repaired_bytes", 0)
            if result.get("reason"):
                reasons.add(result["reason"])
        text = f"cpu {cpu:.2f} s/receiver, server {server_cpu:.2f} s in all"
        if overruns:
            text += f", {overruns} overruns"
        if repaired:
            text += f", {repaired} bytes by unicast"
        return text + "".join(f", {reason}" for reason in sorted(reasons))


def _until(condition, what: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not get ready")
        time.sleep(0.02)


def table(rows: list[Row], losses: list[float], tools: list[str]) -> str:
    """Medians, as Markdown."""
    lines = [f"| loss | {' | '.join(tools)} |", "|---" * (len(tools) + 1) + "|"]
    for loss in losses:
        cells = []
        for tool in tools:
            mine = [row for row in rows if row.tool == tool and row.loss == loss]
            good = [row for row in mine if row.good == row.receivers]
            if not good:
                cells.append("failed")
                continue
            ratio = statistics.median(row.ratio for row in good)
            seconds = statistics.median(row.seconds for row in good)
            failed = f" ({len(mine) - len(good)} of {len(mine)} failed)" if good != mine else ""
            cells.append(f"{ratio:.3f}, {seconds:.2f} s{failed}")
        lines.append(f"| {loss:g} % | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--receivers", type=int, default=8)
    parser.add_argument("--mib", type=int, default=32)
    parser.add_argument("--loss", default="0,1,5,10")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tools", default="ours,uftp,udpcast,norm,tcp")
    parser.add_argument("--fec", default="auto")
    parser.add_argument("--line", type=float, default=100.0, help="Mb/s of the sender's interface")
    parser.add_argument("--rate", type=float, default=99.5, help="Mb/s our sender is paced at")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("this lab builds network namespaces; run it as root")
    losses = [float(text) for text in options.loss.split(",")]
    tools = [tool for tool in options.tools.split(",") if tool == "ours" or available(tool)]
    bench = Bench(options)
    rows: list[Row] = []
    try:
        for _ in range(options.rounds):
            for loss in losses:
                for tool in tools:
                    row = bench.run(tool, loss)
                    rows.append(row)
                    print(  # noqa: T201
                        f"{row.tool}\t{row.loss:g} %\t{row.good}/{row.receivers} good\t"
                        f"{row.ratio:.3f}\t{row.seconds:.2f} s\t{row.note}",
                        flush=True,
                    )
    finally:
        bench.close()
    print("\n" + table(rows, losses, tools))  # noqa: T201


if __name__ == "__main__":
    main()
