"""Replays the experiments of Rodriguez, Kirpal and Biersack with this client's strategies.

    python -m bench.parallel.paper        prints the table of docs/parallel.md (root, seven minutes)

Their rates (kilobytes a second), file sizes and numbers of blocks B; the round trip is 100 ms.
History-based runs come second, so that the rate database knows the mirrors. Lines are so slow that
nothing else on the machine matters; each row is one run.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.parallel.lab import TIDEGATE
from bench.parallel.mirrors import PAYLOAD, Mirrors
from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.namespaces import inside

RTT_MS = 100.0


@dataclass(frozen=True)
class Experiment:
    """`rates` in kB/s of the file's bytes, `blocks` the numbers B that the paper used."""

    name: str
    rates: tuple[float, ...]
    size: int
    blocks: tuple[int, ...]
    link_kbit: float | None = None
    connections: tuple[int, ...] = (1,)


EXPERIMENTS = (
    Experiment("4 mirrors, 5 to 15 kB/s, 763 kB", (15, 12, 8, 5), 763_000, (30,)),
    Experiment("2 x 70 and 2 x 10 kB/s, 256 kB", (70, 70, 10, 10), 256_000, (20,)),
    Experiment("2 mirrors alike, 100 kB/s, 5 MB", (100, 100), 5_000_000, (40, 60)),
    Experiment("4 mirrors, 5 to 15 kB/s, 10 kB", (15, 12, 8, 5), 10_000, (4,)),
    Experiment("client link 56 kb/s, 3 mirrors, 128 kB", (24, 24, 24), 128_000, (20,), 56.0),
    Experiment("client link 56 kb/s, 2 mirrors, 128 kB", (24, 24), 128_000, (20,), 56.0),
    Experiment("1 server of 70 kB/s, 512 kB", (70,), 512_000, (), None, (1, 2, 4)),
    Experiment("2 servers of 70 kB/s, 512 kB", (70, 70), 512_000, (20,)),
)


def mbit(kilobytes: float) -> float:
    """The line that carries so many kilobytes of a file a second."""
    return kilobytes * 8e-3 / PAYLOAD


def one_run(lab: Mirrors, folder: str, options: str, count: int, data: bytes) -> float:
    """Seconds; raises when the file is wrong."""
    urls = " ".join(lab.url(number) for number in range(count))
    out = Path(folder) / "out.bin"
    out.unlink(missing_ok=True)
    words = shlex.split(f"{TIDEGATE} {options} -o {out} {urls}")
    environ = {**os.environ, "HOME": folder}
    began = time.monotonic()
    subprocess.run(inside(lab.client, "timeout", "240", *words), env=environ, check=True)
    seconds = time.monotonic() - began
    if out.read_bytes() != data:
        raise SystemExit("the file is wrong")
    return seconds


def main() -> None:
    """The experiments, a line for each run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="experiments that name this")
    only = parser.parse_args().only
    chosen = [one for one in EXPERIMENTS if only in one.name]
    if not chosen:
        sys.exit(f"No experiment names {only!r}: {'; '.join(one.name for one in EXPERIMENTS)}.")
    if os.geteuid() != 0:
        sys.exit("This lab builds network namespaces: run it as root.")
    print(markdown.head("experiment", "optimum, s", "strategy", "seconds", "over the optimum"))
    for one in chosen:
        data = random.Random(5).randbytes(one.size)
        link = one.link_kbit / 1000 if one.link_kbit is not None else None
        lab = Mirrors(
            tuple(mbit(rate) for rate in one.rates),
            data,
            rtt_ms=RTT_MS,
            client_mbit=link,
            prefix="tgr",
        )
        capacity = sum(one.rates) * 1000
        if link is not None:
            capacity = min(capacity, link * 1e6 / 8 * PAYLOAD)
        best = one.size / capacity
        with lab, tempfile.TemporaryDirectory() as folder:
            runs = [
                (f"dynamic, B={count}", f"--strategy dynamic --block-size {-(-one.size // count)}")
                for count in one.blocks
            ]
            if len(one.rates) > 1:
                runs.append(("history-based", "--strategy history"))
            for number in one.connections:
                text = "adaptive" if number == 1 else f"adaptive, {number} connections"
                runs.append((text, f"--connections {number}" if number > 1 else ""))
            for text, options in runs:
                seconds = one_run(lab, folder, options, len(one.rates), data)
                figures = f"{seconds:.2f}", f"{seconds / best:.2f}"
                print(markdown.row(one.name, f"{best:.2f}", text, *figures), flush=True)


if __name__ == "__main__":
    end_cleanly()
    main()
