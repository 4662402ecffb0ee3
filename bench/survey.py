"""What the walk over a large tree costs after a start, and what small files feel of it meanwhile.

Makes a tree of many short files, starts `tidegate serve` on it, and asks for a small file a hundred
times a second until the walk is over. Options: --files N, --most-s S.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from bench.http_peers import (
    HERE,
    BenchedServer,
    await_answer,
    small_p99_s,
    stop_all,
    walks_over,
)
from bench.shared.ending import end_cleanly
from bench.shared.ports import free_port

#: So many files lie in a folder, each of up to so many bytes.
_FOLDER, _LONGEST_BYTES = 1000, 30_000
_WINDOW_S = 2.0


def fill(root: Path, files: int) -> None:
    """The tree, with the file that is asked for."""
    rng, stock = random.Random(1), os.urandom(1 << 20)
    (root / "1k.bin").write_bytes(stock[:1024])
    for number in range(files):
        folder = root / f"{number // _FOLDER:04}"
        if number % _FOLDER == 0:
            folder.mkdir()
        start = rng.randrange(len(stock) - _LONGEST_BYTES)
        size = rng.randrange(1, _LONGEST_BYTES)
        (folder / f"{number}.bin").write_bytes(stock[start : start + size])


def watch(peer: BenchedServer, log: Path, most_s: float) -> list[tuple[float, float]]:
    """Windows until the walk is over: part of a core, and small files' 99th percentile, s.

    Raises SystemExit when it takes longer than `most_s`.
    """
    found = []
    end_s = time.monotonic() + most_s
    while not walks_over(log):
        if time.monotonic() > end_s:
            raise SystemExit(f"The walk is not over after {most_s:.0f} s; raise --most-s.")
        began_s, cpu_s = time.monotonic(), peer.cpu_s()
        p99_s = small_p99_s(peer, _WINDOW_S)
        found.append(((peer.cpu_s() - cpu_s) / (time.monotonic() - began_s), p99_s))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--most-s", type=float, default=180.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-survey-") as folder:
        scratch, port = Path(folder), free_port()
        root = scratch / "root"
        root.mkdir()
        fill(root, options.files)
        command = [sys.executable, "-m", "tidegate", "serve", str(root), "--admin", "off"]
        command += ["--listen", f"127.0.0.1:{port}", "--state", str(scratch / "state")]
        with (scratch / "log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=HERE.parent, start_new_session=True
            )
        peer = BenchedServer("tidegate", "127.0.0.1", port, process)
        try:
            await_answer(peer, scratch / "log")
            windows = watch(peer, scratch / "log", options.most_s)
            total_s, size = peer.cpu_s(), peer.resident_bytes()
        finally:
            stop_all([peer])
    if not windows:
        raise SystemExit("The walk was over before it was looked at; ask for more files.")
    cores, p99s = zip(*windows, strict=True)
    click.echo(
        f"{options.files} files: {len(windows) * _WINDOW_S:.0f} s, {total_s:.1f} s of processor "
        f"with the start, at most {max(cores):.2f} of a core; resident {size / 1e6:.0f} MB.\n"
        f"Small files meanwhile, 99th percentile of {_WINDOW_S:.0f} s each: "
        f"median {1000 * statistics.median(p99s):.1f} ms, worst {1000 * max(p99s):.1f} ms."
    )


if __name__ == "__main__":
    end_cleanly()
    main()
