"""How large each room is: lines and module constants, beside what it may have.

python -m tests.size
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Size:
    """Lines of Python, and constants of modules: names in capitals."""

    lines: int
    constants: int


#: What each room may have: its size of today and 2 to 3 % more. A change that makes a room smaller
#: lowers its budget, and one that raises a budget says why in its commit.
BUDGETS: Mapping[str, Size] = {
    "policies": Size(10_720, 160),
    "protocol": Size(5_150, 108),
    "server": Size(46_600, 645),
    "client": Size(16_000, 85),
    "loadtest": Size(7_340, 117),
    "bench": Size(6_000, 125),
}


#: A constant begins its line, alone or in a tuple: `NAME = `, `NAME: int = `, `A, B = `.
_CONSTANTS = re.compile(r"(?m)^(_*[A-Z][A-Z0-9_]*(?:, _*[A-Z][A-Z0-9_]*)*)(?:: [^=\n]+)? =")


@functools.cache
def measured() -> dict[str, Size]:
    """The size of each room that git knows, in the order of the budgets."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    lines: Counter[str] = Counter()
    constants: Counter[str] = Counter()
    for name in names:
        room = name.partition("/")[0]
        path = ROOT / name
        if room in BUDGETS and path.exists():
            text = path.read_text("utf-8")
            lines[room] += text.count("\n")
            constants[room] += sum(len(found.split(",")) for found in _CONSTANTS.findall(text))
    return {room: Size(lines[room], constants[room]) for room in BUDGETS}


def table() -> str:
    """Each room beside its budget."""
    rows = [f"{'room':<12}{'lines':>8}{'of':>8}{'constants':>12}{'of':>7}"]
    for room, size in measured().items():
        most = BUDGETS[room]
        rows.append(
            f"{room:<12}{size.lines:>8}{most.lines:>8}{size.constants:>12}{most.constants:>7}"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
