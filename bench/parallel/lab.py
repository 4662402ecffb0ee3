"""Measures downloads from many mirrors beside aria2 and axel: the time over the optimum.

    python -m bench.parallel.lab                      the table of docs/parallel.md (needs root)
    python -m bench.parallel.lab --only stall --runs 3 --tools tidegate,aria2
    python -m bench.parallel.lab --rates 40,20,10,5 --bad 2 --order 4,3,2,1 --rtt-ms 40
    python -m bench.parallel.lab --json >runs.jsonl; python -m bench.parallel.lab --read runs.jsonl

The optimum is the size divided by the sum of the mirrors' rates, with the scenario's event. Waste
is counted on the wire.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.parallel.mirrors import Mirrors, payload_rate
from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.namespaces import inside
from bench.shared.subject import require

#: The installed command beside this interpreter.
TIDEGATE = f"{shlex.quote(str(Path(sys.executable).parent / 'tidegate'))} get -q"
#: The command of each tool. {urls}, {meta} and {sha} are filled in; the file must be out.bin.
TOOLS = {
    "tidegate": TIDEGATE + " -o out.bin {urls}",
    "tidegate-meta": TIDEGATE + " -o out.bin {meta}",
    "tidegate-sum": TIDEGATE + " --checksum sha256:{sha} -o out.bin {urls}",
    "tidegate-one": TIDEGATE + " --connections 1 -o out.bin {urls}",
    "tidegate-dynamic": TIDEGATE + " --strategy dynamic -o out.bin {urls}",
    "tidegate-history": TIDEGATE + " --strategy history -o out.bin {urls}",
    "aria2": "aria2c -q -s4 -x1 -k1M --piece-length=1M --file-allocation=none -o out.bin {urls}",
    "aria2-x4": "aria2c -q -s16 -x4 -k1M --file-allocation=none -o out.bin {urls}",
    "aria2-meta": "aria2c -q -s4 -x1 -k1M --file-allocation=none {meta}",
    "curl": "curl -sf -o out.bin {first}",
    "axel": "axel -q -n 4 -o out.bin {urls}",
}


@dataclass(frozen=True)
class Situation:
    """One scenario. `--bad` names the mirror of its event, `--at-s` the time."""

    name: str
    kind: str = "static"
    rtt_ms: float = 0.0
    tools: tuple[str, ...] = ("tidegate", "aria2", "axel", "curl")
    bar: float | None = None
    limit_kib: int = 0
    #: A line of nginx's configuration, for all mirrors or for the first one only.
    directive: str = ""
    first_only: bool = False
    #: The client's line and the file's size, if they differ from the options.
    client_mbit: float | None = None
    size_kib: int | None = None
    #: The options of `bench.parallel.odd` for the mirror that misbehaves, or for all.
    odd: str = ""
    all_odd: bool = False
    #: Whether the tool gets only the first mirror's URL.
    one_url: bool = False


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
    Situation("resets after 300 kB of each answer", odd="--cut 300000", bar=1.20),
    Situation("all are deaf while they answer", odd="--deaf", all_odd=True, bar=1.15),
    Situation(
        "IPv6 black hole, one URL",
        "black hole",
        tools=("tidegate", "aria2", "curl"),
        size_kib=8 << 10,
        one_url=True,
    ),
    Situation(
        "200 KiB/s a connection",
        tools=("tidegate", "tidegate-one", "aria2", "aria2-x4", "axel"),
        limit_kib=200,
    ),
)


@dataclass(frozen=True)
class LabRun:
    """One run."""

    seconds: float
    optimum_s: float
    waste: float
    right: bool
    status: int
    #: User and system seconds of the tool.
    cpu_s: float
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
        case "black hole":
            return size / rates[0]
    return size / total


def one_run(given: argparse.Namespace, scenario: Situation, tool: str, data: bytes) -> LabRun:
    """Build the lab, run one tool in it, remove it."""
    rates = tuple(float(word) for word in given.rates.split(","))
    bad = given.bad - 1
    order = [int(word) - 1 for word in given.order.split(",")] if given.order else range(len(rates))
    kind = scenario.kind
    link = scenario.client_mbit or given.client_mbit
    if scenario.size_kib is not None:
        data = data[: scenario.size_kib << 10]
    lab = Mirrors(
        rates,
        data,
        rtt_ms=given.rtt_ms if given.rtt_ms is not None else scenario.rtt_ms,
        client_mbit=link if kind == "bottleneck" else None,
        corrupt=frozenset({bad} if kind == "corrupt" else ()),
        busy=frozenset({bad} if kind in ("503", "busy") else ()),
        retry_after_s=int(given.at_s) if kind == "busy" else 5,
        limit_kib=given.limit_kib if given.limit_kib is not None else scenario.limit_kib,
        directives=dict.fromkeys(
            range(1 if scenario.first_only else len(rates)), scenario.directive
        ),
        odd=dict.fromkeys(range(len(rates)) if scenario.all_odd else [bad], scenario.odd)
        if scenario.odd
        else {},
        black_hole=kind == "black hole",
        congestion=given.congestion,
        prefix=given.prefix,
    )
    with lab, tempfile.TemporaryDirectory() as folder:
        urls = [lab.url(number) for number in order]
        if kind == "reverse":
            urls.reverse()
        if scenario.one_url:
            urls = urls[:1]
        command = TOOLS[tool].format(
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

        timer = threading.Timer(given.at_s, happen)
        timer.start()
        spent_s = _spent_s()
        began = time.monotonic()
        environ = {**os.environ, "HOME": folder}
        # Python keeps compiled modules, as on an installed machine.
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        status = subprocess.run(
            inside(lab.client, "timeout", "120", *shlex.split(command)),
            cwd=folder,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=None if given.verbose else subprocess.DEVNULL,
            check=False,
        ).returncode
        seconds = time.monotonic() - began
        spent_s = _spent_s() - spent_s
        timer.cancel()
        timer.join()
        time.sleep(0.1)
        received = tuple(now - was for now, was in zip(lab.received(), before, strict=True))
        payload = sum(received)
        out = Path(folder) / "out.bin"
        right = out.is_file() and out.read_bytes() == data
    best = optimum_s(
        kind,
        [payload_rate(rate) for rate in rates],
        bad,
        given.at_s,
        len(data),
        payload_rate(link),
    )
    waste = (payload - len(data)) / len(data)
    took_place = kind not in events or happened.is_set()
    found = LabRun(seconds, best, waste, right, status, spent_s, received, took_place)
    require_run(scenario, tool, found, bad)
    return found


def require_run(scenario: Situation, tool: str, found: LabRun, bad: int) -> None:
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
    is_one_bad = scenario.kind in ("corrupt", "503", "busy") or (
        scenario.odd and not scenario.all_odd
    )
    if is_one_bad and tool.startswith("tidegate"):
        require(found.received[bad], f"{where}: no request reached the mirror that misbehaves.")


def _spent_s() -> float:
    """CPU time of children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run the chosen scenarios, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", help="scenarios whose name contains this")
    parser.add_argument("--tools", help="comma-separated, of " + ", ".join(TOOLS))
    parser.add_argument("--kind", default="", help="only tools whose name begins with this")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rates", default="40,20,10,5", help="Mbit/s of each mirror")
    parser.add_argument("--order", help="order of the URLs, as 2,1,4,3")
    parser.add_argument("--bad", type=int, default=2, help="the mirror that misbehaves, from 1")
    parser.add_argument("--at-s", type=float, default=2.0, help="when something happens")
    parser.add_argument("--size-mib", type=float, default=24)
    parser.add_argument("--rtt-ms", type=float)
    parser.add_argument("--limit-kib", type=int, help="KiB/s that a server gives a connection")
    parser.add_argument("--client-mbit", type=float, default=30.0)
    parser.add_argument("--congestion", default="", help="TCP's at the mirrors: cubic, bbr, reno")
    parser.add_argument("--prefix", default="tgp", help="of the namespaces")
    parser.add_argument("--json", action="store_true", help="one line a tool, for --read")
    parser.add_argument("--read", nargs="+", help="print the table of such lines, run nothing")
    parser.add_argument("--verbose", action="store_true", help="show what the tools say")
    given = parser.parse_args()
    if given.read:
        lines = [line for name in given.read for line in Path(name).read_text().splitlines()]
        print("\n".join(table([json.loads(line) for line in lines])))
        return
    if os.geteuid() != 0:
        sys.exit("This lab builds network namespaces: run it as root.")
    data = random.Random(7).randbytes(int(given.size_mib * (1 << 20)))
    rows = []
    for scenario in SCENARIOS:
        if given.only and given.only not in scenario.name:
            continue
        tools = given.tools.split(",") if given.tools else scenario.tools
        for tool in (tool for tool in tools if tool.startswith(given.kind)):
            runs = [one_run(given, scenario, tool, data) for _ in range(given.runs)]
            row = summed(scenario, tool, runs)
            rows.append(row)
            out = sys.stdout if given.json else sys.stderr
            print(json.dumps(row), file=out, flush=True)
    require(rows, "No scenario and tool has these names.")
    if not given.json:
        print("\n".join(table(rows)))


