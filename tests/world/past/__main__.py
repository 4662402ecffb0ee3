"""`python -m tests.world.past --minutes 2`: how soon the search finds each fault of the past."""

from __future__ import annotations

import argparse
import subprocess
import sys

from .faults import PAST


def _run(*words: str) -> list[str]:
    command = [sys.orig_argv[0], "-m", "tests.world", *words]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.stdout.splitlines() or run.stderr.splitlines() or [""]


def _search(name: str, left_s: float) -> tuple[str, str]:
    """The world that shows a fault, and what was searched last. A world must hold without it."""
    first = 1
    while True:
        words = "--past", name, "--first", str(first), "--cpu-minutes", str(left_s / 60.0)
        lines = _run(*words)
        found = next((line for line in lines if line.startswith("seed ")), "")
        sums = next((line for line in lines if line.endswith(" a second)")), lines[-1])
        if not found:
            return "", sums
        seed = found.removeprefix("seed ").partition(":")[0]
        if len(_run("--seed", seed)) == 1:
            return found, sums
        first = int(seed) + 1
        left_s -= float(sums.rpartition(" in ")[2].partition(" ")[0])


def main() -> int:
    """The command: a table, and 1 if a fault was not found."""
    words = argparse.ArgumentParser(prog="python -m tests.world.past", description=__doc__)
    words.add_argument("--minutes", type=float, default=10.0, help="of the CPU, for each")
    words.add_argument("names", nargs="*", help="only these")
    asked = words.parse_args()
    missed = 0
    for fault in PAST:
        if asked.names and fault.name not in asked.names:
            continue
        found, last = _search(fault.name, 60.0 * asked.minutes)
        missed += not found
        sys.stdout.write(f"{fault.name}: {found[:200] or 'NOT FOUND'} | {last}\n")
        sys.stdout.flush()
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
