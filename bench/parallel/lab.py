"""Measures downloads from many mirrors beside aria2 and axel: the time over the optimum.

    python -m bench.parallel.lab                      the table of docs/parallel.md (needs root)
    python -m bench.parallel.lab --only stall --runs 3 --tools tidegate,aria2

The optimum is the size divided by the sum of the mirrors' rates, with the scenario's event. Waste
is counted on the wire.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.parallel.mirrors import Mirrors
from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.namespaces import inside, payload_bytes_s
from bench.shared.subject import require

#: The command of each tool; {get} is ours, the other words are filled in as well. The file must be
#: out.bin.
TOOLS = {
    "tidegate": "{get} -q -o out.bin {urls}",
    "tidegate-meta": "{get} -q -o out.bin {meta}",
    "tidegate-sum": "{get} -q --checksum sha256:{sha} -o out.bin {urls}",
    "aria2": "aria2c -q -s4 -x1 -k1M --piece-length=1M --file-allocation=none -o out.bin {urls}",
    "aria2-meta": "aria2c -q -s4 -x1 -k1M --file-allocation=none {meta}",
    "curl": "curl -sf -o out.bin {first}",
    "axel": "axel -q -n 4 -o out.bin {urls}",
}


@dataclass(frozen=True)
class Situation:
    """One scenario: four mirrors, and what happens to one of them."""

    name: str
    kind: str = "static"
    rtt_ms: float = 0.0
    tools: tuple[str, ...] = ("tidegate", "aria2", "axel", "curl")
    bar: float | None = None
    #: A line of nginx's configuration, for all mirrors or for the first one only.
    directive: str = ""
    first_only: bool = False
    #: The client's line, where it is the bottleneck.
    client_mbit: float = 30.0
    size_kib: int = 24 << 10
    rates_mbit: tuple[float, ...] = (40.0, 20.0, 10.0, 5.0)
    #: The mirror to which something happens, and when, in seconds.
    bad: int = 1
    at_s: float = 2.0


SCENARIOS = (
    Situation("static", bar=1.05),
    Situation("static, slow URL first", "reverse", bar=1.05),
    Situation("swap", "swap", bar=1.08),
    Situation("stall", "stall", bar=1.12),
    Situation("503 for ever", "503", bar=1.04),
    Situation("503 until 2 s", "busy", bar=1.04),
    Situation("corrupt, pieces known", "corrupt", tools=("tidegate-meta", "aria2-meta"), bar=1.08),
    Situation("corrupt, digest known", "corrupt", tools=("tidegate-sum",), bar=1.08),
    Situation("corrupt, nothing known", "corrupt", tools=("tidegate", "aria2"), bar=1.08),
    Situation("client link 30 Mb/s", "bottleneck", bar=1.01),
    Situation(
        "client link 56 kb/s", "bottleneck", 100.0, bar=1.05, client_mbit=0.056, size_kib=128
    ),
    Situation("killed", "killed", bar=1.06),
    Situation("static, RTT 40 ms", "static", 40.0, bar=1.10),
    Situation("static, RTT 100 ms", "static", 100.0, bar=1.12),
    Situation("static, RTT 200 ms", "static", 200.0, bar=1.25),
    Situation("swap, RTT 40 ms", "swap", 40.0, bar=1.12),
    Situation("4 MiB", size_kib=4 << 10, bar=1.08),
    Situation("1 MiB", size_kib=1 << 10),
    Situation("no mirror has ranges", "norange", directive="max_ranges 0;", bar=1.03),
    Situation("the fastest has no ranges", directive="max_ranges 0;", first_only=True, bar=1.10),
    Situation("closes after each answer", directive="keepalive_timeout 0;", bar=1.15),
)


@dataclass(frozen=True)
class LabRun:
    """One run."""

    seconds: float
    optimum_s: float
    waste: float
    right: bool
    status: int
    #: TCP payload from each mirror, in bytes.
    received: tuple[int, ...] = ()
    #: Whether the scenario's event took place while the tool ran.
    happened: bool = True

    @property
    def ratio(self) -> float:
        return self.seconds / self.optimum_s


def optimum_s(
    kind: str, rates: Sequence[float], bad: int, at_s: float, size: int, link: float
) -> float:
    """The shortest possible time; `rates` in bytes per second of payload."""
    total = sum(rates)
    rest = total - rates[bad]
    match kind:
        case "stall" | "killed":
            return size / total if size <= total * at_s else at_s + (size - total * at_s) / rest
        case "503" | "corrupt":
            return size / rest
        case "busy":
            return size / rest if size <= rest * at_s else at_s + (size - rest * at_s) / total
        case "bottleneck":
            return size / min(link, total)
        case "norange":
            return size / max(rates)
    return size / total


def one_run(scenario: Situation, tool: str) -> LabRun:
    """Build the lab, run one tool in it, remove it."""
    rates, bad, kind = scenario.rates_mbit, scenario.bad, scenario.kind
    link = scenario.client_mbit
    data = random.Random(7).randbytes(scenario.size_kib << 10)
    lab = Mirrors(
        rates,
        data,
        rtt_ms=scenario.rtt_ms,
        client_mbit=link if kind == "bottleneck" else None,
        corrupt=frozenset({bad} if kind == "corrupt" else ()),
        busy=frozenset({bad} if kind in ("503", "busy") else ()),
        retry_after_s=int(scenario.at_s) if kind == "busy" else 5,
        directives=dict.fromkeys(
            range(1 if scenario.first_only else len(rates)), scenario.directive
        ),
    )
    with lab, tempfile.TemporaryDirectory() as folder:
        urls = [lab.url(number) for number in range(len(rates))]
        if kind == "reverse":
            urls.reverse()
        command = TOOLS[tool].format(
            # The installed command beside this interpreter.
            get=f"{shlex.quote(str(Path(sys.executable).with_name('tidegate')))} get",
            urls=" ".join(urls),
            first=urls[0],
            meta=lab.root / "file.meta4",
            sha=hashlib.sha256(data).hexdigest(),
        )

        def swap() -> None:
            lab.set_rate(0, rates[-1])
            lab.set_rate(len(rates) - 1, rates[0])

        events: dict[str, Callable[[], None]] = {
            "swap": swap,
            "stall": lambda: lab.silence(bad),
            "busy": lambda: lab.ready(bad),
            "killed": lambda: lab.kill(bad),
        }
        before = lab.received()
        happened = threading.Event()

        def happen() -> None:
            if kind in events:
                events[kind]()
            happened.set()

        timer = threading.Timer(scenario.at_s, happen)
        timer.start()
        began = time.monotonic()
        environ = {**os.environ, "HOME": folder}
        # Python keeps compiled modules, as on an installed machine.
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        status = subprocess.run(
            inside(lab.client, "timeout", "120", *shlex.split(command)),
            cwd=folder,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        ).returncode
        seconds = time.monotonic() - began
        timer.cancel()
        timer.join()
        time.sleep(0.1)
        received = tuple(now - was for now, was in zip(lab.received(), before, strict=True))
        payload = sum(received)
        out = Path(folder) / "out.bin"
        right = out.is_file() and out.read_bytes() == data
    best = optimum_s(
        kind,
        [payload_bytes_s(rate) for rate in rates],
        bad,
        scenario.at_s,
        len(data),
        payload_bytes_s(link),
    )
    waste = (payload - len(data)) / len(data)
    took_place = kind not in events or happened.is_set()
    found = LabRun(seconds, best, waste, right, status, received, took_place)
    require_run(scenario, tool, found)
    return found


def require_run(scenario: Situation, tool: str, found: LabRun) -> None:
    """Raise NothingMeasured unless the tool ran, received bytes, and met the scenario's event."""
    where = f"{scenario.name}, {tool}"
    # The status of `timeout` when a program cannot be run or does not exist.
    require(found.status not in (126, 127), f"{where}: the program is not installed.")
    require(sum(found.received), f"{where}: no byte came from a mirror.")
    # The table shows a wrong file from a corrupt mirror.
    delivered = found.status or found.right or scenario.kind == "corrupt"
    require(delivered, f"{where}: the program ended well, without the file.")
    in_time = found.status or found.happened
    require(in_time, f"{where}: the program was done before anything happened.")
    # Kinds in which one mirror misbehaves from the first request.
    is_one_bad = scenario.kind in ("corrupt", "503", "busy")
    if is_one_bad and tool.startswith("tidegate"):
        require(
            found.received[scenario.bad], f"{where}: no request reached the mirror that misbehaves."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", help="scenarios whose name contains this")
    parser.add_argument("--tools", help="comma-separated, of " + ", ".join(TOOLS))
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("This lab builds network namespaces: run it as root.")
    rows = []
    for scenario in SCENARIOS:
        if given.only and given.only not in scenario.name:
            continue
        runs = {
            tool: [one_run(scenario, tool) for _ in range(given.runs)]
            for tool in (given.tools.split(",") if given.tools else scenario.tools)
        }
        rows.append(row(scenario, runs))
        print(markdown.row(*rows[-1]), file=sys.stderr, flush=True)
    require(rows, "No scenario has this name.")
    columns = "scenario|tidegate (each run)|waste|aria2|axel|curl|bar"
    print(markdown.table(columns.split("|"), rows))


def row(scenario: Situation, runs: Mapping[str, Sequence[LabRun]]) -> list[str]:
    """One scenario's cells: our ratios and waste, the peers' medians, the bar."""
    ours = next((mine for tool, mine in runs.items() if tool.startswith("tidegate")), ())
    cells, bar = [scenario.name, "–", "–"], ""
    if ours:
        median = statistics.median(run.ratio for run in ours)
        each = ", ".join(f"{run.ratio:.3f}" for run in ours)
        wrong = "" if all(run.right for run in ours) else ", WRONG"
        waste = statistics.median(run.waste for run in ours)
        cells[1:] = [f"**{median:.2f}** ({each}){wrong}", f"{100 * waste:.1f} %"]
        if scenario.bar is not None:
            missed = " (missed)" if median > scenario.bar + 0.0005 else ""
            bar = f"{scenario.bar:.2f}{missed}"
    return [*cells, *(_peer(runs, peer) for peer in ("aria2", "axel", "curl")), bar]


def _peer(runs: Mapping[str, Sequence[LabRun]], peer: str) -> str:
    own = next((found for tool, found in runs.items() if tool.partition("-")[0] == peer), ())
    if not own:
        return "–"
    if all(run.right for run in own):
        return f"{statistics.median(run.ratio for run in own):.2f}"
    statuses = [run.status for run in own]
    return "not done in 120 s" if 124 in statuses else "fails" if all(statuses) else "wrong file"


if __name__ == "__main__":
    end_cleanly()
    main()