def summed(scenario: Situation, tool: str, runs: Sequence[LabRun]) -> dict[str, object]:
    """One tool's runs in one scenario, as a row of the table."""
    ratios = [round(run.ratio, 4) for run in runs]
    return {
        "scenario": scenario.name,
        "tool": tool,
        "ratios": ratios,
        "seconds": [round(run.seconds, 3) for run in runs],
        "median": statistics.median(ratios),
        "cpu_s": [round(run.cpu_s, 2) for run in runs],
        "waste": round(statistics.median(run.waste for run in runs), 5),
        "right": all(run.right for run in runs),
        "statuses": [run.status for run in runs],
        "bar": scenario.bar,
    }


_PEERS = ("aria2", "axel", "curl")
Row = Mapping[str, Any]


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Lines of Markdown.

    A row is a line of `--json`, see `summed`.
    """
    scenarios: dict[str, list[Row]] = {}
    for row in rows:
        scenarios.setdefault(row["scenario"], []).append(row)
    yield from markdown.head(
        *("scenario", "tidegate (each run)", "waste", *_PEERS, "bar")
    ).splitlines()
    for name, tools in scenarios.items():
        peers = [_peer(tools, peer) for peer in _PEERS]
        for row in tools:
            kind, _, wish = row["tool"].partition("-")
            if kind == "tidegate":
                label = f"{name}, {wish} connection" if wish == "one" else name
                cells = [label, _ours(row), f"{100 * row['waste']:.1f} %", *peers, _bar(row)]
                yield markdown.row(*cells)


def _ours(row: Row) -> str:
    each = ", ".join(f"{ratio:.3f}" for ratio in row["ratios"])
    text = f"**{row['median']:.2f}** ({each})"
    return text if row["right"] else f"{text}, WRONG"


def _bar(row: Row) -> str:
    if row["bar"] is None:
        return ""
    held = row["median"] <= row["bar"] + 0.0005
    return f"{row['bar']:.2f}" if held else f"{row['bar']:.2f} (missed)"


def _peer(tools: list[Row], peer: str) -> str:
    """The best of a peer's settings with the right file."""
    own = [row for row in tools if row["tool"].partition("-")[0] == peer]
    right = [row["median"] for row in own if row["right"]]
    if right:
        return f"{min(right):.2f}"
    if not own:
        return "–"
    if any(124 in row["statuses"] for row in own):
        return "not done in 120 s"
    return "fails" if all(any(row["statuses"]) for row in own) else "wrong file"


if __name__ == "__main__":
    end_cleanly()
    main()
