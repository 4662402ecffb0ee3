"""What each tuned constant is worth: half and double it, and see what moves.

    python -m bench.sensitivity [--field TEXT] [--cell TEXT] [--seeds N] [--above 0.01]

An argument names a frozen dataclass of constants as `module:NAME`, by default the finder of the
line. Each number in it is halved and doubled, the crowds of the lab are simulated on a line that
the server has to find, and a row has the mean change of the mean session with the cells that change
by more than 1 %. A field that moves no cell tunes nothing here: derive it from another one, or
remove the branch that needs it, unless a test needs it.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from statistics import fmean
from typing import Any

from bench.policies.lab import RATE_MBIT, TRACES, Steps, scaled, simulated
from bench.shared import markdown

#: Trace, Mbit/s, the configured bound as a part of the line (None: no bound), and how the line
#: changes. Line and bound are what a server meets that was told nothing or too much.
CELLS: tuple[tuple[str, float, float | None, Steps], ...] = (
    ("mixed", 5.0, None, ()),
    ("mixed", RATE_MBIT, None, ()),
    ("mixed", 200.0, None, ()),
    ("mixed", RATE_MBIT, 2.0, ()),
    ("huge", RATE_MBIT, None, ()),
    ("slow", RATE_MBIT, None, ()),
    ("mixed", RATE_MBIT, None, ((8.0, 0.3), (20.0, 1.0))),
    ("huge", RATE_MBIT, None, ((10.0, 2.5),)),
)


def cells(seeds: int, only: str) -> dict[str, float]:
    """Mean session times, by the name of the cell."""
    found: dict[str, float] = {}
    for trace, rate, told, steps in CELLS:
        name = f"{trace} {rate:g}"
        name += "" if told is None else f", bound {told:g}"
        name += "".join(f", {part:g} from {since_s:g} s" for since_s, part in steps)
        if only not in name:
            continue
        crowds = [scaled(TRACES[trace](seed), rate / RATE_MBIT) for seed in range(1, seeds + 1)]
        bound = None if told is None else told * crowds[0].bandwidth_bytes_s
        found[name] = fmean(
            simulated("fair", crowd, bound, [number], steps=steps)
            for number, crowd in enumerate(crowds)
        )
    return found


def variants(table: Any, only: str) -> Iterator[tuple[str, float, Any]]:
    """Each number halved and doubled: field, value, and the whole table with it."""
    for field in fields(table):
        value = getattr(table, field.name)
        if only not in field.name or not isinstance(value, int | float):
            continue
        for factor in (0.5, 2.0):
            kind = type(value)
            varied = kind(value * factor) if kind is float else max(1, int(value * factor))
            if varied != value:
                yield field.name, varied, replace(table, **{field.name: varied})


def moved(before: Mapping[str, float], after: Mapping[str, float], above: float) -> str:
    """The cells that moved, each with its change."""
    changes = {name: after[name] / before[name] - 1.0 for name in before}
    far = [f"{name} {part:+.1%}" for name, part in changes.items() if abs(part) > above]
    return f"{fmean(changes.values()):+.1%} ({'; '.join(far) or 'none'})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("table", nargs="?", default="tidegate.policies.bottleneck:FINDER")
    parser.add_argument("--field", default="", help="only fields whose name contains this")
    parser.add_argument("--cell", default="", help="only cells whose name contains this")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--above", type=float, default=0.01)
    given = parser.parse_args()
    module_name, _, name = given.table.partition(":")
    module = importlib.import_module(module_name)
    table = getattr(module, name)
    before = cells(given.seeds, given.cell)
    sys.stdout.write(markdown.head("field", "value", "mean change (cells beyond)") + "\n")
    try:
        for field, value, varied in variants(table, given.field):
            setattr(module, name, varied)
            try:
                text = moved(before, cells(given.seeds, given.cell), given.above)
            except ArithmeticError as error:
                text = f"fails: {type(error).__name__}"
            sys.stdout.write(markdown.row(field, f"{value:g}", text) + "\n")
            sys.stdout.flush()
    finally:
        setattr(module, name, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
