"""`python -m tests.world.past --minutes 2`: how soon the search finds each fault of the past."""

from __future__ import annotations

import argparse
import subprocess
import sys

from .faults import PAST


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
        command = [sys.orig_argv[0], "-m", "tests.world", "--past", fault.name, "--first", "1"]
        command += ["--cpu-minutes", str(asked.minutes)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = run.stdout.splitlines() or run.stderr.splitlines() or [""]
        found = next((line for line in lines if line.startswith("seed ")), "")
        missed += not found
        sys.stdout.write(f"{fault.name}: {found[:200] or 'NOT FOUND'} | {lines[-1]}\n")
        sys.stdout.flush()
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
